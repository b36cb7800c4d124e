"""Incidents: the errors that a run tolerated, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable

    from dagster_kafka_flip.source.incident import Incident


def log_tolerated(log: logging.Logger | logging.LoggerAdapter[Any], incident: Incident) -> None:
    """Warns of an error that is tolerated."""
    log.warning("tolerated %s: %s", incident.error, incident.message)


class Incidents:
    """The errors that a run tolerated, in the order in which it met them."""

    def __init__(self, log: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        self._log = log
        # By text: a repeated plan finds the same ones again.
        self._met: dict[str, Incident] = {}
        self._committed = 0

    def add(self, incidents: Iterable[Incident]) -> None:
        """Adds and logs those that are new."""
        for incident in incidents:
            if incident.message not in self._met:
                self._met[incident.message] = incident
                log_tolerated(self._log, incident)

    @property
    def all(self) -> tuple[Incident, ...]:
        """All of the run."""
        return tuple(self._met.values())

    @property
    def uncommitted(self) -> tuple[Incident, ...]:
        """Those that no commit has recorded yet."""
        return self.all[self._committed :]

    def commit(self) -> None:
        """Marks all as recorded in a commit."""
        self._committed = len(self._met)
