"""RegisteredFormat: base class of formats whose records are decoded with the schema that they were written with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import PrivateAttr

from dagster_kafka_flip.formats.framed import FramedFormat
from dagster_kafka_flip.formats.frames import frames_of
from dagster_kafka_flip.formats.schema_book import SchemaBook

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from typing_extensions import Self

    from dagster_kafka_flip.registry.registered_schema import RegisteredSchema
    from dagster_kafka_flip.registry.schema_registry import SchemaRegistry

UNKNOWN_SCHEMA = "[dagster-kafka-flip: schema not asked for yet]"
"""Marks Spark's error as ours: a record names a schema that the driver has not asked the registry for."""


class RegisteredFormat(FramedFormat):
    """A format that needs the schema that a record was written with, which is in a registry.

    A run collects these schemas in its book, by the ids that records have.
    """

    _book: SchemaBook | None = PrivateAttr(default=None)

    @property
    def book(self) -> SchemaBook:
        """The schemas of the run.

        Raises:
            ConfigurationError: The format has no run: see `bound`.
        """
        if self._book is None:
            raise self.not_bound()
        return self._book

    @property
    def is_bound(self) -> bool:
        """Whether it has a run's book of schemas."""
        return self._book is not None

    @property
    def known_schemas(self) -> Mapping[str, RegisteredSchema | None]:
        """The schemas in the book, by their frames; None for a frame that the registry does not know."""
        return {} if self._book is None else self._book.known

    def asked(self, registry: SchemaRegistry, topics: Collection[str] | None) -> Self:
        """The format with the reader schema, and with a book that asks the registry during the run."""
        self._book = SchemaBook(registry.schemas(), may_lack=self._may_lack)
        return super().asked(registry, topics)

    def latest(self, registry: SchemaRegistry, subject: str) -> RegisteredSchema:
        """Asks for the latest schema of a subject, by the book's connection.

        The book learns how records name it, because most of them do: a batch that does is read once.
        """
        del registry
        found = self.book.latest(subject)
        frames = frames_of(found)
        self.book.recall(frames[-1:] if self.schema_id_in == "headers" else frames[:1])
        return found
