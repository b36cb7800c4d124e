"""Assigns records to windows with Spark expressions: no join, and the same cost for many windows as for one.

The timestamp selects a window from a list of equal steps, and the window's number selects its offsets; both are
constants in the query.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.runtime.spark_functions import f

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from dagster_kafka_flip.source.split import Position
    from dagster_kafka_flip.source.window import Window, WindowPlan, Windows

WINDOW = "_dagster_kafka_flip_window"
"""Temporary column with the window's number in its batch."""

_LATE, _STRAGGLER, _TIMELESS = (f"{WINDOW}_late", f"{WINDOW}_straggler", f"{WINDOW}_timeless")

LOG_FIELDS = ("topic", "partition", "offset")
CARRIED = {name: f"_dagster_kafka_flip_{name}" for name in LOG_FIELDS}
"""Temporary columns with the record's topic, partition and offset."""


def event_time(records: DataFrame, column: str) -> Column:
    """The column of decoded records that tells their windows."""
    types = {field.name.lower(): field.dataType.simpleString() for field in records.schema.fields}
    kind = types.get(column.lower())
    if kind != "timestamp":
        raise ConfigurationError(
            f"event_time={column!r}: "
            + ("unknown column" if kind is None else f"the column is a {kind}")
            + "; use a TIMESTAMP column of the value format"
        )
    return f.col(f"`{column}`")


def check_free(records: DataFrame, column: str) -> None:
    """Refuses decoded records that have the window's column."""
    if column.lower() in {name.lower() for name in records.columns}:
        raise ConfigurationError(
            f"the records already have a column {column}; choose another one in Windows(column=...)"
        )


class WindowFilter:
    """Assigns the records of one batch to its windows."""

    def __init__(self, plan: WindowPlan, windows: Windows) -> None:
        self._plan = plan
        self._windows = [planned.window for planned in plan.windows]
        self._event_time = windows.event_time
        # A single window is read exactly between its offsets.
        self._is_bounded = len(self._windows) > 1
        self._partitions = _PartitionNumbers(plan.stops)

    @property
    def is_by_value(self) -> bool:
        return self._event_time is not None

    def number(self, records: DataFrame) -> DataFrame:
        """Adds each record's window number, null if in none, and flags. If `is_by_value`, the records are decoded."""
        topic, partition, offset = (f.col(CARRIED[name] if self.is_by_value else name) for name in LOG_FIELDS)
        log = self._partitions.number(topic, partition)
        time = f.unix_millis(self._time(records))
        window = _step(time, self._windows)
        inside = window.isNotNull()
        elsewhere = f.lit(False)
        if self._is_bounded:
            place = log * len(self._windows) + window
            starts = _constant([planned.starts for planned in self._plan.windows], self._partitions)
            stops = _constant([planned.stops for planned in self._plan.windows], self._partitions)
            elsewhere = inside & ((offset >= f.get(stops, place)) | (offset < f.get(starts, place)))
            inside = inside & ~elsewhere
        # Kafka's "no timestamp" is -1 (KIP-32). Such a record is neither early nor late.
        timeless = time.isNull() if self.is_by_value else f.coalesce(time < 0, f.lit(True))
        first, last = (
            _constant([position], self._partitions)
            for position in (self._plan.stragglers_from, self._plan.stragglers_before)
        )
        before = (time < self._windows[0].start_ms) & ~timeless & (offset >= f.get(first, log))
        after = (time >= self._windows[-1].stop_ms) & (offset < f.get(last, log))
        ends = _constant([planned.ends for planned in self._plan.windows], self._partitions)
        late = inside & (offset >= f.get(ends, log * len(self._windows) + f.coalesce(window, f.lit(0))))
        return records.select(
            "*",
            f.when(inside, window).alias(WINDOW),
            late.alias(_LATE),
            (elsewhere | before | after).alias(_STRAGGLER),
            timeless.alias(_TIMELESS),
        )

    def metrics(self) -> list[Column]:
        """Metrics to observe on numbered records: late ones by window, stragglers, and records without a timestamp."""
        late = f.when(f.col(_LATE), f.col(WINDOW))
        return [
            # Exact for every value, as long as there are no more values than steps.
            f.to_json(f.histogram_numeric(late.cast("double"), f.lit(2 * len(self._windows) + 2))).alias("late"),
            f.count(f.when(f.col(_STRAGGLER), 1)).alias("stragglers"),
            f.count(f.when(f.col(_TIMELESS), 1)).alias("timeless"),
        ]

    def inside(self, numbered: DataFrame) -> DataFrame:
        return numbered.where(f"{WINDOW} IS NOT NULL").drop(_LATE, _STRAGGLER, _TIMELESS)

    def labelled(self, rows: DataFrame, column: str) -> DataFrame:
        """Rows with the key of their window instead of its number."""
        check_free(rows, column)
        keys = f.from_json(f.lit(json.dumps([window.key for window in self._windows])), "array<string>")
        key = f.lit(self._windows[0].key) if len(self._windows) == 1 else f.get(keys, f.col(WINDOW))
        return rows.withColumn(column, key).drop(WINDOW, *CARRIED.values())

    def _time(self, records: DataFrame) -> Column:
        return f.col("timestamp") if self._event_time is None else event_time(records, self._event_time)


class _PartitionNumbers:
    def __init__(self, position: Position) -> None:
        self._topics: dict[str, list[int]] = {}
        self.order = sorted(position)
        for number, (topic, partition) in enumerate(self.order):
            known = self._topics.setdefault(topic, [])
            known.extend([-1] * (partition - len(known)))
            known.append(number)

    def number(self, topic: Column, partition: Column) -> Column:
        (first, *_), *_ = self._topics.items()
        if list(self._topics) == [first] and self._topics[first] == list(range(len(self._topics[first]))):
            return partition
        numbers = f.lit(None).cast("int")
        for name, known in self._topics.items():
            found = f.get(f.from_json(f.lit(json.dumps(known)), "array<int>"), partition)
            numbers = f.when(topic == name, found).otherwise(numbers)
        return numbers


def _constant(positions: Sequence[Position], partitions: _PartitionNumbers) -> Column:
    numbers = [position[tp] for tp in partitions.order for position in positions]
    return f.from_json(f.lit(json.dumps(numbers)), "array<bigint>")


def _step(time: Column, windows: Sequence[Window]) -> Column:
    """The number of the window that contains a timestamp, for consecutive windows."""
    first, last = windows[0].start_ms, windows[-1].stop_ms
    inside = (time >= first) & (time < last)
    if len(windows) == 1:
        return f.when(inside, f.lit(0))
    # No step is longer than a window, so at most one window begins in a step.
    step = min(window.stop_ms - window.start_ms for window in windows)
    steps = -(-(last - first) // step)
    begun: list[int] = []
    number = 0
    for index in range(steps):
        while number + 1 < len(windows) and windows[number + 1].start_ms <= first + index * step:
            number += 1
        begun.append(number)
    numbers = f.from_json(f.lit(json.dumps(begun)), "array<int>")
    stops = f.from_json(f.lit(json.dumps([window.stop_ms for window in windows])), "array<bigint>")
    at = f.get(numbers, ((time - first) / step).cast("int"))
    return f.when(inside, f.when(time >= f.get(stops, at), at + 1).otherwise(at))
