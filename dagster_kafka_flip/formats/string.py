"""StringFormat: bytes as UTF-8 text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.formats.format import Format

if TYPE_CHECKING:
    from pyspark.sql import Column


class StringFormat(Format):
    """Lands the bytes as UTF-8 text, in one STRING column. Bytes that are not UTF-8 are rejected, never replaced."""

    def parse(self, data: Column) -> Column:
        """The text."""
        return data.cast("string")

    def problem(self, data: Column, parsed: Column) -> Column | None:
        """Bytes that are not UTF-8 (RFC 3629)."""
        from pyspark.sql import functions as f

        del data
        return f.when(~f.is_valid_utf8(parsed), f.lit("not valid UTF-8"))
