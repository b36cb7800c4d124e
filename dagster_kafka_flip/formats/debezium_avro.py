"""DebeziumAvroFormat: Debezium's change events in Avro, with a schema registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import field_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.formats.avro_schema import AvroSchema, kind, resolved
from dagster_kafka_flip.formats.changelog import DELETE, INSERT, READ, TRUNCATE, UPDATE, OnTruncate
from dagster_kafka_flip.formats.debezium import DebeziumEvents, DebeziumMetadata
from dagster_kafka_flip.formats.format import OnError  # noqa: TC001 -- shown in the reference of options
from dagster_kafka_flip.formats.frames import SchemaIdIn, has_frame
from dagster_kafka_flip.formats.placeholder import PLACEHOLDER, is_placeholder
from dagster_kafka_flip.formats.times import moment
from dagster_kafka_flip.settings.arguments import check_arguments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import DataType

    from dagster_kafka_flip.formats.avro_schema import AvroType
    from dagster_kafka_flip.registry.registered_schema import RegisteredSchema
    from dagster_kafka_flip.registry.schema_registry import SchemaRegistry

# The names of the schemas of events without a row, or their ends.
_EVENTS = {
    "io.debezium.connector.common.Heartbeat": "heartbeat",
    "io.debezium.connector.common.TransactionMetadataValue": "transaction",
    ".SchemaChangeValue": "schema change",
}

# What is in `source`, and its type.
_OF_SOURCE = {
    "source_timestamp": ("ts_ms", "timestamp"),
    "source_database": ("db", "string"),
    "source_schema": ("schema", "string"),
    "source_table": ("table", "string"),
    "source_snapshot": ("snapshot", "string"),
    "source_lsn": ("lsn", "bigint"),
    "source_pos": ("pos", "bigint"),
    "source_gtid": ("gtid", "string"),
    "source_tx_id": ("txId", "string"),
}

_OPS = {"c": INSERT, "u": UPDATE, "d": DELETE, "r": READ, "t": TRUNCATE}


class DebeziumAvroFormat(DebeziumEvents, AvroFormat):
    """Decodes Debezium's change events in Avro: the rows of a database, as they change.

    The columns are those of the record `after` in the reader schema: the given one, or the subject's latest. Each event
    is decoded with the schema that it was written with, as AvroFormat does.

    Strict: a record is rejected if AvroFormat would reject it, is not a Debezium event, or lacks the row. Heartbeats,
    transaction markers and schema changes are recognized by the names of their schemas.

    Args:
        schema: The reader schema of the whole event, as JSON or as a Python object. Default: the subject's latest.
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

    # Metadata that don't fit are a reason, and a truncate event that is left out has none.
    further_rules: ClassVar[frozenset[str]] = frozenset({"metadata", "on_truncate"})

    @check_arguments
    def __init__(
        self,
        schema: str | Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        registry: SchemaRegistry | str | None = None,
        subject: str | None = None,
        schema_id_in: SchemaIdIn = "payload",
        metadata: Sequence[DebeziumMetadata] = (),
        unavailable_value_placeholder: str = PLACEHOLDER,
        on_truncate: OnTruncate = "fail",
        on_error: OnError = "fail",
    ) -> None:
        # AvroFormat's own arguments are fewer.
        super(AvroFormat, self).__init__(
            declared=schema,  # pyright: ignore[reportCallIssue]
            registry=registry,  # pyright: ignore[reportCallIssue]
            subject=subject,  # pyright: ignore[reportCallIssue]
            schema_id_in=schema_id_in,  # pyright: ignore[reportCallIssue]
            metadata=metadata,  # pyright: ignore[reportCallIssue]
            unavailable_value_placeholder=unavailable_value_placeholder,  # pyright: ignore[reportCallIssue]
            on_truncate=on_truncate,  # pyright: ignore[reportCallIssue]
            on_error=on_error,
        )

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

    def kinds(self) -> list[tuple[str, DataType]]:
        """The row's columns whose values are texts, bytes or numbers, or arrays or maps of them, with Spark's types."""
        named = self.reader.named()
        found = ((field["name"], _spark_type(field["type"], named)) for field in self._row())
        return [(name, data_type) for name, data_type in found if data_type is not None]

    @property
    def row_names(self) -> Sequence[str] | None:
        """The names of the row's columns; None if the registry has not been asked for them yet."""
        return None if self.declared is None else [field["name"] for field in self._row()]

    def comments(self) -> Mapping[str, str]:
        """The `doc` of each of the row's columns."""
        return {field["name"]: field["doc"] for field in self._row() if field.get("doc")}

    def prepared(self, data: Column) -> Column | None:
        """The framed bytes and the decoded event."""
        from pyspark.sql import functions as f

        read = AvroFormat.parse(self, data)
        return f.when(data.isNotNull(), f.struct(data.alias("data"), read.alias("read")))

    def parse(self, data: Column) -> Column:
        """The event, as ChangelogFormat says; with the row before the change and metadata, if they are asked for."""
        from pyspark.sql import functions as f

        event, letter = _content(data), _content(data).getField("op")
        row = self.image(letter, event.getField("before"), event.getField("after"))
        about = [event.getField("before").alias("before")] if "before" in self.metadata else []
        if "ingestion_timestamp" in self.metadata:
            about.append(self._field(event, "ts_ms").cast("bigint").alias("ts_ms"))
        if self.needs_source:
            about.append(self._source(event).alias("source"))
        return f.when(
            data.isNotNull(),
            f.struct(
                f.coalesce(self._event_by_schema(data), self.event_of(letter)).alias("event"),
                self.meaning(letter).alias("op"),
                row.alias("row"),
                self.missing_values(row).alias("unavailable"),
                *about,
            ),
        )

    def _event_by_schema(self, data: Column) -> Column:
        """The kind of event, if the name of the record's schema says it; else null."""
        from pyspark.sql import functions as f

        event = f.when(data.isNull(), f.lit(None).cast("string"))
        for digits, found in self.known_schemas.items():
            if found is None or found.kind != "AVRO":
                continue
            try:
                name = AvroSchema.of(found.text, found.references).name or ""
            except ConfigurationError:
                continue
            kind = next((kind for known, kind in _EVENTS.items() if name.endswith(known)), None)
            if kind is not None:
                event = event.when(has_frame(data.getField("data"), digits), f.lit(kind))
        return event

    def _field(self, event: Column, name: str) -> Column:
        """A field of an event; null if the reader schema does not have it."""
        from pyspark.sql import functions as f

        has_it = any(field["name"] == name for field in self.reader.fields or ())
        return event.getField(name) if has_it else f.lit(None)

    def _source(self, event: Column) -> Column:
        """The fields of `source` as texts."""
        from pyspark.sql import functions as f

        named = self.reader.named()
        found = next((field["type"] for field in self.reader.fields or () if field["name"] == "source"), None)
        record = None if found is None else _record_in(found, named)
        if record is None:
            return f.lit(None).cast("map<string, string>")
        source, names = event.getField("source"), [field["name"] for field in record["fields"]]
        values = f.array(*(source.getField(name).cast("string") for name in names))
        return f.when(source.isNotNull(), f.map_from_arrays(f.array(*map(f.lit, names)), values))

    def problem(self, data: Column, parsed: Column) -> Column:
        """The first rule that the record breaks."""
        from pyspark.sql import functions as f

        of_avro = super().problem(data.getField("data"), data.getField("read"))
        problem = f.when(self._event_by_schema(data).isNotNull(), f.lit(None).cast("string"))
        problem = problem.when(of_avro.isNotNull(), of_avro)
        return f.when(data.isNotNull(), self.envelope_problem(problem, _content(data).getField("op"), parsed))

    def as_one(self, parsed: Column) -> Column:
        """The row as one column."""
        return parsed.getField("row")

    def row_columns(self, parsed: Column) -> list[tuple[str, Column]]:
        """The columns of the record `after` or `before`."""
        row, unavailable, kinds = parsed.getField("row"), parsed.getField("unavailable"), dict(self.kinds())
        return [
            (name, self.without_placeholder(name, kinds[name], row.getField(name), unavailable))
            if name in kinds
            else (name, row.getField(name))
            for name in self.row_names or ()
        ]

    @property
    def needs_source(self) -> bool:
        """Whether `metadata` has anything of `source`."""
        return any(name.startswith("source_") for name in self.metadata)

    def meaning(self, letter: Column) -> Column:
        """What an event's `op` does; null if it has no row, or is unknown."""
        from pyspark.sql import functions as f

        op = f.when(f.lit(False), f.lit(None).cast("string"))
        for each, meaning in _OPS.items():
            if meaning != TRUNCATE or self.on_truncate != "skip":
                op = op.when(letter == f.lit(each), f.lit(meaning))
        return op

    def event_of(self, letter: Column) -> Column:
        """Which event an `op` without a row is; null if it is a change, or unknown."""
        from pyspark.sql import functions as f

        event = f.when(letter == f.lit("m"), f.lit("message"))
        return event.when(letter == f.lit("t"), f.lit("truncate")) if self.on_truncate == "skip" else event

    def image(self, letter: Column, before: Column, after: Column) -> Column:
        """The row of a change."""
        from pyspark.sql import functions as f

        return f.when(letter == f.lit("d"), before).otherwise(after)

    def envelope_problem(self, problem: Column, letter: Column, parsed: Column) -> Column:
        """Adds to a CASE WHEN what is wrong with an event that is a change."""
        from pyspark.sql import functions as f

        row, op = parsed.getField("row"), parsed.getField("op")
        needs = f.when(op == f.lit(DELETE), f.lit("before")).otherwise(f.lit("after"))
        problem = (
            problem.when(parsed.getField("event").isNotNull(), f.lit(None).cast("string"))
            .when(letter.isNull(), f.lit("not an event of Debezium: it has no op"))
            .when(op.isNull(), f.lit("not an event of Debezium: its op is unknown (expected c, u, d, r, t or m)"))
            .when(
                row.isNull() & (op != f.lit(TRUNCATE)),
                f.concat(f.lit("the "), op, f.lit(" event has no "), needs),
            )
        )
        for name in self.metadata:
            if name not in {"before", "source_properties"}:
                path, written, value = _metadata(name, parsed)
                problem = problem.when(written.isNotNull() & value.isNull(), f.lit(f"{path} does not fit {name}"))
        return problem

    def missing_values(self, row: Column) -> Column:
        """The names of the columns whose value is the placeholder; null if there are none."""
        from pyspark.sql import functions as f

        found = [
            f.when(is_it, f.lit(name))
            for name, data_type in self.kinds()
            if (is_it := is_placeholder(data_type, row.getField(name), self.unavailable_value_placeholder)) is not None
        ]
        if not found:
            return f.lit(None).cast("array<string>")
        names = f.array_compact(f.array(*found))
        return f.when(f.size(names) > f.lit(0), names)

    def without_placeholder(self, name: str, data_type: DataType, value: Column, names: Column) -> Column:
        """A column of the row, null if `missing_values` has its name."""
        from pyspark.sql import functions as f

        if is_placeholder(data_type, value, self.unavailable_value_placeholder) is None:
            return value
        return f.when(~f.coalesce(f.array_contains(names, name), f.lit(False)), value)

    def metadata_column(self, name: str, parsed: Column) -> Column:
        """A column of `metadata`."""
        from pyspark.sql import functions as f

        if name == "source_properties":
            return parsed.getField("source")
        if name != "before":
            return _metadata(name, parsed)[2]
        row = parsed.getField("before")
        columns = self.row_columns(f.struct(row.alias("row"), self.missing_values(row).alias("unavailable")))
        return f.when(row.isNotNull(), f.struct(*(each.alias(field) for field, each in columns)))

    def key_fields(self, key: Sequence[str]) -> list[Any]:
        """The columns of the row that are in the key, if JSON can have their values."""
        from pyspark.sql.types import ArrayType, BinaryType, MapType, StructField

        names = {name.lower() for name in key}
        return [
            StructField(name, data_type)
            for name, data_type in self.kinds()
            if name.lower() in names and not isinstance(data_type, (ArrayType, BinaryType, MapType))
        ]


def _content(data: Column) -> Column:
    return data.getField("read").getField("avro").getField("content")


def _row_fields(schema: AvroSchema, what: str) -> list[dict[str, Any]]:
    """The columns of the row in the schema of an event.

    Raises:
        ConfigurationError: It is not the schema of an event.
    """
    named = schema.named()
    fields = {field["name"]: field["type"] for field in schema.fields or ()}
    rows = {side: _record_in(fields[side], named) for side in ("before", "after") if side in fields}
    after, before = rows.get("after"), rows.get("before")
    if after is None or before is None or "op" not in fields:
        msg = f"{what} is not that of Debezium's events: a record with op, and with the records before and after"
        raise ConfigurationError(msg)
    if [field["name"] for field in before["fields"]] != [field["name"] for field in after["fields"]]:
        msg = f"{what}: before and after have different columns"
        raise ConfigurationError(msg)
    return after["fields"]


def _record_in(avro_type: AvroType, named: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
    """The record of a type that is one, or null."""
    found = _without_null(avro_type, named)
    return found if isinstance(found, dict) and kind(found) == "record" else None


def _without_null(avro_type: AvroType, named: Mapping[str, dict[str, Any]]) -> AvroType | None:
    """A type's only branch besides null."""
    found = resolved(avro_type, named)
    if not isinstance(found, list):
        return found
    branches = [branch for branch in found if branch != "null"]
    return resolved(branches[0], named) if len(branches) == 1 else None


def _spark_type(avro_type: AvroType, named: Mapping[str, dict[str, Any]]) -> DataType | None:
    """Spark's type of a text, bytes or a whole number, or an array or a map of them; None for others."""
    from pyspark.sql.types import ArrayType, BinaryType, IntegerType, LongType, MapType, StringType

    found = _without_null(avro_type, named)
    if found is None or (isinstance(found, dict) and "logicalType" in found):
        return None
    plain = {"string": StringType, "bytes": BinaryType, "int": IntegerType, "long": LongType}
    if (name := kind(found)) in plain:
        return plain[name]()
    if not isinstance(found, dict) or name not in {"array", "map"}:
        return None
    inner = _spark_type(found["items" if name == "array" else "values"], named)
    if inner is None:
        return None
    return ArrayType(inner) if name == "array" else MapType(StringType(), inner)


def _metadata(name: str, parsed: Column) -> tuple[str, Column, Column]:
    """Where a column of `metadata` is in an event, what is written there, and its value; null if it does not fit."""
    if name == "ingestion_timestamp":
        written = parsed.getField("ts_ms")
        return "ts_ms", written, moment(written)
    key, data_type = _OF_SOURCE[name]
    written = parsed.getField("source").getItem(key)
    if data_type == "timestamp":
        return f"source.{key}", written, moment(written.try_cast("bigint"))
    return f"source.{key}", written, written.try_cast(data_type)
