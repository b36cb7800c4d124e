"""What a format is: how to turn a record's bytes into columns, and how to tell that they can't be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Literal

from dagster_kafka_flip.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column

OnError = Literal["fail", "null"]


class Format(Settings, ABC):
    """How to read the key or the value of a record.

    A format never touches records by itself: it gives Spark expressions. A null (a tombstone's value, a missing key) is
    decoded to null and never rejected.

    Attributes:
        on_error: What happens to a record that can't be decoded: `fail` (default) ends the run before anything is
            written; `null` keeps the record, with nulls for what would have been decoded, and its bytes and the reason
            in columns of their own (`kafka_rejected_value` or `kafka_rejected_key`, and `kafka_error`).
    """

    on_error: OnError = "fail"

    @abstractmethod
    def parse(self, data: Column) -> Column:
        """The decoded form of a binary column, as one column.

        Must not fail on any bytes: what can't be decoded is told by `problem`.
        """

    @abstractmethod
    def problem(self, data: Column, parsed: Column) -> Column | None:
        """Why a record can't be decoded, as a string column that is null where it can; None if it always can."""

    def explain(self, data: Column, problem: Column) -> Column:
        """What is wrong with a record, in more words than `problem` has; for the few records that a message names."""
        del data
        return problem

    def as_one(self, parsed: Column) -> Column:
        """The decoded form as one column, as it is landed."""
        return parsed

    @property
    def column_names(self) -> Sequence[str] | None:
        """Names of the columns that `spread` gives, empty if it gives none; None if only Spark can tell."""
        return () if type(self).spread is Format.spread else None

    @property
    def declares_fields(self) -> bool:
        """Whether it has `fields`, which records may lack."""
        return type(self).fields is not Format.fields

    def fields(self, parsed: Column) -> list[tuple[str, Column]]:
        """Declared fields, each null where a record doesn't have it; for a format that declares none, nothing."""
        del parsed
        return []

    def undeclared(self, data: Column) -> Column | None:
        """The names of fields that are not declared, as an array of strings; None if that can't be told."""
        del data
        return None

    def spread(self, parsed: Column) -> list[tuple[str, Column]] | None:
        """Names and columns of a value that is spread over several; None if it is landed as one."""
        del parsed
        return None
