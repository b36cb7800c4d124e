"""Errors of this package leave a run without stack traces that say less than their messages."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from dagster_kafka_flip.errors import KafkaFlipError

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

# What the message has already told of, in hundreds of lines of Python's and the JVM's frames.
_TOLD = frozenset({"py4j", "pyspark", "grpc", "confluent_kafka", "cimpl", "tenacity"})
# The exception to it: where a user's own function failed on an executor.
_OF_USERS = "PythonException"

_logger = logging.getLogger(__name__)


def short_traces(events: Iterator[T]) -> Iterator[T]:
    """Drops the frames between an asset and an error of this package, and causes that its message has told.

    The whole trace goes to the logger `dagster_kafka_flip` at DEBUG. Other exceptions, such as those of a transform,
    are left alone.

    Args:
        events: Of a run.
    """
    try:
        yield from events
    except KafkaFlipError as error:
        _logger.debug("the whole trace of what ended the run", exc_info=error)
        cause = error.__cause__
        if cause is None or _is_told(cause):
            raise error.with_traceback(None) from None
        raise error.with_traceback(None) from cause.with_traceback(None)


def _is_told(cause: BaseException) -> bool:
    kind = type(cause)
    if kind.__name__ == _OF_USERS:
        return False
    return isinstance(cause, KafkaFlipError) or kind.__module__.partition(".")[0] in _TOLD
