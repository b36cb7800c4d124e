"""Finds records that a table has twice, and keys with several rows, without one, or with histories that overlap."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from dagster_kafka_flip.table.change_errors import place
from dagster_kafka_flip.table.changes import IS_CURRENT, VALID_FROM, VALID_TO
from dagster_kafka_flip.table.sql import literal, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import Column, DataFrame

    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.state import EnumeratorState

# A condition with more topic partitions costs Spark more to plan than it saves in files.
_MOST_RANGES = 256


class RecordColumns(NamedTuple):
    """Names of the columns that identify a row's record."""

    topic: str
    partition: str
    offset: str


@dataclass(frozen=True)
class Duplicates:
    """Numbers of compared rows, duplicated records and surplus rows, and one of the records."""

    rows: int
    records: int
    surplus: int
    example: str | None


def offsets_predicate(splits: Iterable[KafkaPartitionSplit], columns: RecordColumns) -> str:
    """The SQL condition for the rows of splits; empty without any."""
    return " OR ".join(
        f"({_of_topic(split.topic_partition.topic, columns)} AND "
        f"{quoted(columns.partition)} = {split.topic_partition.partition} AND "
        f"{_between(split.starting_offset, split.stopping_offset, columns)})"
        for split in splits
    )


def _of_topic(topic: str, columns: RecordColumns) -> str:
    return f"{quoted(columns.topic)} = {literal(topic)}"


def _between(start: int, stop: int, columns: RecordColumns) -> str:
    return f"{quoted(columns.offset)} >= {start} AND {quoted(columns.offset)} < {stop}"


def covering_predicate(splits: Iterable[KafkaPartitionSplit], columns: RecordColumns) -> str:
    """A condition that the rows of splits fulfil; for very many topic partitions, others of their topics do, too."""
    joined = _joined(splits)
    if len(joined) <= _MOST_RANGES:
        return offsets_predicate(joined, columns)
    by_topic: dict[str, list[KafkaPartitionSplit]] = {}
    for split in joined:
        by_topic.setdefault(split.topic_partition.topic, []).append(split)
    return " OR ".join(
        f"({_of_topic(topic, columns)} AND "
        f"{_between(min(one.starting_offset for one in of), max(one.stopping_offset for one in of), columns)})"
        for topic, of in by_topic.items()
    )


def _joined(splits: Iterable[KafkaPartitionSplit]) -> list[KafkaPartitionSplit]:
    result: list[KafkaPartitionSplit] = []
    for each in sorted(splits):
        last = result[-1] if result else None
        if (
            last is not None
            and last.topic_partition == each.topic_partition
            and each.starting_offset <= last.stopping_offset
        ):
            result[-1] = replace(last, stopping_offset=max(last.stopping_offset, each.stopping_offset))
        else:
            result.append(each)
    return result


def topics_with_several_logs(states: Iterable[EnumeratorState]) -> tuple[str, ...]:
    """Topics with more than one log in the commits, so that an offset may have two records."""
    ids: dict[str, tuple[set[str | None], set[str | None]]] = {}
    for state in states:
        for topic in {tp.topic for tp in state.position}:
            clusters, topic_ids = ids.setdefault(topic, (set(), set()))
            clusters.add(state.cluster_id)
            topic_ids.add(state.topic_ids.get(topic))
    return tuple(sorted(topic for topic, known in ids.items() if any(len(each - {None}) > 1 for each in known)))


def find_duplicates(
    table: DataFrame,
    columns: RecordColumns,
    splits: Iterable[KafkaPartitionSplit] | None,
    leave_out: Sequence[str] = (),
) -> Duplicates:
    """Counts duplicates of splits, or of all rows, in one pass over three columns; ignores rows without an offset."""
    from pyspark.sql import functions as f

    if splits is not None:
        table = table.where(covering_predicate(splits, columns) or "false")
    if leave_out:
        table = table.where(~f.col(quoted(columns.topic)).isin(list(leave_out)))
    keys = [f.col(quoted(name)).alias(alias) for name, alias in zip(columns, RecordColumns._fields, strict=True)]
    counted = table.select(*keys).dropna().groupBy(*RecordColumns._fields).agg(f.count(f.lit(1)).alias("copies"))
    (found,) = counted.agg(*_copies(f.struct(*RecordColumns._fields))).collect()
    rows, records, surplus, one = found
    return Duplicates(rows, records, surplus, None if one is None else f"{one[0]}-{one[1]} offset {one[2]}")


def _copies(example: Column) -> list[Column]:
    """Of groups with a number of `copies`: all copies, the groups with several, their surplus, and an example."""
    from pyspark.sql import functions as f

    copies = f.col("copies")
    is_double = copies > 1
    counted = (copies, f.when(is_double, 1), f.when(is_double, copies - 1))
    return [*(f.coalesce(f.sum(each), f.lit(0)) for each in counted), f.min(f.when(is_double, example))]


@dataclass(frozen=True)
class KeysSeen:
    """Result of a check of all rows."""

    rows: int
    # With a null in a key column.
    null_rows: int
    # Keys with several rows; a null equals a null.
    duplicate_keys: int
    surplus: int
    # Records that two rows of one key come from.
    example: str | None


def look_at_keys(table: DataFrame, key: Sequence[str], columns: RecordColumns) -> KeysSeen:
    from pyspark.sql import functions as f

    keys = [f.col(quoted(name)).alias(f"key_{index}") for index, name in enumerate(key)]
    record = place(*columns)
    names = [f"key_{index}" for index in range(len(key))]
    lacks = f.lit(False)
    for name in names:
        lacks |= f.col(name).isNull()
    counted = (
        table.select(*keys, record.alias("record"))
        .groupBy(*names)
        .agg(f.count(f.lit(1)).alias("copies"), f.min("record").alias("one"), f.max("record").alias("other"))
    )
    null_rows = f.coalesce(f.sum(f.when(lacks, f.col("copies"))), f.lit(0))
    (found,) = counted.agg(*_copies(f.struct("one", "other")), null_rows).collect()
    rows, doubled, surplus, two, nulls = found
    return KeysSeen(rows, nulls, doubled, surplus, None if two is None else f"{two['one']} and {two['other']}")


@dataclass(frozen=True)
class HistorySeen:
    """Result of a look at the history of all keys."""

    rows: int
    # Rows that are valid until after the next one of their key begins, or that end before they begin, or whose
    # `is_current` contradicts this.
    overlaps: int
    # The record that one of them comes from.
    example: str | None


def look_at_history(table: DataFrame, key: Sequence[str], columns: RecordColumns) -> HistorySeen:
    """Counts rows of a history that contradict each other, in one pass."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    keys = [f.col(quoted(name)) for name in key]
    since, until = f.col(VALID_FROM), f.col(VALID_TO)
    in_order = Window.partitionBy(*keys).orderBy(since, until.asc_nulls_last(), f.col(quoted(columns.offset)))
    following = f.lead(f.struct(since)).over(in_order)[VALID_FROM]
    is_wrong = (
        since.isNull()
        | f.coalesce(until < since, f.lit(False))
        | (following.isNotNull() & f.coalesce(following < until, f.lit(True)))
        | ~f.coalesce(f.col(IS_CURRENT) == until.isNull(), f.lit(False))
    )
    (found,) = (
        table.select(is_wrong.alias("is_wrong"), place(*columns).alias("record"))
        .agg(
            f.count(f.lit(1)), f.count(f.when(f.col("is_wrong"), 1)), f.min(f.when(f.col("is_wrong"), f.col("record")))
        )
        .collect()
    )
    return HistorySeen(*found)
