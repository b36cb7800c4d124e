"""Incident: an error that a run tolerates and records; and sums of numbers that may be unknown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from dagster_kafka_flip.errors import KafkaFlipError


def total(numbers: Iterable[int | None]) -> int | None:
    """Sums the numbers; None if one of them is unknown."""
    known = list(numbers)
    return None if None in known else sum(number or 0 for number in known)


@dataclass(frozen=True)
class Incident:
    """A tolerated error.

    Attributes:
        error: Name of the error class that is raised by default.
        message: The finding, with numbers, and how the run continued.
        lost_offsets: Maximum number of records lost; None if unknown.
    """

    error: str
    message: str
    lost_offsets: int | None = 0

    def to_json(self) -> dict[str, Any]:
        return {"error": self.error, "message": self.message, "lost_offsets": self.lost_offsets}


def incident_of(error: KafkaFlipError, continuation: str, *, lost_offsets: int | None = 0) -> Incident:
    """An error that isn't raised, and how the run continues instead, as a sentence."""
    return Incident(type(error).__name__, f"{error.finding}. {continuation}", lost_offsets)


def tolerate(
    error: KafkaFlipError,
    tolerated: Collection[type[KafkaFlipError]],
    continuation: str,
    *,
    lost_offsets: int | None = None,
) -> Incident:
    """Raises an error, unless it is tolerated."""
    if type(error) not in tolerated:
        raise error
    return incident_of(error, continuation, lost_offsets=lost_offsets)


class Tolerance:
    """Raises the errors that a plan meets, but collects those that are tolerated."""

    def __init__(self, tolerated: Collection[type[KafkaFlipError]]) -> None:
        self.incidents: list[Incident] = []
        self.tolerated = tolerated

    def take(self) -> tuple[Incident, ...]:
        incidents, self.incidents = tuple(self.incidents), []
        return incidents

    def meet(self, error: KafkaFlipError, continuation: str, *, lost_offsets: int | None = None) -> Incident:
        incident = tolerate(error, self.tolerated, continuation, lost_offsets=lost_offsets)
        self.incidents.append(incident)
        return incident
