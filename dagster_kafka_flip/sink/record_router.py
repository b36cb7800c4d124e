"""RecordRouter: topic, topic partition, time, headers and size of a record, checked before it is written."""

from __future__ import annotations

import time
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

from dagster_kafka_flip.errors import (
    ConfigurationError,
    RowMisplacedError,
    RowTooLargeError,
    RowWithoutKeyError,
    TopicNotFoundError,
)
from dagster_kafka_flip.sink.kafka_sink import is_topic_name
from dagster_kafka_flip.source.split import TopicSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster_kafka_flip.sink.kafka_sink import KafkaSink
    from dagster_kafka_flip.sink.table_rows import TableRow
    from dagster_kafka_flip.source.cluster import KafkaCluster
    from dagster_kafka_flip.telemetry.repeatedly import Log


# What a client sees that may not read them.
_UNKNOWN = TopicSettings("", None, is_limited_by_size=False)


class _Topic(NamedTuple):
    """The number of a topic's topic partitions, and its settings, as far as this client may see them."""

    partitions: int
    settings: TopicSettings


class RecordRouter:
    """Chooses where records go, and checks that they can. In messages, `where` is the row."""

    def __init__(self, cluster: KafkaCluster, sink: KafkaSink, log: Log) -> None:
        self._cluster, self._sink, self._log = cluster, sink, log
        # None for a topic that does not exist.
        self._topics: dict[str, _Topic | None] = {}
        self._turn = 0
        compression = [sink.properties.get(name, "none") for name in ("compression.type", "compression.codec")]
        # A compressed record may fit: only its broker knows. To leave it out, that has to be known before.
        self._is_size_known = sink.leaves_out(RowTooLargeError("")) or set(compression) == {"none"}
        letters = sink.dead_letter_topic
        found = None if letters is None else self._topic(letters)
        if found is not None and found.settings.is_compacted:
            raise ConfigurationError(
                f"the dead-letter topic {letters} is compacted: it can't hold rows without a key, and others would be "
                "lost",
                "Set cleanup.policy=delete on it, or use another topic",
            )
        if self._topic(sink.topic) is None and sink.topic_column is None:
            # Otherwise each row would be left out, if such rows are tolerated.
            raise topic_not_found("topic", sink.topic)

    @property
    def keyed_partitions(self) -> int | None:
        """The number of topic partitions that decides where a key goes; None if a row decides, or nothing does."""
        sink = self._sink
        found = self._topics[sink.topic]
        is_by_key = sink.key is not None and sink.partition_column is None and sink.topic_column is None
        return found.partitions if found is not None and is_by_key and sink.partitioner != "round_robin" else None

    @property
    def batch_bytes(self) -> int | None:
        """The smallest `max.message.bytes` of the topics that were looked at; None if unknown."""
        known = [found.settings.max_bytes for found in self._topics.values() if found is not None]
        return min((each for each in known if each is not None), default=None)

    def unready(self) -> str:
        """Which topic partitions of these topics and of Kafka's own take no records now, and why."""
        known = [name for name, found in self._topics.items() if found is not None]
        return self._cluster.unready([*known, self._sink.progress_name, "__transaction_state"])

    def of(self, row: TableRow, key: bytes | None, value: bytes | None, where: object) -> tuple[str, int | None]:
        """A record's topic and topic partition; None for the client's partitioner."""
        sink = self._sink
        topic = sink.topic if sink.topic_column is None else self._named(row.topic, where)
        found = self._topic(topic)
        if found is None:
            raise RowMisplacedError(
                f"{where}: the topic {topic} does not exist, or this client may not describe it",
                "Create it, or correct the row",
            )
        count = found.partitions
        chosen: Any = row.partition
        if sink.partition_column is not None:
            by = f"the column {sink.partition_column}"
        elif callable(sink.partitioner):
            chosen, by = sink.partitioner(topic, key, value, count), "the partitioner"
        elif sink.partitioner == "fixed":
            return topic, row.lane % count
        elif sink.partitioner == "round_robin":
            self._turn += 1
            return topic, (self._turn - 1) % count
        else:
            return topic, None
        # Whole numbers of numpy, too, but no truth value, which is one for Python.
        if isinstance(chosen, bool) or not isinstance(chosen, Integral) or not 0 <= int(chosen) < count:
            raise RowMisplacedError(
                f"{where}: {by} names the topic partition {repr(chosen)[:100]}, but {topic} has {count}, numbered from "
                "0",
                "Correct it, or add topic partitions",
            )
        return topic, int(chosen)

    def time(self, topic: str, row: TableRow, where: object) -> int | None:
        """A record's time; None for now."""
        ms = row.timestamp_ms
        if ms is None:
            return None
        found, now_ms = self._topic(topic), time.time_ns() // 1_000_000
        behind = ahead = None
        if found is not None and not found.settings.is_set_by_broker:
            behind, ahead = found.settings.max_behind_ms, found.settings.max_ahead_ms
        takes = f"the topic {topic} takes only records that are at most"
        if ms <= 0:
            wrong = "a record's time must be later than 1970"
        elif ahead is not None and ms - now_ms > ahead:
            wrong = f"{takes} {ahead} ms later than now (message.timestamp.after.max.ms)"
        elif behind is not None and now_ms - ms > behind:
            wrong = f"{takes} {behind} ms older than now (message.timestamp.before.max.ms)"
        else:
            return ms
        raise RowMisplacedError(
            f"{where}: the column {self._sink.timestamp} is {ms} ms after 1970, but {wrong}",
            "Leave timestamp out",
        )

    def headers(self, row: TableRow, where: object) -> list[tuple[str, bytes | None]]:
        if not row.headers:
            return []
        found, column = row.named_headers, self._sink.headers
        # The client would cut a name there.
        wrong = f"the name of a header in the column {column} contains U+0000"
        if len(found) < len(row.headers):
            wrong = f"a header in the column {column} is null or has no name"
        elif not any("\0" in name for name, _ in found):
            return found
        raise RowMisplacedError(f"{where}: {wrong}")

    def check(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes | None]],
        where: object,
    ) -> None:
        found = self._topic(topic)
        if found is None:
            return
        if key is None and found.settings.is_compacted:
            raise RowWithoutKeyError(
                f"{where}: its key is null, but the topic {topic} is compacted, so each record needs a key",
                "Use a key that is never null, or another topic",
            )
        most = found.settings.max_bytes
        if not self._is_size_known or most is None:
            return
        if not headers and len(key or b"") + len(value or b"") + _MOST_AROUND <= most:
            # Quicker than the exact size.
            return
        size = batch_bytes(key, value, headers)
        if size > most:
            raise RowTooLargeError(
                f"{where}: the record of {size} bytes is larger than max.message.bytes of the topic {topic} ({most})",
                'Raise max.message.bytes of the topic, and if it is lower, properties={"message.max.bytes": "..."} of '
                "the KafkaSink; or leave columns out of the value",
            )

    def _named(self, topic: str | None, where: object) -> str:
        sink = self._sink
        if not topic:
            raise RowMisplacedError(f"{where}: the column {sink.topic_column} names no topic")
        if not is_topic_name(topic) or topic in (sink.progress_name, sink.dead_letter_topic):
            why = "reserved for the sink itself" if is_topic_name(topic) else "not a valid topic name"
            raise RowMisplacedError(f"{where}: the column {sink.topic_column} names {topic[:100]!r}, which is {why}")
        return topic

    def _topic(self, name: str) -> _Topic | None:
        if name not in self._topics:
            described = self._cluster.describe_topics([name], skip_missing=True).get(name)
            settings = None if described is None else self._cluster.topic_settings([name]).get(name)
            if described is not None and settings is None:
                self._log.info(
                    "the topic %s: this client may not read its settings (DESCRIBE_CONFIGS), so a record that is "
                    "larger than the topic allows ends the run",
                    name,
                )
            self._topics[name] = None if described is None else _Topic(len(described.partitions), settings or _UNKNOWN)
        return self._topics[name]


def topic_not_found(option: str, name: str) -> TopicNotFoundError:
    return TopicNotFoundError(
        f"the topic {name} does not exist, or this client may not describe it",
        f"Create it, or correct {option} of the KafkaSink",
    )


# Bytes of a batch's header, in the format of Kafka 0.11 and later, and of its only record: attributes, and distances in
# time and offset from the first record.
_BATCH, _RECORD = 61, 3
_NULL = 1
# A record without headers is at most so much larger than key and value: four numbers are of five bytes or less.
_MOST_AROUND = 80


def batch_bytes(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> int:
    """The bytes of an uncompressed batch with one record."""
    size = _RECORD + _sized(key) + _sized(value) + _varint(len(headers))
    size += sum(_sized(name.encode()) + _sized(each) for name, each in headers)
    return _BATCH + _varint(size) + size


def _sized(data: bytes | None) -> int:
    return _NULL if data is None else _varint(len(data)) + len(data)


def _varint(number: int) -> int:
    """The bytes of a number in zigzag code."""
    return max(1, ((number << 1).bit_length() + 6) // 7)
