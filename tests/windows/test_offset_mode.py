"""Offset mode on the real broker: windows tile the log, whatever the records' times are and however it grows."""

from __future__ import annotations

import random

import pytest

from dagster_kafka_flip.errors import WindowNotCompleteError
from dagster_kafka_flip.source.window import Window, Windows
from dagster_kafka_flip.table.windowed_table import WindowedTable
from tests.windows.conftest import HOUR, START, hours

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

OFFSET = Windows(mode="offset")


@pytest.fixture
def write(kafka, topic):
    kafka.create(topic, partitions=2)

    def run(hour, count=1):
        for partition in range(2):
            kafka.produce(topic, [(None, str(hour))] * count, partition=partition, timestamp=int(START + hour * HOUR))

    return run


def window_of(rows):
    """Topic partition to the windows of its offsets, in order of offset."""
    found: dict[int, list[str]] = {}
    for key, partition, offset, _ in sorted(rows, key=lambda row: (row[1], row[2])):
        assert offset == len(found.setdefault(partition, [])), "no gap, and no double"
        found[partition].append(key)
    return found


def test_only_one_of_two_plans_for_the_same_windows_is_written(write, rewrite, rows, spark, table, monkeypatch):
    write(0)
    write(2)
    rewrite(hours(0, 1), rules=OFFSET)
    original, calls, done = WindowedTable.rewrite, [], []

    def interleaved(table_of_windows, *args):
        calls.append(args)
        if len(calls) == 1:
            # Planned. Somebody else's commit, a late record, and then another run plans what comes behind.
            spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('others' = 'too')")
            write(1)
            rewrite(hours(3, 4), rules=OFFSET)
            return done[0]
        if len(calls) == 2:
            done.append(original(table_of_windows, *calls[0]))
        return original(table_of_windows, *args)

    with monkeypatch.context() as patch:
        patch.setattr(WindowedTable, "rewrite", interleaved)
        rewrite(hours(1, 3), rules=OFFSET)
    assert window_of(rows()) == {partition: ["h000", "h002", "h003"] for partition in range(2)}


def test_bounds_that_a_restore_has_undone_do_not_count(write, rewrite, rows, spark, table):
    write(0)
    write(1)
    rewrite(hours(0, 1), rules=OFFSET)
    rewrite(hours(1, 2), rules=OFFSET)
    write(0.5)
    rewrite(hours(2, 3), rules=OFFSET)
    assert window_of(rows()) == {partition: ["h000", "h001", "h002"] for partition in range(2)}
    spark.sql(f"RESTORE delta.`{table}` TO VERSION AS OF 1")
    # What comes next begins where the windows end that are there now.
    rewrite(hours(1, 2), rules=OFFSET)
    assert window_of(rows()) == {partition: ["h000", "h001", "h001"] for partition in range(2)}


def test_late_records_are_in_the_window_that_is_read_next_while_the_log_grows(write, rewrite, rows):
    write(0.1, 2)
    write(0.9)
    rewrite(hours(0, 1), rules=OFFSET)
    # It belongs to the first hour by its time, and there is no record of a later one yet.
    write(0.95)
    rewrite(hours(1, 2), rules=OFFSET)
    write(0.5)
    write(1.5)
    write(2.5)
    rewrite(hours(2, 3), rules=OFFSET)
    assert window_of(rows()) == {partition: ["h000"] * 3 + ["h001"] + ["h002"] * 3 for partition in range(2)}
    before = rows()
    write(3.5)
    for first, last in ((1, 2), (0, 3), (2, 3), (0, 1)):
        rewrite(hours(first, last), rules=OFFSET)
        assert rows() == before


def test_windows_in_any_order_and_many_at_once_tile_the_log(write, rewrite, rows):
    chance = random.Random(3)
    for hour in sorted(range(60), key=lambda hour: hour + chance.randrange(30)):
        write(hour / 10, chance.randint(1, 2))
    for first, last in ((4, 6), (0, 2), (2, 4)):
        rewrite(hours(first, last), rules=OFFSET)
    parts = window_of(rows())
    assert parts[0] == sorted(parts[0])
    assert parts[0] == parts[1]


def test_a_window_that_was_not_over_is_made_longer_when_it_is(kafka, write, rewrite, rows, topic, monkeypatch):
    now = START + HOUR // 2
    monkeypatch.setattr("dagster_kafka_flip.source.window_enumerator.now_milliseconds", lambda: now)
    write(0.1)
    with pytest.raises(WindowNotCompleteError, match=r"the window h000 .* is not over"):
        rewrite(hours(0, 1), rules=OFFSET)
    tolerate = (WindowNotCompleteError,)
    rewrite(hours(0, 1), rules=OFFSET, tolerate=tolerate)
    write(0.4)
    rewrite(hours(0, 1), rules=OFFSET, tolerate=tolerate)
    assert window_of(rows()) == {0: ["h000"] * 2, 1: ["h000"] * 2}


def test_two_runs_that_plan_the_same_end_do_not_both_write_it(write, rewrite, rows, monkeypatch):
    """Both find no record at the end of the hour, and the log has grown in between."""
    from dagster_kafka_flip.table.windowed_table import WindowedTable

    write(0.1)
    rewrite([Window("before", START - HOUR, START)], rules=OFFSET)
    original = WindowedTable.rewrite
    done = []

    def first_somebody_else(table, *args):
        if not done:
            done.append(True)
            write(0.2)
            rewrite(hours(1, 2), rules=OFFSET)
        return original(table, *args)

    monkeypatch.setattr(WindowedTable, "rewrite", first_somebody_else)
    rewrite(hours(0, 1), rules=OFFSET)
    write(0.3)
    rewrite(hours(2, 3), rules=OFFSET)
    assert window_of(rows()) == {partition: ["h000", "h000", "h002"] for partition in range(2)}
