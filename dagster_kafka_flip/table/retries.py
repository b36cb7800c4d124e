"""Retries transient errors: a restarting broker, a leader change, a throttling store."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import tenacity

from dagster_kafka_flip.errors import ClusterUnreachableError, WriteFailedError
from dagster_kafka_flip.table.spark_error import error_summary, is_transient

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

TRIES = 5
_FIRST_WAIT_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 15.0


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
        cause = error.__cause__ if isinstance(error, WriteFailedError) else error
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
        wait=tenacity.wait_exponential(multiplier=_FIRST_WAIT_SECONDS, max=_LONGEST_WAIT_SECONDS),
        stop=tenacity.stop_after_attempt(TRIES),
        before_sleep=log_retry,
        reraise=True,
    )


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, ClusterUnreachableError):
        return True
    return is_transient(error.__cause__ if isinstance(error, WriteFailedError) else error)
