"""KafkaSource: a description of what to read, and nothing that reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_validator, model_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings import Settings
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.offsets import OffsetsInitializer, OffsetsKind
from dagster_kafka_flip.source.subscription import TopicListSubscription

_OWNED_PROPERTIES: Mapping[str, str] = {
    "bootstrap.servers": "use the KafkaResource's bootstrap_servers, or set_bootstrap_servers outside Dagster",
    "group.id": "use set_group_id",
    "enable.auto.commit": "offsets are kept in the table's commits and never committed behind your back",
    "auto.offset.reset": "use set_starting_offsets; a position that is gone is an error, never a silent reset",
    "isolation.level": "use set_isolation_level, which planning has to know as well",
    "key.deserializer": "use the asset's key_format",
    "value.deserializer": "use the asset's value_format",
    "client.id": "use client_id of the KafkaResource",
}
# The connection's: a source must hold no secret, and both clients must be told.
_CONNECTION_PREFIXES = ("sasl.", "ssl.", "security.")

READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"


class KafkaSource(Settings):
    """What to read from Kafka: topics, where to start, where to stop. Immutable; made with `KafkaSource.builder()`.

    Holds no connection in Dagster, where the address belongs to the KafkaResource, so that one definition runs in
    every environment.

    Attributes:
        subscription: Which topics.
        starting_offsets: Where a stream without a position starts. Default: earliest.
        stopping_offsets: Where a run stops. Default: latest.
        group_id: Consumer group whose committed offsets are read. Never joined.
        isolation_level: `read_committed` (default: neither aborted nor open transactions are read) or
            `read_uncommitted`.
        properties: Further settings of the Java consumer that reads inside Spark, such as `max.poll.records`.
        connection: Only outside Dagster.
    """

    subscription: TopicListSubscription
    starting_offsets: OffsetsInitializer = Field(default_factory=OffsetsInitializer.earliest)
    stopping_offsets: OffsetsInitializer = Field(default_factory=OffsetsInitializer.latest)
    group_id: str | None = Field(default=None, min_length=1)
    isolation_level: str = READ_COMMITTED
    properties: Mapping[str, str] = Field(default_factory=dict[str, str])
    connection: KafkaConnection | None = None

    @classmethod
    def builder(cls) -> KafkaSourceBuilder:
        """Starts the description of a source."""
        return KafkaSourceBuilder({})

    @field_validator("isolation_level")
    @classmethod
    def _check_isolation_level(cls, value: str) -> str:
        if value not in {READ_COMMITTED, READ_UNCOMMITTED}:
            msg = f"the isolation level is {READ_COMMITTED} or {READ_UNCOMMITTED}, not {value!r}"
            raise ValueError(msg)
        return value

    @field_validator("properties")
    @classmethod
    def _check_properties(cls, properties: Mapping[str, str]) -> Mapping[str, str]:
        for key in properties:
            name = key.removeprefix("kafka.")
            if name in _OWNED_PROPERTIES:
                msg = f"the property {key} belongs to the source: {_OWNED_PROPERTIES[name]}"
                raise ValueError(msg)
            if name.startswith(_CONNECTION_PREFIXES):
                msg = f"the property {key} belongs to the connection: use the fields of the KafkaResource"
                raise ValueError(msg)
            if key.startswith("kafka."):
                msg = f"write the property {key} without the prefix: {name}"
                raise ValueError(msg)
        return dict(properties)

    @model_validator(mode="after")
    def _check_offsets(self) -> KafkaSource:
        check_stopping_offsets(self.stopping_offsets)
        check_group(self.starting_offsets, self.group_id)
        check_group(self.stopping_offsets, self.group_id)
        for initializer in (self.starting_offsets, self.stopping_offsets):
            for topic_partition in initializer.offsets or {}:
                if topic_partition.topic not in self.subscription.topics:
                    msg = f"an offset is given for {topic_partition}, but the source reads {self.subscription}"
                    raise ValueError(msg)
        return self

    def with_overrides(
        self, starting_offsets: OffsetsInitializer | None = None, stopping_offsets: OffsetsInitializer | None = None
    ) -> KafkaSource:
        """The same source with another start or stop, validated anew.

        Raises:
            ConfigurationError: The override does not fit this source.
        """
        values = {name: getattr(self, name) for name in type(self).model_fields}
        if starting_offsets is not None:
            values["starting_offsets"] = starting_offsets
        if stopping_offsets is not None:
            values["stopping_offsets"] = stopping_offsets
        return KafkaSource(**values)


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


class KafkaSourceBuilder:
    """Builds a KafkaSource step by step, with the names of Flink's KafkaSourceBuilder.

    Immutable: every call gives a new builder, so that a common beginning can be shared.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def _with(self, **values: Any) -> KafkaSourceBuilder:
        return KafkaSourceBuilder(self._values | values)

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSourceBuilder:
        """For use without Dagster: comma-separated `host:port` pairs of a cluster without security."""
        return self._with(connection=KafkaConnection(bootstrap_servers=bootstrap_servers))

    def set_connection(self, connection: KafkaConnection) -> KafkaSourceBuilder:
        """For use without Dagster: addresses and credentials."""
        return self._with(connection=connection)

    def set_topics(self, *topics: str) -> KafkaSourceBuilder:
        """The topics to read, all partitions of each."""
        return self._with(subscription=TopicListSubscription(topics=topics))

    def set_group_id(self, group_id: str) -> KafkaSourceBuilder:
        """The consumer group whose committed offsets count. The group is never joined."""
        return self._with(group_id=group_id)

    def set_starting_offsets(self, initializer: OffsetsInitializer) -> KafkaSourceBuilder:
        """Where a stream that has no position yet starts. Default: earliest."""
        return self._with(starting_offsets=initializer)

    def set_bounded(self, initializer: OffsetsInitializer) -> KafkaSourceBuilder:
        """Where a run stops. Default: latest."""
        return self._with(stopping_offsets=initializer)

    def set_isolation_level(self, isolation_level: str) -> KafkaSourceBuilder:
        """`read_committed` (default) or `read_uncommitted`."""
        return self._with(isolation_level=isolation_level)

    def set_property(self, key: str, value: str) -> KafkaSourceBuilder:
        """A further setting of the Java consumer that reads inside Spark."""
        return self._with(properties={**self._values.get("properties", {}), key: value})

    def set_properties(self, properties: Mapping[str, str]) -> KafkaSourceBuilder:
        """Further settings of the Java consumer that reads inside Spark, added to those already set."""
        return self._with(properties={**self._values.get("properties", {}), **properties})

    def build(self) -> KafkaSource:
        """The source.

        Raises:
            ConfigurationError: Something is missing, malformed, or contradicts something else.
        """
        if "subscription" not in self._values:
            msg = "this KafkaSource has no topics; call set_topics"
            raise ConfigurationError(msg)
        return KafkaSource(**self._values)
