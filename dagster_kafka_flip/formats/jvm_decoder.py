"""Calls of the Java library: it scans a record once, and gives its values, why it can't be decoded, and what it has."""

from __future__ import annotations

import json
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from dagster_kafka_flip.formats.declared import DeclaredFormat
from dagster_kafka_flip.formats.fields import FIELDS_PER_NUMBER, Seen
from dagster_kafka_flip.formats.format import Format
from dagster_kafka_flip.runtime.jvm_library import CATALOG

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column
    from pyspark.sql.types import StructType


class FunctionFormat(Format):
    """A format that a function of the library decodes."""

    uses_library = True

    function: ClassVar[str]
    """The function's name."""

    @property
    @abstractmethod
    def function_options(self) -> dict[str, Any]:
        """What the function needs to know besides the fields."""

    @abstractmethod
    def struct(self) -> StructType:
        """The fields that it gives."""

    def parse(self, data: Column) -> Column:
        """What the function makes of the record: its values, `problem`, and what `seen` takes."""
        return decoded(self.function, data, self.struct(), **self.function_options)

    def row(self, parsed: Column) -> Column:
        """The values."""
        return parsed.getField("row")

    def spread(self, parsed: Column) -> list[tuple[str, Column]] | None:
        """One column for each field."""
        names = self.column_names
        return [(name, parsed.getField(name)) for name in names] if names else None

    def problem(self, parsed: Column) -> Column | None:
        """The first rule that the record breaks."""
        return parsed.getField("problem")


class LibraryFormat(DeclaredFormat, FunctionFormat):
    """A format with declared fields whose function says which of them a record has."""

    def seen(self, parsed: Column) -> Seen | None:
        """Each declared field, of a STRUCT those inside of it, and the names that are not declared."""
        names = list(_leaves(self.struct(), ""))
        numbers = range(-(-len(names) // FIELDS_PER_NUMBER))
        return Seen(names, [parsed.getField(f"seen{number}") for number in numbers], parsed.getField("undeclared"))


def decoded(function: str, data: Column, struct: StructType, **options: Any) -> Column:
    """What a function of the library makes of bytes, for declared fields."""
    from pyspark.sql import functions as f

    # Fixed when the call is written, and not when it runs.
    zone = f.date_format(f.lit("1970-01-01").cast("timestamp"), "VV")
    text = f.concat(f.lit(json.dumps({**options, "zone": ""}).removesuffix('"}')), zone, f.lit('"}'))
    # A function sees only the types of its arguments before it runs.
    return f.call_function(f"{CATALOG}.{function}", data, f.lit(None).cast(struct), text)


def _leaves(struct: StructType, prefix: str) -> Iterator[str]:
    """The path of each declared field; of a STRUCT those inside of it."""
    from pyspark.sql.types import StructType

    for field in struct.fields:
        path = f"{prefix}{field.name}"
        if isinstance(field.dataType, StructType) and field.dataType.fields:
            yield from _leaves(field.dataType, f"{path}.")
        else:
            yield path
