"""What becomes of a batch's rows in the table: they are appended, or each replaces the row of its key."""

from __future__ import annotations

from pydantic import field_validator

from dagster_kafka_flip.settings import Settings


class Append(Settings):
    """Each row of a batch is added to the table."""


class Upsert(Settings):
    """The table holds the current row of each key: a row of a batch replaces the one with its key, or deletes it.

    A row deletes if its column `kafka_deleted` (with the prefix of KafkaColumns) is true. It is true for tombstones:
    records with a null value. The transform gets this column, may set it for other rows, and must keep it, and the
    record's topic, partition and offset. The table has all columns but `kafka_deleted`.

    Attributes:
        key: The columns that identify a row. None of them may be null, also not in a tombstone's row: if the key
            format gives a STRUCT with fields of these names, a tombstone's columns are filled from there.
    """

    key: tuple[str, ...]

    @field_validator("key")
    @classmethod
    def _check_key(cls, key: tuple[str, ...]) -> tuple[str, ...]:
        if not key:
            msg = "key: name at least one column"
            raise ValueError(msg)
        if not all(name.strip() for name in key):
            msg = "key: empty column name"
            raise ValueError(msg)
        folded = [name.lower() for name in key]
        twice = sorted({name for name in key if folded.count(name.lower()) > 1})
        if twice:
            msg = f"key: duplicate column {twice[0]!r}"
            raise ValueError(msg)
        return key


def same_key(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Whether two keys have the same columns; their order and case don't matter.

    Args:
        one: Names of columns.
        other: Names of columns.
    """
    return sorted(name.lower() for name in one) == sorted(name.lower() for name in other)
