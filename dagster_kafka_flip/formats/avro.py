"""AvroFormat: Avro's binary encoding as typed columns, with a schema registry or without."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import field_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.avro_columns import of_avro
from dagster_kafka_flip.formats.avro_schema import AvroSchema, declared_text
from dagster_kafka_flip.formats.column_types import to_spark
from dagster_kafka_flip.formats.framed import FramedFormat
from dagster_kafka_flip.formats.frames import schema_id
from dagster_kafka_flip.formats.jvm_decoder import FunctionFormat

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.registry.registered_schema import RegisteredSchema


class AvroFormat(FramedFormat, FunctionFormat):
    """Decodes Avro's binary encoding into columns.

    A value that is a record becomes one column per field. Any other schema, and a key, is one column.

    With a registry, each record is decoded with the schema that it was written with, and read as the reader schema: the
    given one, or the subject's latest. Without a registry, all records have the given schema, and no schema id.

    Strict: a record is rejected if it is truncated, if bytes follow it, if no registry gives its schema's id, if that
    schema can't be read as the reader schema by Avro's schema resolution or has other logical types, if a string is not
    UTF-8, or if a decimal has more digits than its type. A schema that the registry lacks ends the run.

    Args:
        schema: The reader schema, as JSON or a Python object. Required without a registry. Default: the subject's
            latest.
        registry: See FramedFormat.
        subject: See FramedFormat.
        schema_id_in: See FramedFormat.
        on_error: See Format.

    Attributes:
        declared: The reader schema's text; None for the subject's latest.
    """

    function = "decode_avro"
    kind: ClassVar[str] = "AVRO"
    kind_name: ClassVar[str] = "Avro"

    @field_validator("declared", mode="before")
    @classmethod
    def _check_declared(cls, declared: Any) -> str | None:
        if declared is None:
            return None
        text = declared_text(declared, "AvroFormat")
        AvroSchema.of(text).check_columns("the AvroFormat's schema")
        return text

    def reader_of(self, registered: RegisteredSchema, what: str) -> dict[str, Any]:
        """The text of the schema with all that it refers to."""
        try:
            reader = AvroSchema.of(registered.text, registered.references)
        except ConfigurationError as error:
            raise ConfigurationError(f"{what}: {error}") from None
        reader.check_columns(what)
        return {"declared": reader.text}

    @property
    def reader(self) -> AvroSchema:
        """The reader schema.

        Raises:
            ConfigurationError: It is the subject's latest, and the registry has not been asked for it.
        """
        if self.declared is None:
            raise self.not_bound()
        return _schema(self.declared)

    @property
    def column_names(self) -> Sequence[str] | None:
        """The names of the record's fields; None if the registry has not been asked for them yet."""
        if self.declared is None:
            return None
        return [field["name"] for field in self.reader.fields or ()]

    def struct(self) -> StructType:
        """The fields of a record; for any other schema, one field with its value."""
        from pyspark.sql.types import StructField, StructType

        columns = to_spark(of_avro(self.reader.root, self.reader.named()))
        return StructType([StructField("value", columns)]) if self.reader.fields is None else columns

    @property
    def function_options(self) -> dict[str, Any]:
        """The reader schema, and the schemas that records name."""
        if not self.is_framed:
            return {"reader": self.reader.text, "writers": {"": {}}}
        writers = {digits: _writer(digits, found) for digits, found in self.book.known.items()}
        return {"reader": self.reader.text, "writers": writers, "schema_id_in": self.schema_id_in}

    def as_one(self, parsed: Column) -> Column:
        """The decoded value as one column."""
        return parsed.getField("value") if self.reader.fields is None else parsed

    def comments(self) -> Mapping[str, str]:
        """The `doc` of each field."""
        return self.reader.comments()


# Each batch asks for these several times; a run has one reader schema, and few writers'.
@lru_cache(maxsize=1024)
def _schema(text: str, references: tuple[tuple[str, str], ...] = ()) -> AvroSchema:
    return AvroSchema.of(text, references)


def _writer(digits: str, found: RegisteredSchema | None) -> dict[str, str]:
    """The schema of a frame, as the library takes it: its text, or why it can't be used."""
    name = f"schema {schema_id(digits)}"
    if found is None:
        return {"problem": f"the registry has no {name}"}
    if found.kind != "AVRO":
        return {"problem": f"{name} has the type {found.kind}; AvroFormat reads only Avro"}
    try:
        return {"name": name, "schema": _schema(found.text, found.references).text}
    except ConfigurationError as error:
        return {"problem": f"{name}: {error}"}
