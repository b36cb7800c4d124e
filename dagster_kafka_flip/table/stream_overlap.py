"""Whether a stream would read what another stream of the same table reads, so that records would land twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import PositionLostError, StreamOverlapError
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.source.next_step import TOPIC, set_position
from dagster_kafka_flip.table.target import TRANSACTION_PREFIX

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.target import DeltaTarget


def check_shared(
    target: DeltaTarget,
    streams: Mapping[str, EnumeratorState],
    partitions: Collection[TopicPartition],
    state: EnumeratorState,
) -> None:
    """Refuses a stream that would read what others of the same table read.

    Args:
        target: The table and the stream.
        streams: Where the others stand.
        partitions: What the stream is to read.
        state: Where it will stand.

    Raises:
        StreamOverlapError: A topic partition is in the position of another stream.
    """
    for stream, theirs in streams.items():
        both = sorted(tp for tp in partitions if tp in theirs.position and is_same_log(tp, theirs, state))
        if both:
            raise overlap(target, both, stream, "already")


def overlap(target: DeltaTarget, both: Sequence[TopicPartition], stream: str, since: str) -> StreamOverlapError:
    """What a stream is told that would read what another one reads.

    Args:
        target: The table and the stream.
        both: What both would read.
        stream: Id of the other stream.
        since: Since when that one does.
    """
    more = f" (and {len(both) - 1} more topic partitions)" if len(both) > 1 else ""
    msg = (
        f"{both[0]}{more}: the stream {stream!r} of the table {target} reads it {since}; the stream "
        f"{target.stream!r} would land the same records a second time. Nothing was written. Land "
        f"{target.stream!r} in another table, or take the topic out of its source. If {stream!r} is to stop "
        "reading it, take the topic out of that source, and give up its position: "
        f"{set_position(str(target), stream, to=None)}"
    )
    return StreamOverlapError(msg)


def check_forgotten(target: DeltaTarget, versions: Mapping[str, int], streams: Collection[str], oldest: int) -> None:
    """Where history has expired, Delta's transaction ids still name the streams that committed before.

    Args:
        target: The table and the stream.
        versions: Transaction versions by their ids, of streams.
        streams: The other streams that history knows.
        oldest: The oldest version that history holds.

    Raises:
        PositionLostError: It no longer holds a commit of one of them.
    """
    known = {target.stream, *streams}
    # What has a further slash is of windows.
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
        f"version {oldest}. Whether it reads what the stream {target.stream!r} is about to take up can't be "
        f"told, and each record could land twice. Nothing was read. Run the stream {stream!r}, or set its "
        "position, so that history holds it again: "
        f"{set_position(str(target), stream, topics=TOPIC)}; then run this one again. Or land "
        "this stream in another table"
    )
    raise PositionLostError(msg)
