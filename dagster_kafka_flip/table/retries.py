"""Tries again: transient errors are retried, and a conflict with another writer needs a new plan."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, TypeVar

import tenacity

from dagster_kafka_flip.errors import ClusterUnreachableError, PublishFailedError, WriteFailedError
from dagster_kafka_flip.source import instants
from dagster_kafka_flip.table.spark_error import error_summary, is_transient
from dagster_kafka_flip.telemetry.repeatedly import repeatedly

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Generator

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.table.target import DeltaTarget

_T = TypeVar("_T")

TRIES = 5
_FIRST_WAIT_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 15.0

# Their causes are Spark's errors.
_OF_SPARK = (PublishFailedError, WriteFailedError)

# An answer takes a second, or some on a busy machine. The clients of stores wait and retry for minutes, some for hours,
# and don't say so.
_SILENCE_SECONDS = 60.0


def retries(
    log: logging.Logger | logging.LoggerAdapter[Any],
    what: str,
    check: Callable[[BaseException, int, float], None] | None = None,
) -> tenacity.Retrying:
    """Retries transient errors, up to five attempts in total, and logs each one.

    Waits 1, 2, 4 and 8 seconds. Does not retry permanent errors; raises the last error.

    Args:
        log: The log.
        what: Name of the operation, for the log.
        check: Called with each error, the attempt's number and its duration in seconds. It may raise a more specific
            error, which ends the retries.
    """
    begun = [time.monotonic()]

    def begin(_: tenacity.RetryCallState) -> None:
        begun[0] = time.monotonic()

    def is_worth_another(state: tenacity.RetryCallState) -> bool:
        error = None if state.outcome is None else state.outcome.exception()
        if error is None:
            return False
        if check is not None:
            check(error, state.attempt_number, time.monotonic() - begun[0])
        return _may_pass(error)

    def log_retry(state: tenacity.RetryCallState) -> None:
        error = None if state.outcome is None else state.outcome.exception()
        cause = None if error is None else _cause(error)
        log.warning(
            "%s failed with a transient error (try %d of %d); retrying in %.0f s: %s",
            what,
            state.attempt_number,
            TRIES,
            state.upcoming_sleep,
            cause if cause is None or isinstance(cause, ClusterUnreachableError) else error_summary(cause),
        )

    return tenacity.Retrying(
        before=begin,
        retry=is_worth_another,
        sleep=instants.sleep,
        wait=tenacity.wait_exponential(multiplier=_FIRST_WAIT_SECONDS, max=_LONGEST_WAIT_SECONDS),
        stop=tenacity.stop_after_attempt(TRIES),
        before_sleep=log_retry,
        reraise=True,
    )


def answered(log: logging.Logger | logging.LoggerAdapter[Any], what: str, ask: Callable[[], _T]) -> _T:
    """Asks a table's store or catalog, again after transient errors, and warns as long as there is no answer."""
    with warned_of_silence(log, what):
        return retries(log, what)(ask)


@contextlib.contextmanager
def warned_of_silence(log: logging.Logger | logging.LoggerAdapter[Any], what: str) -> Generator[None]:
    """Warns, again and again, as long as a request to a table's store or catalog has no answer."""
    begin = time.monotonic()

    def warn() -> None:
        log.warning(
            "%s has had no answer for %.0f s: Spark waits for the table's store or catalog, which may be down, slow "
            "or out of reach, or for executors. The run continues when there is an answer, and nothing is lost "
            "if you cancel it. If there is none, check the address and the network; the time-outs of the store's "
            "client decide when the run ends",
            what,
            time.monotonic() - begin,
        )

    with repeatedly(warn, "dagster-kafka-flip-answers", _SILENCE_SECONDS):
        yield


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, ClusterUnreachableError):
        return True
    return is_transient(_cause(error))


def _cause(error: BaseException) -> BaseException | None:
    """The error itself, or of one of ours Spark's error behind it."""
    return error.__cause__ if isinstance(error, _OF_SPARK) else error


MOST_PLANS = 5
"""Maximum number of consecutive plans without a commit."""


class Conflicts:
    """Consecutive plans of a run that a change to the table or the logs invalidated."""

    def __init__(self, target: DeltaTarget, log: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        self._target = target
        self._log = log
        self._plans = 0

    def met(self, conflict: KafkaFlipError, what: str) -> None:
        """Records that a plan was not written. Plan again after this call."""
        self._plans += 1
        if self._plans == MOST_PLANS:
            raise WriteFailedError(
                f"{MOST_PLANS} plans in a row conflicted with other changes to {self._target}, the last one with "
                f"{conflict.finding}",
                "Run again when nothing else writes to the table, or give the runs that change it a pool with the "
                "limit 1",
                outcome=f"Nothing of {what} was written",
            ) from conflict
        self._log.warning("%s or its logs changed meanwhile (%s); planning again", self._target, conflict.finding)

    def over(self) -> None:
        """Resets the count after a successful write."""
        self._plans = 0
