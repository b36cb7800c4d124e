"""Types that a field of CSV, and a value of Canal, can have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.ddl import TYPES, check_ddl

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_NESTED = frozenset({"ARRAY", "MAP", "STRUCT", "VARIANT"})
_TAKEN = TYPES - _NESTED - {"CHAR", "CHARACTER", "GEOGRAPHY", "GEOMETRY", "INTERVAL", "TIME", "VARCHAR", "VOID"}


def check_csv_types(schema: str | StructType) -> None:
    """Validates the types of a schema, as far as possible without Spark.

    Raises:
        ConfigurationError: The DDL is invalid, or a field has an unsupported type. The message names the field.
    """
    if isinstance(schema, str):
        check_ddl(schema, _check_type)
        return
    for field in schema.fields:
        _check_type(field.name, field.dataType.typeName().upper(), "")


def _check_type(field: str, name: str, keys: str) -> None:
    del keys
    # DDL may declare the struct as a whole, without field names.
    if name in _TAKEN or (name == "STRUCT" and field == "the schema"):
        return
    why = (
        "a CSV field holds one value; use STRING, and parse it in the transform"
        if name in _NESTED or "." in field
        else "use STRING"
    )
    raise ConfigurationError(f"schema: {field}: unsupported type {name} in CSV; {why}")
