"""RegisteredSchema: a schema as the registry holds it, with all that it refers to; and the names of subjects."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from dagster_kafka_flip.errors import ConfigurationError

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


_CONTEXT = re.compile(":[^:]+:")

TOPIC = "{topic}"
"""Stands for the topic in the name of a subject."""


def check_subject(owner: str, subject: str | None) -> str | None:
    """Checks the name of a subject, and returns it.

    Args:
        owner: Name of the class with the option.
        subject: The name, maybe with `{topic}` in it; None if it is not set.
    """
    if subject is not None and (not subject or {"{", "}"} & set(subject.replace(TOPIC, ""))):
        msg = f"a {owner}'s subject is a name such as 'orders-value', or has {TOPIC} in it; not {subject!r}"
        raise ConfigurationError(msg)
    return subject


def context_of(subject: str | None) -> str:
    """What begins the name of a subject that is in a context, such as `:.eu:`; empty for one in the default context."""
    found = _CONTEXT.match(subject or "")
    return "" if found is None else found[0]
