"""RegisteredSchema: a schema as the registry holds it, with all that it refers to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SchemaKind = Literal["AVRO", "PROTOBUF", "JSON"]

UNKNOWN_ID = -1
"""The `schema_id` of a schema that was asked for by its guid: the registry does not say it."""


@dataclass(frozen=True)
class RegisteredSchema:
    """A schema in a schema registry.

    Attributes:
        schema_id: The registry's id; `UNKNOWN_ID` (-1) if the schema was asked for by its guid.
        kind: AVRO, PROTOBUF or JSON.
        text: The schema itself, as it was registered.
        references: Name and text of each schema that it refers to, directly or through another: each name once, and
            each before those that refer to it.
        guid: Its id across registries, if the registry says it.
        subject: The subject that it was asked for with.
        version: Its version in the subject, if it was asked for as the latest.
    """

    schema_id: int
    kind: SchemaKind
    text: str
    references: tuple[tuple[str, str], ...] = ()
    guid: str | None = None
    subject: str | None = None
    version: int | None = None
