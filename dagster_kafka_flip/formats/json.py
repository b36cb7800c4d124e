"""JsonFormat: a JSON object as typed columns, with a schema registry or without."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.framed import FramedFormat
from dagster_kafka_flip.formats.json_schema import columns_of
from dagster_kafka_flip.formats.jvm_decoder import LibraryFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql.types import StructType

    from dagster_kafka_flip.registry.registered_schema import RegisteredSchema


class JsonFormat(FramedFormat, LibraryFormat):
    """Decodes a JSON object into columns with declared types.

    A value becomes one column per field; a key becomes one STRUCT column.

    With a registry, each JSON text follows a schema id, which is removed. The writer's schema is not needed, so the
    registry is only asked for the subject's latest schema, and not at all if a schema is given.

    Strict: a record is rejected if it is not one JSON object in UTF-8 (RFC 8259), has a value that does not fit its
    field's type, or lacks a NOT NULL field. A value that would change does not fit: a number with more digits than its
    DECIMAL, one beyond the range of its DOUBLE, half of a surrogate pair. Undeclared fields are left out. A STRING
    field accepts any JSON value as its text, so nested JSON can be kept unparsed.

    Args:
        schema: The fields, as DDL (`carrier STRING NOT NULL, flight INT`), a StructType or a JSON Schema. Required
            without a registry. Default: the subject's latest.
        registry: See FramedFormat.
        subject: See FramedFormat.
        schema_id_in: See FramedFormat.
        on_error: See Format.
        show_values: Whether errors about rejected records, in tables too, quote the first 40 characters of the value.
            Default: no.

    Attributes:
        declared: The schema as DDL, that of a JSON Schema too, or as a StructType; None for the subject's latest.
    """

    function = "decode_json"
    kind: ClassVar[str] = "JSON"
    kind_name: ClassVar[str] = "JSON Schema"
    needs_writers: ClassVar[bool] = False

    show_values: bool = False

    @classmethod
    def check_declared(cls, declared: Any) -> Any:
        """Returns the schema to keep: that of a JSON Schema as DDL."""
        if declared is None:
            return None
        if isinstance(declared, Mapping):
            try:
                declared = json.dumps(declared)
            except (TypeError, ValueError, RecursionError) as error:
                msg = f"the JSON Schema of a {cls.__name__} is not JSON, or nested too deeply: {error}"
                raise ConfigurationError(msg) from None
        if isinstance(declared, str) and declared.lstrip().startswith("{"):
            declared = columns_of(declared, what=f"the {cls.__name__}'s JSON Schema")
        return super().check_declared(declared)

    def reader_of(self, registered: RegisteredSchema, what: str) -> dict[str, Any]:
        """The columns of a JSON Schema."""
        columns = columns_of(registered.text, registered.references, what=what)
        return {"declared": super().check_declared(columns)}

    @property
    def column_names(self) -> Sequence[str] | None:
        """The names of the fields; None if the registry has not been asked for them yet."""
        return None if self.declared is None else super().column_names

    def struct(self) -> StructType:
        """The fields as a StructType."""
        if self.declared is None:
            raise self.not_bound()
        return super().struct()

    @property
    def function_options(self) -> dict[str, Any]:
        """Whether to show values, and where the schema's id is, if there is one."""
        frame = {"schema_id_in": self.schema_id_in} if self.is_framed else {}
        return {"show_values": self.show_values, **frame}
