"""Checks before anything runs that a stream fits a table with a key."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    ClusterChangedError,
    ConfigurationError,
    EndBeforePositionError,
    KafkaFlipError,
    TopicRecreatedError,
)
from dagster_kafka_flip.ingestion.change_rows import change_columns
from dagster_kafka_flip.settings.names import counted, first_few
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.source.incident import found
from dagster_kafka_flip.source.next_step import filled_in
from dagster_kafka_flip.table.mode import Scd2, Upsert

if TYPE_CHECKING:
    from collections.abc import Collection, Generator

    from pyspark.sql import DataFrame

    from dagster_kafka_flip.formats.decode import Decoder
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.changes import ChangeColumns
    from dagster_kafka_flip.table.target import DeltaTarget

# Columns that a message names.
_MOST_COLUMNS = 50

# After each of these an offset may have a second record, but offsets decide which records are newer.
_OTHER_OFFSETS = (ClusterChangedError, EndBeforePositionError, TopicRecreatedError)


def check_keyed(
    target: DeltaTarget,
    decoder: Decoder,
    tolerated: Collection[type[KafkaFlipError]] = (),
    *,
    has_transform: bool,
) -> None:
    """Checks the options of a stream whose table has a key; does nothing if rows are appended.

    Args:
        target: The table and the stream.
        decoder: Decodes records.
        tolerated: Errors that don't fail a run.
        has_transform: Whether a function makes the rows of the records.

    Raises:
        ConfigurationError: The options contradict the mode.
    """
    if not target.key:
        return
    mode = type(target.mode).__name__
    wrong = sorted(error.__name__ for error in tolerated if error in _OTHER_OFFSETS)
    if wrong:
        msg = (
            f"tolerate: {', '.join(wrong)} can't be tolerated with {mode}: the offsets would belong to other records, "
            "and offsets decide which record of a key is newer. Read such a topic into a new table"
        )
        raise ConfigurationError(msg)
    for what, form in (("key", decoder.key_format), ("value", decoder.value_format)):
        if form.on_error != "fail":
            msg = (
                f"on_error={form.on_error!r} of the {what} format can't be used with {mode}: a record that can't be "
                "decoded would replace a row with nulls. Let it fail the run, or send it to a separate table with "
                "dead_letter= (the row then keeps its older values)"
            )
            raise ConfigurationError(msg)
    needed = ("topic", "partition", "offset", *(("timestamp",) if isinstance(target.mode, Scd2) else ()))
    dropped = [field for field in needed if field not in decoder.columns.fields]
    if dropped:
        msg = (
            f"KafkaColumns leaves out {', '.join(dropped)}, which the rows of {target} need with {mode}: they decide "
            "which record of a key is newer, and from when it is valid. Keep them"
        )
        raise ConfigurationError(msg)
    landed = None if has_transform else decoder.landed_names
    if landed is None:
        return
    there = {name.lower() for name in landed}
    deleted = change_columns(decoder.columns).deleted
    if deleted.lower() in there:
        msg = (
            f"the records have a column {deleted}, but with {mode} the column with this name marks deletes. Set "
            "another prefix in KafkaColumns"
        )
        raise ConfigurationError(msg)
    order = target.mode.order_by if isinstance(target.mode, Upsert) else None
    for option, needed in (("key", target.key), ("order_by", () if order is None else (order,))):
        if missing := [name for name in needed if name.lower() not in there]:
            columns = first_few(landed, _MOST_COLUMNS)
            msg = f"{option}: the rows of {target} have no column {', '.join(missing)}; columns: {columns}"
            raise ConfigurationError(msg)


def check_keeps_unavailable(rows: DataFrame, result: DataFrame, columns: ChangeColumns) -> None:
    """Rejects a transform that drops the list of left-out values: their nulls would replace values.

    Args:
        rows: The changes that the transform got.
        result: What it returned.
        columns: The columns that say what a change is.

    Raises:
        ConfigurationError: It drops a column that says so.
    """
    there = {name.lower() for name in result.columns}
    needed = [name for name in rows.columns if name in (columns.unavailable, columns.previous_key)]
    if dropped := [name for name in needed if name.lower() not in there]:
        msg = (
            f"the transform drops {', '.join(dropped)}, which lists the values that the connector left out of a "
            "change: nulls would replace them. Nothing was written. Keep it: the table does not get this column"
        )
        raise ConfigurationError(msg)


def check_without_windows(target: DeltaTarget) -> None:
    """Refuses to replace time windows of a table with a key.

    Raises:
        ConfigurationError: It has one.
    """
    if target.key:
        msg = (
            f"the rows of {target} have a key, and a time window of the topic does not have all records of a key: "
            "windows, partitions and mode: replace are for tables that are appended to. To read records again, "
            "RESTORE the table to an earlier version, or move the position back (dagster-kafka-flip position set): a "
            "change never replaces a newer one. To rebuild the table: dagster-kafka-flip rebuild"
        )
        raise ConfigurationError(msg)


@contextlib.contextmanager
def with_fitting_advice(target: DeltaTarget) -> Generator[None]:
    """Errors about other logs advise what the table allows: with a key another table, and not another position."""
    try:
        yield
    except (ClusterChangedError, EndBeforePositionError, TopicRecreatedError) as error:
        if not target.key:
            error.args = (filled_in(str(error), str(target), target.stream),)
            raise
        msg = (
            f"{found(error)} Nothing was written. The rows of {target} have a key ({type(target.mode).__name__}), and "
            "their offsets decide which records are newer, so records of another log can't be applied to them. If "
            "bootstrap_servers or the topic's name is wrong, correct it; otherwise read the topic into a new table"
        )
        if isinstance(error, TopicRecreatedError):
            raise TopicRecreatedError(msg, error.topics) from None
        raise type(error)(msg) from None


def check_same_offsets(
    target: DeltaTarget, key: tuple[str, ...], before: EnumeratorState | None, plan: ReadPlan
) -> None:
    """Refuses to move a position to a log in which offsets have other records, if the table's rows have a key.

    Args:
        target: The table and the stream.
        key: The key of the table's rows; empty if rows are appended.
        before: The stream's position.
        plan: The plan of the move.

    Raises:
        ConfigurationError: Offsets have other records.
    """
    if not key or before is None:
        return
    other = sorted(
        tp
        for tp, offset in before.position.items()
        if tp in plan.cut_off
        or (tp in plan.end_offsets and (not is_same_log(tp, before, plan.state) or plan.end_offsets[tp] < offset))
    )
    if other:
        more = f" and {counted(len(other) - 1, 'more topic partition')}" if len(other) > 1 else ""
        msg = (
            f"{other[0]}{more} is not the log that the rows of {target} come from, or it was truncated. Offsets decide "
            "which record of a key is newer, so records of this log would count as older. Nothing was changed. Read "
            "the topic into a new table"
        )
        raise ConfigurationError(msg)
