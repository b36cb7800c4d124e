"""The windows of Airflow's runs are those of Dagster's partitions with the same cron and time zone."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pendulum
import pytest
from airflow.sdk import CronDataIntervalTimetable, CronPartitionTimetable
from airflow.timetables.base import TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable as PlannedIntervals
from dagster import (
    DailyPartitionsDefinition,
    HourlyPartitionsDefinition,
    MonthlyPartitionsDefinition,
    TimeWindowPartitionsDefinition,
    WeeklyPartitionsDefinition,
)

from dagster_kafka_flip import KafkaSource, Windows
from dagster_kafka_flip.airflow.run_window import run_window
from dagster_kafka_flip.assets.partitions import AssetPartitions
from dagster_kafka_flip.source.window import Window

_TO_MINUTES = "%Y-%m-%d-%H:%M"

HAVANA = ("America/Havana", "2025-11-02")
# Days on which the clock goes forward, or back. In Santiago and Havana it does so at midnight.
_CHANGES = {
    "Europe/Berlin": ("2025-03-30", "2025-10-26"),
    "America/New_York": ("2025-03-09", "2025-11-02"),
    "America/Santiago": ("2025-09-07", "2025-04-06"),
    "America/Havana": ("2025-03-09", "2025-11-02"),
    "UTC": ("2025-03-30",),
}


class Schedule:
    """The same windows in Dagster and in Airflow, around a day.

    Args:
        kind: One of Dagster's kinds of partitions, or a cron.
        zone: The time zone.
        day: The day.
        days: How far the windows reach before and behind it.
    """

    def __init__(self, kind: Any, zone: str, day: str, days: int) -> None:
        start = datetime.fromisoformat(day) - timedelta(days=days)
        stop = datetime.fromisoformat(day) + timedelta(days=days + 1)
        self.partitions: TimeWindowPartitionsDefinition = (
            TimeWindowPartitionsDefinition(cron_schedule=kind, start=start, end=stop, fmt=_TO_MINUTES, timezone=zone)
            if isinstance(kind, str)
            else kind(start_date=start, end_date=stop, timezone=zone)
        )
        self.cron, self.zone = self.partitions.cron_schedule, zone

    def in_dagster(self) -> list[Window]:
        """The windows of Dagster's partitions."""
        partitions = AssetPartitions(self.partitions, Windows(), KafkaSource(topics=("orders",)), None)
        (group,) = partitions.groups(self.partitions.get_partition_keys())
        return sorted(group.windows, key=lambda window: window.start_ms)

    def by_interval(self, first: Window, last: Window) -> list[Window]:
        """The windows of the runs that Airflow plans between two windows."""
        planner: Any = PlannedIntervals(self.cron, self.zone)  # pyright: ignore[reportAbstractUsage]
        restriction = TimeRestriction(earliest=_at(first.start_ms), latest=_at(last.start_ms), catchup=True)
        found: list[Window] = []
        interval = None
        while planned := planner.next_dagrun_info(last_automated_data_interval=interval, restriction=restriction):
            interval = planned.data_interval
            context = {"data_interval_start": interval.start, "data_interval_end": interval.end}
            found.append(_landed(CronDataIntervalTimetable(self.cron, timezone=self.zone), **context))
        return found

    def by_key(self, window: Window, **context: Any) -> Window:
        """The window of the run that has the key of one of Dagster's partitions."""
        keys = CronPartitionTimetable(self.cron, timezone=self.zone, key_format=self.partitions.fmt)
        return _landed(keys, partition_key=window.key, **context)


def _landed(schedule: Any, **context: Any) -> Window:
    reported: Any = {"dag": SimpleNamespace(timetable=schedule), **context}
    return run_window(reported, None).window


def _at(milliseconds: int) -> Any:
    return pendulum.instance(datetime.fromtimestamp(milliseconds / 1000, tz=timezone.utc))


def times(*windows: Window) -> list[tuple[str, str]]:
    return [(window.start, window.stop) for window in windows]


def reported(window: Window, schedule: Schedule) -> str:
    """The text of a window's time, which comes twice if the clock goes back."""
    start = datetime.fromtimestamp(window.start_ms / 1000, tz=ZoneInfo(schedule.zone))
    return start.strftime(schedule.partitions.fmt)


_HERE = [(zone, day) for zone, days in _CHANGES.items() for day in days]
_EACH = [
    (HourlyPartitionsDefinition, 1),
    (DailyPartitionsDefinition, 3),
    (WeeklyPartitionsDefinition, 20),
    (MonthlyPartitionsDefinition, 70),
    ("0 */6 * * *", 2),
    ("30 4 * * 1-5", 9),
]
# The schedulers differ about a midnight that comes twice.
_OTHERWISE = [(kind, *HAVANA) for kind in (DailyPartitionsDefinition, WeeklyPartitionsDefinition)]


@pytest.mark.parametrize(
    ("kind", "days", "zone", "day"),
    [(kind, days, zone, day) for kind, days in _EACH for zone, day in _HERE if (kind, zone, day) not in _OTHERWISE],
)
def test_a_cron_has_the_same_windows_in_airflow_as_in_dagster(kind: Any, days: int, zone: str, day: str):
    schedule = Schedule(kind, zone, day, days)
    windows = schedule.in_dagster()
    assert times(*schedule.by_interval(windows[0], windows[-1])) == times(*windows)
    texts = Counter(reported(window, schedule) for window in windows)
    for window in windows:
        # As for a run that the DAG's own timetable started.
        assert times(schedule.by_key(window, partition_date=_at(window.start_ms))) == times(window)
        # As for a run by an asset's event.
        if texts[reported(window, schedule)] == 1:
            assert times(schedule.by_key(window)) == times(window)


@pytest.mark.parametrize(
    ("kind", "zone", "day", "dagster", "airflow"),
    [
        # The clock skips the time: Dagster's window begins at the change, Airflow's as long after it.
        ("30 2 * * *", "Europe/Berlin", "2025-03-30", "2025-03-30T01:00:00Z", "2025-03-30T01:30:00Z"),
        # A midnight that comes twice: Dagster's day begins at the first, Airflow's at the second.
        (DailyPartitionsDefinition, *HAVANA, "2025-11-02T04:00:00Z", "2025-11-02T05:00:00Z"),
    ],
)
def test_where_the_schedulers_differ_neither_has_a_gap_or_an_overlap(
    kind: Any, zone: str, day: str, dagster: str, airflow: str
):
    schedule = Schedule(kind, zone, day, 2)
    in_dagster = schedule.in_dagster()
    in_airflow = schedule.by_interval(in_dagster[0], in_dagster[-1])
    for windows, begin in ((in_dagster, dagster), (in_airflow, airflow)):
        assert begin in [window.start for window in windows]
        assert [before.stop for before in windows[:-1]] == [after.start for after in windows[1:]]
    # Nor does either have another window of its own.
    assert {each.start for each in in_dagster} ^ {each.start for each in in_airflow} == {dagster, airflow}
