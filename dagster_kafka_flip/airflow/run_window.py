"""The window of a run: of its partition key, or of its data interval."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.source.window import Window

if TYPE_CHECKING:
    from airflow.sdk import Context, CronPartitionTimetable


_CRON_ADVICE = (
    'schedule=CronDataIntervalTimetable("@daily", timezone="UTC"), or '
    'CronPartitionTimetable("@daily", timezone="UTC", run_offset=-1), for runs whose windows follow one another'
)


@dataclass(frozen=True)
class RunWindow:
    """The window that a run lands, and what defines it and its neighbours: a table refuses those of another definition.

    Its bounds are its key, because a key in local time may name two windows.
    """

    window: Window
    definition: str


def run_window(context: Context, partition_keys: CronPartitionTimetable | None) -> RunWindow:
    """The window of a run. Only windows of a schedule are allowed: none overlap, and none is missing between them."""
    schedule: Any = getattr(context.get("dag"), "timetable", None)
    # A schedule of time or assets has the one of time inside.
    schedule = getattr(schedule, "timetable", schedule)
    key = context.get("partition_key")
    if key is not None:
        own = schedule if hasattr(schedule, "key_format") else None
        keys = partition_keys or own
        if keys is None:
            raise ConfigurationError(
                f"the run has the partition key {key!r}, but the DAG's schedule does not define its time: "
                'set partition_keys=CronPartitionTimetable("@daily", timezone="UTC") on the operator, the timetable '
                "that the keys come from"
            )
        date = context.get("partition_date") if keys == own else None
        return _of_cron(_time_of(key, keys) if date is None else date, None, keys)
    start, stop = context.get("data_interval_start"), context.get("data_interval_end")
    if start is None or stop is None:
        msg = f"the run has neither a partition key nor a data interval, so it has no window: use {_CRON_ADVICE}"
        raise ConfigurationError(msg)
    if start >= stop:
        raise ConfigurationError(
            f"the run's data interval begins and ends at {start.isoformat()}, so its window has no length",
            "Cron strings have such intervals unless [scheduler] create_cron_data_intervals is set: use "
            f"{_CRON_ADVICE}. To land a window manually: airflow backfill create",
            outcome="Nothing was read",
        )
    if hasattr(schedule, "expression"):
        return _of_cron(start, stop, schedule)
    if isinstance(delta := getattr(schedule, "delta", None), timedelta):
        return _of_delta(Window.between(start, stop), delta)
    raise ConfigurationError(
        f"the run's data interval, {start.isoformat()} to {stop.isoformat()}, comes from a "
        f"{type(schedule).__name__}, whose intervals may overlap: use {_CRON_ADVICE}"
    )


def _of_cron(start: datetime, stop: datetime | None, schedule: Any) -> RunWindow:
    """The window that begins at a cron's time, and ends at its next one."""
    interval = _interval_from(start, schedule)
    if interval is None or (stop is not None and interval.end != stop):
        window = start.isoformat() if stop is None else f"{start.isoformat()} to {stop.isoformat()}"
        raise ConfigurationError(
            f"{window} is not a window of the cron {schedule.expression!r} in {schedule.timezone}, whose windows begin "
            "at one of its times and end at the next. Windows that overlap would double records, and gaps would lose "
            "them",
            f"Use {_CRON_ADVICE}",
            outcome="Nothing was read",
        )
    defined = {"cron": schedule.expression, "timezone": str(schedule.timezone)}
    return RunWindow(Window.between(interval.start, interval.end), json.dumps(defined))


def _interval_from(start: datetime, schedule: Any) -> Any:
    """From a cron's time to its next one; None if it is not one of its times."""
    from airflow.timetables.base import TimeRestriction
    from airflow.timetables.interval import CronDataIntervalTimetable

    # Not in local time, where an hour that comes twice equals itself.
    moment = _pendulum(start).in_timezone("UTC")
    # Airflow's own arithmetic, with time zones and changes of the clock.
    ticks = CronDataIntervalTimetable(schedule.expression, schedule.timezone)  # pyright: ignore[reportAbstractUsage]
    # Whether a time is one of the cron's, Airflow finds out from the next one backwards. It gets lost if the clock
    # skips that, as the midnight of a day in Santiago: then the moment before finds it.
    for earliest in (moment, moment.subtract(microseconds=1000)):
        found = ticks.next_dagrun_info(
            last_automated_data_interval=None, restriction=TimeRestriction(earliest=earliest, latest=None, catchup=True)
        )
        interval: Any = None if found is None else found.data_interval
        if interval is not None and interval.start == moment:
            return interval
    return None


def _of_delta(window: Window, delta: timedelta) -> RunWindow:
    length = window.stop_ms - window.start_ms
    if length != delta // timedelta(milliseconds=1):
        raise ConfigurationError(
            f"the run's data interval is {timedelta(milliseconds=length)} long, but the schedule starts a run every "
            f"{delta}: windows would overlap, or leave gaps",
            "Use DeltaDataIntervalTimetable",
            outcome="Nothing was read",
        )
    # Windows of the same length that begin at other times would overlap.
    defined = {"every_ms": length, "from_ms": window.start_ms % length}
    return RunWindow(window, json.dumps(defined))


def _time_of(key: str, keys: CronPartitionTimetable) -> datetime:
    """The time that a partition key means."""
    try:
        parsed = datetime.strptime(key, keys.key_format)  # noqa: DTZ007 - its time zone is the timetable's
    except ValueError:
        msg = f"the partition key {key!r} is not a time like {keys.key_format!r}, the key_format of partition_keys"
        raise ConfigurationError(msg) from None
    if parsed.tzinfo is not None:
        return parsed
    # Two, where the clock is set back, or where it is set forward past this time.
    times = [_pendulum(parsed.replace(fold=fold), keys.timezone) for fold in (0, 1)]
    found = {time.timestamp(): time for time in times if _interval_from(time, keys) is not None}
    if len(found) > 1:
        either = " or ".join(time.in_timezone("UTC").isoformat() for time in found.values())
        raise ConfigurationError(
            f"the partition key {key!r} may stand for {either}, because the clock changes in {keys.timezone}. One of "
            "the two windows would be lost",
            "Give the timetable of the keys a key_format with %z, or the time zone UTC",
            outcome="Nothing was read",
        )
    return next(iter(found.values()), times[0])


def _pendulum(moment: datetime, timezone: Any = None) -> Any:
    import pendulum

    return pendulum.instance(moment) if timezone is None else pendulum.instance(moment, tz=timezone)
