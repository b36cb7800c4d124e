"""Alignment on real logs: what each run plans, and how the records that Spark reads are dated."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dagster_kafka_flip.errors import EventTimeUnknownError
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from tests.source.flink.logs import rows_read, transact, write

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
BASE = 1_700_000_000_000
DRIFT = timedelta(minutes=90)
# The slowest is found to a 64th of the drift.
SLACK = 90 * MINUTE // 64


@pytest.fixture
def run(spark, source_of, enumerator_of):
    """One run of a stream: its plan, the records that it reads as (partition, timestamp), and the state after it."""

    def one(builder, state=None, limits=None):
        enumerator = enumerator_of(builder, state)
        plan = enumerator.start()
        assignment = enumerator.assign(limits or Limits())
        columns = ("partition", "unix_millis(timestamp)")
        rows = rows_read(spark, source_of(builder), assignment, *columns) if assignment.plan.splits else []
        return plan, rows, enumerator.snapshot_state()

    return one


def test_a_topic_partition_a_day_ahead_waits_for_the_others_and_is_then_read_with_them(kafka, run, topic):
    kafka.create(topic, partitions=4)
    # Two that advance with each run; one with a day's records from tomorrow on; one that never has a record.
    ahead = [BASE + DAY + hour * HOUR for hour in range(24)]
    write(kafka, topic, {2: ahead})
    builder = KafkaSource.builder().set_topics(topic).set_watermark_alignment(DRIFT)
    state, watermarks, read_ahead = None, [], []
    for hours in ((0, 8), (8, 16), (16, 26), (26, 30), (30, 38)):
        # The second one is always a quarter of an hour behind the first.
        new = [BASE + hour * HOUR for hour in range(*hours)]
        write(kafka, topic, {0: new, 1: [timestamp - HOUR // 4 for timestamp in new]})
        plan, rows, state = run(builder, state)
        slowest = new[-1] - HOUR // 4
        assert [row for row in rows if row[0] == 0] == [(0, timestamp) for timestamp in new], "nobody waits for it"
        assert [row for row in rows if row[0] == 1] == [(1, timestamp - HOUR // 4) for timestamp in new]
        read_ahead += [timestamp for partition, timestamp in rows if partition == 2]
        assert read_ahead == [timestamp for timestamp in ahead if timestamp <= slowest + 90 * MINUTE]
        assert plan.paused.get(next(tp for tp in plan.end_offsets if tp.partition == 2)) == 24 - len(read_ahead)
        assert slowest - SLACK <= state.watermark <= slowest
        watermarks.append(state.watermark)
    assert watermarks == sorted(watermarks)
    assert 0 < len(read_ahead) < 24
    # With nothing new on the others, they are idle and hold nobody back.
    plan, rows, state = run(builder, state)
    assert rows == [(2, timestamp) for timestamp in ahead[len(read_ahead) :]]
    assert plan.paused == {}
    assert ahead[-1] - SLACK <= state.watermark <= ahead[-1]
    # One that comes back with older records is read, and the low watermark stays.
    before = state.watermark
    write(kafka, topic, {3: [BASE, BASE + 1]})
    _, rows, state = run(builder, state)
    assert rows == [(3, BASE), (3, BASE + 1)]
    assert state.watermark == before


def test_a_topic_written_in_transactions_is_not_aligned_by_its_markers(kafka, cluster, run, topic):
    # The broker dates markers by its own clock, years behind BASE, and finds them by time like records.
    kafka.create(topic, partitions=2)
    write(kafka, topic, {0: [BASE]})
    transact(kafka, cluster, topic, {1: [BASE, BASE + HOUR]})
    builder = KafkaSource.builder().set_topics(topic).set_watermark_alignment(DRIFT)
    with pytest.raises(EventTimeUnknownError) as error:
        run(builder)
    assert str(error.value) == (
        f"{topic}-1: the lookup by timestamp returned offset 2, which holds a transaction marker (dated by the "
        "broker's clock) or a record of an aborted transaction. The topic's event time is unknown. Remove its "
        "max_drift to read it"
    )
    _, rows, _ = run(KafkaSource.builder().set_topics(topic))
    assert rows == [(0, BASE), (1, BASE), (1, BASE + HOUR)]
