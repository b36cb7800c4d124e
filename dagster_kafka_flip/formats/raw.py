"""RawFormat: unchanged bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from dagster_kafka_flip.formats.format import Format

if TYPE_CHECKING:
    from pyspark.sql import Column


class RawFormat(Format):
    """Keeps the bytes unchanged, in one BINARY column."""

    can_reject: ClassVar[bool] = False

    def parse(self, data: Column) -> Column:
        """The bytes."""
        return data

    def problem(self, parsed: Column) -> Column | None:
        """None: all bytes are valid."""
        del parsed
        return None
