"""SchemaBook: the schemas of a registry that a run has met."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import KafkaFlipError, SchemaNotFoundError
from dagster_kafka_flip.formats.frames import schema_id
from dagster_kafka_flip.registry.registered_schema import UNKNOWN_ID, RegisteredSchema, context_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dagster_kafka_flip.registry.schemas import Schemas

UNKNOWN_SCHEMA = "[dagster-kafka-flip: schema not asked for yet]"
"""Marks Spark's error as ours: a record names a schema that the driver has not asked the registry for."""

# Seconds. A registry of several servers may not have a new schema in all of them yet.
_WAITS = (0.25, 0.5, 1.0, 2.0, 4.0)


class SchemaBook:
    """The schemas of a run by their frames. It grows while the run meets new ones.

    Args:
        schemas: The registry's schemas; None if all are known.
        known: Schemas that are known; None for a frame that the registry does not know.
        may_lack: Whether a schema that the registry lacks, also when it is asked again, does not end the run.
    """

    def __init__(
        self,
        schemas: Schemas | None,
        known: Mapping[str, RegisteredSchema | None] = {},
        *,
        may_lack: bool = False,
    ) -> None:
        self._schemas = schemas
        self._known = dict(known)
        # The latest one that was asked for, if it is in a context: the records' ids are of the same.
        self._subject: str | None = None
        self._may_lack = may_lack

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
        """Asks the registry for the latest schema of a subject."""
        if self._schemas is None:
            raise KafkaFlipError("a book without a registry was asked for a subject; this is a bug")
        found = self._schemas.latest(subject)
        self._subject = found.subject if context_of(found.subject) else None
        return found

    def add(self, frames: Iterable[str], schema: RegisteredSchema) -> None:
        """Adds a schema that records name by frames."""
        self._known.update(dict.fromkeys(frames, schema))

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

    def recall(self, frames: Iterable[str]) -> None:
        """Asks the registry for schemas that records may name. What it lacks stays unknown."""
        self._ask(frames)

    def learn(self, places: Mapping[str, str]) -> list[str]:
        """Asks for schemas, for some seconds, by where records have each; returns the frames that are new."""
        before = set(self._known)
        missing = self._ask(places)
        for seconds in _WAITS:
            if missing:
                time.sleep(seconds)
                missing = self._ask(missing)
        if missing and not self._may_lack:
            digits, error = next(iter(missing.items()))
            raise SchemaNotFoundError(
                f"{places[digits]} can't be decoded: {error}",
                "If the registry only lags, run again. If it will never have the schema, such as for bytes that are no "
                "id, tolerate SchemaNotFoundError: then the record is rejected",
                schema_id=error.schema_id,
                guid=error.guid,
                subject=error.subject,
                status=error.status,
                code=error.code,
            )
        self._known.update(dict.fromkeys(missing))
        return sorted(self._known.keys() - before)

    def _ask(self, frames: Iterable[str]) -> dict[str, SchemaNotFoundError]:
        """Asks for the schemas of frames that are new; returns what the registry says of those that it lacks."""
        missing: dict[str, SchemaNotFoundError] = {}
        if self._schemas is None:
            return missing
        for digits in sorted(set(frames) - self._known.keys()):
            found = schema_id(digits)
            try:
                self._known[digits] = (
                    self._schemas.by_id(found, self._subject)
                    if isinstance(found, int)
                    else self._schemas.by_guid(found, self._subject)
                )
            except SchemaNotFoundError as error:
                if error.status is None:
                    # There is no such id, whatever the registry has.
                    self._known[digits] = None
                else:
                    missing[digits] = error
        return missing


def _registered(digits: str, described: Sequence[Any] | None) -> RegisteredSchema | None:
    if described is None:
        return None
    kind, text, *references = described
    number = schema_id(digits)
    return RegisteredSchema(
        number if isinstance(number, int) else UNKNOWN_ID, kind, text, tuple(map(tuple, references))
    )
