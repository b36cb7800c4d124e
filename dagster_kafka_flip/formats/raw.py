"""RawFormat: bytes as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.formats.format import Format

if TYPE_CHECKING:
    from pyspark.sql import Column


class RawFormat(Format):
    """Lands the bytes as they are, in one BINARY column."""

    def parse(self, data: Column) -> Column:
        """The bytes."""
        return data

    def problem(self, data: Column, parsed: Column) -> Column | None:
        """Never: any bytes will do."""
        del data, parsed
        return None
