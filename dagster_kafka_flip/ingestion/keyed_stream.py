"""Streams of a table with a key: checks before anything runs that they fit, and decoding of records into changes."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import (
    ClusterChangedError,
    ConfigurationError,
    EndBeforePositionError,
    KafkaFlipError,
    TopicRecreatedError,
)
from dagster_kafka_flip.formats.changelog import DELETE
from dagster_kafka_flip.formats.decode import OP
from dagster_kafka_flip.formats.raw import RawFormat
from dagster_kafka_flip.runtime.spark_functions import f
from dagster_kafka_flip.settings.names import first_few, first_of
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.table.changes import ChangeColumns, same_key
from dagster_kafka_flip.table.mode import Scd2, Upsert
from dagster_kafka_flip.table.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

    from dagster_kafka_flip.formats.changelog import ChangelogFormat
    from dagster_kafka_flip.formats.decode import Decoder
    from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.target import DeltaTarget

# Columns that a message names.
_MOST_COLUMNS = 50

# After each of these an offset may have a second record, but offsets decide which records are newer.
OTHER_OFFSETS = (ClusterChangedError, EndBeforePositionError, TopicRecreatedError)


def check_keyed(
    target: DeltaTarget, decoder: Decoder, tolerated: Collection[type[KafkaFlipError]] = (), *, has_transform: bool
) -> None:
    """Checks the options of a stream whose table has a key; does nothing if rows are appended."""
    if not target.key:
        return
    mode = type(target.mode).__name__
    wrong = sorted(error.__name__ for error in tolerated if error in OTHER_OFFSETS)
    if wrong:
        raise ConfigurationError(
            f"tolerate: {', '.join(wrong)} can't be tolerated with {mode}: the offsets would belong to other records, "
            "and offsets decide which record of a key is newer",
            "Read such a topic into a new table",
        )
    for what, form in (("key", decoder.key_format), ("value", decoder.value_format)):
        if form.on_error != "fail":
            raise ConfigurationError(
                f"on_error={form.on_error!r} of the {what} format can't be used with {mode}: a record that can't be "
                "decoded would replace a row with nulls",
                "Let it fail the run, or send it to a separate table with dead_letter= (the row then keeps its older "
                "values)",
            )
    needed = ("topic", "partition", "offset", *(("timestamp",) if isinstance(target.mode, Scd2) else ()))
    dropped = [field for field in needed if field not in decoder.columns.fields]
    if dropped:
        raise ConfigurationError(
            f"KafkaColumns leaves out {', '.join(dropped)}, which the rows of {target} need with {mode}: they decide "
            "which record of a key is newer, and from when it is valid",
            "Keep them",
        )
    _check_key_is_declared(target, decoder)
    landed = None if has_transform else decoder.landed_names
    if landed is None:
        return
    there = {name.lower() for name in landed}
    deleted = change_columns(decoder.columns).deleted
    if deleted.lower() in there:
        raise ConfigurationError(
            f"the records have a column {deleted}, but with {mode} the column with this name marks deletes",
            "Set another prefix in KafkaColumns",
        )
    order = target.mode.order_by if isinstance(target.mode, Upsert) else None
    for option, needed in (("key", target.key), ("order_by", () if order is None else (order,))):
        if missing := [name for name in needed if name.lower() not in there]:
            columns = first_few(landed, _MOST_COLUMNS)
            msg = f"{option}: the rows of {target} have no column {', '.join(missing)}; columns: {columns}"
            raise ConfigurationError(msg)


def _check_key_is_declared(target: DeltaTarget, decoder: Decoder) -> None:
    """Refuses a key that the previous values of a change don't have: its previous row would not be found."""
    changelog = decoder.changelog
    if changelog is None or not changelog.has_rows:
        return
    known = {name.lower() for name in (*(changelog.column_names or ()), decoder.columns.name("topic"))}
    if unknown := [name for name in target.key if name.lower() not in known]:
        raise ConfigurationError(
            f"key: {', '.join(unknown)} is not declared in {type(changelog).__name__}, so an update that changes the "
            f"key would leave the row of the previous one in {target}",
            "Declare all columns of the key, and keep their names and values in the transform",
        )


def check_keeps_unavailable(rows: DataFrame, result: DataFrame, columns: ChangeColumns) -> None:
    """Rejects a transform that drops the list of left-out values: their nulls would replace values."""
    there = {name.lower() for name in result.columns}
    needed = [name for name in rows.columns if name in (columns.unavailable, columns.previous_key)]
    if dropped := [name for name in needed if name.lower() not in there]:
        raise ConfigurationError(
            f"the transform drops {', '.join(dropped)}, which lists the values that the connector left out of a "
            "change: nulls would replace them",
            "Keep it: the table does not get this column",
        )


def check_without_windows(target: DeltaTarget) -> None:
    """Refuses to replace time windows of a table with a key."""
    if target.key:
        raise ConfigurationError(
            f"the rows of {target} have a key, and a time window of the topic does not have all records of a key: "
            "windows, partitions and mode: replace are for tables that are appended to",
            "To read records again, RESTORE the table to an earlier version, or move the position back "
            "(dagster-kafka-flip position set): a change never replaces a newer one. To rebuild the table: "
            "dagster-kafka-flip rebuild",
        )


@contextlib.contextmanager
def with_fitting_advice(target: DeltaTarget) -> Generator[None]:
    """Errors about other logs advise what the table allows: with a key another table, and not another position."""
    try:
        yield
    except OTHER_OFFSETS as error:
        if target.key:
            error.advice = (
                f"The rows of {target} have a key ({type(target.mode).__name__}), and their offsets decide which "
                "records are newer, so records of another log can't be applied to them. If bootstrap_servers or the "
                "topic's name is wrong, correct it; otherwise read the topic into a new table"
            )
        raise


def check_same_offsets(
    target: DeltaTarget, key: tuple[str, ...], before: EnumeratorState | None, plan: ReadPlan
) -> None:
    """Refuses to move a position to a log in which offsets have other records, if the table's rows have a key."""
    if not key or before is None:
        return
    other = sorted(
        tp
        for tp, offset in before.furthest.items()
        if tp in plan.cut_off
        or (tp in plan.end_offsets and (not is_same_log(tp, before, plan.state) or plan.high_watermarks[tp] < offset))
    )
    if other:
        raise ConfigurationError(
            f"{first_of(other)} is not the log that the rows of {target} come from, or it was truncated. Offsets "
            "decide which record of a key is newer, so records of this log would count as older",
            "Read the topic into a new table",
        )


def reaching(state: EnumeratorState | None, key: tuple[str, ...]) -> EnumeratorState | None:
    """The state, which keeps how far it reached if the rows have a key: no offset up to there may get other records."""
    return replace(state, reached=state.furthest) if key and state is not None else state


IS_TOMBSTONE = "_dagster_kafka_flip_is_tombstone"
"""Column of records: whether the value is null."""

_KEY = "_dagster_kafka_flip_change_key"


def change_columns(columns: KafkaColumns) -> ChangeColumns:
    fields: Any = ChangeColumns._fields
    return ChangeColumns(*map(columns.name, fields))


def with_tombstones(records: DataFrame) -> DataFrame:
    """Adds to records, as every reader gives them, whether they are tombstones, before they are staged."""
    return records.withColumn(IS_TOMBSTONE, records["value"].isNull())


def carried(decoder: Decoder) -> tuple[str, ...]:
    """The columns of records that `change_rows` needs besides those that are decoded."""
    return (IS_TOMBSTONE,) if decoder.changelog is None else (IS_TOMBSTONE, "key", "headers")


def change_rows(
    staged: DataFrame, decoder: Decoder, key: Sequence[str], *, leave_out_rejected: bool = False
) -> DataFrame:
    """The decoded records, each with whether it deletes the row of its key: tombstones and deletes do.

    A tombstone's value has no columns to take the key from. If the decoded key is a STRUCT with a field of the same
    name, it is taken from there; so it is from a key that is not decoded, if the value's format can.
    """
    from pyspark.sql.types import StructType

    deleted, changelog = decoder.columns.name("deleted"), decoder.changelog
    staged = staged.select("*", _key(decoder, key).alias(_KEY))
    carry = {IS_TOMBSTONE: deleted, _KEY: _KEY}
    previous = None if changelog is None else changelog.previous_key(f.col("headers"), key)
    if previous is not None:
        name = decoder.columns.name("previous_key")
        staged, carry = staged.withColumn(name, previous), {**carry, name: name}
    rows = decoder.finish(staged, leave_out_rejected=leave_out_rejected, carry=carry, key=key)
    _check_no_field_is_taken(rows, decoder.columns, before=previous, changelog=changelog)
    decoded = rows.schema[_KEY].dataType
    fields = {field.name.lower(): field for field in decoded.fields} if isinstance(decoded, StructType) else {}
    names = {name.lower() for name in key}
    is_tombstone = f.col(quoted(deleted))

    def column(name: str, data_type: DataType, metadata: dict[str, Any]) -> Column:
        found = f.col(quoted(name))
        if name == deleted and changelog is not None:
            found = is_tombstone | f.coalesce(f.col(OP) == f.lit(DELETE), f.lit(False))
        elif name.lower() in names & fields.keys():
            field = fields[name.lower()]
            value = same_key(f.col(_KEY)[field.name], field, data_type, "in the record's key")
            found = f.when(is_tombstone, value).otherwise(found)
        return found.alias(name, metadata=metadata)

    return rows.select(
        *(column(each.name, each.dataType, each.metadata) for each in rows.schema.fields if each.name not in {_KEY, OP})
    )


def _check_no_field_is_taken(
    rows: DataFrame, columns: KafkaColumns, *, before: Column | None, changelog: ChangelogFormat | None
) -> None:
    """Refuses a field that has the name of a column that a MERGE takes for its own: the table would not get it."""
    given = {name.lower() for name in rows.columns}
    own = [columns.name("previous_key")] if before is None else []
    own += [] if changelog is not None and changelog.leaves_out else [columns.name("unavailable")]
    if taken := [name for name in own if name.lower() in given]:
        raise ConfigurationError(
            f"the records have a column {taken[0]}, but in a table with a key the column with this name tells what a "
            "connector left out of a change, and is not landed",
            "Set another prefix in KafkaColumns",
        )


def _key(decoder: Decoder, key: Sequence[str]) -> Column:
    changelog = decoder.changelog
    if changelog is not None and isinstance(decoder.key_format, RawFormat) and changelog.key_fields(key):
        # Other records have their key in their value.
        return f.when(f.col(IS_TOMBSTONE), changelog.key_of(f.col("key"), key))
    return decoder.landed_key()
