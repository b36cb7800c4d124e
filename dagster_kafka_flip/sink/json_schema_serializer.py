"""JsonSchemaSerializer: columns as JSON, with their JSON Schema in a schema registry."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import field_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.json_schema import members_of
from dagster_kafka_flip.settings.arguments import check_arguments
from dagster_kafka_flip.sink.json_schemas import json_schema_of, leaves_out_nulls, step_of
from dagster_kafka_flip.sink.registry_serializer import RegistrySerializer
from dagster_kafka_flip.sink.serializer import serialized, struct_of
from dagster_kafka_flip.sink.serializers import json_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.registry.registered_schema import RegisteredSchema
    from dagster_kafka_flip.registry.schema_registry import SchemaRegistry


class JsonSchemaSerializer(RegistrySerializer):
    """Writes keys or values as JsonSerializer does, with a JSON Schema in a registry; JsonFormat reads them.

    The schema is derived from the columns, unless one is given. It allows no other fields, and names types as Kafka
    Connect does. With another schema, a null is left out if the schema neither allows it nor requires the field. Types,
    required fields and nulls are checked; `pattern`, `enum` and the like are not.

    Args:
        schema: The schema to register, as JSON or as a Python object. Default: derived from the columns.
        registry: See RegistrySerializer.
        columns: See RegistrySerializer.
        use_latest: See RegistrySerializer.
        subject: See RegistrySerializer.
    """

    kind = "JSON"

    @check_arguments
    def __init__(
        self,
        schema: str | Mapping[str, Any] | None = None,
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
        if isinstance(declared, Mapping):
            try:
                declared = json.dumps(declared)
            except RecursionError:
                msg = "the JsonSchemaSerializer's schema: it is nested too deeply"
                raise ConfigurationError(msg) from None
        if not isinstance(declared, str):
            msg = f"a JsonSchemaSerializer's schema is JSON text or a mapping, not {type(declared).__name__}"
            raise ConfigurationError(msg)
        members_of(declared, what="the JsonSchemaSerializer's schema")
        return declared

    def made(self, columns: StructType, latest: RegisteredSchema | None) -> str:
        """The schema of columns."""
        del latest
        return json.dumps(json_schema_of(columns), ensure_ascii=False)

    def whole(self, columns: StructType, schema: RegisteredSchema, what: str) -> tuple[Column, bytes]:
        """The struct of content and problem."""
        members = members_of(schema.text, schema.references, what=what)
        leaves_out = leaves_out_nulls(columns, members)
        step = step_of(columns, members, what, leaves_out=leaves_out)
        value = struct_of(columns.names)
        problem = None if step.wrong is None else step.wrong(value)
        options = {"ignoreNullFields": "true"} if leaves_out else {}
        return serialized(json_of(value, options), problem), b""
