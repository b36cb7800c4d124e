"""Base class of formats whose fields are declared, as DDL or as a StructType."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pydantic import Field, field_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.column_types import ColumnType, of_spark, parts_of
from dagster_kafka_flip.formats.ddl import struct_of
from dagster_kafka_flip.formats.format import Format

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql.types import StructType
    from typing_extensions import Self

_NO_LENGTHS = "; JSON has no fixed-length strings; use STRING"
_NO_SPANS = "; JSON has no form for it; use STRING, and cast it in the transform"
_NOT_IN_JSON = {
    "VOID": "; every value would become null; declare a type, or remove the field",
    "CHAR": _NO_LENGTHS,
    "VARCHAR": _NO_LENGTHS,
    "TIME": _NO_SPANS,
    "INTERVAL": _NO_SPANS,
}


class DeclaredFormat(Format):
    """Decodes values into columns with declared types.

    Attributes:
        declared: The schema, as it was given.
    """

    declared: Any = Field(alias="schema", kw_only=False)

    @staticmethod
    def why_not(kind: ColumnType) -> str | None:
        """Why a field can't have a type, in words that follow the type; None if it can. By default as in JSON."""
        if kind.name == "MAP" and (key := kind.fields[0].type).name != "STRING":
            return (
                f"; the keys of a MAP in JSON are strings, not {key}; use MAP<STRING, ...>, and cast the keys in the "
                "transform"
            )
        return _NOT_IN_JSON.get(kind.name)

    @field_validator("declared")
    @classmethod
    def _check_declared(cls, declared: Any) -> Any:
        return cls.check_declared(declared)

    @classmethod
    def check_declared(cls, declared: Any) -> Any:
        """Returns the schema to keep."""
        # By name, because importing pyspark to check a definition would cost every code location a second.
        if not isinstance(declared, str) and type(declared).__name__ != "StructType":
            msg = f"a {cls.__name__}'s schema is DDL text or a StructType, not {type(declared).__name__}"
            raise ConfigurationError(msg)
        if not (declared.strip() if isinstance(declared, str) else declared.fields):
            msg = f"a {cls.__name__} needs a schema, such as 'carrier STRING NOT NULL, flight INT'"
            raise ConfigurationError(msg)
        for path, field in parts_of(_tree_of(declared)):
            if why := cls.why_not(field.type):
                msg = f"schema: {path}: unsupported type {field.type.name}{why}"
                raise ConfigurationError(msg)
        return declared

    @classmethod
    def described(cls, description: Mapping[str, Any]) -> Self | None:
        """The format of a `description`; None if that was made before a run knew the schema."""
        declared = description["declared"]
        if declared is None:
            return None
        if not isinstance(declared, str):
            from pyspark.sql.types import StructType

            declared = StructType.fromJson(declared)
        return super().described({**description, "declared": declared})

    @property
    def declared_names(self) -> list[str]:
        """The names of the declared fields."""
        return _tree_of(self.declared).names

    @property
    def column_names(self) -> Sequence[str] | None:
        """The names of the fields."""
        return self.declared_names

    def comments(self) -> Mapping[str, str]:
        """The comment of each field in the schema."""
        return {field.name: field.metadata["comment"] for field in self.struct().fields if "comment" in field.metadata}

    def struct(self) -> StructType:
        """The fields as a StructType. Needs a running Spark if they were given as DDL."""
        if not isinstance(self.declared, str):
            return self.declared
        from pyspark.errors import PySparkException
        from pyspark.sql.types import StructType

        try:
            return cast("StructType", StructType.fromDDL(self.declared))
        except PySparkException as error:
            first_line = str(error).strip().splitlines()[0]
            msg = f"Spark can't parse the {type(self).__name__}'s schema {self.declared!r}: {first_line}"
            raise ConfigurationError(msg) from error


def _tree_of(schema: str | StructType) -> ColumnType:
    return struct_of(schema) if isinstance(schema, str) else of_spark(schema)
