"""Which window a run lands: exactly one of its schedule's, or none."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pendulum
import pytest
from airflow.sdk import (
    CronDataIntervalTimetable,
    CronPartitionTimetable,
    CronTriggerTimetable,
    DeltaDataIntervalTimetable,
    DeltaTriggerTimetable,
)

from dagster_kafka_flip.airflow.run_window import RunWindow, run_window
from dagster_kafka_flip.errors import ConfigurationError

DAILY = CronDataIntervalTimetable("@daily", timezone="UTC")
BERLIN = CronPartitionTimetable("0 0 * * *", timezone="Europe/Berlin", key_format="%Y-%m-%d")
HOURS = CronPartitionTimetable("0 * * * *", timezone="Europe/Berlin")


def at(text: str) -> Any:
    return pendulum.instance(datetime.fromisoformat(text))


def of(schedule: Any, *, keys: Any = None, **context: Any) -> RunWindow:
    reported: Any = {"dag": SimpleNamespace(timetable=schedule), **context}
    return run_window(reported, keys)


def interval(start: str, stop: str) -> dict[str, Any]:
    return {"data_interval_start": at(start), "data_interval_end": at(stop)}


@pytest.mark.parametrize(
    ("schedule", "context", "start", "stop"),
    [
        (DAILY, interval("2026-01-01T00:00+00:00", "2026-01-02T00:00+00:00"), "2026-01-01T00:00Z", "2026-01-02T00:00Z"),
        # Days of 23 and 25 hours.
        (BERLIN, {"partition_key": "2026-03-29"}, "2026-03-28T23:00Z", "2026-03-29T22:00Z"),
        (BERLIN, {"partition_key": "2026-10-25"}, "2026-10-24T22:00Z", "2026-10-25T23:00Z"),
        # The key has the same text an hour later: only the date tells which is meant.
        (
            HOURS,
            {"partition_key": "2026-10-25T02:00:00", "partition_date": at("2026-10-25T00:00+00:00")},
            "2026-10-25T00:00Z",
            "2026-10-25T01:00Z",
        ),
        (
            HOURS,
            {"partition_key": "2026-10-25T02:00:00", "partition_date": at("2026-10-25T01:00+00:00")},
            "2026-10-25T01:00Z",
            "2026-10-25T02:00Z",
        ),
        (
            DeltaDataIntervalTimetable(timedelta(hours=6)),
            interval("2026-01-01T00:00+00:00", "2026-01-01T06:00+00:00"),
            "2026-01-01T00:00Z",
            "2026-01-01T06:00Z",
        ),
    ],
)
def test_a_run_has_the_window_of_its_schedule(schedule: Any, context: dict[str, Any], start: str, stop: str):
    found = of(schedule, **context)
    times = [datetime.fromtimestamp(ms / 1000, tz=timezone.utc) for ms in (found.window.start_ms, found.window.stop_ms)]
    assert times == [at(start.replace("Z", "+00:00")), at(stop.replace("Z", "+00:00"))]


def test_a_key_of_another_schedule_needs_the_timetable_that_it_comes_from():
    # As in a run by an asset's event.
    assert of(None, keys=BERLIN, partition_key="2026-03-29") == of(BERLIN, partition_key="2026-03-29")
    with pytest.raises(ConfigurationError, match="partition_keys=CronPartitionTimetable"):
        of(None, partition_key="2026-03-29")


def test_a_key_that_may_stand_for_two_windows_is_refused():
    # An hour that comes twice. Which is meant, a key that comes with an asset's event does not tell.
    with pytest.raises(ConfigurationError, match=r"2026-10-25T00:00:00.+ or 2026-10-25T01:00:00.+%z"):
        of(None, keys=HOURS, partition_key="2026-10-25T02:00:00")
    with_offset = CronPartitionTimetable("0 * * * *", timezone="Europe/Berlin", key_format="%Y-%m-%dT%H%z")
    first, second = (of(None, keys=with_offset, partition_key=f"2026-10-25T02{each}") for each in ("+0200", "+0100"))
    assert first.window.stop_ms == second.window.start_ms
    assert (
        of(None, keys=HOURS, partition_key="2026-10-25T04:00:00").window.start_ms == second.window.start_ms + 7_200_000
    )
    # A midnight that comes twice, and begins one day.
    days = CronPartitionTimetable("@daily", timezone="America/Havana", key_format="%Y-%m-%d")
    assert (
        of(None, keys=days, partition_key="2026-11-01").window.start_ms
        == at("2026-11-01T05:00+00:00").timestamp() * 1000
    )


def test_windows_that_could_overlap_have_other_definitions():
    daily = interval("2026-01-01T00:00+00:00", "2026-01-02T00:00+00:00")
    by_delta = DeltaDataIntervalTimetable(timedelta(days=1))
    later = interval("2026-01-01T06:00+00:00", "2026-01-02T06:00+00:00")
    definitions = [
        of(DAILY, **daily).definition,
        of(
            CronDataIntervalTimetable("0 0 * * *", timezone="Europe/Berlin"),
            **interval("2025-12-31T23:00+00:00", "2026-01-01T23:00+00:00"),
        ).definition,
        of(by_delta, **daily).definition,
        of(by_delta, **later).definition,
    ]
    assert len({*definitions}) == len(definitions)
    # The same windows, however they are told.
    partitions = CronPartitionTimetable("@daily", timezone="UTC", key_format="%Y-%m-%d")
    assert of(partitions, partition_key="2026-01-01") == of(DAILY, **daily)


@pytest.mark.parametrize(
    ("schedule", "context", "message"),
    [
        (None, {}, "neither a partition key nor a data interval"),
        # What a manual run of a cron text has.
        (
            CronTriggerTimetable("@daily", timezone="UTC"),
            interval("2026-01-01T00:00+00:00", "2026-01-01T00:00+00:00"),
            "no length.+CronDataIntervalTimetable.+airflow backfill create",
        ),
        (
            CronTriggerTimetable("@daily", timezone="UTC", interval=timedelta(days=2)),
            interval("2026-01-01T00:00+00:00", "2026-01-03T00:00+00:00"),
            "is not a window of the cron",
        ),
        (DAILY, interval("2026-01-01T01:00+00:00", "2026-01-02T01:00+00:00"), "is not a window of the cron"),
        (BERLIN, {"partition_key": "1 May"}, "not a time like '%Y-%m-%d'"),
        (HOURS, {"partition_key": "2026-01-01T00:30:00"}, "is not a window of the cron"),
        (
            DeltaTriggerTimetable(timedelta(hours=6), interval=timedelta(hours=7)),
            interval("2026-01-01T00:00+00:00", "2026-01-01T07:00+00:00"),
            "7:00:00 long, but the schedule starts a run every 6:00:00",
        ),
        (SimpleNamespace(), interval("2026-01-01T00:00+00:00", "2026-01-02T00:00+00:00"), "SimpleNamespace, whose"),
    ],
)
def test_a_run_without_a_window_of_its_schedule_is_refused(schedule: Any, context: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        of(schedule, **context)
