"""Errors of a lane's producer: what failed, what readers can see of it, and what to do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    ClusterAccessError,
    ClusterUnreachableError,
    ConfigurationError,
    PublishFailedError,
    RowMisplacedError,
    RowTooLargeError,
    SinkFencedError,
    TopicNotFoundError,
    TransactionTimedOutError,
)
from dagster_kafka_flip.settings.names import listed

if TYPE_CHECKING:
    from collections.abc import Callable

    import confluent_kafka

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.sink.kafka_sink import KafkaSink
    from dagster_kafka_flip.source.cluster_client import BrokerErrors
    from dagster_kafka_flip.source.connection import KafkaConnection

_FENCED = listed("_FENCED, PRODUCER_FENCED, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING")
_TOO_LARGE = listed("MSG_SIZE_TOO_LARGE, INVALID_MSG_SIZE, RECORD_LIST_TOO_LARGE")
# The last one: the end of an earlier transaction waits for topic partitions that have no leader.
_UNREACHABLE = listed(
    """
    _TRANSPORT, _TIMED_OUT, _MSG_TIMED_OUT, _ALL_BROKERS_DOWN, _RESOLVE, _TIMED_OUT_QUEUE, REQUEST_TIMED_OUT,
    COORDINATOR_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, NOT_COORDINATOR, NOT_LEADER_FOR_PARTITION,
    NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND, CONCURRENT_TRANSACTIONS
    """
)
_RIGHTS = {
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "WRITE and DESCRIBE on the transactional id {id}",
    "TOPIC_AUTHORIZATION_FAILED": "WRITE on the topics {topics}",
    "CLUSTER_AUTHORIZATION_FAILED": "IDEMPOTENT_WRITE on the cluster",
}


def unseen(sink: KafkaSink, *, may_be_committed: bool) -> str:
    """What readers see of the records since the last progress, after an error."""
    if sink.is_exact:
        return (
            "Whether the last transaction was committed is unknown, and the next run finds out"
            if may_be_committed
            else "Readers of committed records see nothing of the open transaction"
        )
    return "Records since the last progress may be in the topic, and the next run publishes them again"


def is_too_large(error: confluent_kafka.KafkaError) -> bool:
    return error.name() in _TOO_LARGE


class LaneFailures:
    """Creates the errors of one lane."""

    def __init__(
        self,
        connection: KafkaConnection,
        sink: KafkaSink,
        lane: int,
        broker_errors: BrokerErrors,
        unready: Callable[[], str] | None = None,
    ) -> None:
        self._connection, self._sink, self._unready = connection, sink, unready or str
        self._id = sink.transactional_id(lane)
        self._broker_errors = broker_errors
        self._record, self._size = "", -1

    def note(self, message: confluent_kafka.Message) -> None:
        """Takes a record that was not delivered, for the message: the largest of several."""
        size = len(message.key() or b"") + len(message.value() or b"")
        if size <= self._size:
            return
        self._size = size
        self._record = f"{message.topic()}-{message.partition()}, key {shown(message.key())}, {size} bytes"

    def error(self, error: confluent_kafka.KafkaError, what: str, age: float) -> KafkaFlipError:  # noqa: PLR0911
        name, limit = error.name(), self._sink.transaction_timeout.total_seconds()
        where = f"Kafka at {self._connection.bootstrap_servers}"
        if name in _FENCED:
            # The brokers fence a producer whose transaction they timed out, too.
            if age >= limit:
                return self._timed_out(age, what)
            return SinkFencedError(
                f"another run of the sink {self._sink.transactional_id_prefix} has taken over the transactional id "
                f"{self._id} ({name})",
                "The other run continues. If there is none, because both started at the same moment, or a request of a "
                "run that gave up came to the brokers late, run again. If that fails, too, find out who else uses this "
                "transactional_id_prefix",
            )
        if name in _RIGHTS:
            right = _RIGHTS[name].format(id=self._id, topics=self._topics())
            return ClusterAccessError(
                f"{where} refuses {self._connection.user} {what} ({name})", f"Grant {right}, then run again"
            )
        if name == "INVALID_TRANSACTION_TIMEOUT":
            return ConfigurationError(
                f"transaction_timeout is {limit:g} s, which is more than {where} allows (transaction.max.timeout.ms, "
                "15 minutes by default)",
                "Lower it, or raise the brokers' setting",
            )
        if name in _TOO_LARGE:
            return RowTooLargeError(
                "a broker refused records because they are larger than the topic allows. The largest of them is "
                f"{self._record or self._sink.topic}",
                "Raise max.message.bytes of the topic, or leave columns out of the value. If that record is smaller "
                "than the limit, lower batch.size in the properties of the KafkaSink. To leave such rows out, tolerate "
                f"RowTooLargeError and grant {self._connection.user} DESCRIBE_CONFIGS on the topic, so that the limit "
                "is known before a record is sent",
            )
        if name == "INVALID_TIMESTAMP":
            return RowMisplacedError(
                f"a broker refused the time of a record: {self._record or self._sink.topic}",
                "It takes only times that are not further from its clock than message.timestamp.before.max.ms and "
                "message.timestamp.after.max.ms of the topic. Correct the row or these settings, or leave timestamp "
                f"out. To leave such rows out, tolerate RowMisplacedError and grant {self._connection.user} "
                "DESCRIBE_CONFIGS on the topic, so that the limits are known before a record is sent",
            )
        if name in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"):
            return TopicNotFoundError(
                f"{what}: the topic or topic partition does not exist on {where} ({self._record or self._sink.topic})",
                "Create the topic, or correct its name",
            )
        if name == "_TIMED_OUT" and age >= limit and self._broker_errors.last is None:
            return self._timed_out(age, what)
        if name in _UNREACHABLE:
            return self.unreachable(what, error.str())
        return PublishFailedError(
            f"{where} failed {what} of the lane {self._id}: {name}: {error.str()}",
            "Run again. If it fails again, check the brokers' logs",
        )

    def unreachable(self, what: str, reason: str) -> ClusterUnreachableError:
        return ClusterUnreachableError(
            f"Kafka at {self._connection.bootstrap_servers} did not accept {what} of the lane {self._id} in time: "
            f"{self.reason(reason)}",
            "Check the brokers and the network, then run again",
        )

    def awaited(self, what: str) -> str:
        where = f"Kafka at {self._connection.bootstrap_servers}"
        return f"{where} has not accepted {what} of the lane {self._id} yet: {self.reason('no answer')}"

    def reason(self, otherwise: str) -> str:
        return self._unready() or self._broker_errors.reason(otherwise)

    def too_large(self, row: object, topic: str, size: int) -> RowTooLargeError:
        return RowTooLargeError(
            f"{row}: the record of {size} bytes for the topic {topic} is larger than message.max.bytes of the producer "
            "(1000000 by default)",
            'Set properties={"message.max.bytes": "..."} of the KafkaSink, and max.message.bytes of the topic, or '
            "leave columns out of the value",
        )

    def rejected(self, error: confluent_kafka.KafkaError) -> ConfigurationError:
        # The message must not show values.
        text = re.sub(r'value "[^"]*"', 'value "..."', error.str())
        return ConfigurationError(f"librdkafka rejects the settings of the sink's producer: {text}")

    def _topics(self) -> str:
        """All topics that the sink writes to: brokers do not say which one they refuse."""
        sink = self._sink
        found = [sink.topic]
        if sink.topic_column is not None:
            found.append(f"those that the column {sink.topic_column} names")
        if sink.dead_letter_topic is not None:
            found.append(sink.dead_letter_topic)
        return f"{', '.join(found)} and {sink.progress_name}"

    def _timed_out(self, age: float, what: str) -> KafkaFlipError:
        if self._unready():
            return self.unreachable(what, "timed out")
        limit = self._sink.transaction_timeout.total_seconds()
        # A commit that came before the timeout is carried out even if its answer is lost.
        aborted = "may have aborted it" if what == "commit_transaction" else "aborted it"
        return TransactionTimedOutError(
            f"the transaction of {self._id} was open for {age:.0f} s, and transaction_timeout is {limit:g} s, so the "
            f"brokers {aborted}",
            "If another run of the sink has taken over, leave it to that run; otherwise run again. Raise "
            "transaction_timeout, or lower max_records_per_batch or max_bytes_per_batch of the limits",
        )


def shown(key: bytes | str | None) -> str:
    """A record's key for messages, shortened."""
    if key is None:
        return "null"
    text = key if isinstance(key, str) else bytes(key).decode(errors="backslashreplace")
    return repr(text if len(text) <= 100 else f"{text[:100]}...")  # noqa: PLR2004
