"""Types that a field of JSON can't have: Spark has them, and reads none of their values from JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.ddl import check_ddl

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_NO_LENGTHS = "Spark reads no text of a fixed length from JSON; write STRING"
_REFUSED = {
    "VOID": "every value would become null; write its type, or leave the field out",
    "CHAR": _NO_LENGTHS,
    "CHARACTER": _NO_LENGTHS,
    "VARCHAR": _NO_LENGTHS,
}


def check_json_types(schema: str | StructType) -> None:
    """Checks the fields of a schema, as far as that goes without Spark.

    Args:
        schema: As DDL, or as a StructType.

    Raises:
        ConfigurationError: The DDL is none, or a field has a type that JSON can't fill. The message names the field.
    """
    if isinstance(schema, str):
        check_ddl(schema, _check_type)
    else:
        _check_inside("", schema)


def _check_type(field: str, name: str, keys: str) -> None:
    why = _REFUSED.get(name)
    if why is None and name == "MAP" and keys not in {"", "STRING"}:
        why = f"the keys of a MAP in JSON are texts, not {keys}; write MAP<STRING, ...>, and cast them in the transform"
    if why is not None:
        msg = f"schema: {field}: {name} can't be; {why}"
        raise ConfigurationError(msg)


def _check_inside(path: str, kind: DataType) -> None:
    # By their names, because importing pyspark to check a definition would cost every code location a second.
    name = kind.typeName()
    if name == "struct":
        for field in kind.fields:  # pyright: ignore[reportAttributeAccessIssue]
            _check_inside(f"{path}.{field.name}".lstrip("."), field.dataType)
        return
    _check_type(path, name.upper(), kind.keyType.typeName().upper() if name == "map" else "")  # pyright: ignore[reportAttributeAccessIssue]
    if name == "array":
        _check_inside(path, kind.elementType)  # pyright: ignore[reportAttributeAccessIssue]
    elif name == "map":
        _check_inside(path, kind.valueType)  # pyright: ignore[reportAttributeAccessIssue]
