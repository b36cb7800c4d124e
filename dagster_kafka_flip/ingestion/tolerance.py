"""Errors that a run can tolerate, and the asset check that fails for each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip import errors
from dagster_kafka_flip.errors import (
    ClusterChangedError,
    ConcurrentIngestionError,
    ConfigurationError,
    DeadLetterTableMissingError,
    EndBeforePositionError,
    ForeignRowsError,
    KafkaFlipError,
    RecordsFromFutureError,
    RetentionOvertookPositionError,
    SchemaNotFoundError,
    TableReplacedError,
    TopicNotFoundError,
    TopicRecreatedError,
    WindowBeyondRetentionError,
    WindowNotCompleteError,
)
from dagster_kafka_flip.settings.arguments import expect
from dagster_kafka_flip.settings.names import near_names

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.telemetry.repeatedly import Log

NO_RECORDS_LOST = "no_records_lost"
ALL_TOPICS_EXIST = "all_topics_exist"
TABLE_INTACT = "table_intact"
WINDOWS_COMPLETE = "windows_complete"
TIMES_PLAUSIBLE = "times_plausible"

CHECKS: dict[type[KafkaFlipError], str | None] = {
    RetentionOvertookPositionError: NO_RECORDS_LOST,
    EndBeforePositionError: NO_RECORDS_LOST,
    TopicRecreatedError: NO_RECORDS_LOST,
    ClusterChangedError: NO_RECORDS_LOST,
    WindowBeyondRetentionError: NO_RECORDS_LOST,
    WindowNotCompleteError: WINDOWS_COMPLETE,
    RecordsFromFutureError: TIMES_PLAUSIBLE,
    TopicNotFoundError: ALL_TOPICS_EXIST,
    ForeignRowsError: TABLE_INTACT,
    TableReplacedError: TABLE_INTACT,
    DeadLetterTableMissingError: TABLE_INTACT,
    # No records are lost, so no check fails.
    ConcurrentIngestionError: None,
    SchemaNotFoundError: None,
}
"""The errors that can be tolerated, and the check that fails for each."""


def tolerated_errors(tolerate: Iterable[type[KafkaFlipError]]) -> frozenset[type[KafkaFlipError]]:
    check_errors(tolerate)
    tolerated = frozenset(tolerate)
    for error in tolerated:
        if error not in CHECKS:
            name = getattr(error, "__name__", repr(error))
            names = sorted(each.__name__ for each in CHECKS)
            if error in names:
                raise ConfigurationError(
                    f"tolerate: {name} is a string, but the error's class is expected: from dagster_kafka_flip.errors "
                    f"import {error}"
                )
            can_be = ", ".join(names)
            raise ConfigurationError(f"tolerate: {name} can't be tolerated; allowed: {can_be}")
    return tolerated


def check_errors(tolerate: object) -> None:
    """Checks that the `tolerate` option is several errors, and not one."""
    if isinstance(tolerate, (str, type)) or not hasattr(tolerate, "__iter__"):
        expect("tolerate", tolerate, list, "[RetentionOvertookPositionError]")


def named_errors(names: Iterable[str]) -> list[type[KafkaFlipError]]:
    found: list[type[KafkaFlipError]] = []
    can_be = sorted(each.__name__ for each in CHECKS)
    for name in names:
        error = getattr(errors, str(name), None)
        if not (isinstance(error, type) and issubclass(error, KafkaFlipError)):
            raise ConfigurationError(f"tolerate: unknown error {name!r}; {near_names(str(name), can_be)}")
        found.append(error)
    return found


def log_tolerated(log: Log, incident: Incident) -> None:
    log.warning("tolerated %s: %s", incident.error, incident.message)


class Incidents:
    """The errors that a run tolerated, in the order in which it met them."""

    def __init__(self, log: Log) -> None:
        self._log = log
        # By text: a repeated plan finds the same ones again.
        self._met: dict[str, Incident] = {}
        self._committed = 0

    def add(self, incidents: Iterable[Incident]) -> None:
        for incident in incidents:
            if incident.message not in self._met:
                self._met[incident.message] = incident
                log_tolerated(self._log, incident)

    @property
    def all(self) -> tuple[Incident, ...]:
        return tuple(self._met.values())

    @property
    def uncommitted(self) -> tuple[Incident, ...]:
        """Those that no commit has recorded yet."""
        return self.all[self._committed :]

    def commit(self) -> None:
        self._committed = len(self._met)
