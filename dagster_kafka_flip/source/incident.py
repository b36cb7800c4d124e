"""Incident: what would have ended a run, had it not been told to go on and record it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.source.log_line import total

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dagster_kafka_flip.errors import KafkaFlipError

# From here on a message says what the run would have left undone, and what to do instead.
_ADVICE = " Nothing "


@dataclass(frozen=True)
class Incident:
    """A condition that was met and tolerated.

    Attributes:
        error: Name of the error class that the condition raises by default.
        message: What was found, with numbers, and how the run went on.
        lost_offsets: The largest number of records that were lost by it; None where nobody can tell.
    """

    error: str
    message: str
    lost_offsets: int | None = 0

    def to_json(self) -> dict[str, Any]:
        """For a commit's document and for metadata."""
        return {"error": self.error, "message": self.message, "lost_offsets": self.lost_offsets}


def found(error: KafkaFlipError) -> str:
    """What an error says was found, without what the run left undone and what to do."""
    return str(error).partition(_ADVICE)[0]


def incident_of(error: KafkaFlipError, went_on: str, *, lost_offsets: int | None = 0) -> Incident:
    """An error that is not raised.

    Args:
        error: What would have been raised.
        went_on: How the run goes on instead, as a sentence.
        lost_offsets: The largest number of records that are lost by it; None where nobody can tell.
    """
    message = f"{found(error)} {went_on}"
    return Incident(type(error).__name__, message, lost_offsets)


def lost_offsets(incidents: Iterable[Incident]) -> int | None:
    """The largest number of records that were lost by all of them; None where that is not known of one."""
    return total(incident.lost_offsets for incident in incidents)
