"""KafkaSource: an immutable description of what to read from Kafka."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.arguments import check_methods, expect
from dagster_kafka_flip.settings.base import Settings
from dagster_kafka_flip.settings.hidden import hidden_values
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.offsets import OffsetsInitializer, OffsetsKind, check_order
from dagster_kafka_flip.source.properties import (
    CLIENT_OF_FIELD,
    check_properties,
    java_properties,
    librdkafka_properties,
)
from dagster_kafka_flip.source.split import READ_COMMITTED, TopicPartition
from dagster_kafka_flip.source.subscription import Subscription, check_topic_name
from dagster_kafka_flip.source.table_options import source_fields

if TYPE_CHECKING:
    from dagster_kafka_flip.source.api import SplitEnumeratorContext
    from dagster_kafka_flip.source.cluster import KafkaCluster
    from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.source.window import Windows
    from dagster_kafka_flip.source.window_enumerator import WindowEnumerator

_PLAIN_NAME = re.compile(r"[A-Za-z0-9._-]+")


def given_topics(source: KafkaSource | str | Sequence[str]) -> list[str]:
    if isinstance(source, KafkaSource):
        return []
    topics, example = [source] if isinstance(source, str) else source, '"orders", or KafkaSource(topics=("orders",))'
    expect("source", topics, (KafkaSource, str, Sequence), example)
    for topic in topics:
        expect("source", topic, str, example)
    return list(topics)


class KafkaSource(Settings):
    """Defines what to read from Kafka: topics, start and stop. Immutable.

    Create it with `KafkaSource.builder()` or with keyword arguments. In Dagster the KafkaResource provides the
    connection, so one definition runs in every environment.

    Attributes:
        topics: Names of topics. Set exactly one of `topics`, `topic_pattern` and `partitions`.
        topic_pattern: A regular expression (Python's) for the whole topic name. Excludes Kafka's internal topics.
        partitions: Topic partitions to read, and no others.
        starting_offsets: Start of a stream without a position. Default: earliest.
        stopping_offsets: Stop of each run. Default: latest.
        group_id: Consumer group whose committed offsets are used. It is never joined.
        commit_offsets: Whether to commit the position to the consumer group, too, for tools that monitor groups. It is
            never read back. Default: no.
        isolation_level: `read_committed` (default) or `read_uncommitted`.
        max_drift: How far ahead of the slowest topic partition, in event time, a run may read (FLIP-182). Default: no
            alignment.
        client_id_prefix: Prefix of the client ids, instead of the connection's client id.
        client_rack: Rack of the readers (KIP-392).
        properties: Settings without a field, for both clients, by the Java consumer's names.
        librdkafka_properties: Settings of the planning client, by librdkafka's names; they override `properties`.
        java_properties: Settings of Spark's Kafka client, by the Java consumer's names; they override `properties`.
        overrides_position: See `with_overrides`.
        cluster: Name of one of the KafkaResource's clusters. Default: the resource's own.
        connection: Connection for use without Dagster.
    """

    topics: tuple[str, ...] | None = None
    topic_pattern: str | None = Field(default=None, min_length=1)
    partitions: tuple[TopicPartition, ...] | None = None
    starting_offsets: OffsetsInitializer = Field(default_factory=OffsetsInitializer.earliest)
    stopping_offsets: OffsetsInitializer = Field(default_factory=OffsetsInitializer.latest)
    group_id: str | None = Field(default=None, min_length=1)
    commit_offsets: bool = False
    isolation_level: Literal["read_committed", "read_uncommitted"] = READ_COMMITTED
    max_drift: timedelta | None = Field(default=None, ge=timedelta(milliseconds=1))
    client_id_prefix: str | None = Field(default=None, min_length=1)
    client_rack: str | None = Field(default=None, min_length=1)
    properties: Mapping[str, str] = Field(default_factory=dict[str, str])
    librdkafka_properties: Mapping[str, str] = Field(default_factory=dict[str, str])
    java_properties: Mapping[str, str] = Field(default_factory=dict[str, str])
    overrides_position: bool = False
    cluster: str | None = None
    connection: KafkaConnection | None = None

    @classmethod
    def of(cls, source: KafkaSource | str | Sequence[str]) -> KafkaSource:
        """Returns the source; topics are one that reads them from the earliest offset.

        Raises:
            ConfigurationError: It is neither a source nor topics.
        """
        return source if isinstance(source, KafkaSource) else cls(topics=tuple(given_topics(source)))

    @classmethod
    def builder(cls) -> KafkaSourceBuilder:
        """Returns a builder for a source."""
        return KafkaSourceBuilder({})

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> KafkaSource:
        """Returns a source from the options of Flink's Kafka table: what its SQL sets in `WITH (...)`.

        Without `scan.startup.mode` it starts at the committed offsets if there is a `properties.group.id`, else at the
        earliest. Without `scan.bounded.mode` each run stops at the latest offset.

        Args:
            options: The options by name, as strings; those of the formats belong to `KafkaTableOptions.from_options`.

        Raises:
            ConfigurationError: An option is unknown, malformed or missing, contradicts another one, or has no meaning
                here. The message names it.
        """
        return cls(**source_fields(options))

    @field_validator("topics")
    @classmethod
    def _check_topics(cls, topics: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if topics is None:
            return None
        if not topics:
            raise ValueError("a source needs at least one topic")
        for topic in topics:
            check_topic_name(topic)
        return tuple(sorted(set(topics)))

    @field_validator("cluster")
    @classmethod
    def _check_cluster(cls, cluster: str | None) -> str | None:
        # The name is part of the topics' asset keys.
        if cluster is not None and not _PLAIN_NAME.fullmatch(cluster):
            raise ValueError(f"invalid cluster name {cluster!r}: use letters, digits, '.', '_' and '-'")
        return cluster

    @field_validator("topic_pattern")
    @classmethod
    def _check_topic_pattern(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"the topic pattern {pattern!r} is not a valid regular expression: {error}") from None
        return pattern

    @field_validator("partitions")
    @classmethod
    def _check_partitions(cls, partitions: tuple[TopicPartition, ...] | None) -> tuple[TopicPartition, ...] | None:
        if partitions is None:
            return None
        if not partitions:
            raise ValueError("a source needs at least one topic partition")
        for topic_partition in partitions:
            check_topic_name(topic_partition.topic)
            if topic_partition.partition < 0:
                raise ValueError(
                    f"{topic_partition.topic}: invalid partition {topic_partition.partition}; partition numbers "
                    "start at 0"
                )
        return tuple(sorted(set(partitions)))

    @field_validator(*CLIENT_OF_FIELD)
    @classmethod
    def _check_properties(cls, properties: Mapping[str, str], info: ValidationInfo) -> Mapping[str, str]:
        check_properties(properties, CLIENT_OF_FIELD[info.field_name or ""])
        return dict(properties)

    @model_validator(mode="after")
    def _check_combination(self) -> KafkaSource:
        given = [name for name in ("topics", "topic_pattern", "partitions") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                "exactly one of topics, a topic pattern or a set of partitions is needed; "
                + (f"given: {' and '.join(given)}" if given else "given: none; set topics")
            )
        if self.stopping_offsets.kind is OffsetsKind.EARLIEST:
            msg = "earliest is not a valid stop: nothing would ever be read. Use latest, or leave the stop out"
            raise ValueError(msg)
        if self.group_id is None and (self.starting_offsets.needs_group or self.stopping_offsets.needs_group):
            raise ValueError("committed offsets need a group id: set the source's group_id")
        if self.commit_offsets and self.group_id is None:
            raise ValueError("committing offsets needs a group id: set the source's group_id")
        for initializer in (self.starting_offsets, self.stopping_offsets):
            for topic_partition in initializer.offsets or {}:
                if not self.subscription.may_read(topic_partition):
                    raise ValueError(f"the offsets name {topic_partition}, but the source reads {self.subscription}")
        check_order(self.starting_offsets, self.stopping_offsets)
        return self

    @property
    def subscription(self) -> Subscription:
        """The topic partitions to read."""
        return Subscription(self.topics, self.topic_pattern, self.partitions)

    def create_enumerator(self, context: SplitEnumeratorContext) -> KafkaSourceEnumerator:
        """Returns an enumerator for a new stream."""
        return self.restore_enumerator(context, None)

    def restore_enumerator(
        self, context: SplitEnumeratorContext, state: EnumeratorState | None
    ) -> KafkaSourceEnumerator:
        """Returns an enumerator for a stream with a position; None for a new one."""
        from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator

        context.servers = self.required_connection().bootstrap_servers
        return KafkaSourceEnumerator(self, self._cluster(context), context, state)

    def plan_once(self, context: SplitEnumeratorContext, state: EnumeratorState | None = None) -> ReadPlan:
        """Plans from a state, None for a new stream, without reading anything."""
        with contextlib.closing(self.restore_enumerator(context, state)) as enumerator:
            return enumerator.start()

    def window_enumerator(self, windows: Windows, context: SplitEnumeratorContext) -> WindowEnumerator:
        """Returns an enumerator for time windows; it ignores the source's own start and stop."""
        from dagster_kafka_flip.source.window_enumerator import WindowEnumerator

        return WindowEnumerator(self, self._cluster(context), windows, context)

    def _cluster(self, context: SplitEnumeratorContext) -> KafkaCluster:
        from dagster_kafka_flip.source.cluster import KafkaCluster

        return KafkaCluster(self.required_connection(), self.librdkafka_config(), context.log)

    def required_connection(self) -> KafkaConnection:
        """The connection of the source; refuses a source without one."""
        if self.connection is None:
            msg = "no Kafka connection: pass one to ingest(), or call set_bootstrap_servers on the builder"
            raise ConfigurationError(msg)
        return self.connection

    def connected(self, connection: KafkaConnection | None) -> KafkaSource:
        """Returns the source with a connection; None keeps the source's own."""
        if connection is not None and self.connection is not None and self.connection != connection:
            raise ConfigurationError(
                f"two different Kafka connections: the source has {self.connection.bootstrap_servers}, the run has "
                f"{connection.bootstrap_servers}",
                "Remove set_bootstrap_servers if the run provides the connection",
            )
        source = self if connection is None else self.model_copy(update={"connection": connection})
        source.required_connection()
        return source

    def only(self, topics: Iterable[str]) -> KafkaSource:
        """Returns the source with only some of its topics and their specific offsets."""
        wanted = tuple(sorted(set(topics)))
        others = [topic for topic in wanted if not self._reads(topic)]
        if others or not wanted:
            msg = f"the source reads {self.subscription}, not {', '.join(others) or 'no topic at all'}"
            raise ConfigurationError(msg)
        values: dict[str, Any] = {
            "starting_offsets": self.starting_offsets.only(lambda tp: tp.topic in wanted),
            "stopping_offsets": self.stopping_offsets.only(lambda tp: tp.topic in wanted),
        }
        if self.partitions is None:
            values |= {"topics": wanted, "topic_pattern": None}
        else:
            values["partitions"] = tuple(tp for tp in self.partitions if tp.topic in wanted)
        return self.model_copy(update=values)

    def _reads(self, topic: str) -> bool:
        if self.partitions is not None:
            return any(tp.topic == topic for tp in self.partitions)
        return self.subscription.may_read(TopicPartition(topic, 0))

    def librdkafka_config(self) -> dict[str, str]:
        """Settings of the planning client, in addition to the connection's."""
        return librdkafka_properties(self.properties, self.librdkafka_properties) | self._client("enumerator")

    def java_config(self) -> dict[str, str]:
        """Settings of Spark's Kafka client, in addition to the connection's."""
        own = {"isolation.level": self.isolation_level, **self._client("reader")}
        return java_properties(self.properties, self.java_properties) | own

    def _client(self, kind: str) -> dict[str, str]:
        prefix, rack = self.client_id_prefix, self.client_rack
        client_id = {} if prefix is None else {"client.id": f"{prefix}-{kind}"}
        return client_id | ({} if rack is None else {"client.rack": rack})

    def with_overrides(
        self, starting_offsets: OffsetsInitializer | None = None, stopping_offsets: OffsetsInitializer | None = None
    ) -> KafkaSource:
        """Returns the source with another start or stop for one run; validates it again.

        Args:
            starting_offsets: Start that overrides the position: records in between are read again or skipped. Specific
                offsets only move the listed topic partitions; the others continue from their position.
            stopping_offsets: Stop for this run.

        Raises:
            ConfigurationError: The override is invalid for this source.
        """
        values: dict[str, Any] = {}
        if starting_offsets is not None:
            values |= {"starting_offsets": starting_offsets, "overrides_position": True}
        if stopping_offsets is not None:
            values["stopping_offsets"] = stopping_offsets
        return self.changed(**values)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        for name, value in super().__repr_args__():
            yield name, hidden_values(getattr(self, name)) if name in CLIENT_OF_FIELD else value

    def __str__(self) -> str:
        return str(self.subscription)


@check_methods
class KafkaSourceBuilder:
    """Builds a KafkaSource step by step, with the method names of Flink's KafkaSourceBuilder.

    Immutable: every call returns a new builder, so builders can be shared.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def _with(self, **values: Any) -> KafkaSourceBuilder:
        return KafkaSourceBuilder(self._values | values)

    def _with_properties(self, field: str, properties: Mapping[str, str]) -> KafkaSourceBuilder:
        expect(field, properties, Mapping, '{"fetch.min.bytes": "1"}')
        return self._with(**{field: {**self._values.get(field, {}), **properties}})

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSourceBuilder:
        """Sets `host:port` pairs of a cluster without security, for use without Dagster."""
        return self._with(connection=KafkaConnection(bootstrap_servers=bootstrap_servers))

    def set_connection(self, connection: KafkaConnection) -> KafkaSourceBuilder:
        """Sets addresses and credentials, for use without Dagster."""
        return self._with(connection=connection)

    def set_cluster(self, cluster: str) -> KafkaSourceBuilder:
        """Selects one of the KafkaResource's clusters by name. Default: the resource's own."""
        return self._with(cluster=cluster)

    def set_topics(self, *topics: str) -> KafkaSourceBuilder:
        """Sets the topics to read, with all their partitions."""
        return self._with(topics=topics)

    def set_topic_pattern(self, pattern: str) -> KafkaSourceBuilder:
        """Sets a pattern that must match the whole topic name, including topics created later."""
        return self._with(topic_pattern=pattern)

    def set_partitions(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> KafkaSourceBuilder:
        """Sets the topic partitions to read."""
        expect("set_partitions", partitions, (list, tuple, set, frozenset), '[("orders", 0)]')
        return self._with(partitions=tuple(partitions))

    def set_group_id(self, group_id: str) -> KafkaSourceBuilder:
        """Sets the consumer group whose committed offsets are used. The group is never joined."""
        return self._with(group_id=group_id)

    def set_starting_offsets(self, initializer: OffsetsInitializer) -> KafkaSourceBuilder:
        """Sets the start of a stream without a position. Default: earliest."""
        return self._with(starting_offsets=initializer)

    def set_bounded(self, initializer: OffsetsInitializer) -> KafkaSourceBuilder:
        """Sets the stop of each run. Default: latest."""
        return self._with(stopping_offsets=initializer)

    def set_commit_offsets(self, commit_offsets: bool = True) -> KafkaSourceBuilder:
        """Also commits the position to the consumer group, for monitoring tools. Default: no."""
        return self._with(commit_offsets=commit_offsets)

    def set_isolation_level(self, isolation_level: str) -> KafkaSourceBuilder:
        """Sets `read_committed` (default) or `read_uncommitted`."""
        return self._with(isolation_level=isolation_level)

    def set_watermark_alignment(self, max_drift: timedelta) -> KafkaSourceBuilder:
        """Sets `max_drift`."""
        return self._with(max_drift=max_drift)

    def set_client_id_prefix(self, prefix: str) -> KafkaSourceBuilder:
        """Sets the prefix of the client ids in the brokers' logs and quotas."""
        return self._with(client_id_prefix=prefix)

    def set_client_rack(self, rack: str) -> KafkaSourceBuilder:
        """Sets the rack of the readers, to read from the nearest replica (KIP-392)."""
        return self._with(client_rack=rack)

    def set_property(self, key: str, value: str) -> KafkaSourceBuilder:
        """Adds a setting of both clients, by the Java consumer's name."""
        return self._with_properties("properties", {key: value})

    def set_properties(self, properties: Mapping[str, str]) -> KafkaSourceBuilder:
        """Adds settings of both clients, by the Java consumer's names."""
        return self._with_properties("properties", properties)

    def set_librdkafka_property(self, key: str, value: str) -> KafkaSourceBuilder:
        """Adds a setting of only the planning client, by librdkafka's name."""
        return self._with_properties("librdkafka_properties", {key: value})

    def set_java_property(self, key: str, value: str) -> KafkaSourceBuilder:
        """Adds a setting of only Spark's Kafka client, by the Java consumer's name."""
        return self._with_properties("java_properties", {key: value})

    def build(self) -> KafkaSource:
        """Returns the source.

        Raises:
            ConfigurationError: A setting is missing or malformed, or contradicts another one.
        """
        return KafkaSource(**self._values)
