"""Takes a bounded sample of splits with a consumer that belongs to no group."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import confluent_kafka

from dagster_kafka_flip.source.sample import SplitSample
from dagster_kafka_flip.source.split import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dagster_kafka_flip.source.split import KafkaPartitionSplit, Position

# Offsets looked at on either end of a split. The last ones may be control records or holes; that many rarely all are.
_OFFSETS_AT_EITHER_END = 50

# librdkafka wants the name of a group even of a consumer that joins none.
_CONSUMER = {
    "group.id": "dagster-kafka-flip-sample",
    "enable.auto.commit": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    "fetch.message.max.bytes": 256 * 1024,
    "queued.max.messages.kbytes": 16 * 1024,
    "log_level": 0,
}


@dataclass
class _Seen:
    records: int = 0
    bytes: int = 0
    first_timestamp: int = -1
    last_offset: int = -1
    last_timestamp: int = -1

    def add(self, message: confluent_kafka.Message) -> None:
        offset, timestamp = message.offset() or 0, message.timestamp()[1]
        self.records += 1
        self.bytes += len(message.key() or b"") + len(message.value() or b"")
        if self.first_timestamp < 0:
            self.first_timestamp = timestamp
        if offset > self.last_offset:
            self.last_offset, self.last_timestamp = offset, timestamp


def sample_splits(
    config: Mapping[str, Any], splits: Sequence[KafkaPartitionSplit], seconds: float
) -> dict[TopicPartition, SplitSample]:
    """Reads some records of each split, first from the starts and then up to the ends.

    Args:
        config: Of a librdkafka client.
        splits: What to look at.
        seconds: When to stop, with what was seen until then.
    """
    seen = {split.topic_partition: _Seen() for split in splits}
    deadline = time.monotonic() + seconds
    consumer = confluent_kafka.Consumer({**config, **_CONSUMER})
    try:
        heads = {
            split.topic_partition: (
                split.starting_offset,
                min(split.stopping_offset, split.starting_offset + _OFFSETS_AT_EITHER_END),
            )
            for split in splits
        }
        _read(consumer, heads, seen, deadline)
        tails = {
            split.topic_partition: (
                max(heads[split.topic_partition][1], split.stopping_offset - _OFFSETS_AT_EITHER_END),
                split.stopping_offset,
            )
            for split in splits
            if heads[split.topic_partition][1] < split.stopping_offset
        }
        _read(consumer, tails, seen, deadline)
    finally:
        consumer.close()
    return {
        tp: SplitSample(found.records, found.bytes, found.first_timestamp, found.last_timestamp)
        for tp, found in seen.items()
        if found.records
    }


def first_offsets(config: Mapping[str, Any], position: Position, seconds: float) -> dict[TopicPartition, int]:
    """The offset of the first record from an offset on, of each topic partition that has one.

    Args:
        config: Of a librdkafka client.
        position: Where to look.
        seconds: When to stop, with what was seen until then.
    """
    consumer = confluent_kafka.Consumer({**config, **_CONSUMER})
    found: dict[TopicPartition, int] = {}
    left = set(position)
    deadline = time.monotonic() + seconds
    try:
        consumer.assign([confluent_kafka.TopicPartition(tp.topic, tp.partition, at) for tp, at in position.items()])
        while left and (remaining := deadline - time.monotonic()) > 0:
            message = consumer.poll(remaining)
            if message is None:
                continue
            tp = TopicPartition(message.topic() or "", message.partition() or 0)
            error = message.error()
            if error is not None and error.name() != "_PARTITION_EOF":
                raise confluent_kafka.KafkaException(error)
            if tp in left:
                left.remove(tp)
                consumer.incremental_unassign([confluent_kafka.TopicPartition(tp.topic, tp.partition)])
                if error is None:
                    found[tp] = message.offset() or 0
    finally:
        consumer.close()
    return found


def _read(
    consumer: confluent_kafka.Consumer,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    seen: Mapping[TopicPartition, _Seen],
    deadline: float,
) -> None:
    """Reads ranges of offsets until each is passed, or ends, or time is up."""
    left = dict(ranges)
    consumer.assign([confluent_kafka.TopicPartition(tp.topic, tp.partition, start) for tp, (start, _) in left.items()])
    while left and (remaining := deadline - time.monotonic()) > 0:
        # One by one: a request for many waits for all of them.
        message = consumer.poll(remaining)
        if message is not None:
            _take(consumer, message, left, seen)
    consumer.unassign()


def _take(
    consumer: confluent_kafka.Consumer,
    message: confluent_kafka.Message,
    left: dict[TopicPartition, tuple[int, int]],
    seen: Mapping[TopicPartition, _Seen],
) -> None:
    tp = TopicPartition(message.topic() or "", message.partition() or 0)
    error = message.error()
    if error is not None and error.name() != "_PARTITION_EOF":
        raise confluent_kafka.KafkaException(error)
    if tp not in left:
        return
    stop = left[tp][1]
    offset = message.offset() or 0
    if error is None and offset < stop:
        seen[tp].add(message)
    # Passed, or at the end of the log: what is left of the range are control records and holes.
    if error is not None or offset >= stop - 1:
        del left[tp]
        consumer.incremental_unassign([confluent_kafka.TopicPartition(tp.topic, tp.partition)])
