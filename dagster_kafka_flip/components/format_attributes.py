"""Formats, serializers and modes of a table in a defs.yaml: their class is given by the field `type`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dagster_kafka_flip.components.schemas import typed
from dagster_kafka_flip.components.templates import create, refused, rendered
from dagster_kafka_flip.formats.built_in import BUILT_IN
from dagster_kafka_flip.formats.format import Format
from dagster_kafka_flip.sink.avro_serializer import AvroSerializer
from dagster_kafka_flip.sink.json_schema_serializer import JsonSchemaSerializer
from dagster_kafka_flip.sink.protobuf_serializer import ProtobufSerializer
from dagster_kafka_flip.sink.serializers import JsonSerializer, RawSerializer, Serializer, StringSerializer
from dagster_kafka_flip.table.mode import Append, Scd2, Upsert

if TYPE_CHECKING:
    from collections.abc import Callable

    from dagster import ResolutionContext

T = TypeVar("T")


def _of_type(
    what: str, types: Mapping[str, type[T]], base: type[Any] | tuple[type[Any], ...]
) -> Callable[[ResolutionContext, Any], T]:
    """Creates something of these types; a template may also make it, of any class with that base."""

    def resolve(context: ResolutionContext, value: Any) -> T:
        found = rendered(context, value)
        if isinstance(found, base):
            return cast("T", found)
        fields = cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}
        make = types.get(str(fields.get("type")))
        if make is None:
            raise refused(context, f"invalid {what} {found!r}; set its type ({', '.join(types)}) below it")
        return create(context, make, {name: each for name, each in fields.items() if name != "type"})

    return resolve


_FORMAT_OF_TYPE: Mapping[str, type[Any]] = {name.replace("-", "_"): kind for name, kind in BUILT_IN.items()}


format_of = _of_type("format", _FORMAT_OF_TYPE, Format)
FORMATS = typed(_FORMAT_OF_TYPE, registry=str | None, declared=str | dict[str, Any] | None)


_SERIALIZER_OF_TYPE: Mapping[str, type[Any]] = {
    "json": JsonSerializer,
    "string": StringSerializer,
    "raw": RawSerializer,
    "avro": AvroSerializer,
    "json_schema": JsonSchemaSerializer,
    "protobuf": ProtobufSerializer,
}


serializer_of = _of_type("serializer", _SERIALIZER_OF_TYPE, Serializer)
SERIALIZERS = typed(_SERIALIZER_OF_TYPE, registry=str, declared=str | dict[str, Any] | None)

_MODE_OF_TYPE: Mapping[str, type[Any]] = {"append": Append, "upsert": Upsert, "scd2": Scd2}
mode_of = _of_type("mode", _MODE_OF_TYPE, (Append, Upsert, Scd2))
MODES = typed(_MODE_OF_TYPE)
