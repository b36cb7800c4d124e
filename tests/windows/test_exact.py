"""Exact windows on the real broker: the records whose time lies in the window, however they stand in the log."""

from __future__ import annotations

import random
import re

import pytest

from dagster_kafka_flip.errors import ConfigurationError, WriteFailedError
from dagster_kafka_flip.source.window import Window
from dagster_kafka_flip.table.target import DeltaTarget
from tests.windows.conftest import HOUR, START, hours

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def write(kafka, topic):
    """Writes records at given times to a topic partition, and gives (time, offset) of each."""
    written: dict[int, int] = {}

    def run(times, partition=0):
        found = []
        for time in times:
            offset = written.get(partition, 0)
            written[partition] = offset + 1
            kafka.produce(topic, [(None, str(time - START))], partition=partition, timestamp=time)
            found.append((time, offset))
        return found

    return run


def expected(log, windows, partition=0):
    """By brute force: what is in which window."""
    return sorted(
        (window.key, partition, offset, str(time - START))
        for time, offset in log
        for window in windows
        if window.start_ms <= time < window.stop_ms
    )


def test_shuffled_within_the_bound_each_record_is_in_its_window(kafka, write, rewrite, rows, topic):
    kafka.create(topic, partitions=2)
    chance = random.Random(7)
    logs = {}
    for partition in range(2):
        times = [START + minute * 60_000 for minute in range(0, 300, 11)]
        # None is behind one that is an hour later or more.
        logs[partition] = write(sorted(times, key=lambda time: time + chance.randrange(HOUR)), partition)
    windows = hours(0, 5)
    brute_force = sorted(expected(logs[0], windows, 0) + expected(logs[1], windows, 1))
    [result] = rewrite(windows)
    assert rows() == brute_force
    assert result.rows == {key: sum(row[0] == key for row in brute_force) for key in {row[0] for row in brute_force}}
    seen = result.observed.windows
    assert seen is not None
    assert (seen.stragglers, seen.timeless) == (0, 0)
    late = sum(
        any(offset > other and window.stop_ms <= later for later, other in log)
        for log in logs.values()
        for time, offset in log
        for window in windows
        if window.start_ms <= time < window.stop_ms
    )
    assert sum(seen.late.values()) == late > 0


def test_rows_are_found_again_whatever_the_key_and_the_words_that_the_session_reserves(
    kafka, write, rewrite, rows, spark, topic
):
    kafka.create(topic)
    keys = ["o'clock", "\\", "a=b/c%20", " "]
    windows = [Window(key, START + hour * HOUR, START + (hour + 1) * HOUR) for hour, key in enumerate(keys)]
    log = write([START + hour * HOUR + each for hour in range(4) for each in (0, 1)])
    for reserved in ("false", "true"):
        spark.conf.set("spark.sql.ansi.enforceReservedKeywords", reserved)
        try:
            rewrite(windows)
        finally:
            spark.conf.unset("spark.sql.ansi.enforceReservedKeywords")
        assert rows() == expected(log, windows)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("", "which Delta stores as null in a partition column"),
        ("__HIVE_DEFAULT_PARTITION__", "which Delta stores as null in a partition column"),
        ("${x}", r"in which Spark would take \$\{ for the start of a variable"),
    ],
)
def test_a_key_that_delta_or_spark_would_change_is_refused(rewrite, key, why):
    with pytest.raises(ConfigurationError, match=rf"the key '{re.escape(key)}', {why}"):
        rewrite([Window(key, START, START + HOUR)])


def test_a_table_that_only_takes_appends_says_what_to_set(kafka, write, rewrite, table, topic):
    kafka.create(topic)
    write([START])
    target = DeltaTarget(table=table, properties={"delta.appendOnly": "true"})
    with pytest.raises(WriteFailedError, match=r"set delta\.appendOnly of this table to false"):
        rewrite(hours(0, 1), target=target)
