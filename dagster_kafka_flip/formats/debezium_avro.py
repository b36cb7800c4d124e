"""DebeziumAvroFormat: Debezium's change events in Avro, with a schema registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pydantic import field_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.formats.avro_schema import AvroSchema, kind, resolved
from dagster_kafka_flip.formats.debezium import DebeziumEvents

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.formats.avro_schema import AvroType
    from dagster_kafka_flip.registry.registered_schema import RegisteredSchema


class DebeziumAvroFormat(DebeziumEvents, AvroFormat):
    """Decodes Debezium's change events in Avro: the rows of a database, as they change.

    The columns are those of the record `after` in the reader schema: the given one, or the subject's latest. Each event
    is decoded with the schema that it was written with, as AvroFormat does.

    Strict: a record is rejected if AvroFormat would reject it, is not a Debezium event, or lacks the row. Heartbeats,
    transaction markers and schema changes are recognized by the names of their schemas.

    Args:
        schema: The reader schema of the whole event, as JSON or a Python object. Default: the subject's latest.
        registry: See FramedFormat.
        subject: See FramedFormat.
        schema_id_in: See FramedFormat.
        metadata: As of DebeziumFormat.
        unavailable_value_placeholder: See DebeziumFormat.
        on_truncate: See DebeziumFormat.
        on_error: See Format.

    Attributes:
        declared: The reader schema's text; None for the subject's latest.
    """

    function = "decode_debezium_avro"

    @field_validator("declared")
    @classmethod
    def _check_envelope(cls, declared: str | None) -> str | None:
        if declared is not None:
            _row_fields(AvroSchema.of(declared), "the DebeziumAvroFormat's schema")
        return declared

    def reader_of(self, registered: RegisteredSchema, what: str) -> dict[str, Any]:
        """The text of the schema with all that it refers to; it must be that of Debezium's events."""
        read = super().reader_of(registered, what)
        _row_fields(AvroSchema.of(read["declared"]), what)
        return read

    def _row(self) -> list[dict[str, Any]]:
        return _row_fields(self.reader, "the reader schema")

    @property
    def row_names(self) -> Sequence[str] | None:
        """The names of the row's columns; None if the registry has not been asked for them yet."""
        return None if self.declared is None else [field["name"] for field in self._row()]

    def comments(self) -> Mapping[str, str]:
        """The `doc` of each of the row's columns."""
        return {field["name"]: field["doc"] for field in self._row() if field.get("doc")}

    @property
    def function_options(self) -> dict[str, Any]:
        """The schemas, and the settings that decide what lands of an event."""
        return {**super().function_options, **self.event_options}

    def struct(self) -> StructType:
        """The fields of an event; before and after have the same."""
        struct = super().struct()
        if struct["before"].dataType != struct["after"].dataType:
            msg = "the reader schema of Debezium's events: the columns of before and after have different types"
            raise ConfigurationError(msg)
        return struct

    def row_struct(self) -> StructType:
        """The columns of the row."""
        return cast("StructType", self.struct()["after"].dataType)

    def as_one(self, parsed: Column) -> Column:
        """The row as one column."""
        return parsed.getField("row")

    def metadata_column(self, name: str, parsed: Column) -> Column:
        """A column of `metadata`; of all of `source`, the fields as texts."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructType

        column = super().metadata_column(name, parsed)
        if name != "source_properties":
            return column
        struct = self.struct()
        source = struct["source"].dataType if "source" in struct.names else None
        if not isinstance(source, StructType):
            return f.lit(None).cast("map<string, string>")
        values = f.array(*(column.getField(each).cast("string") for each in source.names))
        return f.when(column.isNotNull(), f.map_from_arrays(f.array(*map(f.lit, source.names)), values))

    def key_fields(self, key: Sequence[str]) -> list[Any]:
        """The columns of the row that are in the key, if JSON has their values as they are."""
        from pyspark.sql.types import IntegerType, LongType, StringType

        plain = (IntegerType, LongType, StringType)
        return [field for field in super().key_fields(key) if isinstance(field.dataType, plain)]


def _row_fields(schema: AvroSchema, what: str) -> list[dict[str, Any]]:
    """The columns of the row in the schema of an event."""
    named = schema.named()
    fields = {field["name"]: field["type"] for field in schema.fields or ()}
    rows = {side: _record_in(fields[side], named) for side in ("before", "after") if side in fields}
    after, before = rows.get("after"), rows.get("before")
    if after is None or before is None or "op" not in fields:
        msg = f"{what} is not that of Debezium's events: a record with op, and with the records before and after"
        raise ConfigurationError(msg)
    if [field["name"] for field in before["fields"]] != [field["name"] for field in after["fields"]]:
        raise ConfigurationError(f"{what}: before and after have different columns")
    return after["fields"]


def _record_in(avro_type: AvroType, named: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
    """The record of a type that is one, or null."""
    found = resolved(avro_type, named)
    branches = [each for each in found if each != "null"] if isinstance(found, list) else [found]
    record = resolved(branches[0], named) if len(branches) == 1 else None
    return record if isinstance(record, dict) and kind(record) == "record" else None
