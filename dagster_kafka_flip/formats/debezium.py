"""DebeziumFormat: Debezium's change events in JSON, with schema or without."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Literal

from pydantic import field_validator

from dagster_kafka_flip.formats.changelog import (
    DELETE,
    INSERT,
    READ,
    TRUNCATE,
    UPDATE,
    OnTruncate,
    TruncatingFormat,
)
from dagster_kafka_flip.formats.ddl import field_names
from dagster_kafka_flip.formats.declared import DeclaredFormat
from dagster_kafka_flip.formats.format import OnError  # noqa: TC001 -- shown in the reference of options
from dagster_kafka_flip.formats.json_changes import CORRUPT, as_declared, with_room
from dagster_kafka_flip.formats.json_parsing import (
    MISFIT,
    explained,
    is_corrupt,
    is_empty_object,
    leaves,
    parsed_json,
    required,
    unparsed,
    with_changes,
)
from dagster_kafka_flip.formats.json_types import check_json_types
from dagster_kafka_flip.formats.placeholder import PLACEHOLDER, is_placeholder
from dagster_kafka_flip.formats.times import moment
from dagster_kafka_flip.settings.arguments import check_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructField, StructType

DebeziumMetadata = Literal[
    "before",
    "ingestion_timestamp",
    "source_timestamp",
    "source_database",
    "source_schema",
    "source_table",
    "source_snapshot",
    "source_lsn",
    "source_pos",
    "source_gtid",
    "source_tx_id",
    "source_properties",
]

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
_OLD_KEY = "__debezium.oldkey"


class DebeziumEvents(TruncatingFormat):
    """What Debezium's events mean, however they are encoded.

    Attributes:
        metadata: See DebeziumFormat.
        unavailable_value_placeholder: See DebeziumFormat.
    """

    leaves_out = True

    metadata: tuple[DebeziumMetadata, ...] = ()  # pyright: ignore[reportIncompatibleVariableOverride]
    unavailable_value_placeholder: str = PLACEHOLDER

    @field_validator("unavailable_value_placeholder")
    @classmethod
    def _check_placeholder(cls, placeholder: str) -> str:
        if not placeholder:
            msg = "the connector's setting is not empty"
            raise ValueError(msg)
        return placeholder

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

    @abstractmethod
    def kinds(self) -> list[tuple[str, DataType]]:
        """The row's columns whose value may be the placeholder, with their types."""

    @abstractmethod
    def row_columns(self, parsed: Column) -> list[tuple[str, Column]]:
        """The columns of the row."""

    def spread(self, parsed: Column) -> list[tuple[str, Column]] | None:
        """The columns of the row, and those of `metadata`."""
        return [*self.row_columns(parsed), *self._metadata_columns(parsed)]

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

    def _metadata_columns(self, parsed: Column) -> list[tuple[str, Column]]:
        from pyspark.sql import functions as f

        found: list[tuple[str, Column]] = []
        for name in self.metadata:
            if name == "before":
                row = parsed.getField("before")
                columns = self.row_columns(f.struct(row.alias("row"), self.missing_values(row).alias("unavailable")))
                column = f.when(row.isNotNull(), f.struct(*(each.alias(field) for field, each in columns)))
            elif name == "source_properties":
                column = parsed.getField("source")
            else:
                _, _, column = _metadata(name, parsed)
            found.append((name, column))
        return found

    def key_of(self, data: Column, key: Sequence[str]) -> Column:
        """The columns of a key from JSON, with its schema or without; null if one is missing, or would be changed."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructField, StructType

        # The converter's own fields may have the key's names: each of the two forms is parsed by itself.
        bare = StructType(self.key_fields(key))
        inside = StructType([StructField("payload", bare)])
        found = parsed_json(data, with_room(inside).fields)
        has_schema = ~is_corrupt(found) & found.getField("payload").isNotNull()
        whole = f.when(has_schema, _strict(inside, data, found).getField("payload")).otherwise(
            _strict(bare, data, parsed_json(data, with_room(bare).fields))
        )
        lacks = (whole.getField(name).isNull() for name in bare.names)
        return f.when(~f.greatest(f.lit(False), *lacks), whole)

    def previous_key(self, headers: Column, key: Sequence[str]) -> Column | None:
        """The key in the header that the connector adds to the insert under a changed key."""
        from pyspark.sql import functions as f

        if len(self.key_fields(key)) < len(key):
            return None
        named = f.filter(headers, lambda header: header.getField("key") == f.lit(_OLD_KEY))
        return self.key_of(f.get(named, f.lit(0)).getField("value").cast("string"), key)


class DebeziumFormat(DebeziumEvents, DeclaredFormat):
    """Decodes Debezium's change events in JSON: the rows of a database, as they change.

    Each record may have its schema with it or not (`schemas.enable` of Kafka Connect's JsonConverter). The columns are
    those of the database's table, with types that the JSON has: `after`, and of a delete `before`.

    Strict: a record is rejected if it is not UTF-8 or not a JSON object, is not a Debezium event, lacks the row, or if
    the row breaks the rules of JsonFormat, or `metadata` do not fit. NOT NULL does not hold for deletes, whose other
    columns may be null.

    Args:
        schema: The columns, as DDL such as `id BIGINT NOT NULL, name STRING`, or as a StructType.
        metadata: Parts of a change to land with its row: `before` (the row before the change, as a STRUCT),
            `ingestion_timestamp` (when the connector processed it), and of the event's `source` `source_timestamp`,
            `source_database`, `source_schema`, `source_table`, `source_snapshot`, `source_lsn`, `source_pos`,
            `source_gtid`, `source_tx_id`, and all of it as `source_properties`, a MAP of STRINGs. Each is a column of
            that name. Default: nothing.
        unavailable_value_placeholder: The connector's setting `unavailable.value.placeholder`: what it writes for a
            value that the database did not send. Such a value becomes null, and `kafka_unavailable` has the column's
            name.
        on_truncate: Handling of a truncate event: `fail` (default) ends a run into a table with Upsert, but lands a row
            without values in a table to which rows are appended; `skip` leaves it out.
        on_error: See Format.
        show_values: Whether the error about a rejected record quotes the start of each value that does not fit its
            field, 40 characters at most. Default: no, since more people read logs than tables.

    Attributes:
        declared: The schema, as it was given.
    """

    show_values: bool = False

    @check_arguments
    def __init__(
        self,
        schema: str | StructType,
        *,
        metadata: Sequence[DebeziumMetadata] = (),
        unavailable_value_placeholder: str = PLACEHOLDER,
        on_truncate: OnTruncate = "fail",
        on_error: OnError = "fail",
        show_values: bool = False,
    ) -> None:
        super().__init__(
            declared=schema,  # pyright: ignore[reportCallIssue]
            metadata=metadata,
            unavailable_value_placeholder=unavailable_value_placeholder,
            on_truncate=on_truncate,
            on_error=on_error,
            show_values=show_values,  # pyright: ignore[reportCallIssue]
        )

    @classmethod
    def check_types(cls, schema: str | StructType) -> None:
        """Refuses types that Spark can't read from JSON."""
        check_json_types(schema)

    @property
    def row_names(self) -> Sequence[str]:
        """The names of the declared columns."""
        return field_names(self.declared) if isinstance(self.declared, str) else self.declared.names

    def _outer(
        self, struct: StructType, *sides: Literal["before", "after"], others: Sequence[StructField] = ()
    ) -> list[StructField]:
        """The fields of an event around the row's, at its top and behind its schema."""
        from pyspark.sql.types import StructField, StructType

        fields = [*(StructField(side, struct) for side in sides), *others]
        return [*fields, StructField("payload", StructType(fields))]

    def prepared(self, data: Column) -> Column | None:
        """The text and the parsed event."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import LongType, MapType, StringType, StructField

        others = [StructField("op", StringType())]
        if "ingestion_timestamp" in self.metadata:
            others.append(StructField("ts_ms", LongType()))
        if self.needs_source:
            others.append(StructField("source", MapType(StringType(), StringType())))
        text, struct = data.cast("string"), with_room(self.struct())
        both = {"found": parsed_json(text, self._outer(struct, "before", "after", others=others))}
        if "before" not in self.metadata:
            # Where nothing is taken from the row before the change, it may have a type that a column once had.
            found = parsed_json(text, self._outer(struct, "after", others=others))
            before = parsed_json(text, self._outer(struct, "before"))
            both = {"found": found, "before": f.when(_picked(found, "op") == f.lit("d"), before)}
        columns = (column.alias(name) for name, column in both.items())
        return f.when(data.isNotNull(), f.struct(text.alias("text"), *columns))

    def _with_before(self, data: Column) -> Column:
        """What was parsed with the row before the change."""
        return data.getField("found" if "before" in self.metadata else "before")

    def parse(self, data: Column) -> Column:
        """The event, as ChangelogFormat says; with the row before the change and metadata, if they are asked for."""
        from pyspark.sql import functions as f

        found = data.getField("found")
        letter, before = _picked(found, "op"), _picked(self._with_before(data), "before")
        row = self.image(letter, before, _picked(found, "after"))
        text = data.getField("text")
        event = f.when(
            ~is_corrupt(found) & f.is_valid_utf8(text), f.coalesce(self.event_of(letter), _other_event(letter, text))
        )
        about = [_picked(found, "ts_ms").alias("ts_ms")] if "ingestion_timestamp" in self.metadata else []
        about += [_picked(found, "source").alias("source")] if self.needs_source else []
        about += [before.alias("before")] if "before" in self.metadata else []
        return f.when(
            data.isNotNull(),
            f.struct(
                event.alias("event"),
                self.meaning(letter).alias("op"),
                row.alias("row"),
                self.missing_values(row).alias("unavailable"),
                *about,
            ),
        )

    def problem(self, data: Column, parsed: Column) -> Column | None:
        """The first rule that the record breaks."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructField, StructType

        struct, text, row = self.struct(), data.getField("text"), parsed.getField("row")
        found, op = data.getField("found"), parsed.getField("op")
        letter = _picked(found, "op")
        misfits = (letter == f.lit("d")) & is_corrupt(self._with_before(data))
        problem = self.envelope_problem(unparsed(text, found).when(misfits, MISFIT), letter, parsed)
        is_empty = is_empty_object(text, self.image(letter, _path("before", text), _path("after", text)))
        problem = problem.when(is_empty, f.concat(f.lit("the "), op, f.lit(" event has an empty row")))
        is_delete = op == f.lit(DELETE)
        for path, is_missing in required(struct, row):
            problem = problem.when(~is_delete & is_missing, f.lit(f"the required field {path} is missing or null"))
        images = [(struct, row)]
        if "before" in self.metadata:
            images.append(
                (StructType([StructField("before", struct)]), f.struct(parsed.getField("before").alias("before")))
            )
        return f.when(
            data.isNotNull(), with_changes(problem, text, images, StructType(self._outer(struct, "before", "after")))
        )

    def explain(self, data: Column, problem: Column) -> Column:
        """Which columns the values don't fit. It parses the record once for each of them."""
        sides = ("before", "after")
        inside = [path for side in sides for path in ((side,), ("payload", side))]
        return explained(data, problem, self.struct(), show_values=self.show_values, inside=inside)

    def fields(self, parsed: Column) -> list[tuple[str, Column]]:
        """Each declared column of the row, as it was parsed; of a STRUCT those inside of it."""
        return leaves(self.struct(), parsed.getField("row"))

    def undeclared(self, data: Column) -> Column | None:
        """The names of the row's columns that are not declared."""
        from pyspark.sql import functions as f

        text, declared = data.getField("text"), f.array(*map(f.lit, self.struct().names))
        return f.array_except(f.json_object_keys(_path("after", text)), declared)

    def column(self, field: StructField, parsed: Column) -> Column:
        """A column of the row; null if its value was left out."""
        value = as_declared(field.dataType, parsed.getField("row").getField(field.name))
        return self.without_placeholder(field.name, field.dataType, value, parsed.getField("unavailable"))

    def kinds(self) -> list[tuple[str, DataType]]:
        """The row's columns, with their types."""
        return [(field.name, field.dataType) for field in self.struct().fields]

    def row_columns(self, parsed: Column) -> list[tuple[str, Column]]:
        """The declared columns."""
        return [(field.name, self.column(field, parsed)) for field in self.struct().fields]

    def key_fields(self, key: Sequence[str]) -> list[Any]:
        """The declared columns that are in the key."""
        names = {name.lower() for name in key}
        return [field for field in self.struct().fields if field.name.lower() in names]


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


def _picked(found: Column, name: str) -> Column:
    """A field of an event, behind its schema or at its top."""
    from pyspark.sql import functions as f

    return f.coalesce(found.getField("payload").getField(name), found.getField(name))


def _strict(struct: StructType, data: Column, parsed: Column) -> Column:
    """The fields of JSON, parsed `with_room`; null where JsonFormat would reject it."""
    from pyspark.sql import functions as f

    text = data.cast("string")
    problem = with_changes(unparsed(text, parsed), text, [(struct, parsed)], struct)
    return f.when(problem.isNull(), as_declared(struct, parsed.dropFields(CORRUPT)))


def _path(side: str, text: Column) -> Column:
    """The text of the row on one side of an event, behind its schema or at its top."""
    from pyspark.sql import functions as f

    return f.coalesce(f.get_json_object(text, f"$.payload.{side}"), f.get_json_object(text, f"$.{side}"))


def _other_event(letter: Column, text: Column) -> Column:
    """Which event a record without `op` is, by its fields; null if it is unknown."""
    from pyspark.sql import functions as f

    names = f.json_object_keys(f.coalesce(f.get_json_object(text, "$.payload"), text))

    def has(*wanted: str) -> Column:
        return f.size(f.array_except(f.array(*map(f.lit, wanted)), names)) == f.lit(0)

    def has_only(*allowed: str) -> Column:
        return f.size(f.array_except(names, f.array(*map(f.lit, allowed)))) == f.lit(0)

    times = ("ts_ms", "ts_us", "ts_ns")
    marker = ("status", "id", "event_count", "data_collections")
    return f.when(
        letter.isNull(),
        f.when(has("ts_ms") & has_only(*times), f.lit("heartbeat"))
        .when(has(*marker) & has_only(*marker, *times), f.lit("transaction"))
        .when(has("source", "ddl", "tableChanges"), f.lit("schema change")),
    )
