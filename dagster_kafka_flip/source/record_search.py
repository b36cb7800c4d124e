"""Reads records one by one, without joining a consumer group: a few of them, and where they are in a log.

A lookup by timestamp returns the first *entry* at or after it. This may be a transaction marker, which has the broker's
clock, or a record of an aborted transaction. Consumers see neither. Only reading shows the difference.
"""

from __future__ import annotations

import contextlib
import heapq
import re
import time
from typing import TYPE_CHECKING, Any

import confluent_kafka

from dagster_kafka_flip.errors import ClusterRequestError
from dagster_kafka_flip.source.split import RecordSearch, TimestampedOffset, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from dagster_kafka_flip.source.split import KafkaPartitionSplit, LogEnd

_ASSIGNED = {
    # librdkafka requires a group name, and looks up the group's coordinator even for a consumer that never joins.
    "group.id": "dagster-kafka-flip-reading",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    # All that is read is there already: at the end of a log, behind a transaction's marker for example, a broker
    # would wait this long for more before it says that there is none.
    "fetch.wait.max.ms": 1,
    "log_level": 0,
}


class NoAnswerError(Exception):
    """No message arrived within one request's timeout."""


class ReadFailedError(Exception):
    """A broker or the client returned an error."""

    def __init__(self, topic_partition: TopicPartition, error: confluent_kafka.KafkaError) -> None:
        super().__init__(f"{topic_partition}: {error}")
        self.topic_partition = topic_partition
        self.error = error


def _consumer(config: Mapping[str, Any], settings: Mapping[str, int]) -> confluent_kafka.Consumer:
    """A consumer that needs no ACL on a group."""
    return confluent_kafka.Consumer({**config, **_ASSIGNED, **settings})


def _at(
    tp: TopicPartition, offset: int = confluent_kafka.OFFSET_INVALID, leader_epoch: int = -1
) -> confluent_kafka.TopicPartition:
    return confluent_kafka.TopicPartition(tp.topic, tp.partition, offset, leader_epoch=leader_epoch)


def _awaited_message(
    consumer: confluent_kafka.Consumer, deadline: float, wanted: Collection[TopicPartition]
) -> tuple[TopicPartition, confluent_kafka.Message]:
    while True:
        message = consumer.poll(max(0.0, deadline - time.monotonic()))
        tp = None if message is None else TopicPartition(message.topic() or "", message.partition() or 0)
        # Another one may be about the group, which is not used, so that a missing ACL on it is irrelevant.
        if message is not None and tp is not None and tp in wanted:
            error = message.error()
            if error is not None and error.name() != "_PARTITION_EOF":
                raise ReadFailedError(tp, error)
            return tp, message
        if time.monotonic() >= deadline:
            raise NoAnswerError


def read_messages(
    config: Mapping[str, Any], ranges: Sequence[KafkaPartitionSplit], seconds: float
) -> Iterator[confluent_kafka.Message]:
    """Yields the messages in ranges of offsets, at most one range per topic partition, in order."""
    left = {each.topic_partition: each.stopping_offset for each in ranges if not each.is_empty}
    with contextlib.closing(_consumer(config, {"queued.max.messages.kbytes": 32 * 1024})) as consumer:
        consumer.assign([_at(each.topic_partition, each.starting_offset) for each in ranges if not each.is_empty])
        deadline = time.monotonic() + seconds
        while left:
            tp, message = _awaited_message(consumer, deadline, left)
            stop, offset, is_end = left[tp], message.offset() or 0, message.error() is not None
            if is_end and offset < stop:
                raise ClusterRequestError(
                    f"{tp}: the log ends at offset {offset}, but records up to offset {stop} were planned: the log was "
                    "truncated meanwhile, or the topic is a different one",
                    "Run again",
                )
            if offset < stop:
                yield message
            if is_end or offset >= stop - 1:
                del left[tp]
                consumer.incremental_unassign([_at(tp)])
            # Excludes the time that the caller needs to process a message.
            deadline = time.monotonic() + seconds


# Most searches end at their first record, so the first round fetches little and does not prefetch. If a batch is larger
# than the fetch size, the broker still returns the whole batch (KIP-74).
_FIRST_ROUND = {"fetch.message.max.bytes": 32 * 1024, "queued.min.messages": 1, "fetch.queue.backoff.ms": 0}
_FIRST_ROUND_OFFSETS = 200
_SECOND_ROUND = {"fetch.message.max.bytes": 1024 * 1024, "queued.max.messages.kbytes": 32 * 1024}

# Reading on over a few records is faster than a fetch at another offset.
_READ_ON = 100


Found = dict[RecordSearch, TimestampedOffset | None]


def search_records(config: Mapping[str, Any], searches: Collection[RecordSearch], seconds: float) -> Found:
    """The record of each search, if any. Reads each topic partition once, in offset order, and all in parallel."""
    found: Found = {search: None for search in searches if search.start >= search.stop}
    wanted = [search for search in searches if search.start < search.stop]
    short = {search: search._replace(stop=min(search.stop, search.start + _FIRST_ROUND_OFFSETS)) for search in wanted}
    first = _round(config, _FIRST_ROUND, set(short.values()), seconds)
    found |= {search: first[one] for search, one in short.items()}
    rest = {
        search: search._replace(start=one.stop)
        for search, one in short.items()
        if found[search] is None and one.stop < search.stop
    }
    second = _round(config, _SECOND_ROUND, set(rest.values()), seconds)
    return found | {search: second[one] for search, one in rest.items()}


def _round(
    config: Mapping[str, Any], settings: Mapping[str, int], searches: Collection[RecordSearch], seconds: float
) -> Found:
    if not searches:
        return {}
    by_log: dict[TopicPartition, list[RecordSearch]] = {}
    for search in searches:
        by_log.setdefault(search.topic_partition, []).append(search)
    left = {tp: _LogSearch(each) for tp, each in by_log.items()}
    found: Found = {}
    with contextlib.closing(_consumer(config, settings)) as consumer:
        consumer.assign([_at(tp, log.next_start) for tp, log in left.items()])
        deadline = time.monotonic() + seconds
        while left:
            # One by one: a request for several messages waits for all of them.
            tp, message = _awaited_message(consumer, deadline, left)
            log = left[tp]
            deadline = time.monotonic() + seconds
            if message.error() is not None:
                log.end()
            else:
                log.see(message.offset() or 0, message.timestamp()[1])
            if log.is_done:
                found |= log.found
                del left[tp]
                consumer.incremental_unassign([_at(tp)])
            elif (start := log.jump()) is not None:
                consumer.incremental_unassign([_at(tp)])
                consumer.incremental_assign([_at(tp, start)])
    return found


class _LogSearch:
    """The searches in one log, at least one, which is read in offset order."""

    def __init__(self, searches: Collection[RecordSearch]) -> None:
        self.found: Found = {}
        # Searches that have not begun, last one first; and those that have, earliest timestamp first.
        self._waiting = sorted(searches, key=lambda search: search.start, reverse=True)
        self._open: list[tuple[int, int, RecordSearch]] = []
        self._stop = 0
        self._read = -1

    @property
    def is_done(self) -> bool:
        return not self._open and not self._waiting

    @property
    def next_start(self) -> int:
        return self._waiting[-1].start

    def see(self, offset: int, timestamp_ms: int) -> None:
        """Processes the next record; there is none between it and the previous one."""
        self._read = offset
        if offset >= self._stop:
            self._give_up()
        while self._waiting and self._waiting[-1].start <= offset:
            search = self._waiting.pop()
            if offset >= search.stop:
                self.found[search] = None
            else:
                heapq.heappush(self._open, (search.timestamp_ms, len(self._waiting), search))
                self._stop = max(self._stop, search.stop)
        while self._open and self._open[0][0] <= timestamp_ms:
            search = heapq.heappop(self._open)[-1]
            self.found[search] = TimestampedOffset(offset, timestamp_ms) if offset < search.stop else None
        # The last offset of the ranges was read; later records may take long to arrive.
        if offset >= self._stop - 1:
            self._give_up()

    def end(self) -> None:
        self._give_up()
        self.found |= dict.fromkeys(self._waiting)
        self._waiting.clear()

    def jump(self) -> int | None:
        """Offset to continue reading from; None for the next offset."""
        if self._open or not self._waiting or self.next_start - self._read <= _READ_ON:
            return None
        return self.next_start

    def _give_up(self) -> None:
        self.found |= {search: None for _, _, search in self._open}
        self._open.clear()


# Finds logs that were cut off before an offset and written again since: their offsets alone don't show it.
#
# Each leader of a topic partition has a number, its epoch, and brokers know at which offset the records of an epoch
# end (KIP-320). After an unclean election this is where the new leader's log ended, however much was written to it
# since.


# The record itself is not used: if a record or the log's end arrives, the log was not truncated.
_SETTINGS = {"fetch.message.max.bytes": 1024, "queued.min.messages": 1, "fetch.queue.backoff.ms": 0}

# The client only says in words that a log was cut off, and where: -1 if the broker knows no such epoch.
_CUT_AT = re.compile(r"broker end offset is (-?\d+)")

_PAUSE_SECONDS = 0.02


def cut_offsets(
    config: Mapping[str, Any], ends: Mapping[TopicPartition, LogEnd], seconds: float
) -> dict[TopicPartition, int | None]:
    """Where logs were cut off before an earlier end, if they were; None if unknown. Asks for all at the same time."""
    cut: dict[TopicPartition, int | None] = {}
    left = set(ends)
    with contextlib.closing(_consumer(config, _SETTINGS)) as consumer:
        consumer.assign([_at(tp, end.offset) for tp, end in ends.items()])
        # The client only compares epochs after a seek.
        for tp, end in ends.items():
            epoch = -1 if end.leader_epoch is None else end.leader_epoch
            _seek(consumer, _at(tp, end.offset, epoch), time.monotonic() + seconds)
        deadline = time.monotonic() + seconds
        while left:
            try:
                tp, _ = _awaited_message(consumer, deadline, left)
            except ReadFailedError as failed:
                match = _CUT_AT.search(failed.error.str())
                if match is None:
                    raise
                tp = failed.topic_partition
                cut[tp] = None if int(match[1]) < 0 else int(match[1])
            left.remove(tp)
            consumer.incremental_unassign([_at(tp)])
            deadline = time.monotonic() + seconds
    return cut


def _seek(consumer: confluent_kafka.Consumer, to: confluent_kafka.TopicPartition, deadline: float) -> None:
    while True:
        try:
            consumer.seek(to)
            return  # noqa: TRY300 - as the other end of the loop
        except confluent_kafka.KafkaException as error:  # noqa: PERF203 - hardly ever again
            # The client's own thread has not begun with the topic partition yet.
            if error.args[0].name() != "_STATE" or time.monotonic() > deadline:
                raise ReadFailedError(TopicPartition(to.topic, to.partition), error.args[0]) from None
            time.sleep(_PAUSE_SECONDS)
