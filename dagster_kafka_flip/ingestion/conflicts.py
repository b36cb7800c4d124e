"""Counts how often a run plans again because another writer changed the table between plan and commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import WriteFailedError

if TYPE_CHECKING:
    import logging

    from dagster_kafka_flip.table.target import DeltaTarget

MOST_PLANS = 5
"""Maximum number of consecutive plans without a commit."""


class Conflicts:
    """Consecutive plans of a run that a change to the table or the logs invalidated.

    Args:
        target: The table.
        log: The log for each conflict.
    """

    def __init__(self, target: DeltaTarget, log: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        self._target = target
        self._log = log
        self._plans = 0

    def met(self, conflict: Exception, what: str) -> None:
        """Records that a plan was not written. Plan again after this call.

        Args:
            conflict: The conflicting change.
            what: Name of the batch, for messages.

        Raises:
            WriteFailedError: Too many consecutive conflicts.
        """
        self._plans += 1
        if self._plans == MOST_PLANS:
            msg = (
                f"{MOST_PLANS} plans in a row conflicted with other changes to {self._target}, the last one with "
                f"{conflict}; nothing of {what} was written. Run again when nothing else writes to the table, or give "
                "the runs that change it a pool with the limit 1"
            )
            raise WriteFailedError(msg) from conflict
        self._log.warning("%s or its logs changed meanwhile (%s); planning again", self._target, conflict)

    def over(self) -> None:
        """Resets the count after a successful write."""
        self._plans = 0
