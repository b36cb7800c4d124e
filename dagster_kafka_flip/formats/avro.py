"""AvroFormat: Avro's binary encoding as typed columns, with a schema registry or without."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, cast

from pydantic import field_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.avro_checks import (
    as_every_spark_reads_it,
    decimals_as_bytes,
    has_cut_decimals,
    has_long_decimal,
    has_wrong_text,
)
from dagster_kafka_flip.formats.avro_resolution import Fitted, fitted
from dagster_kafka_flip.formats.avro_schema import OWN_NAMES, AvroSchema, declared_text, no_spark_avro
from dagster_kafka_flip.formats.format import OnError  # noqa: TC001 -- shown in the reference of options
from dagster_kafka_flip.formats.frames import (
    SchemaIdIn,
    has_frame,
    schema_id,
    without_frame,
    without_frame_problem,
)
from dagster_kafka_flip.formats.registered import UNKNOWN_SCHEMA, RegisteredFormat
from dagster_kafka_flip.settings.arguments import check_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column

    from dagster_kafka_flip.formats.avro_schema import AvroType
    from dagster_kafka_flip.registry.registered_schema import RegisteredSchema
    from dagster_kafka_flip.registry.schema_registry import SchemaRegistry

# Appended to each record, and read with it. Spark returns a struct of nulls for what it can't decode, and ignores extra
# bytes: in both cases these bytes don't come back.
_END = bytes.fromhex("c5a1f09e7d3b4286b0e4517ad2986c3f")

# The fields of a union's struct are named by type: numbers would change when a branch is added.
_OPTIONS = {"mode": "PERMISSIVE", "enableStableIdentifiersForUnionType": "true", "datetimeRebaseMode": "CORRECTED"}


class AvroFormat(RegisteredFormat):
    """Decodes Avro's binary encoding into columns, with Spark's own `from_avro`.

    A value that is a record becomes one column per field. Any other schema, and a key, is one column.

    With a registry, each record is decoded with the schema that it was written with, and read as the reader schema: the
    given one, or the subject's latest. Without a registry, all records have the given schema, and no schema id.

    Strict: a record is rejected if it is truncated, if bytes follow it, if no registry gives its schema's id, if that
    schema can't be read as the reader schema by Avro's schema resolution or has other logical types, if a string is not
    UTF-8, or if a decimal has more digits than its type. A schema that the registry lacks ends the run.

    Args:
        schema: The reader schema, as JSON or as a Python object. Required without a registry. Default: the subject's
            latest.
        registry: See FramedFormat.
        subject: See FramedFormat.
        schema_id_in: See FramedFormat.
        on_error: See Format.

    Attributes:
        declared: The reader schema's text; None for the subject's latest.
    """

    kind: ClassVar[str] = "AVRO"
    kind_name: ClassVar[str] = "Avro"

    declared: str | None

    further_rules: ClassVar[frozenset[str]] = frozenset()
    """Settings of a subclass that decide, too, which records are rejected."""

    @check_arguments
    def __init__(
        self,
        schema: str | Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        registry: SchemaRegistry | str | None = None,
        subject: str | None = None,
        schema_id_in: SchemaIdIn = "payload",
        on_error: OnError = "fail",
    ) -> None:
        super().__init__(
            declared=schema,  # pyright: ignore[reportCallIssue]
            registry=registry,
            subject=subject,
            schema_id_in=schema_id_in,
            on_error=on_error,
        )

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
            msg = f"{what}: {error}"
            raise ConfigurationError(msg) from None
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

    def description(self) -> dict[str, Any]:
        """All that decides how records are decoded, as JSON; without the registry, which may hold secrets."""
        return {
            "schema": self.declared,
            **super().description(),
            **self.model_dump(mode="json", include=set(self.further_rules), exclude_defaults=True),
        }

    @classmethod
    def described(cls, description: Mapping[str, Any]) -> AvroFormat | None:
        """The format of a `description`, which needs no registry; None if a run's schemas are missing."""
        if description["schema"] is None or (description["has_registry"] and description["writers"] is None):
            return None
        made = cls(
            description["schema"], **{name: description[name] for name in cls.further_rules & description.keys()}
        )
        return made.with_book_of(description)

    def parse(self, data: Column) -> Column:
        """The decoded record and the bytes read after it; nulls if it can't be decoded."""
        from pyspark.sql import functions as f

        decoded = self._decoded(data, lambda reader: reader)
        if not has_cut_decimals(self.reader):
            return f.struct(decoded.alias("avro"))
        return f.struct(decoded.alias("avro"), self._decoded(data, decimals_as_bytes).alias("plain"))

    def _decoded(self, data: Column, change: Callable[[AvroType], AvroType]) -> Column:
        """The record and the bytes after it, decoded with a changed reader schema."""
        from pyspark.sql import functions as f

        own = self.reader.root
        if not self.is_framed:
            same = cast("Fitted", fitted(self.reader, self.reader))
            return _from_avro(data, same.writer.root, change(same.reader.root))
        decoded = None
        for digits, found in self._resolutions.items():
            if isinstance(found, Fitted):
                branch = _from_avro(without_frame(data, digits), found.writer.root, change(found.reader.root))
                is_so = has_frame(data, digits)
                decoded = f.when(is_so, branch) if decoded is None else decoded.when(is_so, branch)
        return _from_avro(f.lit(None).cast("binary"), own, change(own)) if decoded is None else decoded

    @property
    def _resolutions(self) -> dict[str, Fitted | str]:
        """How to decode records, by frame; the reason, as a string, if they can't be decoded."""
        reader = self.reader.text
        return {digits: _resolution_of(digits, found, reader) for digits, found in self.book.known.items()}

    def problem(self, data: Column, parsed: Column) -> Column:
        """Why a record can't be decoded."""
        from pyspark.sql import functions as f

        reader = self.reader
        avro = parsed.getField("avro")
        is_whole = avro.getField("end") == f.lit(_END)
        has_long = has_long_decimal(reader, parsed.getField("plain").getField("content"))
        problem = f.when(data.isNull(), f.lit(None).cast("string"))
        for is_bad, text in (
            (has_wrong_text(reader, avro.getField("content")), "a string in it is not valid UTF-8"),
            (has_long, "a decimal in it has more digits than its type"),
        ):
            if is_bad is not None:
                problem = problem.when(is_whole & is_bad, f.lit(text))
        # Reasons are looked for only where there is one.
        return problem.when(f.coalesce(is_whole, f.lit(False)), f.lit(None)).otherwise(self._reason(data, avro))

    def _reason(self, data: Column, avro: Column) -> Column:
        from pyspark.sql import functions as f

        left_over = f.lit("it has extra bytes at the end, or is truncated")
        misfit = f.when(avro.getField("end").isNotNull(), left_over).otherwise(
            f.lit("it does not fit the schema, or is truncated")
        )
        if not self.is_framed:
            return misfit
        frame = self.frame(data)
        reason = f.when(frame.isNull(), without_frame_problem(data, self.schema_id_in))
        for digits, found in self._resolutions.items():
            named = f.lit(f"schema {schema_id(digits)}: ")
            text = f.lit(found) if isinstance(found, str) else f.concat(named, misfit)
            reason = reason.when(frame == f.lit(digits), text)
        return reason.otherwise(f.raise_error(f.concat(f.lit(f"{UNKNOWN_SCHEMA} "), frame)).cast("string"))

    def as_one(self, parsed: Column) -> Column:
        """The decoded value as one column."""
        return parsed.getField("avro").getField("content")

    def comments(self) -> Mapping[str, str]:
        """The `doc` of each field."""
        return self.reader.comments()

    def spread(self, parsed: Column) -> list[tuple[str, Column]] | None:
        """One column for each field of a record; None for any other schema."""
        content = self.as_one(parsed)
        fields = self.reader.fields
        return None if fields is None else [(field["name"], content.getField(field["name"])) for field in fields]


# Each batch asks for these several times; a run has one reader schema, and few writers'.
@lru_cache(maxsize=256)
def _schema(text: str, references: tuple[tuple[str, str], ...] = ()) -> AvroSchema:
    return AvroSchema.of(text, references)


@lru_cache(maxsize=1024)
def _resolution_of(digits: str, found: RegisteredSchema | None, reader: str) -> Fitted | str:
    """How to decode the records of a schema; the reason, as a string, if they can't be decoded."""
    name = f"schema {schema_id(digits)}"
    if found is None:
        return f"the registry has no {name}"
    if found.kind != "AVRO":
        return f"{name} has the type {found.kind}; AvroFormat reads only Avro"
    try:
        writer = _schema(found.text, found.references)
    except ConfigurationError as error:
        return f"{name}: {error}"
    read_as = fitted(writer, _schema(reader))
    if isinstance(read_as, str):
        return f"{name} can't be read as the reader schema: {read_as}"
    return read_as


def _from_avro(data: Column, writer: AvroType, reader: AvroType) -> Column:
    from pyspark.sql import functions as f
    from pyspark.sql.avro.functions import from_avro

    options = {"avroSchema": _with_end(as_every_spark_reads_it(reader)), **_OPTIONS}
    try:
        return from_avro(f.concat(data, f.lit(_END)), _with_end(writer), options)
    except TypeError as error:
        raise no_spark_avro("from_avro") from error


def _with_end(avro_type: AvroType) -> str:
    """The schema of a record with a type and the bytes after it."""
    fields = [
        {"name": "content", "type": avro_type},
        {"name": "end", "type": {"type": "fixed", "name": f"{OWN_NAMES}end", "size": len(_END)}},
    ]
    return json.dumps({"type": "record", "name": f"{OWN_NAMES}record", "fields": fields})
