"""The one way to change a table: look at what the change rests on, make it, and look back, under the table's lock."""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, TypeVar

from dagster_kafka_flip.errors import KafkaFlipError
from dagster_kafka_flip.table.interruptible import held, write_tag

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.table.table_port import TablePort

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class ForeignConflictError(KafkaFlipError):
    """Another writer changed the table since the plan; nothing was written. Plan again."""


def guarded(
    table: TablePort,
    location: str,
    *,
    precheck: Callable[[], object],
    write: Callable[[], None],
    look_back: Callable[[Exception | None], _T],
    attempt: str | None = None,
    session: SparkSession | None = None,
) -> _T:
    """Changes a table. Nothing else in this package takes a table's lock, or writes to one.

    Without a lock, as on an object store, others may come between the precheck and the write: it shortens that time to
    a moment, and `look_back` still finds them.

    Args:
        table: The table.
        location: The table's location.
        precheck: Looks again at what the write rests on, just before it. If it raises an error, nothing is written.
        write: The write. An interrupt stops its Spark jobs; the lock is kept until it has ended.
        look_back: Called with the write's error, if it failed; finds what became of it.
        attempt: Id of the attempt, in the tag of its Spark jobs.
        session: The write's session. Default: the table's.

    Returns:
        What `look_back` returns.
    """
    failure: Exception | None = None
    with held(table.lock(location)) as lock:
        precheck()
        try:
            table.run(write, write_tag(attempt or uuid.uuid4().hex), lock, session)
        except Exception as error:  # noqa: BLE001 - whatever went wrong, only the table shows what became of the write
            failure = error
            _logger.info("the write ended with %s; looking what became of it", type(error).__name__)
        return look_back(failure)


def or_failed(failure: Exception | None) -> None:
    """Looks back at a write that is all that its error says."""
    if failure is not None:
        raise failure
