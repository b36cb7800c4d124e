"""ProtobufSerializer: columns in Protobuf's binary encoding, with a schema registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import field_validator

from dagster_kafka_flip.errors import ConfigurationError, SchemaNotFoundError
from dagster_kafka_flip.formats.protobuf_compiler import compiled
from dagster_kafka_flip.formats.protobuf_schema import message_named, schema_of
from dagster_kafka_flip.settings.arguments import check_arguments
from dagster_kafka_flip.sink.protobuf_schemas import MESSAGE, plan_of, proto_of
from dagster_kafka_flip.sink.registry_serializer import RegistrySerializer
from dagster_kafka_flip.sink.serializer import serialized, struct_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.formats.protobuf_schema import ProtobufSchema
    from dagster_kafka_flip.registry.registered_schema import RegisteredSchema
    from dagster_kafka_flip.registry.schema_registry import SchemaRegistry
    from dagster_kafka_flip.registry.schemas import Schemas


class ProtobufSerializer(RegistrySerializer):
    """Writes keys or values in Protobuf's binary encoding, with the package protobuf on Spark's executors.

    The schema is derived from the columns, unless one is given: a message `Record`, whose fields keep their numbers
    from one schema of the subject to the next. Columns and fields are matched by name. Decimals, dates and times
    without a zone become strings: Protobuf has no type for them. A list or map that is null, or contains a null, is a
    RowNotSerializableError, because Protobuf would write an empty one.

    Args:
        schema: The schema to register: the text of a .proto file, or its Path. It may import the files that come with
            Protobuf. Default: derived from the columns.
        message: The full name of the message, such as `shop.Order`. Default: the schema's only message.
        registry: See RegistrySerializer.
        columns: See RegistrySerializer.
        use_latest: See RegistrySerializer.
        subject: See RegistrySerializer.
    """

    kind = "PROTOBUF"

    message: str | None = None

    @check_arguments
    def __init__(
        self,
        schema: str | Path | None = None,
        *,
        message: str | None = None,
        registry: SchemaRegistry | str,
        columns: Sequence[str] = (),
        use_latest: bool = False,
        subject: str | None = None,
    ) -> None:
        super().__init__(
            registry=registry,
            columns=columns,  # pyright: ignore[reportArgumentType]
            declared=schema,  # pyright: ignore[reportArgumentType]
            message=message,  # pyright: ignore[reportCallIssue]
            use_latest=use_latest,
            subject=subject,
        )

    @field_validator("declared", mode="before")
    @classmethod
    def _check_declared(cls, declared: Any) -> str | None:
        if isinstance(declared, Path):
            try:
                return declared.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                msg = f"a ProtobufSerializer's schema: {declared} can't be read ({error})"
                raise ConfigurationError(msg) from None
        if declared is not None and not isinstance(declared, str):
            msg = (
                f"a ProtobufSerializer's schema is the text of a .proto file, or its Path, not "
                f"{type(declared).__name__}"
            )
            raise ConfigurationError(msg)
        return declared

    def made(self, columns: StructType, latest: RegisteredSchema | None) -> str:
        """The schema of columns, with the numbers of the latest one's fields."""
        known = None
        if latest is not None and latest.kind == self.kind:
            schema = _schema(latest, f"schema {latest.schema_id} of the subject {latest.subject!r}")
            known = schema.message(MESSAGE) if MESSAGE in schema.messages else None
        return proto_of(columns, known)

    def _latest(self, schemas: Schemas, subject: str) -> RegisteredSchema | None:
        try:
            return schemas.latest(subject)
        except SchemaNotFoundError:
            return None

    def whole(self, columns: StructType, schema: RegisteredSchema, what: str) -> tuple[Column, bytes]:
        """The struct of content and problem, and the message indexes."""
        from pyspark import cloudpickle
        from pyspark.sql import functions as f

        from dagster_kafka_flip.sink import protobuf_encoding

        parsed = _schema(schema, what)
        try:
            message = message_named(parsed, self.message)
        except ValueError as error:
            msg = f"{what}: {error}"
            raise ConfigurationError(msg) from None
        plan, step = plan_of(columns, message, what)
        # Executors don't have this package.
        cloudpickle.register_pickle_by_value(protobuf_encoding)
        # For decoding, enums are numbers, which are written alike.
        encode = protobuf_encoding.encoding(parsed.for_decoding, message.full_name, plan)
        # Not with Arrow: in Spark 4.0 it turns NaN into null. And Spark would encode a row twice if it might.
        encoded = f.udf(encode, "content binary, problem string", useArrow=False).asNondeterministic()
        value = struct_of(columns.names)
        whole = encoded(step.changed(value))
        if step.wrong is not None:
            # Known only here: on its way to Python a text gets other characters.
            wrong = step.wrong(value)
            whole = f.when(wrong.isNull(), whole).otherwise(serialized(f.lit(None).cast("binary"), wrong))
        return whole, _indexes(parsed, message.full_name, what)


def _schema(schema: RegisteredSchema, what: str) -> ProtobufSchema:
    try:
        return schema_of(compiled(schema.text, schema.references))
    except ValueError as error:
        msg = f"{what}: {error}"
        raise ConfigurationError(msg) from None


def _indexes(schema: ProtobufSchema, name: str, what: str) -> bytes:
    """Confluent's message indexes: how many numbers lead to the message, and these."""
    found = [indexes for indexes, each in schema.by_indexes().items() if each == name]
    if len(found) != 1:
        msg = f"{what}: Confluent's clients do not agree on the place of the message {name}. Put it first in the file"
        raise ConfigurationError(msg)
    (indexes,) = found
    # The first message of a file is a single zero.
    return b"\x00" if indexes == (0,) else b"".join(_varint(each) for each in (len(indexes), *indexes))


def _varint(number: int) -> bytes:
    """A number in zigzag code."""
    left, found = number << 1, bytearray()
    while left > 0x7F:  # noqa: PLR2004 -- seven bits a byte
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])
