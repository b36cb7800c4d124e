"""Finds the records that make Spark's Kafka reader fail, so that the Kafka client reads them."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_kafka_flip.errors import TimestampOutOfRangeError, WriteFailedError, error_text
from dagster_kafka_flip.source.incident import incident_of
from dagster_kafka_flip.source.unreadable import LATEST_MS, UnreadableRecords, around, joined, within

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Sequence

    from dagster_kafka_flip.source.api import Source, SplitEnumeratorContext
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition

T = TypeVar("T")

# Java's message, from Spark 4.2 on below Spark's own (KAFKA_MALFORMED_RECORD_TIMESTAMP). An overflow in a user's
# expression has another one (ARITHMETIC_OVERFLOW).
_OVERFLOW = "java.lang.ArithmeticException: long overflow"

# About as many as the client reads in a second.
_MOST_RECORDS = 100_000
# Each range needs its own query per topic partition.
_MOST_RANGES = 25


def is_overflow(error: BaseException | None) -> bool:
    """Whether an error is a 64-bit overflow, such as from a timestamp in microseconds."""
    while error is not None:
        if _OVERFLOW in error_text(error):
            return True
        error = error.__cause__
    return False


def around_unreadable(
    write: Callable[[tuple[Incident, ...]], T],
    source: Source,
    context: SplitEnumeratorContext,
    splits: Sequence[KafkaPartitionSplit],
    log: logging.Logger | logging.LoggerAdapter[Any],
    met: tuple[Incident, ...] = (),
) -> T:
    """Writes a batch, and again with the client's help if Spark can't read some of its records.

    Args:
        write: Writes the batch for the current context; its argument is the list of incidents so far.
        source: The source.
        context: Context of the run.
        splits: Splits of the batch.
        log: The log.
        met: Earlier incidents.

    Raises:
        TimestampOutOfRangeError: Spark can't read some records, and this is not tolerated.
        KafkaFlipError: The write failed for another reason.
    """
    try:
        return write(met)
    except Exception as error:
        incident = set_aside(error, source, context, splits)
        if incident is None:
            raise
    log.warning("reading the batch again, partly with a Kafka client: %s", incident.message)
    return around_unreadable(write, source, context, splits, log, (*met, incident))


def set_aside(
    error: Exception, source: Source, context: SplitEnumeratorContext, splits: Sequence[KafkaPartitionSplit]
) -> Incident | None:
    """Finds the records that made a read fail, and lets the client read them from now on, if this is tolerated.

    Args:
        error: The read's error.
        source: The source.
        context: Context of the run; receives the ranges.
        splits: The splits.

    Returns:
        The incident; None if the read failed for another reason.

    Raises:
        TimestampOutOfRangeError: This is not tolerated.
        WriteFailedError: There are too many such records.
    """
    if not is_overflow(error):
        return None
    pieces = around(splits, context.aside)
    with contextlib.closing(source.create_enumerator(context)) as enumerator:
        found = enumerator.unreadable_records(pieces)
    if found is None:
        return None
    description = _describe(found)
    if TimestampOutOfRangeError not in context.tolerated:
        raise TimestampOutOfRangeError(
            description,
            "Correct the producer: it may write microseconds or nanoseconds instead of milliseconds. To write such "
            "records with a null timestamp, tolerate TimestampOutOfRangeError",
        ) from error
    aside = joined([*context.aside, *found.ranges])
    _check_size(description, within(aside, splits))
    context.aside = aside
    continuation = "The run wrote such records with a null timestamp."
    return incident_of(TimestampOutOfRangeError(description), continuation, lost_offsets=0)


def _describe(found: UnreadableRecords) -> str:
    tp, first = found.named[0]
    others = [f"{tp} offset {record.offset}" for tp, record in found.named[1:]]
    more = found.records - len(found.named)
    the_like = f" (also at {', '.join(others)}{f' and {more} more' if more else ''})" if others else ""
    return (
        f"{tp}: the record at offset {first.offset} has the timestamp {first.timestamp_ms} ms{the_like}. Spark can't "
        f"read timestamps more than {LATEST_MS} ms before or after 1970"
    )


def _check_size(description: str, aside: Sequence[KafkaPartitionSplit]) -> None:
    records = sum(each.offset_span for each in aside)
    ranges: dict[TopicPartition, int] = {}
    for each in aside:
        ranges[each.topic_partition] = ranges.get(each.topic_partition, 0) + 1
    if records > _MOST_RECORDS or max(ranges.values()) > _MOST_RANGES:
        raise WriteFailedError(
            f"{description}. Such records and those between them span {records} offsets in {len(aside)} ranges of the "
            f"batch; the limit for reading without Spark is {_MOST_RECORDS} offsets in {_MOST_RANGES} ranges per topic "
            "partition",
            f"Set max_records_per_batch to {_MOST_RECORDS} or less until these records are written",
        )
