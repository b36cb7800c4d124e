"""Base class of formats: how to decode a record's bytes to columns, and how to detect undecodable ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dagster_kafka_flip.settings.base import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column
    from typing_extensions import Self

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

    if not TYPE_CHECKING:

        def __init__(self, *unnamed: Any, **values: Any) -> None:
            # To type checkers the signature is that of the fields. Those that are not `kw_only` need no name.
            names = [each.alias for each in type(self).model_fields.values() if each.kw_only is False]
            super().__init__(*unnamed[len(names) :], **dict(zip(names, unnamed, strict=False)), **values)

    can_reject: ClassVar[bool] = True
    """Whether there are bytes that it can't decode, so that `problem` returns a column."""

    uses_library: ClassVar[bool] = False
    """Whether its expressions call the Java library."""

    def description(self) -> dict[str, Any]:
        """All that decides how records are decoded, or rejected."""
        return {name: value for name, value in self if name not in {"on_error", "show_values"}}

    @classmethod
    def described(cls, description: Mapping[str, Any]) -> Self | None:
        """The format of a `description` that was kept as JSON; None if that does not have all of it."""
        fields = cls.model_fields.items()
        return cls(**{field.alias or name: description[name] for name, field in fields if name in description})

    def framed(self, data: Column, headers: Column) -> Column:
        """What `parse` takes of a key or a value, and of the record's headers."""
        del headers
        return data

    def written_with(self, data: Column) -> tuple[Column | None, Column | None]:
        """Text and id of the schema that `framed` bytes name, null if unknown; None if they name none."""
        del data
        return None, None

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
