"""SchemaBook: the schemas that the records of a run were written with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import KafkaFlipError, SchemaNotFoundError
from dagster_kafka_flip.formats.frames import schema_id
from dagster_kafka_flip.registry.registered_schema import UNKNOWN_ID, RegisteredSchema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dagster_kafka_flip.registry.schemas import Schemas


class SchemaBook:
    """The schemas of a run by their frames. It grows while the run meets new ones.

    Args:
        schemas: The registry's schemas; None if all are known.
        known: Schemas that are known; None for a frame that the registry does not know.
    """

    def __init__(self, schemas: Schemas | None, known: Mapping[str, RegisteredSchema | None] = {}) -> None:
        self._schemas = schemas
        self._known = dict(known)

    @property
    def known(self) -> Mapping[str, RegisteredSchema | None]:
        """The known schemas; None for a frame that the registry does not know."""
        return self._known

    @property
    def frames(self) -> list[str]:
        """The frames of the schemas that the registry has."""
        return sorted(digits for digits, found in self._known.items() if found is not None)

    def close(self) -> None:
        """Closes the connection to the registry."""
        if self._schemas is not None:
            self._schemas.close()

    def latest(self, subject: str) -> RegisteredSchema:
        """Asks the registry for the latest schema of a subject.

        Raises:
            SchemaRegistryError: The registry does not answer, or has no such subject.
        """
        if self._schemas is None:
            msg = "a book without a registry was asked for a subject; this is a bug"
            raise KafkaFlipError(msg)
        return self._schemas.latest(subject)

    def description(self) -> dict[str, Any]:
        """The known schemas as JSON, by frame."""
        return {
            digits: None if found is None else [found.kind, found.text, *map(list, found.references)]
            for digits, found in sorted(self._known.items())
        }

    @classmethod
    def described(cls, description: Mapping[str, Any]) -> SchemaBook:
        """The book of a `description`, which needs no registry."""
        return cls(None, {digits: _registered(digits, found) for digits, found in description.items()})

    def learn(self, frames: Iterable[str]) -> list[str]:
        """Asks the registry for the schemas of frames; returns the frames that are new.

        Raises:
            SchemaRegistryError: The registry does not answer, or refuses.
        """
        new = sorted(set(frames) - self._known.keys())
        if self._schemas is None:
            return []
        for digits in new:
            found = schema_id(digits)
            try:
                self._known[digits] = (
                    self._schemas.by_id(found) if isinstance(found, int) else self._schemas.by_guid(found)
                )
            except SchemaNotFoundError:
                self._known[digits] = None
        return new


def _registered(digits: str, described: Sequence[Any] | None) -> RegisteredSchema | None:
    if described is None:
        return None
    kind, text, *references = described
    number = schema_id(digits)
    return RegisteredSchema(
        number if isinstance(number, int) else UNKNOWN_ID, kind, text, tuple(map(tuple, references))
    )
