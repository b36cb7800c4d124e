"""Tries again after transient errors, and warns of a store or catalog that does not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from dagster_kafka_flip.errors import ClusterUnreachableError, PublishFailedError, WriteFailedError
from dagster_kafka_flip.source import instants
from dagster_kafka_flip.table.spark_error import error_summary, is_transient
from dagster_kafka_flip.telemetry.repeatedly import said_while_waiting

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from dagster_kafka_flip.telemetry.repeatedly import Log

_T = TypeVar("_T")

TRIES = 5
_FIRST_WAIT_SECONDS = 1.0

# Their causes are Spark's errors.
_OF_SPARK = (PublishFailedError, WriteFailedError)

# An answer takes a second, or some on a busy machine. The clients of stores wait and retry for minutes, some for hours,
# and don't say so.
_SILENCE_SECONDS = 60.0


def retried(log: Log, what: str, ask: Callable[[], _T]) -> _T:
    tries = 1
    while True:
        try:
            return ask()
        except Exception as error:
            if not waits_for_another_try(log, what, tries, error):
                raise
        tries += 1


def waits_for_another_try(log: Log, what: str, tries: int, error: Exception) -> bool:
    """Whether an error is transient, after so many tries; then logs it, and waits 1, 2, 4 or 8 seconds."""
    cause = error.__cause__ if isinstance(error, _OF_SPARK) else error
    if tries >= TRIES or not (isinstance(error, ClusterUnreachableError) or is_transient(cause)):
        return False
    seconds = _FIRST_WAIT_SECONDS * 2 ** (tries - 1)
    log.warning(
        "%s failed with a transient error (try %d of %d); retrying in %.0f s: %s",
        what,
        tries,
        TRIES,
        seconds,
        cause if cause is None or isinstance(cause, ClusterUnreachableError) else error_summary(cause),
    )
    instants.sleep(seconds)
    return True


def warned_of_silence(log: Log, what: str) -> AbstractContextManager[None]:
    """Warns, again and again, as long as a request to a table's store or catalog has no answer."""
    why = (
        f"{what} has had no answer. Spark waits for the table's store or catalog, which may be down, slow or out of "
        "reach, or for executors. The run continues when there is an answer, and nothing is lost if you cancel it. If "
        "there is none, check the address and the network; the time-outs of the store's client decide when the run ends"
    )
    return said_while_waiting(log, lambda: why, _SILENCE_SECONDS)
