"""Base class of formats whose fields are declared, as DDL or as a StructType."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, cast

from pydantic import field_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.ddl import field_names
from dagster_kafka_flip.formats.format import Format

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import StructField, StructType


class DeclaredFormat(Format):
    """Decodes values into columns with declared types.

    Attributes:
        declared: The schema, as it was given.
    """

    declared: Any

    @classmethod
    @abstractmethod
    def check_types(cls, schema: str | StructType) -> None:
        """Validates the types of a schema, as far as possible without Spark.

        Raises:
            ConfigurationError: The DDL is invalid, or a field has an unsupported type. The message names the field.
        """

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
            raise ConfigurationError(f"a {cls.__name__} needs a schema, such as 'carrier STRING NOT NULL, flight INT'")
        cls.check_types(declared)
        return declared

    def column(self, field: StructField, parsed: Column) -> Column:
        """The column of a declared field, from what `row` gave."""
        return parsed.getField(field.name)

    @property
    def column_names(self) -> Sequence[str] | None:
        """The names of the fields; None if a subclass spreads them in its own way."""
        if type(self).spread is not DeclaredFormat.spread:
            return None
        return field_names(self.declared) if isinstance(self.declared, str) else self.declared.names

    def comments(self) -> Mapping[str, str]:
        """The comment of each field in the schema."""
        return {field.name: field.metadata["comment"] for field in self.struct().fields if "comment" in field.metadata}

    def spread(self, parsed: Column) -> list[tuple[str, Column]] | None:
        """One column for each declared field."""
        return [(field.name, self.column(field, parsed)) for field in self.struct().fields]

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
