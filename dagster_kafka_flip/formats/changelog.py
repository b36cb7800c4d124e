"""ChangelogFormat: base class of formats whose records are changes of the rows of a database."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import field_validator

from dagster_kafka_flip.formats.format import Format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column

OnTruncate = Literal["fail", "skip"]

INSERT, UPDATE, DELETE, READ, TRUNCATE = "insert", "update", "delete", "read", "truncate"
"""What a change does: `read` is a row of a snapshot, `truncate` deletes all rows."""

TOMBSTONE = "tombstone"

EVENTS = (TOMBSTONE, "transaction", "heartbeat", "message", "schema change", "bootstrap", "truncate", "other table")
"""Records that have no row."""


class ChangelogFormat(Format):
    """Decodes the changes of a database's rows, as a connector writes them: row, operation and origin.

    A value becomes one column for each column of the row, as it is after the change (of a delete, as it was before),
    and one for each item of `metadata`. In a table to which rows are appended, `kafka_op` says what the change does:
    `insert`, `update`, `delete`, `read` (a row of a snapshot) or `truncate`. With `Upsert`, deletes delete.

    Records without a row, such as transaction markers, heartbeats and tombstones, are counted and not landed.

    `parse` gives a struct with `event` (which of these the record is; null for a change), `op`, `row`, and what a
    subclass needs. It is null for a null value.

    Attributes:
        metadata: Parts of a change to land with its row.
    """

    metadata: tuple[str, ...] = ()

    leaves_out: ClassVar[bool] = False
    """Whether a change may lack values of its row that did not change."""

    has_rows: ClassVar[bool] = False
    """Whether a record may have several rows; the other functions then get each element of `rows`."""

    @field_validator("metadata", check_fields=False)
    @classmethod
    def _check_metadata(cls, metadata: tuple[str, ...]) -> tuple[str, ...]:
        if twice := next((name for name in metadata if metadata.count(name) > 1), None):
            raise ValueError(f"metadata: {twice} is listed twice")
        return metadata

    @property
    @abstractmethod
    def row_names(self) -> Sequence[str] | None:
        """The names of the row's columns; None if they are not known yet."""

    @property
    def column_names(self) -> Sequence[str] | None:
        """The names of the row's columns and of the metadata."""
        names = self.row_names
        return None if names is None else [*names, *self.metadata]

    def row(self, parsed: Column) -> Column:
        """All of a change."""
        return parsed

    def spread(self, parsed: Column) -> list[tuple[str, Column]] | None:
        """The columns of the row, null if their value was left out, and those of `metadata`."""
        row = [(name, parsed.getField("row").getField(name)) for name in self.row_names or ()]
        return [*row, *((name, self.metadata_column(name, parsed)) for name in self.metadata)]

    def metadata_column(self, name: str, parsed: Column) -> Column:
        """A column of `metadata`."""
        return (parsed if name == "before" else parsed.getField("about")).getField(name)

    def event(self, parsed: Column) -> Column:
        """Which of `EVENTS` the record is; null for a change, and for what can't be decoded."""
        from pyspark.sql import functions as f

        return f.when(parsed.isNull(), f.lit(TOMBSTONE)).otherwise(parsed.getField("event"))

    def has_row(self, parsed: Column) -> Column:
        """Whether the record has a row."""
        return parsed.getField("row").isNotNull()

    def rows(self, parsed: Column, key: Sequence[str]) -> Column:
        """The rows of a record as an array, if `has_rows`.

        Args:
            parsed: From `parse`.
            key: The key of the table; empty if rows are appended.
        """
        del parsed, key
        raise NotImplementedError

    def op(self, parsed: Column) -> Column:
        """What the change does."""
        return parsed.getField("op")

    def unavailable(self, parsed: Column) -> Column | None:
        """The names of the row's columns whose value was left out, null if there are none; None if it has them all."""
        return parsed.getField("unavailable") if self.leaves_out else None

    def key_fields(self, key: Sequence[str]) -> list[Any]:
        """The fields of the row that are in a key, as they are decoded from a record's key; empty if they can't be."""
        del key
        return []

    def key_of(self, data: Column, key: Sequence[str]) -> Column:
        """The columns of a key that the bytes of a record's key have, as a STRUCT; null if one is missing."""
        del data, key
        raise NotImplementedError

    def previous_key(self, headers: Column, key: Sequence[str]) -> Column | None:
        """The key that the row had before the change, as a STRUCT, null if unchanged; None if a format has none."""
        del headers, key
        return None


class TruncatingFormat(ChangelogFormat):
    """A format with changes that delete all rows.

    Attributes:
        on_truncate: What a TRUNCATE does: `fail` (default) ends a run into a table with a key, and appends a row
            without values to any other; `skip` leaves it out.
    """

    on_truncate: OnTruncate = "fail"
