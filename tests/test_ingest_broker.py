"""ingest() on a real broker, real Spark and real Delta: what arrives, what is refused, and that nothing is lost."""

from __future__ import annotations

import socket
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from dagster_kafka_flip.errors import (
    ClusterUnreachableError,
    ConfigurationError,
    RecordsRejectedError,
    TopicNotFoundError,
    WriteFailedError,
)
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.string import StringFormat
from dagster_kafka_flip.ingestion.facts import stream_facts
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.table.known_position import KnownPosition
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed as read

pytestmark = pytest.mark.kafka


def _source(*topics):
    return KafkaSource.builder().set_topics(*topics)


@pytest.fixture
def land(connection, spark_of, table):
    """Runs ingest() of a source into the test's table."""

    def run(source, **options):
        return ingest(source.build(), options.pop("into", table), spark=spark_of, connection=connection, **options)

    return run


@pytest.fixture
def landed(spark, table):
    """Rows of the test's table, as sorted tuples of some of its columns."""

    def read(*columns):
        rows = spark.read.format("delta").load(table).selectExpr(*columns).collect()
        return sorted(tuple(row) for row in rows)

    return read


@pytest.fixture
def version(table):
    """The test's table's newest version."""
    return lambda: read.version(table)


def _no_spark():
    pytest.fail("Spark was asked for")


@pytest.mark.spark
def test_records_without_a_timestamp_are_no_time_that_a_run_has_reached(kafka, land, topic):
    kafka.create(topic, partitions=2)
    kafka.produce(topic, [(None, "x")] * 2, timestamp=-1)
    timeless = land(_source(topic))
    assert (timeless.records, timeless.watermark) == (2, None)
    assert {"kafka/watermark", "seconds/end_to_end_delay"}.isdisjoint(stream_facts(timeless))
    kafka.produce(topic, [(None, "x")], timestamp=-1)
    kafka.produce(topic, [(None, "x")], partition=1, timestamp=1_700_000_000_123)
    assert land(_source(topic)).watermark == 1_700_000_000_123


@pytest.mark.spark
def test_records_of_two_topics_arrive_byte_for_byte(kafka, land, landed, topic, spark, table):
    first, second = f"{topic}-a", f"{topic}-b"
    kafka.create(first, partitions=3, max_message_bytes="8000000")
    kafka.create(second)
    every_byte = bytes(range(256))
    large = every_byte * (5 * 1024 * 1024 // 256)
    kafka.produce(first, [(None, every_byte), (b"", b""), ("tombstone", None)], timestamp=1_700_000_000_123)
    headers = [("h", b"\x00\xff"), ("h", None), ("g", "text"), ("h", b"again")]
    kafka.produce(first, [("large", large)], partition=2, headers=headers)
    kafka.produce(second, [(every_byte, "ü")])
    result = land(_source(second, first))

    assert (result.rows, result.records, result.lag_after, len(result.batches)) == (5, 5, 0, 1)
    assert result.state.position == {
        TopicPartition(first, 0): 3,
        TopicPartition(first, 1): 0,
        TopicPartition(first, 2): 1,
        TopicPartition(second, 0): 1,
    }
    observed = result.batches[0].observed
    assert (observed.bytes, observed.rejected) == (256 + 9 + 5 + len(large) + 256 + 2, 0)
    assert observed.highest_timestamps is not None
    assert observed.highest_timestamps[TopicPartition(first, 0)] == 1_700_000_000_123
    rows = landed("kafka_topic", "kafka_partition", "kafka_offset", "kafka_key", "kafka_value")
    assert [(*row[:4], None if row[4] is None else bytes(row[4])) for row in rows] == [
        (first, 0, 0, None, every_byte),
        (first, 0, 1, b"", b""),
        (first, 0, 2, b"tombstone", None),
        (first, 2, 0, b"large", large),
        (second, 0, 0, every_byte, "ü".encode()),
    ]
    ((found,),) = spark.read.format("delta").load(table).where("kafka_partition = 2").select("kafka_headers").collect()
    assert [(header["key"], header["value"]) for header in found] == [
        ("h", b"\x00\xff"),
        ("h", None),
        ("g", b"text"),
        ("h", b"again"),
    ]
    assert set(landed("unix_millis(kafka_timestamp) > 0", "kafka_timestamp_type")) == {(True, 0)}


@pytest.mark.spark
def test_only_committed_transactions_are_read_and_an_open_one_when_it_commits(kafka, land, landed, topic):
    kafka.create(topic)
    tp = TopicPartition(topic, 0)
    kafka.produce(topic, [(None, "plain")])
    kafka.open_transaction(topic, [(None, "aborted")] * 2).abort()
    kafka.open_transaction(topic, [(None, "committed")] * 2).commit()
    opened = kafka.open_transaction(topic, [(None, "open")] * 3)
    kafka.produce(topic, [(None, "behind")])
    source = _source(topic)
    first = land(source, value_format=StringFormat())
    # plain at 0; aborted at 1, 2 and its marker at 3; committed at 4, 5 and its marker at 6; open from 7; behind at 10.
    assert landed("kafka_offset", "kafka_value") == [(0, "plain"), (4, "committed"), (5, "committed")]
    assert (first.rows, first.records, first.state.position) == (3, 3, {tp: 7})
    assert (first.lag_after, first.plan.held_back) == (0, {tp: 4})
    assert land(source, value_format=StringFormat()).is_idle

    uncommitted = land(
        source.set_isolation_level("read_uncommitted"),
        value_format=StringFormat(),
        into=DeltaTarget(table=f"{first.location}-uncommitted"),
    )
    assert (uncommitted.rows, uncommitted.state.position, uncommitted.plan.held_back) == (9, {tp: 11}, {})

    opened.commit()
    second = land(source, value_format=StringFormat())
    assert (second.rows, second.state.position) == (4, {tp: 12})
    assert landed("kafka_offset", "kafka_value")[3:] == [(7, "open"), (8, "open"), (9, "open"), (10, "behind")]


@pytest.mark.spark
def test_a_run_is_cut_into_commits_and_one_that_dies_half_way_is_gone_on_with(kafka, land, landed, version, topic):
    kafka.create(topic, partitions=2)
    kafka.produce(topic, [(None, str(number)) for number in range(8)])
    kafka.produce(topic, [(None, str(number)) for number in range(4)], partition=1)
    t0, t1 = TopicPartition(topic, 0), TopicPartition(topic, 1)

    first = land(_source(topic), limits=Limits(max_records_per_batch=3, max_batches=2))
    assert [batch.committed.rows for batch in first.batches] == [3, 3]
    assert (first.rows, first.lag_after, first.state.position) == (6, 6, {t0: 4, t1: 2})
    assert [batch.committed.version for batch in first.batches] == [1, 2]
    assert first.known.table_rows == 6

    calls = []

    def dies_the_second_time(records):
        calls.append(records)
        if len(calls) == 2:
            msg = "the machine was switched off"
            raise RuntimeError(msg)
        return records

    with pytest.raises(RuntimeError, match=r"switched off"):
        land(_source(topic), transform=dies_the_second_time, limits=Limits(max_records_per_batch=3))
    assert version() == 3
    third = land(_source(topic), limits=Limits(max_records_per_batch=100))
    assert (third.rows, third.state.position, third.known.table_rows) == (3, {t0: 8, t1: 4}, 12)
    assert landed("kafka_partition", "kafka_offset") == [(0, n) for n in range(8)] + [(1, n) for n in range(4)]


class _AskedForSparkError(Exception):
    pass


def test_a_known_position_is_believed_only_when_it_is_this_streams_and_fresh(kafka, connection, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [(None, "x")] * 3)
    source = _source(topic).build()
    state = source.connected(connection).create_enumerator(SplitEnumeratorContext()).start().state
    now = datetime.now(tz=timezone.utc)

    def ask():
        raise _AskedForSparkError

    def known(**changes):
        values: dict[str, Any] = {
            "stream": "main",
            "table": table,
            "state": state,
            "verified_at": now,
            "table_version": 4,
        }
        return KnownPosition(**{**values, **changes})

    def run(spark=ask, **options):
        return ingest(source, table, spark=spark, connection=connection, **options)

    idle = run(known=known(table_rows=17), spark=_no_spark)
    assert (idle.is_idle, idle.started_spark, idle.rows, idle.records, idle.lag_after) == (True, False, 0, 0, 0)
    # There is no log of the table that would show how many rows it has now.
    assert idle.known == known(table_rows=None)
    assert idle.location == Path(table).as_uri()

    tp = TopicPartition(topic, 0)
    for options in (
        {},
        {"known": known(stream="another")},
        {"known": known(table=f"{table}-another")},
        {"known": known(verified_at=now - timedelta(hours=25))},
        {"known": known(verified_at=now + timedelta(hours=1))},
        {"known": known(verified_at=now - timedelta(hours=2)), "verify_after": timedelta(hours=1)},
        {"known": known(), "verify_after": timedelta(0)},
        {"known": known(), "starting_offsets": OffsetsInitializer.latest()},
        # What does not fit the log is no reason to stop: the copy may be wrong. The table is asked.
        {"known": known(state=type(state)({tp: 99}, state.cluster_id, state.topic_ids))},
        {"known": known(state=type(state)({tp: 3}, "another cluster", state.topic_ids))},
        {"known": known(state=type(state)({tp: 2}, state.cluster_id, state.topic_ids))},
        {"known": known(state=type(state)({}, state.cluster_id, state.topic_ids))},
    ):
        with pytest.raises(_AskedForSparkError):
            run(**options)
    kafka.grow(topic, 2)
    with pytest.raises(_AskedForSparkError):
        run(known=known())


_FLIGHTS = JsonFormat("carrier STRING NOT NULL, flight INT")


@pytest.mark.spark
def test_a_transform_filters_and_renames_and_one_that_keeps_nothing_still_moves_the_position(
    kafka, land, landed, topic
):
    kafka.create(topic)
    kafka.produce(topic, [(None, f'{{"carrier": "{c}", "flight": 1}}') for c in ("AA", "XX", "BB")])

    def no_xx(records):
        return records.where("carrier <> 'XX'").selectExpr("upper(carrier) AS who", "kafka_offset AS at")

    first = land(_source(topic), value_format=_FLIGHTS, transform=no_xx)
    assert (first.records, first.rows, first.known.table_rows) == (3, 2, 2)
    assert first.columns == (("who", "string"), ("at", "bigint"))
    assert landed("who", "at") == [("AA", 0), ("BB", 2)]

    kafka.produce(topic, [(None, '{"carrier": "CC"}')] * 2)
    second = land(_source(topic), value_format=_FLIGHTS, transform=lambda records: no_xx(records.where("flight > 99")))
    assert (second.rows, second.records, second.state.position) == (0, 2, {TopicPartition(topic, 0): 5})
    assert land(_source(topic), value_format=_FLIGHTS, transform=no_xx).is_idle


# Each of them would let the rejected record go unseen if it ran before the check.
_HIDING = {
    "a filter on the decoded field": lambda records: records.where("carrier <> 'XX'").select("carrier"),
    "dropped columns": lambda records: records.select("kafka_offset"),
    "an aggregate": lambda records: records.groupBy("kafka_topic").count(),
}


@pytest.mark.spark
@pytest.mark.parametrize("transform", _HIDING.values(), ids=_HIDING.keys())
def test_a_transform_can_not_hide_a_rejected_record(kafka, land, version, broken_flights, transform):
    with pytest.raises(RecordsRejectedError) as error:
        land(_source(broken_flights), value_format=_FLIGHTS, transform=transform)
    name = broken_flights
    assert str(error.value) == (
        f"6 records can't be decoded: "
        f"{name}-0 offset 1: not a JSON object; {name}-0 offset 2: "
        f"not valid JSON; {name}-0 offset 3: the required field carrier is "
        f"missing or null; {name}-1 offset 0: not a JSON object; {name}-1 offset 1: not valid UTF-8; and 1 more. "
        "Nothing was written. Correct the format or its schema; or send such records to a separate table with "
        "dead_letter=, or keep them "
        "with their bytes and the error with on_error='null'"
    )
    assert error.value.__cause__ is None
    assert version() == 0, "the table was made, and nothing was written to it"


@pytest.fixture(scope="module")
def broken_flights(kafka):
    """One good record, and six that each break another rule of `_FLIGHTS`."""
    kafka.create("broken-flights", partitions=2)
    kafka.produce("broken-flights", [(None, v) for v in ('{"carrier": "AA", "flight": 1}', "", "{", "{}")])
    kafka.produce(
        "broken-flights",
        [(None, v) for v in ("[1]", b'{"carrier": "\xff"}', '{"carrier": "A", "flight": "x"}')],
        partition=1,
    )
    return "broken-flights"


@pytest.mark.spark
def test_a_rejected_record_of_a_later_run_leaves_the_table_as_it_is(kafka, land, landed, version, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [(None, '{"carrier": "AA"}')])
    land(_source(topic), value_format=_FLIGHTS)
    kafka.produce(topic, [(None, '{"carrier": "BB"}'), (None, "secret nonsense")])
    with pytest.raises(RecordsRejectedError) as error:
        land(_source(topic), value_format=_FLIGHTS)
    assert str(error.value).startswith(
        f"1 record can't be decoded: {topic}-0 offset 2: not a JSON object. Nothing was written. Correct the format"
    )
    assert "secret nonsense" not in str(error.value)
    assert (version(), landed("carrier")) == (1, [("AA",)])

    kept = land(
        _source(topic),
        value_format=JsonFormat("carrier STRING NOT NULL, flight INT", on_error="null"),
        into=DeltaTarget(table=table, schema_evolution=True),
    )
    observed = kept.batches[0].observed
    assert (kept.rows, observed.records, observed.rejected) == (2, 2, 1)
    assert landed("kafka_offset", "carrier", "kafka_rejected_value", "kafka_error") == [
        (0, "AA", None, None),
        (1, "BB", None, None),
        (2, None, b"secret nonsense", "not a JSON object"),
    ]


def test_a_wrong_address_or_topic_is_reported_before_spark_is_started_and_leaves_no_table(connection, broker, table):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        nowhere = KafkaConnection(bootstrap_servers=address, request_timeout=1)
        with pytest.raises(ClusterUnreachableError, match=rf"^Kafka at {address} did not return .* within 1 s"):
            ingest(_source("any").build(), table, spark=_no_spark, connection=nowhere)
    with pytest.raises(TopicNotFoundError) as error:
        ingest(_source("not-there").build(), table, spark=_no_spark, connection=connection)
    assert str(error.value) == (
        f"the topic not-there does not exist on {broker}, or this client may not describe it. Nothing was written. "
        "Check the name, create "
        "it, or remove it from the source"
    )
    assert not Path(table).exists()


@pytest.mark.spark
def test_a_description_that_can_not_work_leaves_no_table(kafka, land, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [(None, "{}")])
    for options, kind, message in (
        (
            {"value_format": JsonFormat("carrier INT DEFAULT 3")},
            ConfigurationError,
            "Spark can't parse the JsonFormat's schema 'carrier INT DEFAULT 3': ",
        ),
        (
            {"transform": lambda records: None},
            ConfigurationError,
            "the transform must return a Spark DataFrame, but returned None; end it with `return`",
        ),
        (
            {"transform": lambda records: records.toPandas()},
            ConfigurationError,
            "the transform must return a Spark DataFrame, but returned pandas.core.frame.DataFrame",
        ),
        (
            {"transform": lambda records: records["kafka_offset"]},
            ConfigurationError,
            "the transform must return a Spark DataFrame, but returned pyspark.sql.classic.column.Column",
        ),
        (
            {"transform": lambda records: records.selectExpr("*", "1 AS Kafka_Offset")},
            ConfigurationError,
            "the transform returned two columns 'Kafka_Offset'; column names in Spark and Delta are case-insensitive. ",
        ),
        (
            # Also where its columns would do: the table would be theirs for good.
            {"transform": lambda records: records.sparkSession.readStream.format("rate").load()},
            ConfigurationError,
            "the transform returned a streaming DataFrame; build the rows from the given records",
        ),
        (
            {"value_format": JsonFormat("Kafka_Topic STRING")},
            ConfigurationError,
            "two columns would be named 'kafka_topic': one comes from the value, one from the record itself. Rename ",
        ),
        (
            {"into": DeltaTarget(table=table, partition_by=("nowhere",))},
            ConfigurationError,
            f"partition_by: the rows of {table} have no column 'nowhere'; columns: kafka_value, ",
        ),
    ):
        with pytest.raises(kind) as error:
            land(_source(topic), **options)
        assert str(error.value).startswith(message)
        assert not Path(table).exists()


@pytest.mark.spark
def test_a_transform_runs_in_this_python_and_its_error_is_named(kafka, land, landed, spark, topic, monkeypatch):
    kafka.create(topic)
    kafka.produce(topic, [(None, "x")])

    def with_interpreter(records):
        from pyspark.sql import functions as f

        @f.udf("string")
        def interpreter(_):
            import sys

            return sys.executable

        return records.select("kafka_offset", interpreter("kafka_offset").alias("interpreter"))

    land(_source(topic), transform=with_interpreter)
    assert landed("interpreter") == [(sys.executable,)]

    def broken(records):
        from pyspark.sql import functions as f

        @f.udf("string")
        def breaks(_):
            # Spark's own of this name would be tried again.
            raise ValueError("TimeoutException by hand")

        return records.select("kafka_offset", breaks("kafka_offset").alias("interpreter"))

    kafka.produce(topic, [(None, "y")])
    found = r"PythonException: ValueError: TimeoutException by hand\. Nothing of it was committed$"
    with pytest.raises(WriteFailedError, match=found) as failed:
        land(_source(topic), transform=broken)
    # A run's log shows the function's own trace.
    assert "in breaks" in str(failed.value.__cause__)

    def lacking(records):
        from pyspark.sql import functions as f

        @f.udf("string")
        def needs(_):
            import importlib

            return importlib.import_module("no_such_module").__name__

        return records.select("kafka_offset", needs("kafka_offset").alias("interpreter"))

    with pytest.raises(WriteFailedError, match=r"'no_such_module'\. Nothing .*\. The Python of Spark's tasks lacks"):
        land(_source(topic), transform=lacking)

    # As PYSPARK_PYTHON names it, which the machines of a cluster may not have.
    monkeypatch.setattr(spark.sparkContext, "pythonExec", "/no/such/python")
    with pytest.raises(WriteFailedError, match=r"can't start the Python .* needs: /no/such/python\. Install it"):
        land(_source(topic), transform=with_interpreter)
    assert len(landed("interpreter")) == 1
