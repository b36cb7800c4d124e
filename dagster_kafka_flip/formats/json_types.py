"""Types that JSON fields can't have, because Spark can't read their values from JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.ddl import MOST_LEVELS, check_ddl

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_NO_LENGTHS = "JSON has no fixed-length strings; use STRING"
_NO_SPANS = "JSON has no form for it; use STRING, and cast it in the transform"
_REFUSED = {
    "VOID": "every value would become null; declare a type, or remove the field",
    "CHAR": _NO_LENGTHS,
    "CHARACTER": _NO_LENGTHS,
    "VARCHAR": _NO_LENGTHS,
    **dict.fromkeys(("TIME", "INTERVAL", "DAYTIMEINTERVAL", "YEARMONTHINTERVAL"), _NO_SPANS),
}


def check_json_types(schema: str | StructType) -> None:
    """Validates the types of a schema, as far as possible without Spark.

    Raises:
        ConfigurationError: The DDL is invalid, or a field has an unsupported type. The message names the field.
    """
    if isinstance(schema, str):
        check_ddl(schema, _check_type)
    else:
        _check_inside("", schema, 0)


def _check_type(field: str, name: str, keys: str) -> None:
    why = _REFUSED.get(name)
    if why is None and name == "MAP" and keys not in {"", "STRING"}:
        why = (
            f"the keys of a MAP in JSON are strings, not {keys}; use MAP<STRING, ...>, and cast the keys in the "
            "transform"
        )
    if why is not None:
        raise ConfigurationError(f"schema: {field}: unsupported type {name}; {why}")


def _check_inside(path: str, kind: DataType, levels: int) -> None:
    if levels > MOST_LEVELS:
        raise ConfigurationError(f"schema: {path.partition('.')[0]}: nested more than {MOST_LEVELS} levels deep")
    # Compares names, because importing pyspark would cost every code location a second.
    name = kind.typeName()
    if name == "struct":
        for field in kind.fields:  # pyright: ignore[reportAttributeAccessIssue]
            _check_inside(f"{path}.{field.name}".lstrip("."), field.dataType, levels + 1)
        return
    _check_type(path, name.upper(), kind.keyType.typeName().upper() if name == "map" else "")  # pyright: ignore[reportAttributeAccessIssue]
    if name == "array":
        _check_inside(path, kind.elementType, levels + 1)  # pyright: ignore[reportAttributeAccessIssue]
    elif name == "map":
        _check_inside(path, kind.valueType, levels + 1)  # pyright: ignore[reportAttributeAccessIssue]
