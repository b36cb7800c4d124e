"""Errors about a row that can't be written: a query fails with a mark, and the failure names the row's record."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from dagster_kafka_flip.errors import (
    ConfigurationError,
    KafkaFlipError,
    KeyOrderUnknownError,
    NullKeyError,
    SchemaMismatchError,
    UnavailableValueError,
    error_text,
)
from dagster_kafka_flip.runtime.spark_functions import f
from dagster_kafka_flip.table.sql import literal, quoted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column

NULL_KEY = "null key"
CHANGED_KEY = "changed key"
CHANGED_PARTITION = "changed partition"
NULL_DELETED = "null deleted"
TWO_ROWS = "two rows of a key"
NULL_ORDER = "null order"
NULL_TIME = "null time"
TWO_PARTITIONS = "key in two topic partitions"
SAME_ORDER = "same order in two topic partitions"
UNAVAILABLE = "unavailable value"
OTHER_TIME = "other time"


class _Known(NamedTuple):
    kind: type[KafkaFlipError]
    finding: str
    advice: str


# The error of each mark. No message shows the key: more people read logs than tables.
_ERRORS: Mapping[str, _Known] = {
    NULL_KEY: _Known(
        NullKeyError,
        "the row of {where} has no value in a column that identifies it ({key}, or the record's topic, partition "
        "and offset), or none that fits the column's type, so it is unknown which row of {table} it changes",
        "If it is a tombstone, take its key from the record's key, with key_format or in the transform, in the "
        "type that the value has. If it has a value, the value lacks the key: correct the producer, or drop such "
        "records in the transform",
    ),
    CHANGED_KEY: _Known(
        NullKeyError,
        "the row of {where} has an empty string, __HIVE_DEFAULT_PARTITION__ or bytes that are not UTF-8 in a key "
        "column ({key}) by which {table} is partitioned. Delta stores null or another text there, so no later "
        "change would find the row",
        "Drop such records in the transform or give them another key, or partition a new table by another column",
    ),
    CHANGED_PARTITION: _Known(
        SchemaMismatchError,
        "the row of {where} has an empty string, __HIVE_DEFAULT_PARTITION__ or bytes that are not UTF-8 in a "
        "partition column of {table}. Delta stores null or another text there",
        "Drop or change such rows in the transform, or partition a new table by another column",
    ),
    NULL_DELETED: _Known(
        ConfigurationError,
        "the transform returns a row of {where} whose kafka_deleted is null, so it is unknown whether it is a "
        "delete for {table}",
        "Comparisons with null are null: use coalesce(..., false), and keep true for tombstones",
    ),
    TWO_ROWS: _Known(
        KeyOrderUnknownError,
        "the transform returns several rows with the same key ({key}) for the record {where}, so it is unknown "
        "which of them is the row for {table}",
        "Return only one; or, in a new table, add a column to the key that distinguishes them",
    ),
    TWO_PARTITIONS: _Known(
        KeyOrderUnknownError,
        "{where} have the same key ({key}), and Kafka orders records only within a topic partition, so it is "
        "unknown which of them is newer for {table}",
        "Producers must send all records of a key to one topic partition. Check whether partitions were added to "
        "the topic, whether two producers partition differently, or whether the table's key is not the records' "
        "key. Correct it, and read the topic into a new table",
    ),
    SAME_ORDER: _Known(
        KeyOrderUnknownError,
        "{where} have the same key ({key}) and the same value in the column of order_by, and Kafka orders records "
        "only within a topic partition, so it is unknown which of them is newer for {table}",
        "In a new table, order by a column that distinguishes them, such as one that the transform computes from "
        "the value and the topic",
    ),
    NULL_ORDER: _Known(
        KeyOrderUnknownError,
        "the row of {where} has a null in the column of order_by, so it is unknown whether it is newer than the "
        "row of its key in {table}",
        "Fill the column in the transform: a tombstone has only a timestamp, as in coalesce(updated_at, "
        'kafka_timestamp). Or use a new table, with order_by="kafka_timestamp"',
    ),
    NULL_TIME: _Known(
        KeyOrderUnknownError,
        "the record {where} has no timestamp, which the mode of {table} needs",
        "Fill kafka_timestamp in the transform, for example from the value",
    ),
    UNAVAILABLE: _Known(
        UnavailableValueError,
        "the connector left out a value that did not change ({where}), and it is unknown: no earlier change of "
        "the row in this batch has it, nor does {table}. Under the key that a row had before it is not looked for",
        "Make the connector send the row again (an incremental snapshot): with Upsert the next run reads it in "
        "the same batch. Or remove the column's name from kafka_unavailable of this record in the transform, and "
        "its value is null: of all records, known values would become null, too. To get all values from now on, "
        "set REPLICA IDENTITY FULL in PostgreSQL",
    ),
    OTHER_TIME: _Known(
        ConfigurationError,
        "the row of {where} has another time than in {table}, and only one of the two is in the range to replace: "
        "the row would be lost, or be there twice",
        "Repair a range that has both times",
    ),
}
_MARKED_MESSAGE = re.compile(rf"\[dagster-kafka-flip: ({'|'.join(_ERRORS)})\] ([^\n]*?) \[end\]")


def unless(is_wrong: Column, mark: str, description: Column, condition: Column | None = None) -> Column:
    """A condition, by default one that always holds; it fails the query on a row that is wrong."""
    message = f.concat(f.lit(f"[dagster-kafka-flip: {mark}] "), description, f.lit(" [end]"))
    holds = f.lit(True) if condition is None else condition
    return f.when(is_wrong, f.raise_error(message).cast("boolean")).otherwise(holds)


def raising(kind: str, mark: str, *description: str) -> str:
    """SQL that fails the query, in the place of a value of this type; `description` is SQL of texts."""
    parts = ", ".join((literal(f"[dagster-kafka-flip: {mark}] "), *description, literal(" [end]")))
    return f"CAST(raise_error(concat({parts})) AS {kind})"


def place(*of: Column | str) -> Column:
    """Text for a record's place, such as `orders-0 offset 17`; of the columns of its topic, partition and offset."""
    columns = (f.col(quoted(each)) if isinstance(each, str) else each for each in of)
    topic, partition, offset = (f.coalesce(column.cast("string"), f.lit("?")) for column in columns)
    return f.concat(topic, f.lit("-"), partition, f.lit(" offset "), offset)


def error_of(failure: BaseException, table: str, key: Sequence[str]) -> KafkaFlipError | None:
    """The error about a change that could not be applied; None if the failure of the query or the merge is another."""
    found = _MARKED_MESSAGE.search(error_text(failure))
    if found is None:
        return None
    what, where = found.groups()
    known = _ERRORS[what]
    return known.kind(known.finding.format(where=where, table=table, key=", ".join(key)), known.advice)
