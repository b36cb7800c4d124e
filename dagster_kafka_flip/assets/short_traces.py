"""Shortens stack traces of this package's errors in a run, because their messages are complete."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

from dagster_kafka_flip.errors import KafkaFlipError

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

# Causes that the message already describes, with hundreds of lines of Python and JVM frames.
_IN_MESSAGE = frozenset({"py4j", "pyspark", "grpc", "confluent_kafka", "cimpl", "tenacity"})
# Exception: a user's function failed on an executor.
_OF_USERS = "PythonException"

_logger = logging.getLogger(__name__)


def short_traces(events: Iterator[T]) -> Iterator[T]:
    """Removes the frames between an asset and this package's error, and causes that the message already describes.

    The full trace goes to the logger `dagster_kafka_flip` at DEBUG. Other exceptions, such as a transform's, are not
    changed.
    """
    try:
        yield from events
    except KafkaFlipError as error:
        _logger.debug("full traceback of the error that ended the run", exc_info=error)
        cause = error.__cause__
        if cause is None or _is_in_message(cause):
            raise error.with_traceback(None) from None
        raise error.with_traceback(None) from cause.with_traceback(None)


def _is_in_message(cause: BaseException) -> bool:
    kind = type(cause)
    if kind.__name__ == _OF_USERS:
        return False
    return isinstance(cause, KafkaFlipError) or kind.__module__.partition(".")[0] in _IN_MESSAGE
