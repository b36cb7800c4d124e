"""Errors of requests to Kafka: what failed, whether a retry may succeed, which ACL is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from dagster_kafka_flip.errors import (
    ClusterAccessError,
    ClusterRequestError,
    ClusterUnreachableError,
    KafkaFlipError,
    TopicNotFoundError,
)
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.source.broker_errors import UNANSWERED

if TYPE_CHECKING:
    from collections.abc import Collection

    import confluent_kafka

    from dagster_kafka_flip.source.broker_errors import BrokerErrors
    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.source.split import Position, TopicPartition

# A retry may find another broker, or another leader.
_UNANSWERED = frozenset(
    {
        "_TRANSPORT",
        "_TIMED_OUT",
        "_ALL_BROKERS_DOWN",
        "_TIMED_OUT_QUEUE",
        "REQUEST_TIMED_OUT",
        # librdkafka's names for a connection that breaks during a request.
        "_NOENT",
        "_DESTROY_BROKER",
    }
)
_UNREACHABLE = frozenset({"_RESOLVE", "_AUTHENTICATION", "_SSL"})

# Kafka's authorization errors and the resource type of each.
REFUSED_RIGHTS = {
    "TOPIC_AUTHORIZATION_FAILED": "topic",
    "GROUP_AUTHORIZATION_FAILED": "consumer group",
    "CLUSTER_AUTHORIZATION_FAILED": "cluster",
}


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


class TransientError(Exception):
    """A transient answer, for example while a topic partition has no leader.

    Args:
        final: The error to raise if retries fail.
        reason: What failed, for the log.
    """

    def __init__(self, final: KafkaFlipError, reason: str) -> None:
        super().__init__(reason)
        self.final, self.reason = final, reason


class Asked(NamedTuple):
    """A request and the ACL that it needs.

    Attributes:
        what: The requested data, for messages.
        operation: The ACL operation.
        topic: The topic of the request, if any.
        group: The consumer group of the request, if any.
        is_after_commit: Whether a batch may already be committed.
    """

    what: str
    operation: str = "DESCRIBE"
    topic: str | None = None
    group: str | None = None
    is_after_commit: bool = False

    def right(self, kind: str) -> str:
        """The missing ACL for a resource type, for messages."""
        name = {"topic": self.topic, "consumer group": self.group}.get(kind)
        return f"{self.operation} on the {kind}{'' if name is None else f' {name}'}"


class RequestFailures:
    """Creates the errors of one cluster's requests.

    Attributes:
        has_answered: Whether a broker has answered once.
    """

    def __init__(self, connection: KafkaConnection, broker_errors: BrokerErrors) -> None:
        self.has_answered = False
        self._connection = connection
        self._broker_errors = broker_errors

    def error(self, error: confluent_kafka.KafkaError, asked: Asked) -> Exception:
        """Creates the error about a request that failed: a TransientError if a retry may succeed."""
        what = asked.what
        if error.name() == "UNKNOWN_TOPIC_OR_PART":
            msg = (
                f"{what} does not exist on {self._connection.bootstrap_servers}, or this client may not describe it; "
                "check the name, create it, or remove it from the source"
            )
            return TopicNotFoundError(msg)
        if error.name() in _UNREACHABLE:
            return self.unreachable(what, error.str())
        if error.name() in REFUSED_RIGHTS:
            return self._refused(error.name(), asked)
        if error.name() in _UNANSWERED:
            return self.unanswered(what, error.str())
        reason = f"{what}: {error.name()}: {error.str()}"
        msg = f"Kafka at {self._connection.bootstrap_servers} failed to return {reason}"
        if error.name() == "LEADER_NOT_AVAILABLE":
            nothing = "" if asked.is_after_commit else "Nothing was written. "
            msg += (
                f". No broker leads the topic partition. {nothing}Start the brokers that have its replicas, or wait "
                "until one of them is elected, then run again"
            )
        refused = ClusterRequestError(msg)
        return TransientError(refused, reason) if error.name() in _TRANSIENT else refused

    def unanswered(self, what: str, reason: str) -> TransientError:
        """Creates the error about an answer that may come to another request; see `unreachable`."""
        return TransientError(self.unreachable(what, reason), f"{what}: {self._broker_errors.reason(reason)}")

    def _refused(self, name: str, asked: Asked) -> ClusterAccessError:
        kind = REFUSED_RIGHTS[name]
        # Without DESCRIBE, Kafka does not reveal whether the topic exists.
        or_else = ", or correct the topic's name" if kind == "topic" and asked.operation == "DESCRIBE" else ""
        nothing = "" if asked.is_after_commit else "Nothing was written. "
        return ClusterAccessError(
            f"Kafka at {self._connection.bootstrap_servers} refuses {self._connection.user} {asked.what}: "
            f"{name}. {nothing}Grant {asked.right(kind)}{or_else}, then run again"
        )

    def unreachable(self, what: str, reason: str) -> ClusterUnreachableError:
        """Creates the error about an answer that did not come.

        Args:
            what: The requested data.
            reason: librdkafka's reason, unless a broker had an error.
        """
        why = self._broker_errors.reason(reason)
        advice = "check the address, the network and the credentials"
        if "Connection refused" in why:
            advice = "no process listens on this port: start the broker, or correct bootstrap_servers"
        elif why == UNANSWERED:
            advice = "check whether the broker, or a proxy in front of it, hangs or has too much to do"
        elif self.has_answered:
            advice = "a broker has answered before: start those that are down, or check whether all can be reached"
        return ClusterUnreachableError(
            f"Kafka at {self._connection.bootstrap_servers} did not return {what} within "
            f"{self._connection.request_timeout:g} s: {why}; {advice}"
        )

    def too_slow(
        self, what: str, unanswered: Collection[TopicPartition], position: Position
    ) -> ClusterUnreachableError:
        """Creates the error about records that did not come."""
        tp = min(unanswered)
        why = self._broker_errors.last or "timed out"
        others = "" if len(unanswered) == 1 else f" (and {counted(len(unanswered) - 1, 'more topic partition')})"
        return ClusterUnreachableError(
            f"{tp}: Kafka at {self._connection.bootstrap_servers} did not send {what} from offset "
            f"{position[tp]}{others} within {self._connection.request_timeout:g} s: {why}. Nothing "
            "was written. Check the network and the brokers, or raise request_timeout, then run again"
        )
