"""AvroSerializer: columns in Avro's binary encoding, with a schema registry."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import field_validator

from dagster_kafka_flip.errors import ConfigurationError, SparkSessionError
from dagster_kafka_flip.formats.avro_schema import AvroSchema, declared_text
from dagster_kafka_flip.settings.arguments import check_arguments
from dagster_kafka_flip.sink.avro_schemas import avro_of, step_of
from dagster_kafka_flip.sink.registry_serializer import RegistrySerializer
from dagster_kafka_flip.sink.serializer import serialized, struct_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.registry.registered_schema import RegisteredSchema
    from dagster_kafka_flip.registry.schema_registry import SchemaRegistry


class AvroSerializer(RegistrySerializer):
    """Writes keys or values in Avro's binary encoding, with Spark's own `to_avro`; AvroFormat reads them.

    The schema is derived from the columns, unless one is given: a record named `record`, with null for columns that
    allow it. Columns and fields are matched by name. Timestamps have microseconds, decimals all their digits. With
    another schema, a column may be written to a wider type (INT to long); a field without a column must allow null, and
    becomes null.

    A schema other than a record takes one column; a null in it becomes a null key or value.

    Args:
        schema: The schema to register, as JSON or as a Python object. Default: derived from the columns.
        registry: See RegistrySerializer.
        columns: See RegistrySerializer.
        use_latest: See RegistrySerializer.
        subject: See RegistrySerializer.
    """

    kind = "AVRO"
    # Otherwise days before 1582 would be shifted, or refused.
    session_settings: ClassVar[Mapping[str, str]] = {"spark.sql.avro.datetimeRebaseModeInWrite": "CORRECTED"}

    @check_arguments
    def __init__(
        self,
        schema: str | Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        registry: SchemaRegistry | str,
        columns: Sequence[str] = (),
        use_latest: bool = False,
        subject: str | None = None,
    ) -> None:
        super().__init__(
            registry=registry,
            columns=columns,  # pyright: ignore[reportArgumentType]
            declared=schema,  # pyright: ignore[reportArgumentType]
            use_latest=use_latest,
            subject=subject,
        )

    @field_validator("declared", mode="before")
    @classmethod
    def _check_declared(cls, declared: Any) -> str | None:
        if declared is None:
            return None
        text = declared_text(declared, "AvroSerializer")
        AvroSchema.of(text)
        return text

    def made(self, columns: StructType, latest: RegisteredSchema | None) -> str:
        """The schema of columns."""
        del latest
        return json.dumps(avro_of(columns))

    def whole(self, columns: StructType, schema: RegisteredSchema, what: str) -> tuple[Column, bytes]:
        """The struct of content and problem."""
        try:
            parsed = AvroSchema.of(schema.text, schema.references)
        except ConfigurationError as error:
            msg = f"{what}: {error}"
            raise ConfigurationError(msg) from None
        step = step_of(columns, parsed, what)
        whole = struct_of(columns.names)
        value = whole if parsed.fields is not None else whole.getField(columns.names[0])
        problem = None if step.wrong is None else step.wrong(value)
        return serialized(_to_avro(step.changed(value), parsed), problem), b""


def _to_avro(value: Column, schema: AvroSchema) -> Column:
    from pyspark.sql.avro.functions import to_avro

    try:
        return to_avro(value, schema.text)
    except TypeError as error:
        # py4j's error for a missing class.
        msg = (
            "Spark has no to_avro: the session lacks the jar org.apache.spark:spark-avro of Spark's version. Add it to "
            "spark.jars.packages; sessions that this package starts have it"
        )
        raise SparkSessionError(msg) from error
