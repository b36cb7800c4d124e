"""StringFormat: bytes as UTF-8 text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.formats.format import Format

if TYPE_CHECKING:
    from pyspark.sql import Column


class StringFormat(Format):
    """Decodes the bytes as UTF-8, in one STRING column. Rejects invalid UTF-8; never replaces it."""

    def parse(self, data: Column) -> Column:
        """The text."""
        return data.cast("string")

    def problem(self, parsed: Column) -> Column | None:
        """Reports invalid UTF-8 (RFC 3629)."""
        from pyspark.sql import functions as f

        return f.when(~f.is_valid_utf8(parsed), "not valid UTF-8")
