"""Detects streams of one table that would read the same topic partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import PositionLostError, StreamOverlapError
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.source.next_step import AS_PRINTED, TOPIC, set_position
from dagster_kafka_flip.table.keyed_table import check_only_stream
from dagster_kafka_flip.table.target import TRANSACTION_PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.document import CommitDocument
    from dagster_kafka_flip.table.target import DeltaTarget


def check_shared(
    target: DeltaTarget,
    streams: Mapping[str, CommitDocument],
    partitions: Collection[TopicPartition],
    state: EnumeratorState,
) -> None:
    """Rejects a stream that would read the same topic partitions as others of the table.

    Args:
        target: The table and the stream.
        streams: The newest documents of the other streams.
        partitions: Topic partitions that the stream will read.
        state: The stream's new state.

    Raises:
        StreamOverlapError: A topic partition is in the position of another stream.
        TableModeError: The rows of one of them have a key.
    """
    for stream, other in streams.items():
        check_only_stream(target, other)
        theirs = other.state
        both = sorted(tp for tp in partitions if tp in theirs.position and is_same_log(tp, theirs, state))
        if both:
            raise overlap(target, both, stream, "already")


def overlap(target: DeltaTarget, both: Sequence[TopicPartition], stream: str, since: str) -> StreamOverlapError:
    """Creates the error for overlapping streams.

    Args:
        target: The table and the stream.
        both: Topic partitions of both streams.
        stream: Id of the other stream.
        since: Since when the other stream reads them.
    """
    more = f" (and {counted(len(both) - 1, 'more topic partition')})" if len(both) > 1 else ""
    msg = (
        f"{both[0]}{more}: the stream {stream!r} of the table {target} reads it {since}; the stream {target.stream!r} "
        f"would duplicate the records. Nothing was written. Use another table for {target.stream!r}, or remove the "
        f"topic from its source. If {stream!r} should stop reading it, remove the topic from that source and give up "
        "its position: "
        f"{set_position(str(target), stream, topics=('<topic to keep>',), to=None)}. It prints where the position was: "
        f"begin {target.stream!r} there, or records are lost or duplicated: "
        f"{set_position(str(target), target.stream, topics=sorted({tp.topic for tp in both}), to=AS_PRINTED)}"
    )
    return StreamOverlapError(msg)


def check_forgotten(target: DeltaTarget, versions: Mapping[str, int], streams: Collection[str], oldest: int) -> None:
    """If history has expired, finds other streams by Delta's transaction ids.

    Args:
        target: The table and the stream.
        versions: Transaction versions of streams, by transaction id.
        streams: The other streams in the history.
        oldest: The oldest version in the history.

    Raises:
        PositionLostError: The history no longer has a commit of one of them.
    """
    known = {target.stream, *streams}
    # Ids with another slash belong to windows by offset, of an earlier version.
    forgotten = sorted(
        stream
        for application in versions
        if (stream := application.removeprefix(TRANSACTION_PREFIX)) not in known and "/" not in stream
    )
    if not forgotten:
        return
    stream = forgotten[0]
    msg = (
        f"the stream {stream!r} has committed to the table {target} (its last transaction version is "
        f"{versions[TRANSACTION_PREFIX + stream]}), but history no longer holds a commit of it: the oldest is "
        f"version {oldest}. It may read the same topic partitions as the stream {target.stream!r}, which would "
        f"duplicate records. Nothing was read. Run the stream {stream!r}, or set its position, so that history holds "
        "it again: "
        f"{set_position(str(target), stream, topics=TOPIC)}; then run this one again. Or use another table for this "
        "stream"
    )
    raise PositionLostError(msg)
