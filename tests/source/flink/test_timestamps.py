"""Times as starts and as stops: before, on, between and after records, in order and not, in trimmed and empty logs."""

from __future__ import annotations

import pytest

from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import TopicPartition
from tests.source.flink.logs import by_number, offsets_read, rows_read, splits_of, write

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

LOGS = {
    0: [1000, 2000, 3000, 4000, 5000],
    1: [1000, 3000, 2000, 5000, 2500, 4000],  # out of order
    2: [500, 1500, 2500, 3500, 4500],  # its head is trimmed
    3: [],
    4: [3000, 3000, 3000],
    5: [2999],
    6: [5000, 4000, 3000, 2000, 1000],  # backwards
    7: [1000, 2000],  # trimmed to its end: empty, with an end offset
}
BEGINNINGS = dict.fromkeys(LOGS, 0) | {2: 2, 7: 2}
TIMES = [1, 1000, 1001, 2000, 2500, 2501, 3000, 4500, 5000, 5001]
READ = [1001, 2500]


def _first(partition, timestamp):
    """The first offset at or after a time; where there is none, the end."""
    log = LOGS[partition]
    offsets = range(BEGINNINGS[partition], len(log))
    return next((offset for offset in offsets if log[offset] >= timestamp), len(log))


@pytest.fixture(scope="module")
def dated(kafka):
    """A topic with LOGS."""
    topic = "timestamps-dated"
    kafka.create(topic, partitions=len(LOGS))
    write(kafka, topic, LOGS)
    for partition, beginning in BEGINNINGS.items():
        if beginning:
            kafka.trim(topic, partition, beginning)
    return topic


def _whole(ranges):
    return {p: list(range(*split)) for p, split in ranges.items() if split[0] < split[1]}


def _not_empty(ranges):
    return {p: split for p, split in ranges.items() if split[0] < split[1]}


@pytest.mark.parametrize("timestamp", TIMES)
def test_a_time_divides_each_log_in_two(spark, source_of, enumerator_of, dated, timestamp):
    builder = KafkaSource.builder().set_topics(dated)
    initializer = OffsetsInitializer.timestamp(timestamp)
    stop, start = (
        enumerator_of(builder.set_bounded(initializer)),
        enumerator_of(builder.set_starting_offsets(initializer)),
    )
    before = {p: (BEGINNINGS[p], _first(p, timestamp)) for p in LOGS}
    behind = {p: (_first(p, timestamp), len(LOGS[p])) for p in LOGS}
    # What is stopped before at one time is started behind at the same: nothing is read twice, nothing left out.
    assert splits_of(stop.start()) == _not_empty(before)
    assert splits_of(start.start()) == _not_empty(behind)
    # Spark reads what splits say: three times show it for these.
    for enumerator, ranges in ((stop, before), (start, behind)) if timestamp in READ else ():
        assert offsets_read(spark, source_of(builder), enumerator.assign(Limits())) == _whole(ranges)


def test_a_record_may_be_dated_later_than_the_run(spark, kafka, source_of, enumerator_of, topic):
    kafka.create(topic, message_timestamp_after_max_ms=str(2**62))
    far = 4_102_444_800_000  # 2100
    write(kafka, topic, {0: [1000, far, 2000]})
    builder = KafkaSource.builder().set_topics(topic)
    latest = enumerator_of(builder)
    latest.start()
    columns = ("offset", "unix_millis(timestamp)")
    assert rows_read(spark, source_of(builder), latest.assign(Limits()), *columns) == [(0, 1000), (1, far), (2, 2000)]
    assert splits_of(enumerator_of(builder.set_bounded(OffsetsInitializer.timestamp(far))).start()) == {0: (0, 1)}
    assert splits_of(enumerator_of(builder.set_starting_offsets(OffsetsInitializer.timestamp(far))).start()) == {
        0: (1, 3)
    }


def test_a_time_that_the_broker_gave_is_found_again(spark, kafka, source_of, enumerator_of, topic):
    kafka.create(topic, message_timestamp_type="LogAppendTime")
    for _ in range(3):
        kafka.produce(topic, [(None, "x")], timestamp=1000)
    builder = KafkaSource.builder().set_topics(topic)
    enumerator = enumerator_of(builder)
    enumerator.start()
    columns = ("offset", "unix_millis(timestamp)", "timestampType")
    rows = rows_read(spark, source_of(builder), enumerator.assign(Limits()), *columns)
    times = [time for _, time, _ in rows]
    assert [kind for *_, kind in rows] == [1, 1, 1]
    assert times == sorted(times)
    assert times[0] > 1000
    for time in times:
        stop = builder.set_bounded(OffsetsInitializer.timestamp(time))
        first = times.index(time)
        assert splits_of(enumerator_of(stop).start()) == ({0: (0, first)} if first else {})


def test_a_trimmed_head_is_where_reading_starts_and_an_empty_log_is_where_it_ends(
    spark, kafka, source_of, enumerator_of, topic
):
    kafka.create(topic, partitions=3)
    write(kafka, topic, {0: [1000] * 5, 1: [1000] * 5})
    kafka.trim(topic, 0, 3)
    kafka.trim(topic, 1, 5)
    builder = KafkaSource.builder().set_topics(topic)
    enumerator = enumerator_of(builder)
    plan = enumerator.start()
    assert by_number(plan.starting_position) == {0: 3, 1: 5, 2: 0}
    assert by_number(plan.end_offsets) == {0: 5, 1: 5, 2: 0}
    assert splits_of(plan) == {0: (3, 5)}
    assert offsets_read(spark, source_of(builder), enumerator.assign(Limits())) == {0: [3, 4]}
    # Records that come then are read from there.
    write(kafka, topic, {1: [1000], 2: [1000]})
    then = enumerator_of(builder, enumerator.snapshot_state())
    assert splits_of(then.start()) == {1: (5, 6), 2: (0, 1)}
    assert offsets_read(spark, source_of(builder), then.assign(Limits())) == {1: [5], 2: [0]}


def test_a_start_by_time_leaves_no_later_record_out_behind_a_trimmed_head(kafka, cluster, enumerator_of, topic):
    # The broker looks for 3000 in the first segment whose highest timestamp reaches it, 50,000, and nowhere else.
    kafka.create(topic, segment_ms="60000")
    for timestamp in (1000, 50_000, 2000, 70_000, 40_000):
        write(kafka, topic, {0: [timestamp]})
    kafka.trim(topic, 0, 2)
    assert by_number(cluster.offsets_for_times({TopicPartition(topic, 0): 60_000}, "read_committed")) == {0: 3}
    plan = enumerator_of(
        KafkaSource.builder().set_topics(topic).set_starting_offsets(OffsetsInitializer.timestamp(3000))
    ).start()
    # Offsets 3 and 4 are dated later than 3000: a start at the end would never read them.
    assert plan.starting_position[TopicPartition(topic, 0)] <= 3
