"""One tree of types for columns: DDL, Spark, Avro, JSON Schema and Protobuf are read into it, and written from it.

It does without pyspark, whose import would cost every code location that checks a definition a second.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import DataType

MOST_LEVELS = 100
"""How deep a type may be nested, as in Protobuf: what reads it calls itself for each level."""

SCALARS = {
    "BOOLEAN": "Boolean",
    "TINYINT": "Byte",
    "SMALLINT": "Short",
    "INT": "Integer",
    "BIGINT": "Long",
    "FLOAT": "Float",
    "DOUBLE": "Double",
    "DECIMAL": "Decimal",
    "STRING": "String",
    "BINARY": "Binary",
    "DATE": "Date",
    "TIMESTAMP_LTZ": "Timestamp",
    "TIMESTAMP_NTZ": "TimestampNTZ",
}
"""The types of single values that every format has a form for, and what pyspark calls them."""

WHOLE = ("TINYINT", "SMALLINT", "INT", "BIGINT")
"""Types of whole numbers; each has the values of those before it."""

ALIASES = {
    "BYTE": "TINYINT",
    "CHARACTER": "CHAR",
    "DEC": "DECIMAL",
    "INTEGER": "INT",
    "LONG": "BIGINT",
    "NUMERIC": "DECIMAL",
    "REAL": "FLOAT",
    "SHORT": "SMALLINT",
    "TIMESTAMP": "TIMESTAMP_LTZ",
}
"""Further names of types."""


@dataclass(frozen=True)
class ColumnType:
    """A type. As text, it is DDL.

    Attributes:
        name: Spark's name in capitals; of several the one that is in no `ALIASES`.
        fields: The fields of a STRUCT, the element of an ARRAY, key and value of a MAP.
        digits: Precision and scale of a DECIMAL.
    """

    name: str
    fields: tuple[Field, ...] = ()
    digits: tuple[int, int] = (10, 0)

    @property
    def names(self) -> list[str]:
        """The names of the fields."""
        return [field.name for field in self.fields]

    @property
    def inner(self) -> Field:
        """The element of an ARRAY, the value of a MAP."""
        return self.fields[-1]

    def inside(self) -> list[tuple[str, Field]]:
        """What is in it, each with what it adds to a path."""
        mark = {"ARRAY": "[]", "MAP": "{}"}.get(self.name)
        return [(mark or f".{field.name}", field) for field in self.fields]

    def __str__(self) -> str:
        """The type in DDL."""
        if self.name == "DECIMAL":
            return f"DECIMAL{self.digits}"
        if self.name == "STRUCT":
            return f"STRUCT<{', '.join(field.ddl(': ') for field in self.fields)}>"
        inside = ", ".join(str(field.type) for field in self.fields)
        return f"{self.name}<{inside}>" if inside else self.name


@dataclass(frozen=True)
class Field:
    """A field of a STRUCT, or what is in an ARRAY or a MAP.

    Attributes:
        name: Its name.
        type: Its type.
        is_null: Whether null is among its values.
        comment: What it means; None if nothing says that.
    """

    name: str
    type: ColumnType
    is_null: bool = True
    comment: str | None = None

    def ddl(self, between: str = " ") -> str:
        """The field as DDL, with what stands between its name and its type."""
        name = self.name.replace("`", "``")
        text = f"`{name}`{between}{self.type}{'' if self.is_null else ' NOT NULL'}"
        if self.comment is None:
            return text
        # Half of a surrogate pair can't be sent to Spark.
        comment = self.comment.encode("utf-8", "replace").decode().replace("\\", "\\\\").replace("'", "\\'")
        return f"{text} COMMENT '{comment}'"


STRING = ColumnType("STRING")


def array_of(element: ColumnType, *, is_null: bool = True) -> ColumnType:
    """The type of arrays."""
    return ColumnType("ARRAY", (Field("element", element, is_null),))


def map_of(key: ColumnType, value: ColumnType, *, is_null: bool = True) -> ColumnType:
    """The type of maps."""
    return ColumnType("MAP", (Field("key", key, is_null=False), Field("value", value, is_null)))


def parts_of(kind: ColumnType, path: str = "") -> Iterator[tuple[str, Field]]:
    """All that is in a type, each with its path and before what is in it."""
    for mark, field in kind.inside():
        inside = f"{path}{mark}".removeprefix(".")
        yield inside, field
        yield from parts_of(field.type, inside)


def of_spark(kind: DataType, levels: int = 0) -> ColumnType:
    """The tree of a type of Spark."""
    if levels > MOST_LEVELS:
        msg = f"schema: it is nested more than {MOST_LEVELS} levels deep"
        raise ConfigurationError(msg)
    given: Any = kind
    name: str = given.typeName()
    if name == "struct":
        return ColumnType(
            "STRUCT", tuple(Field(each.name, of_spark(each.dataType, levels + 1), each.nullable) for each in given)
        )
    if name == "array":
        return array_of(of_spark(given.elementType, levels + 1), is_null=given.containsNull)
    if name == "map":
        key, value = (of_spark(each, levels + 1) for each in (given.keyType, given.valueType))
        return map_of(key, value, is_null=given.valueContainsNull)
    if name == "decimal":
        return ColumnType("DECIMAL", digits=(given.precision, given.scale))
    name = re.split(r"\W", given.simpleString(), maxsplit=1)[0].upper()
    return ColumnType(ALIASES.get(name, name))


def to_spark(kind: ColumnType) -> Any:
    """The type of Spark."""
    from pyspark.sql import types as t

    if kind.name == "STRUCT":
        return t.StructType([t.StructField(each.name, to_spark(each.type), each.is_null) for each in kind.fields])
    if kind.name == "ARRAY":
        return t.ArrayType(to_spark(kind.inner.type), kind.inner.is_null)
    if kind.name == "MAP":
        key, value = (to_spark(each.type) for each in kind.fields)
        return t.MapType(key, value, kind.inner.is_null)
    return getattr(t, f"{SCALARS[kind.name]}Type")(*(kind.digits if kind.name == "DECIMAL" else ()))
