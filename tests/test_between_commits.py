"""What others do between a run's commits, and what fails behind one: no run ends for what is over."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest
from pyspark.errors import PySparkException

from dagster_kafka_flip.errors import (
    ConcurrentIngestionError,
    SchemaMismatchError,
    StreamOverlapError,
    WriteFailedError,
)
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.ingestion.dead_letter_table import DeadLetterTable
from dagster_kafka_flip.ingestion.ingest import ingest, run_stream
from dagster_kafka_flip.ingestion.observation import BatchObservation
from dagster_kafka_flip.ingestion.run_spec import RunSpec
from dagster_kafka_flip.ingestion.several_tables import TableRun, ingest_tables
from dagster_kafka_flip.ingestion.stream_plan import StreamPlanner
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.table_writer import TableWriter
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def land(connection, spark_of, topic, table):
    """A run of the stream."""

    def run(**options):
        return ingest(KafkaSource(topics=(topic,)), table, spark=spark_of, connection=connection, **options)

    return run


@pytest.fixture
def offsets(spark, table):
    """The offsets of a table's rows."""

    def read(path=table):
        return landed.values(path, "kafka_offset")

    return read


@pytest.fixture
def conflicts(monkeypatch):
    """Lets the first writes of each batch meet somebody else's change; gives the number of those that did."""

    def meet(times, *, also=lambda: None):
        original, met = TableWriter._append, dict[object, int]()

        def append(self, rows, document):
            batch = tuple(document.splits)
            if met.get(batch, 0) < times:
                met[batch] = met.get(batch, 0) + 1
                also()
                msg = "[DELTA_METADATA_CHANGED] MetadataChangedException: The metadata of the table has been changed"
                raise PySparkException(msg)
            original(self, rows, document)

        monkeypatch.setattr(TableWriter, "_append", append)
        return lambda: sum(met.values())

    return meet


@pytest.fixture
def before(monkeypatch):
    """Lets others do something once, just before a method is called."""

    def do(owner, method, something):
        original, left = getattr(owner, method), [something]

        def call(self, *args):
            if left:
                left.pop()()
            return original(self, *args)

        monkeypatch.setattr(owner, method, call)

    return do


def test_a_start_that_an_earlier_try_has_committed_from_by_the_time_of_plan_or_write_is_not_used_again(
    kafka, connection, spark_of, offsets, topic, table, before
):
    def run(run_id, start=None):
        spec = RunSpec(
            source=KafkaSource(topics=(topic,)).connected(connection),
            target=DeltaTarget(table=table),
            spark=spark_of,
            decoder=Decoder.of(None, None, None),
            limits=Limits(),
            log=logging.getLogger(__name__),
            tolerated=frozenset({ConcurrentIngestionError}),
            run_id=run_id,
            tries=frozenset({f"{run_id[:5]} try", run_id}),
        )
        return run_stream(spec, known=None, verify_after=timedelta(0), starting_offsets=start)

    kafka.create(topic)
    kafka.produce(topic, [(None, "x")] * 3)
    run("before")
    # As a server does that lost the first try's client, and goes on writing.
    start = OffsetsInitializer.earliest()
    for number, (owner, method) in enumerate([(TableWriter, "commit"), (StreamPlanner, "plan")], 2):
        before(owner, method, lambda number=number: run(f"run {number} try", start))
        run(f"run {number} again", start)
        assert offsets() == sorted([0, 1, 2] * number)


def test_values_are_not_converted_to_a_type_that_another_stream_gave_the_column_before_the_write(
    kafka, connection, spark_of, topic, table, before
):
    def land(name, schema):
        target = DeltaTarget(table=table, stream=name, schema_evolution=True)
        source, values = KafkaSource(topics=(f"{topic}-{name}",)), JsonFormat(schema)
        return ingest(source, target, spark=spark_of, connection=connection, value_format=values)

    for name, value in (("numbers", '{"code": 7}'), ("texts", '{"code": "007"}')):
        kafka.create(f"{topic}-{name}")
        land(name, "note STRING")
        kafka.produce(f"{topic}-{name}", [(None, value)])
    before(TableWriter, "commit", lambda: land("numbers", "note STRING, code INT"))
    with pytest.raises(SchemaMismatchError, match="the column code is int in the table and string in the batch"):
        land("texts", "note STRING, code STRING")
    assert landed.values(table, "code") == [7]


def test_runs_that_fail_while_they_plan_or_write_leave_no_connection_to_kafka_open(
    kafka, connection, spark_of, topic, table, conflicts, monkeypatch
):
    source = KafkaSource(topics=(topic,)).connected(connection)

    def run(target):
        decoder, log = Decoder.of(None, None, KafkaColumns()), logging.getLogger()
        return TableRun(
            RunSpec(source=source, target=target, spark=spark_of, decoder=decoder, limits=Limits(), log=log)
        )

    def land(**tables):
        return ingest_tables(tables, verify_after=timedelta(hours=1), log=logging.getLogger()).failures

    kafka.create(topic)
    kafka.produce(topic, [(None, "x")] * 3)
    first, other = (DeltaTarget(table=table, stream=stream) for stream in ("main", "other"))
    assert land(main=run(first)) == {}
    opened: list[KafkaCluster] = []
    original = KafkaCluster.__init__

    def opening(self, *arguments, **options):
        original(self, *arguments, **options)
        opened.append(self)

    monkeypatch.setattr(KafkaCluster, "__init__", opening)
    kafka.produce(topic, [(None, "x")])
    conflicts(9)
    failures = land(main=run(first), other=run(other))
    assert {name: type(error) for name, error in failures.items()} == {
        "main": WriteFailedError,
        "other": StreamOverlapError,
    }
    with pytest.raises(StreamOverlapError):
        ingest(KafkaSource(topics=(topic,)), other, spark=spark_of, connection=connection)
    assert len(opened) > 3
    assert [cluster for cluster in opened if vars(cluster)["_open_client"] is not None] == []


def test_any_failure_after_the_commit_is_reported_with_the_unknown_values(
    kafka, land, offsets, topic, table, monkeypatch, caplog
):
    kafka.create(topic)
    kafka.produce(topic, [(None, '{"n": 1}'), (None, "bad")])
    options = {"value_format": JsonFormat(schema="n BIGINT"), "dead_letter": f"{table}-dead"}
    land(**options)
    kafka.produce(topic, [(None, '{"n": 2}')])
    original = TableWriter._append

    def append(self, rows, document):
        original(self, rows, document)

        def fail(*_, **__):
            raise RuntimeError("Spark is gone")

        for kind, name in (
            (DeltaTable, "count_rows"),
            (DeltaTable, "kept_until"),
            (DeltaTable, "location"),
            (DeadLetterTable, "finish"),
            (BatchObservation, "get"),
            (KafkaSourceEnumerator, "notify_checkpoint_complete"),
            (KafkaSourceEnumerator, "close"),
        ):
            monkeypatch.setattr(kind, name, fail)

    monkeypatch.setattr(TableWriter, "_append", append)
    # Dead letters are looked for where nothing is known of the batch; that is no telling, and may fail.
    monkeypatch.setattr(DeadLetterTable, "settle", lambda *_: None)
    result = land(**options)
    assert (result.rows, result.known.table_rows, result.records, result.rejected_records) == (1, 2, None, None)
    assert result.known.dead_letters_pending
    assert result.group_commit_failures == 1
    assert result.unknown == "Spark's count of them can't be read: RuntimeError: Spark is gone"
    assert "the run's commits are not affected" in caplog.text
    monkeypatch.undo()
    assert offsets() == [0, 2]
