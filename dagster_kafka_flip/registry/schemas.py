"""Schemas: reads schemas from a schema registry, each of them once, and registers a sink's."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, cast, get_args

from dagster_kafka_flip.registry.failures import Question
from dagster_kafka_flip.registry.registered_schema import UNKNOWN_ID, RegisteredSchema, SchemaKind, context_of

if TYPE_CHECKING:
    from types import TracebackType

    from confluent_kafka.schema_registry import Schema
    from typing_extensions import Self

    from dagster_kafka_flip.registry.client import RegistryClient

# Ids are positive numbers of four bytes, also where a record's bytes, read as one, say otherwise.
_IDS = range(1, 2**31)


class Schemas:
    """Reads schemas, with all that they refer to, and registers them. Made by `SchemaRegistry.schemas()`.

    An id or a guid always refers to the same schema, so it is requested once; the latest of a subject is requested each
    time. Close it, or use it as a context manager: it holds a connection.

    Args:
        client: The registry's client.
    """

    def __init__(self, client: RegistryClient) -> None:
        self._client = client

    def by_id(self, schema_id: int, subject: str | None = None) -> RegisteredSchema:
        """Returns the schema with an id.

        Args:
            schema_id: The id.
            subject: A subject of the schema: ids may have another meaning in each context of a registry. Default: the
                registry's default context.

        Raises:
            SchemaNotFoundError: The registry has no such schema; without a `status`, because there is no such id.
            SchemaRegistryError: The registry could not be asked.
        """
        question = Question(schema_id=schema_id, subject=subject)
        if schema_id not in _IDS:
            raise self._client.asked.not_found(question)
        schema = self._client.ask(question, lambda client: client.get_schema(schema_id, subject))
        return self._registered(question, schema, context_of(subject), schema_id=schema_id, subject=subject)

    def by_guid(self, guid: str, subject: str | None = None) -> RegisteredSchema:
        """Returns the schema with a guid; its `schema_id` is `UNKNOWN_ID`.

        Args:
            guid: The guid, in any of a UUID's spellings.
            subject: A subject in the context of the schemas that it refers to. Default: the registry's default context.

        Raises:
            SchemaNotFoundError: The registry has no such schema, or knows no guids.
            SchemaRegistryError: The registry could not be asked.
        """
        question = Question(guid=guid)
        try:
            name = str(uuid.UUID(guid))
        except ValueError:
            raise self._client.asked.not_found(question) from None
        schema = self._client.ask(question, lambda client: client.get_schema_by_guid(name))
        return self._registered(question, schema, context_of(subject), schema_id=UNKNOWN_ID, guid=name)

    def latest(self, subject: str) -> RegisteredSchema:
        """Returns the latest version of a subject. Asks each time.

        Raises:
            SchemaNotFoundError: The registry has no such subject.
            SchemaRegistryError: The registry could not be asked.
        """
        question = Question(subject=subject)
        answer = self._client.ask(question, lambda client: client.get_latest_version(subject))
        if answer.schema_id is None:
            raise self._client.asked.not_a_registry(question, "without an id")
        # A registry may find a subject in another context than the one that it is asked for.
        subject = subject if context_of(answer.subject) in {"", context_of(subject)} else cast("str", answer.subject)
        return self._registered(
            question,
            answer.schema,
            context_of(subject),
            schema_id=answer.schema_id,
            guid=_guid(answer.guid),
            subject=subject,
            version=answer.version,
        )

    def register(self, subject: str, kind: SchemaKind, text: str) -> RegisteredSchema:
        """Registers a schema that refers to no other. One that the subject already has keeps its id.

        Raises:
            IncompatibleSchemaError: The subject's compatibility does not allow it.
            SchemaRegistryError: The registry could not be asked, or refuses it.
        """
        from confluent_kafka.schema_registry import Schema

        question = Question(subject=subject, registers=True)
        number = self._client.ask(question, lambda client: client.register_schema(subject, Schema(text, kind)))
        if number not in _IDS:
            raise self._client.asked.not_a_registry(question, "without an id")
        return RegisteredSchema(number, kind, text, subject=subject)

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _registered(
        self,
        question: Question,
        schema: Schema,
        context: str,
        *,
        schema_id: int,
        guid: str | None = None,
        subject: str | None = None,
        version: int | None = None,
    ) -> RegisteredSchema:
        text = self._text(question, schema)
        if schema.schema_type not in get_args(SchemaKind):
            raise self._client.asked.not_a_registry(question, f"with the type {schema.schema_type!r}")
        references: dict[str, str] = {}
        self._resolve(question, schema, context, references, set())
        return RegisteredSchema(
            schema_id, cast("SchemaKind", schema.schema_type), text, tuple(references.items()), guid, subject, version
        )

    def _resolve(
        self, question: Question, schema: Schema, context: str, found: dict[str, str], begun: set[str]
    ) -> None:
        """Adds the schemas that a schema refers to, in its context; each follows those that it refers to."""
        for reference in schema.references or ():
            name, subject, version = reference.name, reference.subject, reference.version
            if name is None or subject is None or version is None:
                raise self._client.asked.not_a_registry(question, "with a reference without a name, subject or version")
            # As in Confluent's serializers: the first of a name counts.
            if name in begun:
                continue
            begun.add(name)
            subject = subject if context_of(subject) else f"{context}{subject}"
            wanted = Question(subject=subject, version=version)
            # A version that was deleted since can still be referred to.
            answer = self._client.ask(
                wanted, lambda client, at=(subject, version): client.get_version(*at, deleted=True)
            )
            self._resolve(wanted, answer.schema, context_of(subject), found, begun)
            found[name] = self._text(wanted, answer.schema)

    def _text(self, question: Question, schema: Schema) -> str:
        if not isinstance(schema.schema_str, str):
            raise self._client.asked.not_a_registry(question, "without a schema")
        return schema.schema_str


def _guid(text: str | None) -> str | None:
    """A guid as records have it; None if a registry answers something else."""
    try:
        return None if text is None else str(uuid.UUID(text))
    except ValueError:
        return None
