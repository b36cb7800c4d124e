"""Requests to one cluster: metadata, offsets, and a few records."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any

import confluent_kafka
from confluent_kafka.admin._config import ConfigResource  # as below
from confluent_kafka.admin._listoffsets import OffsetSpec  # the public name is not exported to type checkers
from confluent_kafka.cimpl import NewTopic

from dagster_kafka_flip.errors import ClusterRequestError, GroupCommitError, TopicNotFoundError
from dagster_kafka_flip.settings.names import counted, first_few
from dagster_kafka_flip.source.cluster_client import (
    FIRST_ATTEMPT_SECONDS,
    REFUSED_RIGHTS,
    Asked,
    ClusterClient,
    TransientError,
    until_answered,
)
from dagster_kafka_flip.source.instants import LAST_TIMESTAMP_MS
from dagster_kafka_flip.source.split import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    LogEnd,
    TimestampedOffset,
    TopicMetadata,
    TopicPartition,
    TopicSettings,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from dagster_kafka_flip.source.split import KafkaPartitionSplit, Position, RecordSearch


_logger = logging.getLogger(__name__)

# The zero UUID, 16 zero bytes in Kafka's base64 (KIP-516), means that the topic id is unknown.
_ZERO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"

# Topic settings that windows, sinks and topic assets need.
_SETTINGS = ("cleanup.policy", "message.timestamp.type", "retention.ms", "retention.bytes")

# Seconds that the first request for a group's offsets waits before the client checks for an authorization error.
_COMMITTED_SECONDS = 1.0

# For a consumer that only requests a group's committed offsets. Like the admin client, it does not wait for offsets in
# open transactions.
_GROUP_READER = {"enable.auto.commit": False, "isolation.level": READ_UNCOMMITTED, "log_level": 0}


class KafkaCluster(ClusterClient):
    """The port to Kafka: all requests of planning and recovery.

    Each method makes one round trip per broker, regardless of the number of items. It retries transient and missing
    answers, for example during a leader change, for up to one request timeout. Then it raises
    ClusterUnreachableError if no broker answered, or ClusterRequestError if the answer is an error.
    """

    @until_answered
    def list_topics(self) -> tuple[str, ...]:
        try:
            metadata = self._client.list_topics(timeout=self._attempt_seconds)
        except confluent_kafka.KafkaException as error:
            raise self._error(error.args[0], Asked("the topics")) from None
        return tuple(metadata.topics)

    @until_answered
    def describe_topics(self, topics: Collection[str], *, skip_missing: bool = False) -> dict[str, TopicMetadata]:
        futures = self._client.describe_topics(
            confluent_kafka.TopicCollection(list(topics)), request_timeout=self.request_timeout
        )
        found: dict[str, TopicMetadata] = {}
        for topic, future in futures.items():
            try:
                description = self._result(future, Asked(f"the topic {topic}", topic=topic))
            except TopicNotFoundError:
                if skip_missing:
                    continue
                raise
            topic_id = None if description.topic_id is None else str(description.topic_id)
            found[topic] = TopicMetadata(
                name=topic,
                topic_id=None if topic_id == _ZERO_TOPIC_ID else topic_id,
                partitions=tuple(sorted(TopicPartition(topic, info.id) for info in description.partitions)),
                is_internal=bool(description.is_internal),
                replicas=min((len(info.replicas) for info in description.partitions), default=0),
            )
        return found

    def unready(self, topics: Collection[str]) -> str:
        """Which topic partitions take no records now, and why; empty if all do, as far as brokers tell it at once."""
        found: list[str] = []
        resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        seconds = {"request_timeout": FIRST_ATTEMPT_SECONDS}
        settings = self._client.describe_configs(resources, **seconds)
        least = dict.fromkeys(topics, 1)
        for resource, future in settings.items():
            with contextlib.suppress(confluent_kafka.KafkaException):
                least[resource.name] = int(future.result()["min.insync.replicas"].value)
        described = self._client.describe_topics(confluent_kafka.TopicCollection(list(topics)), **seconds)
        for topic, future in described.items():
            with contextlib.suppress(confluent_kafka.KafkaException):
                for info in future.result().partitions:
                    if info.leader is None or info.leader.id < 0:
                        found.append(f"{topic}-{info.id} has no leader")
                    elif len(info.isr) < least[topic]:
                        of = f"{len(info.isr)} of {counted(len(info.replicas), 'replica')} in sync"
                        found.append(f"{topic}-{info.id} has {of}, and min.insync.replicas is {least[topic]}")
        return f"{first_few(found)}: start the brokers that have the others" if found else ""

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        found = self._list_offsets(dict.fromkeys(partitions, OffsetSpec.earliest()), READ_COMMITTED)
        return {tp: info.offset for tp, info in found.items()}

    def end_offsets(self, partitions: Collection[TopicPartition], isolation_level: str) -> dict[TopicPartition, int]:
        """Returns the end offset of each: the last stable offset under read_committed, else the high watermark."""
        return {tp: end.offset for tp, end in self.log_ends(partitions, isolation_level).items()}

    def log_ends(self, partitions: Collection[TopicPartition], isolation_level: str) -> dict[TopicPartition, LogEnd]:
        found = self._list_offsets(dict.fromkeys(partitions, OffsetSpec.latest()), isolation_level)
        return {tp: LogEnd(info.offset, info.leader_epoch) for tp, info in found.items()}

    def cut_offsets(self, ends: Mapping[TopicPartition, LogEnd]) -> dict[TopicPartition, int | None]:
        """Returns where logs were cut off before an earlier end; None if unknown. Omits those that were not."""
        from dagster_kafka_flip.source.record_search import cut_offsets

        with self._reading(READ_UNCOMMITTED, "the leaders' epochs", ends) as config:
            return cut_offsets(config, ends, self.request_timeout)

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int], isolation_level: str
    ) -> dict[TopicPartition, int]:
        """Returns the first offset of each at or after its timestamp; omits partitions without one."""
        return {tp: found.offset for tp, found in self.records_at([timestamps_ms], isolation_level)[0].items()}

    @until_answered
    def records_at(
        self, times: Sequence[Mapping[TopicPartition, int]], isolation_level: str
    ) -> list[dict[TopicPartition, TimestampedOffset]]:
        """Returns the first entry at or after a timestamp, with its own timestamp, for many concurrent lookups."""
        # No record is later than Kafka's last timestamp, and the client can't look one up.
        specs = (
            {tp: OffsetSpec.for_timestamp(ms) for tp, ms in each.items() if ms <= LAST_TIMESTAMP_MS} for each in times
        )
        asked = [self._ask_offsets(each, isolation_level) for each in specs]
        return [
            {
                tp: TimestampedOffset(info.offset, info.timestamp)
                for tp, info in self._answered(futures).items()
                if info.offset >= 0
            }
            for futures in asked
        ]

    @until_answered
    def topic_settings(self, topics: Collection[str]) -> dict[str, TopicSettings]:
        """Returns topic settings; omits topics whose settings this client may not see."""
        resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        futures = self._client.describe_configs(resources, request_timeout=self._attempt_seconds)
        found: dict[str, TopicSettings] = {}
        for resource, future in futures.items():
            try:
                asked = Asked(f"the settings of the topic {resource.name}", "DESCRIBE_CONFIGS", resource.name)
                entries = self._result(future, asked)
            except ClusterRequestError as error:
                _logger.info("topic settings are unknown: %s", error)
                continue
            values = {name: entries[name].value for name in _SETTINGS if name in entries}
            if len(values) == len(_SETTINGS):
                retention = int(values["retention.ms"])
                # Not every broker that speaks Kafka's protocol has it.
                largest = entries.get("max.message.bytes")
                found[resource.name] = TopicSettings(
                    timestamp_type=values["message.timestamp.type"],
                    retention_ms=None if retention < 0 else retention,
                    is_limited_by_size=int(values["retention.bytes"]) >= 0,
                    is_compacted="compact" in values["cleanup.policy"],
                    max_bytes=None if largest is None else int(largest.value),
                    max_behind_ms=_distance(entries, "before"),
                    max_ahead_ms=_distance(entries, "after"),
                )
        return found

    @until_answered
    def cleanup_policy(self, topic: str) -> str:
        """Returns a topic's `cleanup.policy`, such as `compact,delete`."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        (future,) = self._client.describe_configs([resource], request_timeout=self._attempt_seconds).values()
        asked = Asked(f"the settings of the topic {topic}", "DESCRIBE_CONFIGS", topic)
        return ",".join(sorted(self._result(future, asked)["cleanup.policy"].value.replace(" ", "").split(",")))

    @until_answered
    def create_topic(self, topic: str, partitions: int, settings: Mapping[str, str], replicas: int = -1) -> None:
        asked = Asked(f"the creation of the topic {topic}", "CREATE", topic)
        new = NewTopic(topic, partitions, replicas, config=dict(settings))
        (future,) = self._client.create_topics([new], request_timeout=self._attempt_seconds).values()
        try:
            future.result()
        except confluent_kafka.KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise self._error(error.args[0], asked) from None
        # Brokers answer before every one of them knows the topic.
        try:
            described = self.describe_topics([topic])[topic]
            self.end_offsets(described.partitions, READ_UNCOMMITTED)
        except (TopicNotFoundError, ClusterRequestError) as error:
            raise TransientError(error, str(error)) from None
        if len(described.partitions) < partitions:
            msg = f"the topic {topic} has only {len(described.partitions)} of {partitions} topic partitions so far"
            raise TransientError(ClusterRequestError(msg), msg)

    def max_timestamps(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, TimestampedOffset]:
        """The highest timestamp of each that ever had one (KIP-734), also of aborted and of trimmed records."""
        found = self._list_offsets(dict.fromkeys(partitions, OffsetSpec.max_timestamp()), READ_UNCOMMITTED)
        return {tp: TimestampedOffset(info.offset, info.timestamp) for tp, info in found.items() if info.timestamp >= 0}

    def search_records(
        self, searches: Collection[RecordSearch], isolation_level: str
    ) -> dict[RecordSearch, TimestampedOffset | None]:
        """Returns the first consumer-visible record at or after the time in each range; None if there is none."""
        from dagster_kafka_flip.source.record_search import search_records

        if not searches:
            return {}
        partitions = {search.topic_partition for search in searches}
        with self._reading(isolation_level, "single records", partitions) as config:
            return search_records(config, searches, self.request_timeout)

    def records(self, ranges: Sequence[KafkaPartitionSplit], isolation_level: str) -> Iterator[confluent_kafka.Message]:
        from dagster_kafka_flip.source.record_search import read_messages

        partitions = {each.topic_partition for each in ranges}
        with self._reading(isolation_level, "records", partitions, is_short=False) as config:
            yield from read_messages(config, ranges, self.request_timeout)

    @contextlib.contextmanager
    def _reading(
        self, isolation_level: str, what: str, partitions: Iterable[TopicPartition], *, is_short: bool = True
    ) -> Generator[dict[str, Any]]:
        """Returns settings of a consumer for this cluster, and translates its errors to this cluster's."""
        from dagster_kafka_flip.source.record_search import NoAnswerError, ReadFailedError

        some = f"{what} ({', '.join(sorted(map(str, partitions))[:3])})"
        try:
            # A long one does not wait all the time.
            with self._said(some) if is_short else contextlib.nullcontext():
                yield self._config | {"isolation.level": isolation_level} | self._callbacks
        except NoAnswerError:
            raise self._failures.unreachable(some, "timed out") from None
        except ReadFailedError as failed:
            tp = failed.topic_partition
            failure = self._error(failed.error, Asked(f"{what} of {tp}", "READ", tp.topic))
            # No retry: it has already read for one request timeout.
            raise (failure.final if isinstance(failure, TransientError) else failure) from None

    @until_answered
    def committed_offsets(self, partitions: Collection[TopicPartition], group_id: str) -> dict[TopicPartition, int]:
        """Returns the group's committed offsets; omits partitions without one."""
        # A consumer that never joins, because the admin client's request crashes the process with SIGSEGV while the
        # group's coordinator is loading or __consumer_offsets does not exist yet (librdkafka issue 5040).
        asked = Asked(f"the offsets of the consumer group {group_id}", group=group_id)
        config = self._config | _GROUP_READER | {"group.id": group_id} | self._callbacks
        with contextlib.closing(confluent_kafka.Consumer(config)) as consumer:
            answer = self._committed(consumer, partitions, asked)
        found: dict[TopicPartition, int] = {}
        for entry in answer:
            if entry.error is not None:
                raise self._error(entry.error, asked._replace(topic=entry.topic))
            if entry.offset >= 0:
                found[TopicPartition(entry.topic, entry.partition)] = entry.offset
        return found

    def _committed(
        self, consumer: confluent_kafka.Consumer, partitions: Collection[TopicPartition], asked: Asked
    ) -> list[confluent_kafka.TopicPartition]:
        deadline, patience = time.monotonic() + self.request_timeout, _COMMITTED_SECONDS
        while True:
            left = deadline - time.monotonic()
            try:
                return consumer.committed(_to_client(partitions), timeout=max(0.0, min(patience, left)))
            except confluent_kafka.KafkaException as error:
                # Without an ACL on the group no coordinator is found, and only the consumer's events contain the
                # reason.
                event = consumer.poll(0)
                failure = None if event is None else event.error()
                if failure is not None and failure.name() in REFUSED_RIGHTS:
                    raise self._error(failure, asked) from None
                if left <= patience or error.args[0].name() != "_TIMED_OUT":
                    raise self._error(error.args[0], asked) from None
            patience *= 2

    @until_answered
    def commit_offsets(self, position: Position, group_id: str) -> None:
        """Commits a consumer group's offsets, unless the group has active members."""
        asked = Asked(f"the consumer group {group_id}", "READ", group=group_id)
        description = self._result(
            self._client.describe_consumer_groups([group_id], request_timeout=self._attempt_seconds)[group_id], asked
        )
        if description.members:
            raise GroupCommitError(
                f"the consumer group {group_id} has {len(description.members)} active members, so its offsets were "
                "not committed; give the source its own group id"
            )
        offsets = [confluent_kafka.TopicPartition(tp.topic, tp.partition, offset) for tp, offset in position.items()]
        request = confluent_kafka.ConsumerGroupTopicPartitions(group_id, offsets)
        future = self._client.alter_consumer_group_offsets([request], request_timeout=self._attempt_seconds)[group_id]
        for entry in self._result(future, asked).topic_partitions:
            if entry.error is not None:
                commit = f"a commit of the offset of {entry.topic}-{entry.partition} to {asked.what}"
                raise self._error(entry.error, asked._replace(what=commit, topic=entry.topic))

    @until_answered
    def _list_offsets(
        self, specs: Mapping[TopicPartition, OffsetSpec | None], isolation_level: str
    ) -> dict[TopicPartition, Any]:
        return self._answered(self._ask_offsets(specs, isolation_level))

    def _ask_offsets(
        self, specs: Mapping[TopicPartition, OffsetSpec | None], isolation_level: str
    ) -> Mapping[Any, Future[Any]]:
        if not specs:
            return {}
        level = (
            confluent_kafka.IsolationLevel.READ_COMMITTED
            if isolation_level == READ_COMMITTED
            else confluent_kafka.IsolationLevel.READ_UNCOMMITTED
        )
        request: dict[confluent_kafka.TopicPartition, Any] = dict(zip(_to_client(specs), specs.values(), strict=True))
        return self._client.list_offsets(request, isolation_level=level, request_timeout=self._attempt_seconds)


def _distance(settings: Mapping[str, Any], side: str) -> int | None:
    """How far timestamps may be from the brokers' clock; before Kafka 3.6, one setting applies to both sides."""
    names = (f"message.timestamp.{side}.max.ms", "message.timestamp.difference.max.ms")
    return min((int(settings[name].value) for name in names if name in settings), default=None)


def _to_client(partitions: Iterable[TopicPartition]) -> list[confluent_kafka.TopicPartition]:
    return [confluent_kafka.TopicPartition(topic, partition) for topic, partition in partitions]
