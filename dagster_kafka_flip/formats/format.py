"""Base class of formats: how to decode a record's bytes to columns, and how to detect undecodable ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from dagster_kafka_flip.settings.base import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column

    from dagster_kafka_flip.formats.fields import Seen

OnError = Literal["fail", "null"]


class Format(Settings, ABC):
    """Decodes the key or the value of a record.

    A format does not process records itself: it returns Spark expressions. A null (a tombstone's value, a missing key)
    is decoded to null and never rejected.

    Attributes:
        on_error: What a record that can't be decoded does: `fail` (default) fails the run before it writes; `null`
            keeps it with nulls, its bytes and the reason.
    """

    on_error: OnError = "fail"

    can_reject: ClassVar[bool] = True
    """Whether there are bytes that it can't decode, so that `problem` returns a column."""

    uses_library: ClassVar[bool] = False
    """Whether its expressions call the Java library."""

    @abstractmethod
    def parse(self, data: Column) -> Column:
        """The decoded value of a binary column, as one column.

        Must not fail on any bytes; `problem` reports undecodable ones.
        """

    def row(self, parsed: Column) -> Column:
        """What the other functions are given as `parsed`, of what `parse` gave."""
        return parsed

    @abstractmethod
    def problem(self, parsed: Column) -> Column | None:
        """Why what `parse` gave can't be used, as a string column, null if it can; None if all bytes are valid."""

    def as_one(self, parsed: Column) -> Column:
        """The decoded value as one column of the table."""
        return parsed

    @property
    def column_names(self) -> Sequence[str] | None:
        """Column names of `spread`, empty if it has none; None if only Spark knows them."""
        return () if type(self).spread is Format.spread else None

    @property
    def declares_fields(self) -> bool:
        """Whether the format declares fields, which records may lack."""
        return type(self).seen is not Format.seen

    def seen(self, parsed: Column) -> Seen | None:
        """Which fields a record has, from what `parse` gave; None for a format without fields."""
        del parsed
        return None

    def comments(self) -> Mapping[str, str]:
        """The comments of `spread`'s columns that have one."""
        return {}

    def spread(self, parsed: Column) -> list[tuple[str, Column]] | None:
        """Names and columns of a value that becomes several columns; None if it is one column."""
        del parsed
        return None
