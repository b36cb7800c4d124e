"""Spark's expressions put records where plain Python would: random plans, and many records at once."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest

from dagster_kafka_flip.reader.window_filter import CARRIED, WINDOW, WindowFilter
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.source.window import PlannedWindow, Window, WindowPlan, Windows

pytestmark = pytest.mark.spark

START = 1_362_096_000_000
MINUTE = 60_000
PARTITIONS = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("a", 4), TopicPartition("b", 2)]


def plan_of(chance, count, partitions):
    """Windows of unequal lengths, and offsets that grow with them."""
    lengths = [chance.choice([7, 20, 60, 180]) * MINUTE for _ in range(count)]
    bounds = [START]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    starts = {tp: sorted(chance.sample(range(1000), count + 1)) for tp in partitions}
    planned = []
    for number in range(count):
        at = {tp: starts[tp][number] for tp in partitions}
        ends = {tp: starts[tp][number + 1] for tp in partitions}
        stops = {tp: min(ends[tp] + chance.randrange(100), 1000) for tp in partitions}
        planned.append(PlannedWindow(Window(f"w{number}", bounds[number], bounds[number + 1]), at, stops, ends))
    none = dict.fromkeys(partitions, 0)
    late, early = ({tp: starts[tp][at] + add for tp in partitions} for at, add in ((0, 50), (-1, -50)))
    return WindowPlan(
        state=EnumeratorState({}),
        end_offsets=none,
        high_watermarks=none,
        starting_position=planned[0].starts,
        windows=tuple(planned),
        stragglers_from=late,
        stragglers_before=early,
    )


def records_of(chance, plan, partitions, number):
    last = plan.windows[-1].window.stop_ms
    return [
        (*chance.choice(partitions), chance.randrange(1000), chance.randrange(START - MINUTE, last + MINUTE))
        for _ in range(number)
    ]


def expected(plan, record, *, bounded):
    """The window's number, and whether the record is late, a straggler."""
    topic, partition, offset, time = record
    tp = TopicPartition(topic, partition)
    for number, each in enumerate(plan.windows):
        if each.window.start_ms <= time < each.window.stop_ms:
            if bounded and not each.starts[tp] <= offset < each.stops[tp]:
                return None, False, True
            return number, offset >= each.ends[tp], False
    is_before = time < START and offset >= plan.stragglers_from[tp]
    return None, False, is_before or (time >= plan.windows[-1].window.stop_ms and offset < plan.stragglers_before[tp])


@pytest.mark.parametrize(
    ("rules", "seed"),
    [
        (Windows(), 0),
        (Windows(), 2),
        (Windows(max_lateness=None), 1),
        (Windows(event_time="time", max_lateness=timedelta(hours=1)), 2),
    ],
    ids=str,
)
def test_each_record_is_in_the_window_where_a_look_at_it_puts_it(spark, rules, seed):
    chance = random.Random(seed)
    partitions = PARTITIONS if seed else PARTITIONS[:2]
    plan = plan_of(chance, [1, 2, 37][seed], partitions)
    records = records_of(chance, plan, partitions, 400)
    frame = spark.createDataFrame(records, "topic STRING, partition INT, offset BIGINT, ms BIGINT").selectExpr(
        "*", "timestamp_millis(ms) AS timestamp", "timestamp_millis(ms) AS time", "1 AS timestampType"
    )
    windows = WindowFilter(plan, rules)
    if windows.is_by_value:
        frame = frame.withColumnsRenamed(CARRIED)
    numbered = windows.number(frame)
    found = [tuple(row) for row in numbered.select(WINDOW, f"{WINDOW}_late", f"{WINDOW}_straggler").collect()]
    # A single window is read between the very offsets between which it lies.
    wanted = [expected(plan, record, bounded=len(plan.windows) > 1) for record in records]
    assert [row[0] for row in found] == [number for number, _, _ in wanted]
    assert [bool(row[1]) for row in found] == [late for _, late, _ in wanted]
    assert [bool(row[2]) for row in found] == [straggler for _, _, straggler in wanted]
    keys = windows.labelled(windows.inside(numbered), "window").select("window").collect()
    assert sorted(key for (key,) in keys) == sorted(f"w{number}" for number, _, _ in wanted if number is not None)
