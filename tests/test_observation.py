"""What is told of a batch's records: known of the whole batch, or unknown, and never 0 for what Spark did not count."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from dagster_kafka_flip.assets.metadata import result_metadata, windows_metadata
from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.fields import FieldsSeen
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.formats.string import StringFormat
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.ingestion.observation import (
    BatchObservation,
    Observed,
    WholeBatch,
    log_observed,
)
from dagster_kafka_flip.ingestion.rewrite_windows import rewrite_windows
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from dagster_kafka_flip.table.target import DeltaTarget
from tests.windows.conftest import START, hours

_LONG = 3 * (1 << 20) + 17
_SPLITS = (
    KafkaPartitionSplit(TopicPartition("a", 0), 5, 9),
    KafkaPartitionSplit(TopicPartition("b", 1), (1 << 40) - 7, (1 << 40) + 3),
    KafkaPartitionSplit(TopicPartition("c", 0), 0, _LONG),
)


def _answer(offsets, planned_at=100):
    return {"counted": len(offsets), "offsets": sum(o & 0xFFFFF for o in offsets), "planned_at": str(planned_at)}


def _whole(splits=_SPLITS, asked_at: int | None = None) -> WholeBatch:
    whole = WholeBatch(splits)
    whole._asked_at = asked_at
    return whole


_ALL = [offset for split in _SPLITS for offset in range(split.starting_offset, split.stopping_offset)]


@pytest.mark.parametrize("asked_at", [None, 50, 100, 150])
def test_a_count_of_every_offset_is_of_the_whole_batch_whichever_query_made_it(asked_at):
    coverage = _whole(asked_at=asked_at).coverage(_answer(_ALL))
    assert coverage is not None
    assert coverage.unknown is None


def test_fewer_records_than_offsets_are_the_whole_batch_only_if_nothing_can_have_left_some_unread():
    some = _answer(_ALL[:-3])
    assert (known := _whole().coverage(some)) is not None
    assert known.unknown is None
    # After a transform.
    assert (cut := _whole(asked_at=50).coverage(some)) is not None
    assert cut.unknown is not None
    assert "either the log has gaps" in cut.unknown
    assert cut.is_of_the_write


@pytest.mark.parametrize("asked_at", [100, 101])
def test_a_query_that_was_planned_before_the_transform_was_done_is_not_the_write(asked_at):
    coverage = _whole(asked_at=asked_at).coverage(_answer(_ALL[:2]))
    assert coverage is not None
    assert not coverage.is_of_the_write
    assert coverage.unknown is not None
    assert coverage.unknown.startswith("the transform queried its records")


@pytest.mark.parametrize("asked_at", [None, 50])
def test_records_that_were_counted_twice_are_believed_in_no_case(asked_at):
    # Half of the offsets hold a record, and each was read twice.
    splits = (KafkaPartitionSplit(TopicPartition("a", 0), 0, 100),)
    twice = [offset for offset in range(0, 100, 2) for _ in range(2)]
    for offsets in (twice, [*range(100), 7]):
        coverage = _whole(splits, asked_at).coverage(_answer(offsets))
        assert coverage is not None
        assert coverage.unknown is not None
        assert "more than once" in coverage.unknown


def _avro(columns, on_error):
    name, kind = columns.lower().split()
    return AvroFormat({"type": "record", "name": "R", "fields": [{"name": name, "type": kind}]}, on_error=on_error)


@pytest.mark.spark
@pytest.mark.parametrize(("on_error", "carried"), [("fail", set[str]()), ("null", {"key", "value"})])
@pytest.mark.parametrize("value_format", [JsonFormat, _avro])
def test_a_record_is_parsed_once_and_counted_without_unneeded_bytes(spark, value_format, on_error, carried):
    text = "CAST(CAST(id AS STRING) AS BINARY)"
    records = spark.range(1).selectExpr(
        f"{text} AS key", f"{text} AS value", "'t' AS topic", "0 AS partition", "id AS offset",
        "current_timestamp() AS timestamp", "0 AS timestampType", "id AS window",
    )  # fmt: skip
    columns = KafkaColumns(fields=("offset",))
    decoder = Decoder.of(JsonFormat("k INT", on_error=on_error), value_format("n INT", on_error=on_error), columns)
    staged = BatchObservation(_SPLITS, WholeBatch(_SPLITS)).stage(records, decoder, ("window",))
    assert {"topic", "partition", "offset", "window"} < set(staged.columns)
    assert {"key", "value", "headers", "timestampType"} & set(staged.columns) == carried
    decoder.finish(staged, carry={"window": "w"}).createOrReplaceTempView("parsed_once")
    plan = spark.sql("EXPLAIN TABLE parsed_once").first()[0]
    # Once for keys, and once for values.
    assert len(re.findall(r"decode_\w+\.invoke\(", plan)) == 2


def test_missing_counts_are_unknown_and_an_empty_batch_is_known():
    assert _whole().coverage({}) is None
    assert (empty := _whole(()).coverage({})) is not None
    assert empty.unknown is None


def test_a_schema_that_does_not_seem_to_fit_is_a_warning_with_the_names(caplog):
    log_observed(logging.getLogger(), Observed(5, 5, 0, fields=FieldsSeen(5, ("Flight",), ("flight",))))
    assert "none of 5 records has Flight; undeclared fields: flight" in caplog.text
    caplog.clear()
    log_observed(logging.getLogger(), Observed(5, 5, 0, fields=FieldsSeen(5, ("delay",), ("note",))))
    assert not caplog.text


def _shows(records):
    records.show(2)
    return records


def _takes_one(records):
    records.limit(1).collect()
    return records


def _caches(records):
    records = records.cache()
    records.count()
    return records


_BAD = 3


@pytest.fixture
def flights(kafka, topic):
    kafka.create(topic, partitions=2)
    for partition in range(2):
        kafka.produce(topic, [(None, '{"n": 1}')] * 40, partition=partition)
    kafka.produce(topic, [(None, "no json")] * _BAD, partition=1)


@pytest.fixture
def land(connection, spark_of, table, topic, tmp_path):
    """Lands the test's topic, with dead letters, and gives the result and what Dagster is told."""

    def run(**options: Any):
        values: dict[str, Any] = {"value_format": JsonFormat("n INT NOT NULL"), "dead_letter": str(tmp_path / "dead")}
        result = ingest(KafkaSource(topics=(topic,)), table, spark=spark_of, connection=connection, **values | options)
        return result, result_metadata(result, None)

    return run


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.usefixtures("flights")
@pytest.mark.parametrize(
    ("transform", "why"),
    [
        (_shows, "the transform queried its records"),
        (lambda records: records.limit(5), "either the log has gaps"),
        (_caches, None),
    ],
)
def test_dead_letters_are_landed_and_counted_whatever_the_transform_does(land, spark, tmp_path, caplog, transform, why):
    with caplog.at_level(logging.WARNING, logger="dagster_kafka_flip"):
        result, metadata = land(transform=transform)
    assert spark.read.format("delta").load(str(tmp_path / "dead")).count() == result.dead_letters == _BAD
    assert result.rejected_records == metadata["kafka/rejected_records"] == _BAD
    assert ("kafka/watermark" in metadata) == (why is None)
    if why is None:
        assert (result.unknown, metadata["kafka/records_read"]) == (None, 80 + _BAD)
    else:
        assert why in metadata["kafka/unknown"]
        assert why in caplog.text
        assert metadata.get("kafka/records_read") != 80 + _BAD


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.usefixtures("flights")
def test_gaps_in_the_log_leave_nothing_unknown_where_no_transform_can_have_left_a_record_unread(
    kafka, land, topic, tmp_path, table
):
    kafka.open_transaction(topic, [(None, '{"n": 1}'), (None, "no json")]).commit()
    kept = {"value_format": JsonFormat("n INT", on_error="null"), "dead_letter": None}
    result, metadata = land(**kept)
    assert (metadata["kafka/records_read"], metadata["kafka/rejected_records"]) == (82 + _BAD, _BAD + 1)
    assert "kafka/unknown" not in metadata
    assert result.watermark is not None

    # With one, it is unknown whether all was counted; what the write itself has read is told.
    for transform in (
        lambda records: records.limit(100),
        lambda records: records.where("n IS NULL OR n >= 0"),
    ):
        kafka.open_transaction(topic, [(None, "no json")]).commit()
        result, metadata = land(**kept, transform=transform)
        assert "kafka/rejected_records" not in metadata
        assert "kafka/watermark" not in metadata
        assert metadata["kafka/records_read"] == 1
        assert "either the log has gaps" in metadata["kafka/unknown"]


@pytest.mark.kafka
@pytest.mark.spark
def test_stragglers_of_windows_are_unknown_where_a_transform_looks(kafka, connection, spark_of, table, topic):
    kafka.create(topic)
    for minute in (5, 200, 30):
        time = START + minute * 60_000
        kafka.produce(topic, [(None, "x")], timestamp=time)

    def rewrite(transform):
        found = rewrite_windows(
            KafkaSource(topics=(topic,)),
            DeltaTarget(table=table, partition_by=("kafka_window",)),
            hours(0, 4),
            spark=spark_of,
            connection=connection,
            definition="hours",
            value_format=StringFormat(),
            transform=transform,
        )
        return windows_metadata(list(found))

    whole = rewrite(lambda records: records)
    assert (whole["kafka/records_read"], whole["kafka/stragglers"]) == (2, 1)
    unknown = rewrite(_takes_one)
    assert "kafka/stragglers" not in unknown
    assert "kafka/rejected_records" not in unknown
    assert "the transform queried its records" in unknown["kafka/unknown"]
