"""KafkaSink: describes the topic of a sink, its guarantee and its records."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator

from dagster_kafka_flip.errors import ConfigurationError, UnpublishableRowError
from dagster_kafka_flip.settings.base import Settings
from dagster_kafka_flip.sink.serializers import JsonSerializer, Serializer

if TYPE_CHECKING:
    from dagster_kafka_flip.registry.schema_registry import SchemaRegistry

DeliveryGuarantee = Literal["exactly_once", "at_least_once"]
Partitioner = Callable[[str, bytes | None, bytes | None, int], int]

TOLERABLE = (UnpublishableRowError, *UnpublishableRowError.__subclasses__())

_TOPIC = re.compile(r"[A-Za-z0-9_.-]{1,249}")
_PREFIX = re.compile(r"[A-Za-z0-9_.-]{1,100}")

# Producer settings that the sink itself decides, and what decides them.
_OWNED: Mapping[str, str] = {
    "transactional.id": "use transactional_id_prefix",
    "transaction.timeout.ms": "use transaction_timeout",
    "enable.idempotence": "use delivery_guarantee",
    "acks": "use delivery_guarantee",
    "request.required.acks": "use delivery_guarantee",
    "delivery.timeout.ms": "a transaction's records get the remaining time of transaction_timeout",
    "message.timeout.ms": "a transaction's records get the remaining time of transaction_timeout",
    "partitioner": "use partitioner",
    "bootstrap.servers": "use the connection's bootstrap_servers",
    "metadata.broker.list": "use the connection's bootstrap_servers",
    "client.id": "use the connection's client_id",
    "key.serializer": "use key",
    "value.serializer": "use value",
}
_CONNECTION = ("sasl.", "ssl.", "security.", "enable.sasl.", "enable.ssl.", "https.")


def is_topic_name(text: str) -> bool:
    return text not in (".", "..") and _TOPIC.fullmatch(text) is not None


class KafkaSink(Settings):
    """A topic that a Delta table is published to.

    Attributes:
        topic: The topic of the records. It must exist.
        transactional_id_prefix: Identifies the sink and its progress permanently; each sink of a cluster needs its own.
            1 to 100 letters, digits, `.`, `_` and `-`.
        delivery_guarantee: `"exactly_once"` for readers of committed records (default); `"at_least_once"`: records may
            be doubled.
        key: Serializes keys. Default: no keys.
        value: Serializes values. Default: all columns as JSON.
        deletes: A deleted row becomes a `"tombstone"` (default), or a `"row"` with `_change_type`.
        lanes: Number of producers, each with its own transactional id and progress. Can't be changed under the same
            prefix. Default: 1.
        headers: Column with the records' headers: an array of key and value, or a map.
        timestamp: Timestamp column with the records' times. Default: the time of publication.
        topic_column: String column with each record's topic, instead of `topic`.
        partition_column: Integer column with each record's topic partition, instead of a partitioner.
        partitioner: `"default"`: Kafka's, by the key's hash (default); `"fixed"`: each lane writes to one topic
            partition; `"round_robin"`; or a function of topic, key, value and number of topic partitions.
        transaction_timeout: How long a transaction may stay open, at most the brokers' `transaction.max.timeout.ms`; a
            batch ends after half of it. After a crash readers wait that long, or until the next run. Default: 5
            minutes.
        progress_topic: The compacted topic with this sink's progress. Created if it is missing. Default:
            `<prefix>-progress`.
        properties: More settings of the producer, by librdkafka's names.
        tolerate: Error classes of rows to leave out and count: UnpublishableRowError or some of its subclasses.
            Default: none; all with a `dead_letter_topic`.
        dead_letter_topic: A topic for the rows that are left out. It must exist, and not be compacted. Default: none.
    """

    topic: str = Field(min_length=1)
    transactional_id_prefix: str
    delivery_guarantee: DeliveryGuarantee = "exactly_once"
    key: Serializer | None = None
    value: Serializer = JsonSerializer()
    deletes: Literal["tombstone", "row"] = "tombstone"
    lanes: int = Field(default=1, ge=1, le=1000)
    headers: str | None = None
    timestamp: str | None = None
    topic_column: str | None = None
    partition_column: str | None = None
    partitioner: Literal["default", "fixed", "round_robin"] | Partitioner = "default"
    transaction_timeout: timedelta = Field(default=timedelta(minutes=5), ge=timedelta(seconds=1), le=timedelta(days=1))
    progress_topic: str = ""
    properties: Mapping[str, str] = Field(default_factory=dict[str, str])
    tolerate: tuple[type[UnpublishableRowError], ...] = ()
    dead_letter_topic: str | None = Field(default=None, min_length=1)

    @field_validator("topic", "progress_topic", "dead_letter_topic")
    @classmethod
    def _check_topic(cls, topic: str | None) -> str | None:
        if topic and not is_topic_name(topic):
            raise ValueError(f"invalid topic {topic!r}: use 1 to 249 letters, digits, '.', '_' and '-'")
        return topic

    @field_validator("transactional_id_prefix")
    @classmethod
    def _check_prefix(cls, prefix: str) -> str:
        if not _PREFIX.fullmatch(prefix):
            msg = f"invalid transactional_id_prefix {prefix!r}: use 1 to 100 letters, digits, '.', '_' and '-'"
            raise ValueError(msg)
        return prefix

    @field_validator("key", "value", mode="before")
    @classmethod
    def _check_serializer(cls, serializer: Any) -> Any:
        if serializer is not None and not isinstance(serializer, Serializer):
            raise ValueError('expected a serializer, such as JsonSerializer() or StringSerializer(column="id")')
        return serializer

    @field_validator("tolerate", mode="before")
    @classmethod
    def _check_tolerate(cls, tolerate: Any) -> tuple[Any, ...]:
        names = ", ".join(each.__name__ for each in TOLERABLE)
        if isinstance(tolerate, (str, type)) or not hasattr(tolerate, "__iter__"):
            msg = f"tolerate: expected a list of error classes, such as [RowTooLargeError]; allowed: {names}"
            raise ValueError(msg)
        for error in tolerate:
            if error not in TOLERABLE:
                name = getattr(error, "__name__", repr(error))
                raise ValueError(f"tolerate: {name} can't be tolerated by a sink; allowed are the classes {names}")
        return tuple(tolerate)

    @field_validator("properties")
    @classmethod
    def _check_properties(cls, properties: Mapping[str, str]) -> Mapping[str, str]:
        for name in properties:
            if name in _OWNED:
                raise ValueError(f"the property {name} belongs to the sink: {_OWNED[name]}")
            if name.startswith(_CONNECTION):
                raise ValueError(f"the property {name} belongs to the connection: use the fields of KafkaConnection")
        return dict(properties)

    @model_validator(mode="after")
    def _check_combination(self) -> KafkaSink:
        if self.partition_column is not None and self.partitioner != "default":
            raise ValueError("partition_column and partitioner both choose the topic partition; set one of the two")
        if self.progress_name == self.topic:
            msg = f"progress_topic {self.topic!r} is the records' topic; the progress needs a separate topic"
            raise ValueError(msg)
        if self.dead_letter_topic in (self.topic, self.progress_name):
            msg = f"dead_letter_topic {self.dead_letter_topic!r} is already a topic of the sink; use another one"
            raise ValueError(msg)
        return self

    def check_content(self, content: str) -> None:
        """Checks that deleted rows have a form: tombstones need a key."""
        if content != "appended_rows" and self.deletes == "tombstone" and self.key is None:
            raise ConfigurationError(
                'deletes="tombstone" needs a key: set key=JsonSerializer(columns=["id"]) with the columns that '
                'identify a row, or set deletes="row", or content="appended_rows" of the DeltaSource'
            )

    def leaves_out(self, error: UnpublishableRowError) -> bool:
        if not self.tolerate:
            return self.dead_letter_topic is not None
        return isinstance(error, self.tolerate)

    @property
    def may_leave_out(self) -> bool:
        return bool(self.tolerate) or self.dead_letter_topic is not None

    @property
    def is_exact(self) -> bool:
        """Whether records and progress are in one transaction."""
        return self.delivery_guarantee == "exactly_once"

    @property
    def registry_keys(self) -> set[str]:
        """The keys of the Dagster resources that its serializers have their registries from."""
        return set(self._named_registries().values())

    def with_registries(self, registries: Mapping[str, SchemaRegistry]) -> KafkaSink:
        """The sink with the registries in place of the resources' keys."""
        named = {side: registries[key] for side, key in self._named_registries().items()}
        changes = {side: getattr(self, side).model_copy(update={"registry": each}) for side, each in named.items()}
        return self.model_copy(update=changes)

    def _named_registries(self) -> dict[str, str]:
        found = {side: getattr(getattr(self, side), "registry", None) for side in ("key", "value")}
        return {side: key for side, key in found.items() if isinstance(key, str)}

    @property
    def progress_name(self) -> str:
        return self.progress_topic or f"{self.transactional_id_prefix}-progress"

    def transactional_id(self, lane: int) -> str:
        return f"{self.transactional_id_prefix}-{lane}"
