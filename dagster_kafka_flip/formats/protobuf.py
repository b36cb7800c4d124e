"""ProtobufFormat: Protobuf's binary encoding as typed columns, with a schema registry or without."""

from __future__ import annotations

import base64
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, field_validator, model_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.column_types import to_spark
from dagster_kafka_flip.formats.framed import FramedFormat
from dagster_kafka_flip.formats.frames import frame, schema_id
from dagster_kafka_flip.formats.jvm_decoder import FunctionFormat
from dagster_kafka_flip.formats.protobuf_compiler import compiled
from dagster_kafka_flip.formats.protobuf_plan import MisfitError, plan
from dagster_kafka_flip.formats.protobuf_schema import message_named, schema_of
from dagster_kafka_flip.formats.protobuf_types import check_columns, struct_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from google.protobuf.descriptor import Descriptor
    from pyspark.sql import Column
    from pyspark.sql.types import StructType
    from typing_extensions import Self

    from dagster_kafka_flip.formats.protobuf_schema import ProtobufSchema
    from dagster_kafka_flip.registry.registered_schema import RegisteredSchema

# Behind each payload, if ids may be in headers: how many of its first bytes were in one.
_LENGTH_DIGITS = 10


class ProtobufFormat(FramedFormat, FunctionFormat):
    """Decodes Protobuf's binary encoding into columns.

    A value becomes one column per field of the message; a key is one column.

    With a registry, each record is decoded with the schema and the message that it was written with, and read as the
    reader's message: that of the given descriptor set, or of the subject's latest schema. Fields are matched by number.
    Without a registry, all records have the given message, and no schema id.

    Strict: a record is rejected if it can't be parsed, if a string is not UTF-8, if a required field is missing, if a
    timestamp or duration is out of range, if no registry gives its schema's id, if it is another message, or if
    a field of its message has another type than the reader's.

    Args:
        descriptor_set: A FileDescriptorSet or the path of one, from `protoc --include_imports --include_source_info
            --descriptor_set_out=<file>` and one .proto file. Required without a registry. Default: the subject's latest
            schema.
        message: The message, such as `shop.Order`. Default: the schema's only message.
        registry: See FramedFormat.
        subject: See FramedFormat.
        schema_id_in: See FramedFormat.
        on_error: See Format.

    Attributes:
        declared: The descriptor set; None for the subject's latest.
    """

    function = "decode_protobuf"
    kind: ClassVar[str] = "PROTOBUF"
    kind_name: ClassVar[str] = "Protobuf"
    reader_option: ClassVar[str] = "descriptor_set"
    goes_on_in_header: ClassVar[bool] = True

    declared: Any = Field(default=None, alias="descriptor_set", kw_only=False, repr=False)
    message: str | None = None

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
            raise ConfigurationError(f"{what}: {error}") from None
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
            raise ConfigurationError(f"the ProtobufFormat's descriptor_set: {error}") from None

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
        """All that decides how records are decoded; without the registry, which may hold secrets."""
        found = super().description()
        if self.declared is None:
            return found
        return {**found, "declared": base64.b64encode(self.declared).decode(), "message": self.reader.full_name}

    @classmethod
    def described(cls, description: Mapping[str, Any]) -> Self | None:
        """The format of a `description`, which needs no registry; None if that was made before a run."""
        text = description.get("declared")
        return super().described({**description, "declared": None if text is None else base64.b64decode(text)})

    def framed(self, data: Column, headers: Column) -> Column:
        """Key or value after its frame, followed by the number of bytes that came from a header.

        The header also has the message indexes. Without the number, truncated indexes would continue in the content.
        """
        from pyspark.sql import functions as f

        if not self.changes_frame:
            return data
        whole = super().framed(data, headers)
        in_header = (f.octet_length(whole) - f.octet_length(data)).cast("string")
        return f.concat(whole, f.lpad(in_header, _LENGTH_DIGITS, "0").cast("binary"))

    def frame(self, data: Column) -> Column:
        """The frame of a framed payload; null if it has none."""
        from pyspark.sql import functions as f

        if not self.changes_frame:
            return frame(data)
        return frame(f.substr(data, f.lit(1), f.octet_length(data) - f.lit(_LENGTH_DIGITS)))

    @property
    def function_options(self) -> dict[str, Any]:
        """How to read the messages of each schema, by frame; without a registry only those of the reader's."""
        if not self.is_framed:
            return {"writers": {"": _described(self.reader, plan(self.reader, self.reader))}}
        declared, name = self.declared or b"", self.reader.full_name
        writers = {digits: _writer(digits, found, declared, name) for digits, found in self.book.known.items()}
        return {"writers": writers, "schema_id_in": self.schema_id_in}

    def struct(self) -> StructType:
        """The message's fields."""
        return to_spark(struct_of(self.reader))

    def comments(self) -> Mapping[str, str]:
        """The comment of each field."""
        return self._schema.comments(self.reader.full_name)


def _described(reader: Descriptor, messages: Sequence[Any], reasons: Mapping[str, str | None] = {}) -> dict[str, Any]:
    return {"message": reader.full_name, "plan": messages, "reasons": reasons}


@lru_cache(maxsize=1024)
def _writer(digits: str, found: RegisteredSchema | None, declared: bytes, name: str) -> Mapping[str, Any]:
    """How the Java library decodes the records of a schema, or why it can't."""
    what = f"schema {schema_id(digits)}"
    if found is None:
        return {"problem": f"the registry has no {what}"}
    if found.kind != "PROTOBUF":
        return {"problem": f"{what} has the type {found.kind}; ProtobufFormat reads only Protobuf"}
    try:
        schema = schema_of(compiled(found.text, found.references))
    except ValueError as error:
        return {"problem": f"{what}: {error}"}
    reader, messages, reasons = schema_of(declared).message(name), [], {}
    for indexes, written in schema.by_indexes().items():
        reason = None
        if written is None:
            reason = "has ambiguous message indexes here: Confluent's clients count messages after a map or a group "
            reason += "differently"
        elif written != name:
            reason = f"is a {written} here, but the reader schema is {name}"
        else:
            try:
                messages = plan(schema.message(name), reader)
            except MisfitError as error:
                reason = f"can't be read as the reader schema: {error}"
        reasons[str(list(indexes))] = reason and f"{what} {reason}"
    return {"name": what, **_described(reader, messages, reasons)}
