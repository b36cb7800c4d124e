"""The only module that talks to confluent-kafka: metadata and offsets, no records."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import confluent_kafka
import tenacity
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec  # the public name is not exported to type checkers

from dagster_kafka_flip.errors import ClusterRequestError, ClusterUnreachableError, TopicNotFoundError
from dagster_kafka_flip.source.kafka_source import READ_COMMITTED
from dagster_kafka_flip.source.split import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from concurrent.futures import Future

    from dagster_kafka_flip.source.connection import KafkaConnection

T = TypeVar("T")
P = ParamSpec("P")

_logger = logging.getLogger(__name__)

# What an unknown topic id looks like: 16 zero bytes in Kafka's base64 (KIP-516).
_ZERO_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"

_UNREACHABLE = frozenset(
    {
        "_TRANSPORT",
        "_TIMED_OUT",
        "_ALL_BROKERS_DOWN",
        "_RESOLVE",
        "_AUTHENTICATION",
        "_SSL",
        "_TIMED_OUT_QUEUE",
        "SASL_AUTHENTICATION_FAILED",
        "REQUEST_TIMED_OUT",
    }
)


_TRANSIENT = frozenset(
    {
        "NOT_LEADER_FOR_PARTITION",
        "LEADER_NOT_AVAILABLE",
        "FENCED_LEADER_EPOCH",
        "UNKNOWN_LEADER_EPOCH",
        "REPLICA_NOT_AVAILABLE",
        "OFFSET_NOT_AVAILABLE",
        "COORDINATOR_LOAD_IN_PROGRESS",
        "COORDINATOR_NOT_AVAILABLE",
        "NOT_COORDINATOR",
    }
)


@dataclass(frozen=True)
class TopicMetadata:
    """What the cluster says about one topic.

    Attributes:
        name: The topic's name.
        topic_id: Its id (KIP-516), or None where the cluster does not tell.
        partitions: Its topic partitions, sorted.
    """

    name: str
    topic_id: str | None
    partitions: tuple[TopicPartition, ...]


class _TransientError(Exception):
    """An answer that another try may better, such as while a topic partition has no leader."""


def _until_answered(ask: Callable[Concatenate[KafkaCluster, P], T]) -> Callable[Concatenate[KafkaCluster, P], T]:
    """Repeats a request while the cluster gives transient answers, as long as one request may take."""

    @functools.wraps(ask)
    def asked(cluster: KafkaCluster, *args: P.args, **kwargs: P.kwargs) -> T:
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_TransientError),
            wait=tenacity.wait_exponential(multiplier=0.1, max=2.0),
            stop=tenacity.stop_after_delay(cluster.request_timeout),
            before_sleep=tenacity.before_sleep_log(_logger, logging.INFO),
        )
        try:
            return retrying(ask, cluster, *args, **kwargs)
        except tenacity.RetryError as error:
            raise ClusterRequestError(str(error.last_attempt.exception())) from None

    return asked


class KafkaCluster:
    """A connection to one cluster's metadata. Each method is one round trip per broker, whatever it asks for.

    Transient answers, as during a change of leaders, are asked for again for up to one request's time.

    Args:
        connection: Where and how.
    """

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self.request_timeout = connection.request_timeout
        self._last_error: str | None = None
        config: dict[str, Any] = connection.librdkafka_config() | {"error_cb": self._on_error}
        self._client = AdminClient(
            config,
            logger=logging.getLogger(f"{__name__}.librdkafka"),
        )

    def _on_error(self, error: confluent_kafka.KafkaError) -> None:
        # "All brokers are down" only sums up what was said before it, and says less.
        if error.name() != "_ALL_BROKERS_DOWN" or self._last_error is None:
            self._last_error = error.str()

    @_until_answered
    def cluster_id(self) -> str | None:
        """The cluster's id.

        Raises:
            ClusterUnreachableError: No broker answered.
        """
        future = self._client.describe_cluster(request_timeout=self._connection.request_timeout)
        return self._result(future, "the cluster's id").cluster_id

    @_until_answered
    def describe_topics(self, topics: Collection[str]) -> dict[str, TopicMetadata]:
        """Ids and partitions of topics.

        Raises:
            TopicNotFoundError: A topic does not exist, or this client may not describe it.
            ClusterUnreachableError: No broker answered.
        """
        futures = self._client.describe_topics(
            confluent_kafka.TopicCollection(list(topics)), request_timeout=self._connection.request_timeout
        )
        found: dict[str, TopicMetadata] = {}
        for topic, future in futures.items():
            description = self._result(future, f"the topic {topic}")
            topic_id = None if description.topic_id is None else str(description.topic_id)
            found[topic] = TopicMetadata(
                name=topic,
                topic_id=None if topic_id == _ZERO_TOPIC_ID else topic_id,
                partitions=tuple(sorted(TopicPartition(topic, info.id) for info in description.partitions)),
            )
        return found

    def beginning_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The log start offset of each topic partition.

        Raises:
            ClusterUnreachableError: No broker answered.
            ClusterRequestError: A broker answered with an error.
        """
        return self._list_offsets(partitions, OffsetSpec.earliest(), READ_COMMITTED)

    def end_offsets(self, partitions: Collection[TopicPartition], isolation_level: str) -> dict[TopicPartition, int]:
        """The end offset of each: the last stable offset under read_committed, else the high watermark.

        Raises:
            ClusterUnreachableError: No broker answered.
            ClusterRequestError: A broker answered with an error.
        """
        return self._list_offsets(partitions, OffsetSpec.latest(), isolation_level)

    def offsets_for_time(
        self, partitions: Collection[TopicPartition], timestamp_ms: int, isolation_level: str
    ) -> dict[TopicPartition, int]:
        """The first offset whose timestamp is at or after `timestamp_ms`; partitions without one are left out.

        Raises:
            ClusterUnreachableError: No broker answered.
            ClusterRequestError: A broker answered with an error.
        """
        found = self._list_offsets(partitions, OffsetSpec.for_timestamp(timestamp_ms), isolation_level)
        return {topic_partition: offset for topic_partition, offset in found.items() if offset >= 0}

    @_until_answered
    def committed_offsets(self, partitions: Collection[TopicPartition], group_id: str) -> dict[TopicPartition, int]:
        """The group's committed offsets; partitions without one are left out.

        Raises:
            ClusterUnreachableError: No broker answered.
            ClusterRequestError: A broker answered with an error.
        """
        request = confluent_kafka.ConsumerGroupTopicPartitions(group_id, _to_client(partitions))
        futures = self._client.list_consumer_group_offsets([request], request_timeout=self._connection.request_timeout)
        answer = self._result(futures[group_id], f"the offsets of the consumer group {group_id}")
        found: dict[TopicPartition, int] = {}
        for entry in answer.topic_partitions:
            if entry.error is not None:
                raise self._translate(entry.error, f"the offset of the consumer group {group_id}")
            if entry.offset >= 0:
                found[TopicPartition(entry.topic, entry.partition)] = entry.offset
        return found

    @_until_answered
    def _list_offsets(
        self, partitions: Collection[TopicPartition], spec: Any, isolation_level: str
    ) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        level = (
            confluent_kafka.IsolationLevel.READ_COMMITTED
            if isolation_level == READ_COMMITTED
            else confluent_kafka.IsolationLevel.READ_UNCOMMITTED
        )
        request: dict[confluent_kafka.TopicPartition, Any] = dict.fromkeys(_to_client(partitions), spec)
        futures: Mapping[Any, Future[Any]] = self._client.list_offsets(
            request,
            isolation_level=level,
            request_timeout=self._connection.request_timeout,
        )
        return {
            TopicPartition(key.topic, key.partition): self._result(
                future, f"the offsets of {key.topic}-{key.partition}"
            ).offset
            for key, future in futures.items()
        }

    def _result(self, future: Future[T], what: str) -> T:
        try:
            return future.result()
        except confluent_kafka.KafkaException as error:
            raise self._translate(error.args[0], what) from None

    def _translate(self, error: confluent_kafka.KafkaError, what: str) -> Exception:
        # librdkafka hands its own diagnosis ("Connect to ... failed") to a callback, and only when polled.
        self._client.poll(0)
        if error.name() == "UNKNOWN_TOPIC_OR_PART":
            msg = (
                f"{what} does not exist on {self._connection.bootstrap_servers}, or this client may not describe it; "
                "check the name, create it, or take it out of the source"
            )
            return TopicNotFoundError(msg)
        if error.name() in _UNREACHABLE:
            cause = self._last_error or error.str()
            msg = (
                f"no answer from Kafka at {self._connection.bootstrap_servers} within "
                f"{self._connection.request_timeout:g} s when asked for {what}: {cause}; check the address, the "
                "network and the credentials"
            )
            return ClusterUnreachableError(msg)
        msg = f"Kafka at {self._connection.bootstrap_servers} refused to tell {what}: {error.name()}: {error.str()}"
        return _TransientError(msg) if error.name() in _TRANSIENT else ClusterRequestError(msg)


def _to_client(partitions: Iterable[TopicPartition]) -> list[confluent_kafka.TopicPartition]:
    return [confluent_kafka.TopicPartition(topic, partition) for topic, partition in partitions]
