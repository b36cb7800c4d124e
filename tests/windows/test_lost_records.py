"""A window that would lose a record that the table has is not landed, whatever took the record."""

from __future__ import annotations

from datetime import timedelta

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

    ways = {
        "by time": of("time"),
        "repair": of("stream", rules=Windows(repair=True)),
    }
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


def test_records_that_a_run_would_leave_out_stay_and_rows_that_it_would_not_make_any_more_go(
    kafka, rewrite, refused, rows, spark, table, topic
):
    kafka.create(topic)
    for hour in (0.5, 2.5, 0.6):
        kafka.produce(topic, [(None, str(hour))], timestamp=int(START + hour * HOUR))
    late = Windows(max_lateness=timedelta(hours=3))
    rewrite(hours(0, 1), rules=late)
    assert f"would lose 1 record (first {topic}-0 offset 2) of the windows" in refused(hours(0, 1))
    assert refused(hours(0, 1)).endswith("tolerate WindowBeyondRetentionError")
    # Also where other windows' ranges reach as far.
    assert "would lose 1 record" in refused(hours(0, 3))
    # The record is there, and a transform decides about its rows.
    [result] = rewrite(hours(0, 1), rules=late, transform=lambda records: records.where("kafka_value = '0.5'"))
    assert (result.plan.incidents, [row[3] for row in rows()]) == ((), ["0.5"])
    rewrite(hours(0, 1), rules=late)
    # What others wrote or deleted is no record of the log: a window has what the log has.
    spark.sql(f"DELETE FROM delta.`{table}` WHERE kafka_value = '0.6'")
    spark.sql(
        f"INSERT INTO delta.`{table}` (kafka_window, kafka_topic, kafka_value) VALUES ('h000', '{topic}', 'mine')"
    )
    rewrite(hours(0, 1), rules=late)
    assert [row[3] for row in rows()] == ["0.5", "0.6"]
