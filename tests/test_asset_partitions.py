"""Partitions of Dagster as windows: no broker, no Spark."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from dagster import (
    DailyPartitionsDefinition,
    HourlyPartitionsDefinition,
    MonthlyPartitionsDefinition,
    MultiPartitionKey,
    MultiPartitionsDefinition,
    StaticPartitionsDefinition,
    TimeWindowPartitionsDefinition,
    WeeklyPartitionsDefinition,
)

from dagster_kafka_flip.assets.partitions import AssetPartitions
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.window import Windows, contiguous_groups

HOUR = 3_600_000
NEW_YORK = "America/New_York"


def partitions(partitions_def, topics=("a", "b"), topics_of=None, rules=None):
    return AssetPartitions(partitions_def, rules or Windows(), KafkaSource(topics=topics), topics_of)


def ms(text):
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def windows_between(partitions_def, start, stop):
    made = partitions(partitions_def)
    (group,) = made.groups(made.keys_between(ms(start), ms(stop)))
    return group.windows


@pytest.mark.parametrize(
    ("partitions_def", "count", "hours"),
    [
        # Without an end Dagster would name every hour since.
        (HourlyPartitionsDefinition("2013-01-01-00:00", end_date="2013-07-01-00:00"), 24 * 92, [1]),
        (
            HourlyPartitionsDefinition("2013-01-01-00:00", end_date="2013-07-01-00:00", minute_offset=30),
            24 * 92 - 1,
            [1],
        ),
        (DailyPartitionsDefinition("2013-01-01"), 92, [24]),
        (DailyPartitionsDefinition("2013-01-01", hour_offset=6), 91, [24]),
        (WeeklyPartitionsDefinition("2013-01-01"), 12, [168]),
        (MonthlyPartitionsDefinition("2013-01-01"), 3, [30 * 24, 31 * 24]),
        # On workdays at nine: the window of a Friday goes on until Monday.
        (TimeWindowPartitionsDefinition(start="2013-01-01", fmt="%Y-%m-%d", cron_schedule="0 9 * * 1-5"), 65, [24, 72]),
        (
            TimeWindowPartitionsDefinition(start="2013-01-01", fmt="%Y-%m-%d", cron_schedule="0 0 */7 * *"),
            15,
            [2 * 24, 3 * 24, 7 * 24],
        ),
    ],
    ids=str,
)
def test_every_schedule_gives_windows_without_gaps(partitions_def, count, hours):
    windows = windows_between(partitions_def, "2013-03-01T00:00:00+00:00", "2013-06-01T00:00:00+00:00")
    assert len(contiguous_groups(windows)) == 1
    assert len(windows) == count
    assert sorted({(window.stop_ms - window.start_ms) // HOUR for window in windows}) == hours
    assert {window.key for window in windows} <= set(partitions_def.get_partition_keys())


def test_days_have_their_time_zones_length():
    days = DailyPartitionsDefinition("2013-01-01", timezone=NEW_YORK)
    windows = windows_between(days, "2013-01-01T05:00:00+00:00", "2014-01-01T05:00:00+00:00")
    assert len(windows) == 365
    odd = {window.key: (window.stop_ms - window.start_ms) // HOUR for window in windows}
    assert {key: hours for key, hours in odd.items() if hours != 24} == {"2013-03-10": 23, "2013-11-03": 25}
    assert windows[0].start == "2013-01-01T05:00:00Z"


def test_each_of_two_hours_of_the_same_name_has_a_window():
    hours = HourlyPartitionsDefinition("2013-11-01-00:00", timezone=NEW_YORK)
    windows = windows_between(hours, "2013-11-03T04:00:00+00:00", "2013-11-04T05:00:00+00:00")
    assert len({window.key for window in windows}) == len(windows) == 25
    assert {window.stop_ms - window.start_ms for window in windows} == {HOUR}


def test_excluded_times_are_not_windows_and_make_no_window_longer():
    days = DailyPartitionsDefinition("2013-03-01", exclusions=["0 0 * * 6,7"])
    windows = windows_between(days, "2013-03-01T00:00:00+00:00", "2013-03-15T00:00:00+00:00")
    assert [len(group) for group in contiguous_groups(windows)] == [1, 5, 4]
    assert {window.stop_ms - window.start_ms for window in windows} == {24 * HOUR}


def test_gaps_and_overlaps_of_the_definition_are_reported_next_to_the_landed_windows():
    hourly = partitions(
        HourlyPartitionsDefinition(
            start_date="2023-09-30-00:00", end_date="2023-10-03-00:00", timezone="Australia/Lord_Howe"
        )
    )
    [[group], [far]] = (hourly.groups([key]) for key in ("2023-10-01-01:00", "2023-10-02-01:00"))
    [reported] = hourly.irregularities(group.windows)
    assert reported.startswith(
        "records with timestamps from 2023-09-30T15:30:00Z to 2023-09-30T16:00:00Z are in no partition"
    )
    assert hourly.irregularities(far.windows) == []

    daily = partitions(
        DailyPartitionsDefinition(start_date="2011-12-28", end_date="2012-01-03", timezone="Pacific/Apia")
    )
    [group] = daily.groups(["2011-12-30"])
    [reported] = daily.irregularities(group.windows)
    assert reported.startswith(
        "the partitions 2011-12-30 [2011-12-30T10:00:00Z, 2011-12-31T10:00:00Z) and 2011-12-31 ["
    )
    [group] = daily.groups(["2011-12-30", "2011-12-31"])
    with pytest.raises(
        ConfigurationError, match=r"written twice. Remove one of them from the run, such as 2011-12-30$"
    ):
        contiguous_groups(group.windows)


def test_an_end_offset_makes_windows_that_are_not_over():
    hours = HourlyPartitionsDefinition("2026-01-01-00:00", end_offset=2)
    last = partitions(hours).groups([str(hours.get_last_partition_key())])[0].windows[0]
    assert last.start_ms > datetime.now(tz=timezone.utc).timestamp() * 1000 - HOUR
    assert timedelta(milliseconds=last.stop_ms - last.start_ms) == timedelta(hours=1)


def test_a_range_of_keys_is_cut_to_whole_windows_that_there_are():
    made = partitions(DailyPartitionsDefinition("2013-03-01", end_date="2013-03-05"))
    whole = (ms("2013-03-01T00:00:00+00:00"), ms("2013-03-03T00:00:00+00:00"))
    assert made.keys_between(*whole) == ["2013-03-01", "2013-03-02"]
    assert made.keys_between(whole[0] + 1, whole[1] + 1) == ["2013-03-02"]
    assert made.keys_between(0, 2**47) == ["2013-03-01", "2013-03-02", "2013-03-03", "2013-03-04"]
    assert made.keys_between(0, 1) == []


def test_windows_of_the_same_topics_are_landed_together():
    definition = MultiPartitionsDefinition(
        {"day": DailyPartitionsDefinition("2013-03-01"), "letter": StaticPartitionsDefinition(["a", "b"])}
    )
    made = partitions(definition)
    keys = [
        MultiPartitionKey({"day": day, "letter": letter})
        for day, letter in (
            ("2013-03-01", "a"),
            ("2013-03-01", "b"),
            ("2013-03-02", "a"),
            ("2013-03-03", "b"),
            ("2013-03-03", "a"),
        )
    ]
    found = {group.topics: [window.key for window in group.windows] for group in made.groups(keys)}
    assert found == {("a", "b"): ["2013-03-01", "2013-03-03"], ("a",): ["2013-03-02"]}
    both = next(group for group in made.groups(keys) if group.topics == ("a", "b"))
    assert sorted(both.partition_keys["2013-03-01"]) == ["2013-03-01|a", "2013-03-01|b"]


def test_the_definition_identifies_windows_whatever_their_number():
    day = partitions(DailyPartitionsDefinition("2013-03-01")).definition
    assert day == partitions(DailyPartitionsDefinition("2020-01-01", end_offset=1)).definition
    others = (
        partitions(DailyPartitionsDefinition("2013-03-01", timezone=NEW_YORK)),
        partitions(HourlyPartitionsDefinition("2013-03-01-00:00")),
    )
    assert len({day, *(other.definition for other in others)}) == 3


@pytest.mark.parametrize(
    ("topics_of", "message"),
    [
        ({"x": ["a"]}, "topics_of has no topic for the partition key 'y'"),
        ({"x": ["a"], "y": ["a"]}, "two partition keys select the topic a"),
        ({"x": ["a"], "y": ["c"]}, "the source reads a, b, not c"),
        ({"x": ["a"], "y": "b"}, r"topics_of\['y'\]: expected list, got str"),
        ({"x": ["a"], "y": 5}, r"topics_of\['y'\]: expected list, got int"),
        (None, "the source reads a, b, not x"),
    ],
)
def test_a_dimension_that_picks_no_topic_or_one_twice_is_refused(topics_of, message):
    definition = MultiPartitionsDefinition(
        {"day": DailyPartitionsDefinition("2013-03-01"), "letter": StaticPartitionsDefinition(["x", "y"])}
    )
    with pytest.raises(ConfigurationError, match=message):
        partitions(definition, topics_of=topics_of)


@pytest.mark.parametrize(
    "partitions_def",
    [
        DailyPartitionsDefinition("2026-01", fmt="%Y-%m"),
        HourlyPartitionsDefinition("2026-01-31", fmt="%Y-%m-%d"),
        TimeWindowPartitionsDefinition(start="2026-01-01", fmt="%Y-%m-%d", cron_schedule="0 */6 * * *"),
    ],
)
def test_windows_that_would_share_a_key_are_refused(partitions_def):
    with pytest.raises(ConfigurationError, match=r"^several windows have the partition key '2026-0.*', and would"):
        partitions(partitions_def)
