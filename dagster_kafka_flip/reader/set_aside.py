"""Records that Spark's Kafka reader fails on are found after the failure, and set aside for the client to read."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_kafka_flip.errors import TimestampOutOfRangeError, WriteFailedError
from dagster_kafka_flip.source.incident import incident_of
from dagster_kafka_flip.source.unreadable import LATEST_MS, UnreadableRecords, around, joined, within

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Sequence

    from dagster_kafka_flip.source.api import Source, SplitEnumeratorContext
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition

T = TypeVar("T")

# Java's own words. What overflows in a user's expression has other ones (ARITHMETIC_OVERFLOW).
_OVERFLOW = "java.lang.ArithmeticException: long overflow"

# The client reads about as many in a second.
_MOST_RECORDS = 100_000
# Each takes a query of its own of the topic partitions that have so many.
_MOST_RANGES = 25


def is_overflow(error: BaseException | None) -> bool:
    """Whether something failed because a number did not fit into 64 bits, such as a timestamp in microseconds."""
    while error is not None:
        if _OVERFLOW in str(error):
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
    """Writes a batch, and once more with the client's help if Spark can't read some of its records.

    Args:
        write: Writes it, as the context says by then; is told what was met so far.
        source: What is read.
        context: What the run knows.
        splits: What the batch reads.
        log: Where to tell.
        met: What was met before.

    Raises:
        TimestampOutOfRangeError: Spark can't read some records, and that is not tolerated.
        KafkaFlipError: Whatever else is in the way of writing it.
    """
    try:
        return write(met)
    except Exception as error:
        incident = set_aside(error, source, context, splits)
        if incident is None:
            raise
    log.warning("reading the batch again, with the help of a Kafka client: %s", incident.message)
    return around_unreadable(write, source, context, splits, log, (*met, incident))


def set_aside(
    error: Exception, source: Source, context: SplitEnumeratorContext, splits: Sequence[KafkaPartitionSplit]
) -> Incident | None:
    """Finds the records that made a read fail, and has the client read them from now on, if that is tolerated.

    Args:
        error: What the read failed with.
        source: What was read.
        context: What the run knows; notes the ranges.
        splits: What was read of it.

    Returns:
        What to tell; None if the read failed for another reason.

    Raises:
        TimestampOutOfRangeError: That is not tolerated.
        WriteFailedError: It is, and there are too many of them.
    """
    if not is_overflow(error):
        return None
    pieces = around(splits, context.aside)
    with contextlib.closing(source.create_enumerator(context)) as enumerator:
        found = enumerator.unreadable_records(pieces)
    if found is None:
        return None
    told = _told(found)
    if TimestampOutOfRangeError not in context.tolerated:
        msg = (
            f"{told} Nothing of the batch was written. Correct the producer: it may write microseconds or nanoseconds "
            "where milliseconds belong. To land such records with a null timestamp, tolerate TimestampOutOfRangeError"
        )
        raise TimestampOutOfRangeError(msg) from error
    aside = joined([*context.aside, *found.ranges])
    _check_size(told, within(aside, splits))
    context.aside = aside
    went_on = "The run landed such records with a null timestamp."
    return incident_of(TimestampOutOfRangeError(told), went_on, lost_offsets=0)


def _told(found: UnreadableRecords) -> str:
    tp, first = found.named[0]
    others = [f"{tp} offset {record.offset}" for tp, record in found.named[1:]]
    more = found.records - len(found.named)
    the_like = f" (and the like at {', '.join(others)}{f' and {more} more' if more else ''})" if others else ""
    return (
        f"{tp}: the record at offset {first.offset} has the timestamp {first.timestamp_ms} ms{the_like}. Spark can't "
        f"read a record whose timestamp is beyond {LATEST_MS} ms before or after 1970."
    )


def _check_size(told: str, aside: Sequence[KafkaPartitionSplit]) -> None:
    records = sum(each.offset_span for each in aside)
    ranges: dict[TopicPartition, int] = {}
    for each in aside:
        ranges[each.topic_partition] = ranges.get(each.topic_partition, 0) + 1
    if records > _MOST_RECORDS or max(ranges.values()) > _MOST_RANGES:
        msg = (
            f"{told} Such records and those between them are {records} offsets in {len(aside)} ranges of the batch, "
            f"and no more than {_MOST_RECORDS} offsets in {_MOST_RANGES} ranges of a topic partition can be read "
            f"without Spark. Nothing of the batch was written. Set max_records_per_batch to {_MOST_RECORDS} or less, "
            "until such records are landed"
        )
        raise WriteFailedError(msg)
