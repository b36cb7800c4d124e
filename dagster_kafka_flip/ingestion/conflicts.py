"""Conflicts: how often a run plans anew because somebody else changes the table between its look and its commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import WriteFailedError

if TYPE_CHECKING:
    import logging

    from dagster_kafka_flip.table.target import DeltaTarget

MOST_PLANS = 5
"""So many plans in a row that come to nothing end a run."""


class Conflicts:
    """The plans in a row of one run that a change to its table, or to its logs, has made void.

    Args:
        target: The table.
        log: Where to tell each of them.
    """

    def __init__(self, target: DeltaTarget, log: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        self._target = target
        self._log = log
        self._plans = 0

    def met(self, conflict: Exception, what: str) -> None:
        """Notes that nothing of a plan was written. Plan anew after it.

        Args:
            conflict: What was in the way.
            what: What was to be written.

        Raises:
            WriteFailedError: It was one too many.
        """
        self._plans += 1
        if self._plans == MOST_PLANS:
            msg = (
                f"{MOST_PLANS} plans in a row met somebody else's change to {self._target}, the last one with "
                f"{conflict}; nothing of {what} was written. Run again when the table is quiet, or give the runs that "
                "change it a pool with a limit of 1"
            )
            raise WriteFailedError(msg) from conflict
        self._log.warning("%s or its logs changed meanwhile (%s); planning anew", self._target, conflict)

    def over(self) -> None:
        """Something was written: what came in between hours ago says nothing about the next plan."""
        self._plans = 0
