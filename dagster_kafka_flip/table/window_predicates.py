"""SQL conditions for the rows of windows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.source.instants import instant, utc_time
from dagster_kafka_flip.source.unreadable import LATEST_MS
from dagster_kafka_flip.table.duplicates import OffsetRange, RecordColumns, offsets_predicate
from dagster_kafka_flip.table.sql import literal, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.window import Window
    from dagster_kafka_flip.table.landed_logs import Scope


def windows_predicate(
    windows: Iterable[Window],
    column: str,
    scope: Scope | None = None,
    topic_column: str = "",
    partition_column: str = "",
) -> str:
    """Condition for the rows of windows in a table of windows.

    Args:
        windows: The windows.
        column: The column with the window's key.
        scope: Scope of their rows; None for all.
        topic_column: The column with the record's topic.
        partition_column: The column with its topic partition.
    """
    keys = f"{quoted(column)} IN ({', '.join(literal(window.key) for window in windows)})"
    if scope is None or scope.topics is None:
        return keys
    topic = quoted(topic_column)
    if not scope.needs_partitions:
        return f"{keys} AND {topic} IN ({', '.join(map(literal, scope.topics))})"
    whole = [name for name, partitions in scope.topics.items() if partitions is None]
    logs = [f"{topic} IN ({', '.join(map(literal, whole))})"] if whole else []
    logs += [
        f"({topic} = {literal(name)} AND {quoted(partition_column)} IN ({', '.join(map(str, sorted(partitions)))}))"
        for name, partitions in scope.topics.items()
        if partitions is not None
    ]
    return f"{keys} AND ({' OR '.join(logs)})"


def repair_predicate(
    windows: Sequence[Window], splits: Sequence[KafkaPartitionSplit], columns: Mapping[str, str]
) -> str:
    """Condition for the rows that a repair replaces: these windows, and exactly the offsets that it reads.

    Args:
        windows: Consecutive windows in time order.
        splits: The splits to read, at least one.
        columns: The table's columns for `topic`, `partition`, `offset` and `time`.
    """
    return f"{time_predicate(windows, columns['time'])} AND ({records_predicate(splits, columns)})"


def kept_predicate(windows: Sequence[Window], splits: Sequence[KafkaPartitionSplit], columns: Mapping[str, str]) -> str:
    """Condition for rows of a repair's offsets that it keeps: those with other timestamps, and without one.

    Args:
        windows: Consecutive windows in time order.
        splits: The splits to read, at least one.
        columns: As for `repair_predicate`.
    """
    within = time_predicate(windows, columns["time"])
    return f"NOT coalesce({within}, false) AND ({records_predicate(splits, columns)})"


def time_predicate(windows: Sequence[Window], column: str) -> str:
    """Condition for a timestamp within windows.

    Args:
        windows: Consecutive windows in time order.
        column: The timestamp column.
    """
    time = quoted(column)
    start, stop = windows[0].start_ms, windows[-1].stop_ms
    # No column has a timestamp beyond Spark's maximum.
    after_start = f"{time} >= {_timestamp(start)}" if start <= LATEST_MS else "false"
    before_stop = f"{time} < {_timestamp(stop)}" if stop <= LATEST_MS else f"{time} IS NOT NULL"
    return f"({after_start} AND {before_stop})"


def _timestamp(milliseconds: int) -> str:
    if utc_time(milliseconds) is None:
        # Timestamp literals have four-digit years.
        return f"timestamp_millis({milliseconds})"
    # With a UTC offset, so that the session's time zone does not matter.
    return f"TIMESTAMP {literal(instant(milliseconds))}"


def records_predicate(splits: Sequence[KafkaPartitionSplit], columns: Mapping[str, str]) -> str:
    """Condition for the rows of a repair's offsets, whatever their timestamps; see `repair_predicate`."""
    named = RecordColumns(*(columns[name] for name in RecordColumns._fields))
    return offsets_predicate(map(OffsetRange.of, splits), named)
