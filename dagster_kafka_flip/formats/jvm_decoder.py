"""Calls of the Java library: it scans a record once, and gives its values, why it can't be decoded, and what it has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.formats.fields import FIELDS_PER_NUMBER, Seen
from dagster_kafka_flip.runtime.jvm_library import CATALOG

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column
    from pyspark.sql.types import StructType


def decoded(function: str, data: Column, struct: StructType, **options: Any) -> Column:
    """What a function of the library makes of bytes: a struct with `row`, `problem` and what `seen_in` takes.

    Args:
        function: Its name.
        data: The bytes.
        struct: The declared fields.
        options: What else it needs to know.
    """
    from pyspark.sql import functions as f

    # Fixed when the call is written, and not when it runs.
    zone = f.date_format(f.lit("1970-01-01").cast("timestamp"), "VV")
    text = f.concat(f.lit(json.dumps({**options, "zone": ""}).removesuffix('"}')), zone, f.lit('"}'))
    # A function sees only the types of its arguments before it runs.
    return f.call_function(f"{CATALOG}.{function}", data, f.lit(None).cast(struct), text)


def seen_in(parsed: Column, struct: StructType) -> Seen:
    """The fields that a record has."""
    names = list(_leaves(struct, ""))
    numbers = range(-(-len(names) // FIELDS_PER_NUMBER))
    return Seen(names, [parsed.getField(f"seen{number}") for number in numbers], parsed.getField("undeclared"))


def _leaves(struct: StructType, prefix: str) -> Iterator[str]:
    """The path of each declared field; of a STRUCT those inside of it."""
    from pyspark.sql.types import StructType

    for field in struct.fields:
        path = f"{prefix}{field.name}"
        if isinstance(field.dataType, StructType) and field.dataType.fields:
            yield from _leaves(field.dataType, f"{path}.")
        else:
            yield path
