"""KafkaSource: a description of what to read, and nothing that reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings import Settings, check_arguments, expect, hidden_values, near_names
from dagster_kafka_flip.source.api import Boundedness, SplitEnumeratorContext
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.isolation import READ_COMMITTED
from dagster_kafka_flip.source.offsets import OffsetsInitializer, OffsetsKind
from dagster_kafka_flip.source.properties import (
    CLIENT_OF_FIELD,
    check_properties,
    java_properties,
    librdkafka_properties,
)
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.subscription import (
    PartitionSetSubscription,
    TopicListSubscription,
    TopicPatternSubscription,
    check_topic_name,
    check_topic_pattern,
)

if TYPE_CHECKING:
    from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.source.subscription import Subscription
    from dagster_kafka_flip.source.window import Windows
    from dagster_kafka_flip.source.window_enumerator import WindowEnumerator

_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]+")


class KafkaSource(Settings):
    """What to read from Kafka: topics, where to start, where to stop. Immutable.

    Made with `KafkaSource.builder()` or by keywords, which are validated alike. Holds no connection in Dagster, where
    the address belongs to the KafkaResource, so that one definition runs in every environment.

    Attributes:
        topics: Names of topics, all of whose partitions are read. Exactly one of this, `topic_pattern` and
            `partitions` is given.
        topic_pattern: A regular expression (Python's syntax) that the whole name of a topic has to match. Kafka's
            internal topics are left out.
        partitions: Topic partitions; those added to their topics later are not read.
        starting_offsets: Where a stream without a position starts. Default: earliest.
        stopping_offsets: Where a run stops. Default: latest.
        group_id: Consumer group whose committed offsets are read. Never joined.
        commit_offsets: Whether the position is also committed to the consumer group, after each commit of the table,
            for tools that watch groups. It is never read back. Default: no.
        isolation_level: `read_committed` (default: neither aborted nor open transactions are read) or
            `read_uncommitted`.
        max_drift: How far, in event time, a run may read a topic partition ahead of the slowest that has something to
            read (FLIP-182). Default: no alignment.
        client_id_prefix: Begins the client ids, in place of the connection's client id: `<prefix>-enumerator` plans,
            `<prefix>-reader` reads.
        client_rack: Where the readers are, so that they may read from the nearest replica (KIP-392).
        properties: Further settings of both clients, under the Java consumer's names. Each client is given what it
            knows, under its own name.
        librdkafka_properties: Settings of the client that plans alone, under librdkafka's names.
        java_properties: Settings of the client that reads inside Spark alone.
        overrides_position: Whether a run starts at `starting_offsets` even if the stream has a position. For one run;
            see `with_overrides`.
        cluster: Which of the clusters of a KafkaResource it reads, by name. Default: the resource's own.
        connection: Only outside Dagster.
    """

    topics: tuple[str, ...] | None = None
    topic_pattern: str | None = Field(default=None, min_length=1)
    partitions: tuple[TopicPartition, ...] | None = None
    starting_offsets: OffsetsInitializer = Field(default_factory=OffsetsInitializer.earliest)
    stopping_offsets: OffsetsInitializer = Field(default_factory=OffsetsInitializer.latest)
    group_id: str | None = Field(default=None, min_length=1)
    commit_offsets: bool = False
    isolation_level: Literal["read_committed", "read_uncommitted"] = READ_COMMITTED
    max_drift: timedelta | None = None
    client_id_prefix: str | None = Field(default=None, min_length=1)
    client_rack: str | None = Field(default=None, min_length=1)
    properties: Mapping[str, str] = Field(default_factory=dict[str, str])
    librdkafka_properties: Mapping[str, str] = Field(default_factory=dict[str, str])
    java_properties: Mapping[str, str] = Field(default_factory=dict[str, str])
    overrides_position: bool = False
    cluster: str | None = None
    connection: KafkaConnection | None = None

    @classmethod
    def builder(cls) -> KafkaSourceBuilder:
        """Starts the description of a source."""
        return KafkaSourceBuilder({})

    @field_validator("topics")
    @classmethod
    def _check_topics(cls, topics: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if topics is None:
            return None
        if not topics:
            msg = "a source needs at least one topic"
            raise ValueError(msg)
        for topic in topics:
            check_topic_name(topic)
        return tuple(sorted(set(topics)))

    @field_validator("cluster")
    @classmethod
    def _check_cluster(cls, cluster: str | None) -> str | None:
        # It is a part of the topics' asset keys.
        if cluster is not None and not _PLAIN_NAME.fullmatch(cluster):
            msg = f"the cluster's name {cluster!r} can't be: letters, digits, '.', '_' and '-'"
            raise ValueError(msg)
        return cluster

    @field_validator("topic_pattern")
    @classmethod
    def _check_topic_pattern(cls, pattern: str | None) -> str | None:
        if pattern is not None:
            check_topic_pattern(pattern)
        return pattern

    @field_validator("partitions")
    @classmethod
    def _check_partitions(cls, partitions: tuple[TopicPartition, ...] | None) -> tuple[TopicPartition, ...] | None:
        if partitions is None:
            return None
        if not partitions:
            msg = "a source needs at least one topic partition"
            raise ValueError(msg)
        for topic_partition in partitions:
            check_topic_name(topic_partition.topic)
            if topic_partition.partition < 0:
                msg = f"{topic_partition.topic}: partitions are numbered from 0, not {topic_partition.partition}"
                raise ValueError(msg)
        return tuple(sorted(set(partitions)))

    @field_validator("max_drift")
    @classmethod
    def _check_max_drift(cls, max_drift: timedelta | None) -> timedelta | None:
        if max_drift is not None and max_drift < timedelta(milliseconds=1):
            msg = f"the maximum drift is {max_drift}; it is at least a millisecond"
            raise ValueError(msg)
        return max_drift

    @field_validator(*CLIENT_OF_FIELD)
    @classmethod
    def _check_properties(cls, properties: Mapping[str, str], info: ValidationInfo) -> Mapping[str, str]:
        check_properties(properties, CLIENT_OF_FIELD[info.field_name or ""])
        return dict(properties)

    @model_validator(mode="after")
    def _check_together(self) -> KafkaSource:
        given = [name for name in ("topics", "topic_pattern", "partitions") if getattr(self, name) is not None]
        if len(given) != 1:
            msg = "it reads either topics, or the topics of a pattern, or a set of partitions; " + (
                f"given are {' and '.join(given)}" if given else "none of the three is given: call set_topics"
            )
            raise ValueError(msg)
        check_stopping_offsets(self.stopping_offsets)
        check_group(self.starting_offsets, self.group_id)
        check_group(self.stopping_offsets, self.group_id)
        if self.commit_offsets and self.group_id is None:
            msg = "offsets are to be committed, but the source has no group id; call set_group_id"
            raise ValueError(msg)
        for initializer in (self.starting_offsets, self.stopping_offsets):
            for topic_partition in initializer.offsets or {}:
                if not self.subscription.may_read(topic_partition):
                    msg = f"an offset is given for {topic_partition}, but the source reads {self.subscription}"
                    raise ValueError(msg)
        check_order(self.starting_offsets, self.stopping_offsets)
        return self

    @property
    def subscription(self) -> Subscription:
        """Which topic partitions."""
        if self.topics is not None:
            return TopicListSubscription(self.topics)
        if self.topic_pattern is not None:
            return TopicPatternSubscription(self.topic_pattern)
        return PartitionSetSubscription(self.partitions or ())

    @property
    def boundedness(self) -> Boundedness:
        """Always bounded: every run has a stop."""
        return Boundedness.BOUNDED

    def create_enumerator(self, context: SplitEnumeratorContext) -> KafkaSourceEnumerator:
        """An enumerator for a stream that never ran.

        Raises:
            ConfigurationError: The source has no connection.
        """
        return self._enumerator(context, None)

    def restore_enumerator(self, context: SplitEnumeratorContext, state: EnumeratorState) -> KafkaSourceEnumerator:
        """An enumerator for a stream that stands somewhere.

        Raises:
            ConfigurationError: The source has no connection.
        """
        return self._enumerator(context, state)

    def _enumerator(self, context: SplitEnumeratorContext, state: EnumeratorState | None) -> KafkaSourceEnumerator:
        from dagster_kafka_flip.source.cluster import KafkaCluster
        from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator

        cluster = KafkaCluster(self.required_connection(), self.librdkafka_config())
        return KafkaSourceEnumerator(self, cluster, context, state)

    def window_enumerator(self, windows: Windows, context: SplitEnumeratorContext) -> WindowEnumerator:
        """What finds the records of windows of time; the source's own start and stop count for nothing.

        Raises:
            ConfigurationError: The source has no connection.
        """
        from dagster_kafka_flip.source.cluster import KafkaCluster
        from dagster_kafka_flip.source.window_enumerator import WindowEnumerator

        cluster = KafkaCluster(self.required_connection(), self.librdkafka_config())
        return WindowEnumerator(self, cluster, windows, context)

    def required_connection(self) -> KafkaConnection:
        """Where Kafka is.

        Raises:
            ConfigurationError: The source has no connection.
        """
        if self.connection is None:
            msg = "there is no Kafka connection: give one to ingest(), or call set_bootstrap_servers on the builder"
            raise ConfigurationError(msg)
        return self.connection

    def connected(self, connection: KafkaConnection | None) -> KafkaSource:
        """The same source with a connection.

        Args:
            connection: None leaves the source's own.

        Raises:
            ConfigurationError: There is none, or there are two different ones.
        """
        if connection is not None and self.connection is not None and self.connection != connection:
            msg = (
                f"two different Kafka connections: the source has {self.connection.bootstrap_servers}, the run is "
                f"given {connection.bootstrap_servers}. Leave set_bootstrap_servers out where a KafkaResource says "
                "where Kafka is"
            )
            raise ConfigurationError(msg)
        source = self if connection is None else self.model_copy(update={"connection": connection})
        source.required_connection()
        return source

    def only(self, topics: Iterable[str]) -> KafkaSource:
        """The same source with some of its topics, and the specific offsets of these alone.

        Args:
            topics: Their names.

        Raises:
            ConfigurationError: The source does not read one of them.
        """
        wanted = tuple(sorted(set(topics)))
        others = [topic for topic in wanted if not self._reads(topic)]
        if others or not wanted:
            msg = f"the source reads {self.subscription}, and not {', '.join(others) or 'no topic at all'}"
            raise ConfigurationError(msg)
        values: dict[str, Any] = (
            {"topics": wanted, "topic_pattern": None}
            if self.partitions is None
            else {"partitions": tuple(tp for tp in self.partitions if tp.topic in wanted)}
        )
        for name, initializer in (
            ("starting_offsets", self.starting_offsets),
            ("stopping_offsets", self.stopping_offsets),
        ):
            values[name] = initializer.only(lambda tp: tp.topic in wanted)
        return self.model_copy(update=values)

    def _reads(self, topic: str) -> bool:
        if self.partitions is not None:
            return any(tp.topic == topic for tp in self.partitions)
        return self.subscription.may_read(TopicPartition(topic, 0))

    def librdkafka_config(self) -> dict[str, str]:
        """Settings of the client that plans, besides the connection's."""
        config = librdkafka_properties(self.properties, self.librdkafka_properties)
        if self.client_id_prefix is not None:
            config["client.id"] = f"{self.client_id_prefix}-enumerator"
        return config | ({} if self.client_rack is None else {"client.rack": self.client_rack})

    def java_config(self) -> dict[str, str]:
        """Settings of the client that reads inside Spark, besides the connection's."""
        config = java_properties(self.properties, self.java_properties) | {"isolation.level": self.isolation_level}
        if self.client_id_prefix is not None:
            config["client.id"] = f"{self.client_id_prefix}-reader"
        return config | ({} if self.client_rack is None else {"client.rack": self.client_rack})

    def with_overrides(
        self, starting_offsets: OffsetsInitializer | None = None, stopping_offsets: OffsetsInitializer | None = None
    ) -> KafkaSource:
        """The same source for one run that starts or stops elsewhere, validated anew.

        Args:
            starting_offsets: Start here even if the stream has a position: records in between are read again or
                skipped, and whoever asks for it answers for that. Specific offsets move the topic partitions that they
                name; the others go on from their position.
            stopping_offsets: Stop here.

        Raises:
            ConfigurationError: The override does not fit this source.
        """
        values = {name: getattr(self, name) for name in type(self).model_fields}
        if starting_offsets is not None:
            values |= {"starting_offsets": starting_offsets, "overrides_position": True}
        if stopping_offsets is not None:
            values["stopping_offsets"] = stopping_offsets
        return KafkaSource(**values)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, hidden_values(getattr(self, name)) if name in CLIENT_OF_FIELD else value

    def __str__(self) -> str:
        return str(self.subscription)


def check_stopping_offsets(initializer: OffsetsInitializer) -> None:
    """Refuses a stop that no run would ever get past.

    Raises:
        ValueError: The stop is earliest.
    """
    if initializer.kind is OffsetsKind.EARLIEST:
        msg = "earliest can't be a stop: nothing would ever be read"
        raise ValueError(msg)


def check_group(initializer: OffsetsInitializer, group_id: str | None) -> None:
    """Refuses committed offsets without a group to ask for.

    Raises:
        ValueError: The initializer needs a consumer group and there is none.
    """
    if initializer.needs_group and group_id is None:
        msg = "committed offsets are asked for, but the source has no group id; call set_group_id"
        raise ValueError(msg)


def check_order(start: OffsetsInitializer, stop: OffsetsInitializer) -> None:
    """Refuses a start behind the stop, where that can be told without a cluster.

    Raises:
        ValueError: Nothing would ever be read.
    """
    if start.timestamp_ms is not None and stop.timestamp_ms is not None and start.timestamp_ms > stop.timestamp_ms:
        msg = f"it starts at {start}, behind its stop at {stop}: nothing would ever be read"
        raise ValueError(msg)
    for topic_partition, stopping_offset in (stop.offsets or {}).items():
        starting_offset = (start.offsets or {}).get(topic_partition, 0)
        if starting_offset > stopping_offset:
            msg = (
                f"{topic_partition}: it starts at offset {starting_offset}, behind its stop at {stopping_offset}: "
                "nothing would ever be read"
            )
            raise ValueError(msg)


_FORMATS = "how records are decoded belongs to the asset: value_format=JsonFormat(...)"
# What Flink's builder has, and where it is here.
_NOT_HERE = {
    "set_deserializer": _FORMATS,
    "set_value_only_deserializer": _FORMATS,
    "set_unbounded": "every run ends; say where with set_bounded",
    "set_rack_id_supplier": "write set_client_rack",
}


class _NoSuchCallError(ConfigurationError, AttributeError):
    """Also an AttributeError, so that `hasattr` answers."""


class KafkaSourceBuilder:
    """Builds a KafkaSource step by step, with the names of Flink's KafkaSourceBuilder.

    Immutable: every call gives a new builder, so that a common beginning can be shared.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def _with(self, **values: Any) -> KafkaSourceBuilder:
        return KafkaSourceBuilder(self._values | values)

    def _with_properties(self, field: str, properties: Mapping[str, str]) -> KafkaSourceBuilder:
        expect(field, properties, Mapping, '{"fetch.min.bytes": "1"}')
        return self._with(**{field: {**self._values.get(field, {}), **properties}})

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            # Flink's builder has more; what this one lacks is told to whoever knows Flink's.
            if not name.startswith("set_"):
                raise AttributeError(name)
            setters = [each for each in dir(type(self)) if each.startswith("set_")]
            msg = f"KafkaSource.builder() has no {name}; " + (_NOT_HERE.get(name) or near_names(name, setters))
            raise _NoSuchCallError(msg)

    @check_arguments
    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSourceBuilder:
        """For use without Dagster: comma-separated `host:port` pairs of a cluster without security."""
        return self._with(connection=KafkaConnection(bootstrap_servers=bootstrap_servers))

    @check_arguments
    def set_connection(self, connection: KafkaConnection) -> KafkaSourceBuilder:
        """For use without Dagster: addresses and credentials."""
        return self._with(connection=connection)

    @check_arguments
    def set_cluster(self, cluster: str) -> KafkaSourceBuilder:
        """Which of the clusters of the KafkaResource, by its name there. Default: the resource's own."""
        return self._with(cluster=cluster)

    @check_arguments
    def set_topics(self, *topics: str) -> KafkaSourceBuilder:
        """The topics to read, all partitions of each."""
        return self._with(topics=topics)

    @check_arguments
    def set_topic_pattern(self, pattern: str) -> KafkaSourceBuilder:
        """The topics to read: those whose whole name matches, also if they are made later."""
        return self._with(topic_pattern=pattern)

    @check_arguments
    def set_partitions(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> KafkaSourceBuilder:
        """The topic partitions to read."""
        expect("set_partitions", partitions, (list, tuple, set, frozenset), '[("orders", 0)]')
        return self._with(partitions=tuple(partitions))

    @check_arguments
    def set_group_id(self, group_id: str) -> KafkaSourceBuilder:
        """The consumer group whose committed offsets count. The group is never joined."""
        return self._with(group_id=group_id)

    @check_arguments
    def set_starting_offsets(self, initializer: OffsetsInitializer) -> KafkaSourceBuilder:
        """Where a stream that has no position yet starts. Default: earliest."""
        return self._with(starting_offsets=initializer)

    @check_arguments
    def set_bounded(self, initializer: OffsetsInitializer) -> KafkaSourceBuilder:
        """Where a run stops. Default: latest."""
        return self._with(stopping_offsets=initializer)

    @check_arguments
    def set_commit_offsets(self, commit_offsets: bool = True) -> KafkaSourceBuilder:
        """Whether the position is also committed to the consumer group, for tools that watch it. Default: no."""
        return self._with(commit_offsets=commit_offsets)

    @check_arguments
    def set_isolation_level(self, isolation_level: str) -> KafkaSourceBuilder:
        """`read_committed` (default) or `read_uncommitted`."""
        return self._with(isolation_level=isolation_level)

    @check_arguments
    def set_watermark_alignment(self, max_drift: timedelta) -> KafkaSourceBuilder:
        """How far ahead of the slowest, in event time, a run may read a topic partition. Default: no alignment."""
        return self._with(max_drift=max_drift)

    @check_arguments
    def set_client_id_prefix(self, prefix: str) -> KafkaSourceBuilder:
        """Begins the client ids that the brokers' logs and quotas see."""
        return self._with(client_id_prefix=prefix)

    @check_arguments
    def set_client_rack(self, rack: str) -> KafkaSourceBuilder:
        """Where the readers are, so that they may read from the nearest replica (KIP-392)."""
        return self._with(client_rack=rack)

    @check_arguments
    def set_property(self, key: str, value: str) -> KafkaSourceBuilder:
        """A further setting of both clients, under the Java consumer's name."""
        return self._with_properties("properties", {key: value})

    @check_arguments
    def set_properties(self, properties: Mapping[str, str]) -> KafkaSourceBuilder:
        """Further settings of both clients, under the Java consumer's names, added to those already set."""
        return self._with_properties("properties", properties)

    @check_arguments
    def set_librdkafka_property(self, key: str, value: str) -> KafkaSourceBuilder:
        """A setting of the client that plans alone, under librdkafka's name."""
        return self._with_properties("librdkafka_properties", {key: value})

    @check_arguments
    def set_java_property(self, key: str, value: str) -> KafkaSourceBuilder:
        """A setting of the client that reads inside Spark alone."""
        return self._with_properties("java_properties", {key: value})

    def build(self) -> KafkaSource:
        """The source.

        Raises:
            ConfigurationError: Something is missing, malformed, or contradicts something else.
        """
        return KafkaSource(**self._values)
