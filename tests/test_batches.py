"""What a run does at once, on the real broker: limits in bytes, batches by time, alignment, and who reads what."""

from __future__ import annotations

import pytest

from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from tests import landed as read_back

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def land(connection, spark_of, table):
    def run(source, **options):
        return ingest(source, table, spark=spark_of, connection=connection, **options)

    return run


@pytest.fixture
def offsets(spark, table):
    """Topic partition number to the offsets that are in the test's table, in order."""

    def read():
        found: dict[int, list[int]] = {}
        for partition, offset in read_back.rows(table, "kafka_partition", "kafka_offset"):
            found.setdefault(partition, []).append(offset)
        return found

    return read


def test_a_limit_in_bytes_is_kept_by_what_was_read_before(kafka, land, offsets, topic):
    kafka.create(topic, partitions=2)
    # 110 bytes each: a key of 10 and a value of 100.
    kafka.produce(topic, [("k" * 10, "v" * 100)] * 30)
    kafka.produce(topic, [("k" * 10, "v" * 100)] * 10, partition=1)
    source = KafkaSource(topics=(topic,))
    first = land(source, limits=Limits(max_bytes_per_batch=2200))
    # One record, because its size is unknown; then as many as fit.
    assert [batch.observed.bytes for batch in first.batches] == [110, 2200, 2090]
    assert first.known.record_bytes == 110
    assert offsets() == {0: list(range(30)), 1: list(range(10))}

    kafka.produce(topic, [("k" * 10, "v" * 1000)] * 4)
    second = land(source, limits=Limits(max_bytes_per_batch=330), known=first.known)
    # Three records by the average of the run before; then one, by that of the batch before.
    assert [batch.plan.offset_span for batch in second.batches] == [3, 1]
