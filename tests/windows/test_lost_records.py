"""A window that would lose a record that the table has is not landed, whatever took the record."""

from __future__ import annotations

import pytest

from dagster_kafka_flip.errors import WindowBeyondRetentionError
from dagster_kafka_flip.formats.string import StringFormat
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.window import Windows
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed
from tests.kafka_topic import committed_records
from tests.processes import wait_until
from tests.windows.conftest import HOUR, START, hours

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def refused(rewrite):
    """Lands windows, and returns why that is refused."""

    def run(windows, **options):
        with pytest.raises(WindowBeyondRetentionError) as error:
            rewrite(windows, **options)
        return str(error.value)

    return run


def test_what_compaction_took_stays_in_the_table_also_when_the_topic_is_no_longer_compacted(
    kafka, rewrite, refused, connection, spark_of, table, topic
):
    kafka.create(topic, segment_ms="60000", min_cleanable_dirty_ratio="0.001")
    value = '{{"at": "2013-03-01T00:0{}:00Z"}}'
    kafka.produce(topic, [(f"k{n % 3}", value.format(n)) for n in range(10)], timestamp=START + 60_000)

    def of(name, **options):
        return {"target": DeltaTarget(table=f"{table}-{name}"), **options}

    ways = {"by time": of("time"), "repair": of("stream", rules=Windows(repair=True))}
    stream = ways["repair"]["target"]
    ingest(KafkaSource(topics=(topic,)), stream, spark=spark_of, connection=connection, value_format=StringFormat())
    rewrite(hours(0, 1), **ways["by time"])
    kafka.configure(topic, cleanup_policy="compact")
    # It opens a new segment, so that those before it can be compacted.
    kafka.produce(topic, [("k0", value.format(0))], timestamp=START + 24 * HOUR)
    wait_until(lambda: len(committed_records(connection, topic)) == 4, seconds=60)
    kafka.configure(topic, cleanup_policy="delete")
    of_records = f"would lose 7 records (first {topic}-0 offset 0) of the windows from 2013-03-01T00:00:00Z to "
    for options in ways.values():
        where = options["target"].table
        assert f"the table {where} {of_records}2013-03-01T01:00:00Z: they are no" in refused(hours(0, 1), **options)
        assert landed.count(where) == 10
        [result] = rewrite(hours(0, 1), **options, tolerate=(WindowBeyondRetentionError,))
        assert [(each.error, each.lost_offsets) for each in result.plan.incidents] == [
            ("WindowBeyondRetentionError", 7)
        ]
        assert landed.count(where) == 3
        assert '"lost_offsets":7' in landed.history(where)[0]["userMetadata"]
        # The table has what the log has now.
        [result] = rewrite(hours(0, 1), **options)
        assert result.plan.incidents == ()
