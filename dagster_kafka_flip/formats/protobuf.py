"""ProtobufFormat: Protobuf's binary encoding as typed columns, with a schema registry or without."""

from __future__ import annotations

import base64
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, field_validator, model_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.format import OnError  # noqa: TC001 -- shown in the reference of options
from dagster_kafka_flip.formats.frames import SchemaIdIn, frame, schema_id, without_frame_problem
from dagster_kafka_flip.formats.protobuf_compiler import check_packages, compiled
from dagster_kafka_flip.formats.protobuf_schema import message_named, schema_of
from dagster_kafka_flip.formats.protobuf_types import MisfitError, check_columns, plan, struct
from dagster_kafka_flip.formats.registered import UNKNOWN_SCHEMA, RegisteredFormat
from dagster_kafka_flip.settings.arguments import check_arguments

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from google.protobuf.descriptor import Descriptor
    from pyspark.sql import Column
    from typing_extensions import Self

    from dagster_kafka_flip.formats.protobuf_decoding import Messages
    from dagster_kafka_flip.formats.protobuf_schema import ProtobufSchema
    from dagster_kafka_flip.registry.registered_schema import RegisteredSchema
    from dagster_kafka_flip.registry.schema_registry import SchemaRegistry

# Behind each framed payload: how many of its first bytes were in a header.
_LENGTH_BYTES = 4


class ProtobufFormat(RegisteredFormat):
    """Decodes Protobuf's binary encoding into columns, with the package protobuf on Spark's executors.

    A value becomes one column per field of the message; a key is one column.

    With a registry, each record is decoded with the schema and the message that it was written with, and read as the
    reader's message: that of the given descriptor set, or of the subject's latest schema. Fields are matched by number.
    Without a registry, all records have the given message, and no schema id.

    Strict: a record is rejected if it can't be parsed, if a string is not UTF-8, if a required field is missing, if a
    timestamp or duration is out of range, if no registry gives its schema's id, if it is another message, or if
    a field of its message has another type than the reader's.

    Args:
        descriptor_set: A FileDescriptorSet or the path of one, from `protoc --include_imports --include_source_info
            --descriptor_set_out=<file>`, with one .proto file given. Required without a registry. Default: the
            subject's latest schema.
        message: The full name of the message, such as `shop.Order`. Default: the schema's only message.
        registry: See FramedFormat.
        subject: See FramedFormat.
        schema_id_in: See FramedFormat.
        on_error: See Format.

    Attributes:
        declared: The descriptor set; None for the subject's latest.
    """

    kind: ClassVar[str] = "PROTOBUF"
    kind_name: ClassVar[str] = "Protobuf"
    reader_option: ClassVar[str] = "descriptor_set"
    goes_on_in_header: ClassVar[bool] = True

    declared: bytes | None = Field(default=None, repr=False)
    message: str | None = None

    @check_arguments
    def __init__(
        self,
        descriptor_set: bytes | str | Path | None = None,
        *,
        message: str | None = None,
        registry: SchemaRegistry | str | None = None,
        subject: str | None = None,
        schema_id_in: SchemaIdIn = "payload",
        on_error: OnError = "fail",
    ) -> None:
        super().__init__(
            declared=descriptor_set,  # pyright: ignore[reportCallIssue]
            message=message,  # pyright: ignore[reportCallIssue]
            registry=registry,
            subject=subject,
            schema_id_in=schema_id_in,
            on_error=on_error,
        )

    @field_validator("declared", mode="before")
    @classmethod
    def _check_declared(cls, declared: Any) -> bytes | None:
        if isinstance(declared, (str, Path)):
            try:
                return Path(declared).read_bytes()
            except (OSError, ValueError) as error:
                msg = f"a ProtobufFormat's descriptor_set: {declared} can't be read ({error})"
                raise ConfigurationError(msg) from None
        if declared is not None and not isinstance(declared, bytes):
            msg = f"a ProtobufFormat's descriptor_set is bytes or the path of a file, not {type(declared).__name__}"
            raise ConfigurationError(msg)
        return declared

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        if self.declared is not None:
            check_columns(self.reader, "the ProtobufFormat's descriptor_set")
        return self

    def reader_of(self, registered: RegisteredSchema, what: str) -> dict[str, Any]:
        """The descriptor set, and the full name of the message."""
        try:
            descriptor_set = compiled(registered.text, registered.references)
            message = message_named(schema_of(descriptor_set), self.message)
        except ValueError as error:
            msg = f"{what}: {error}"
            raise ConfigurationError(msg) from None
        check_columns(message, what)
        return {"declared": descriptor_set, "message": message.full_name}

    @property
    def reader(self) -> Descriptor:
        """The reader's message.

        Raises:
            ConfigurationError: There is no such message; or it is the subject's latest, and the registry has not been
                asked for it.
        """
        try:
            return message_named(self._schema, self.message)
        except ValueError as error:
            msg = f"the ProtobufFormat's descriptor_set: {error}"
            raise ConfigurationError(msg) from None

    @property
    def _schema(self) -> ProtobufSchema:
        if self.declared is None:
            raise self.not_bound()
        return schema_of(self.declared)

    @property
    def column_names(self) -> Sequence[str] | None:
        """The names of the message's fields; None if the registry has not been asked for them yet."""
        return None if self.declared is None else [field.name for field in self.reader.fields]

    def description(self) -> dict[str, Any]:
        """All that decides how records are decoded, as JSON; without the registry, which may hold secrets."""
        return {
            "descriptor_set": None if self.declared is None else base64.b64encode(self.declared).decode(),
            "message": self.message if self.declared is None else self.reader.full_name,
            **super().description(),
        }

    @classmethod
    def described(cls, description: Mapping[str, Any]) -> ProtobufFormat | None:
        """The format of a `description`, which needs no registry; None if a run's schemas are missing."""
        declared = description["descriptor_set"]
        if declared is None or (description["has_registry"] and description["writers"] is None):
            return None
        return cls(base64.b64decode(declared), message=description["message"]).with_book_of(description)

    @property
    def changes_frame(self) -> bool:
        """Whether `framed` adds to the payload."""
        return self.is_framed

    def framed(self, data: Column, headers: Column) -> Column:
        """Key or value after its frame, followed by the number of bytes that came from a header.

        The header also has the message indexes. Without the number, truncated indexes would continue in the content.
        """
        from pyspark.sql import functions as f

        if not self.is_framed:
            return data
        whole = super().framed(data, headers)
        in_header = f.octet_length(whole) - f.octet_length(data)
        return f.concat(whole, f.unhex(f.lpad(f.hex(in_header), 2 * _LENGTH_BYTES, "0")))

    def frame(self, data: Column) -> Column:
        """The frame of a framed payload; null if it has none."""
        return frame(_without_length(data))

    def parse(self, data: Column) -> Column:
        """The decoded message and the reason why there is none; it is decoded once, in Python."""
        from pyspark import cloudpickle
        from pyspark.sql import functions as f
        from pyspark.sql.types import StringType, StructField, StructType

        from dagster_kafka_flip.formats import protobuf_decoding

        # Executors don't have this package.
        cloudpickle.register_pickle_by_value(protobuf_decoding)
        result = StructType([StructField("content", struct(self.reader)), StructField("problem", StringType())])
        if self.is_framed:
            decode = protobuf_decoding.decoding(self._schemas(), None, UNKNOWN_SCHEMA)
        else:
            own = (self._schema.for_decoding, self.reader.full_name, plan(self.reader, self.reader))
            decode = protobuf_decoding.decoding(None, own, UNKNOWN_SCHEMA)
        # Not with Arrow: in Spark 4.0 it turns NaN into null. And Spark would decode a record twice if it might.
        return f.udf(decode, result, useArrow=False).asNondeterministic()(data)

    def _schemas(self) -> dict[bytes, tuple[str, Messages | str]]:
        """How to decode records, by frame; the reason, as a string, if they can't be decoded."""
        check_packages(with_compiler=True)
        declared, name = self.declared or b"", self.reader.full_name
        return {
            bytes.fromhex(digits): (f"schema {schema_id(digits)}", _messages_of(digits, found, declared, name))
            for digits, found in self.book.known.items()
        }

    def problem(self, data: Column, parsed: Column) -> Column | None:
        """Why a record can't be decoded."""
        from pyspark.sql import functions as f

        problem = parsed.getField("problem")
        if not self.is_framed:
            return problem
        own = _without_length(data)
        return (
            f.when(data.isNull() | problem.isNull(), f.lit(None).cast("string"))
            .when(frame(own).isNull(), without_frame_problem(own, self.schema_id_in))
            .when(problem.startswith(UNKNOWN_SCHEMA), f.raise_error(problem).cast("string"))
            .otherwise(problem)
        )

    def as_one(self, parsed: Column) -> Column:
        """The message as one STRUCT."""
        return parsed.getField("content")

    def comments(self) -> Mapping[str, str]:
        """The comment of each field."""
        return self._schema.comments(self.reader.full_name)

    def spread(self, parsed: Column) -> list[tuple[str, Column]] | None:
        """One column for each field of the message."""
        content = self.as_one(parsed)
        return [(field.name, content.getField(field.name)) for field in self.reader.fields]


def _without_length(data: Column) -> Column:
    from pyspark.sql import functions as f

    return f.substr(data, f.lit(1), f.octet_length(data) - f.lit(_LENGTH_BYTES))


@lru_cache(maxsize=1024)
def _messages_of(digits: str, found: RegisteredSchema | None, declared: bytes, name: str) -> Messages | str:
    """How to decode the records of a schema; the reason, as a string, if they can't be decoded."""
    what = f"schema {schema_id(digits)}"
    if found is None:
        return f"the registry has no {what}"
    if found.kind != "PROTOBUF":
        return f"{what} has the type {found.kind}; ProtobufFormat reads only Protobuf"
    try:
        schema = schema_of(compiled(found.text, found.references))
    except ValueError as error:
        return f"{what}: {error}"
    reader = schema_of(declared).message(name)
    return schema.for_decoding, {
        indexes: _readable(schema, written, reader) for indexes, written in schema.by_indexes().items()
    }


def _readable(schema: ProtobufSchema, name: str | None, reader: Descriptor) -> Any:
    """The name of a written message and how to read it; the reason, as a string, if it can't be read."""
    if name is None:
        return (
            "has ambiguous message indexes here: Confluent's clients count messages after a map or a group differently"
        )
    if name != reader.full_name:
        return f"is a {name} here, but the reader schema is {reader.full_name}"
    try:
        return name, plan(schema.message(name), reader)
    except MisfitError as error:
        return f"can't be read as the reader schema: {error}"
