"""The client of one cluster: it reaches a broker, asks again after transient answers, and explains failures."""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import re
import time
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import confluent_kafka
from confluent_kafka.admin import AdminClient

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.source.client_errors import Asked, RequestFailures, TransientError
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.telemetry.repeatedly import said_while_waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.telemetry.repeatedly import Log

C = TypeVar("C", bound="ClusterClient")
T = TypeVar("T")
P = ParamSpec("P")

_logger = logging.getLogger(__name__)

FIRST_ATTEMPT_SECONDS = 2.0
# Of those that librdkafka takes.
_SHORTEST_SECONDS = 0.001

_DEFAULTS = {
    # librdkafka logs every attempt; this client raises the error once.
    "log_level": 0,
    # Most requests go to the broker that the last metadata named as the controller. If it dies, the client waits for it
    # until it looks for the brokers again: by default after five minutes, and never sooner than after ten seconds.
    "topic.metadata.refresh.interval.ms": 2000,
}


def until_answered(ask: Callable[Concatenate[C, P], T]) -> Callable[Concatenate[C, P], T]:
    """Repeats a request after transient answers, for up to one request timeout."""

    @functools.wraps(ask)
    def asked(cluster: C, *args: P.args, **kwargs: P.kwargs) -> T:
        cluster.reach()
        return cluster.repeat(lambda: ask(cluster, *args, **kwargs))

    return asked


class ClusterClient:
    """Client for one cluster. Call `close` when done: it holds threads and connections."""

    def __init__(
        self, connection: KafkaConnection, properties: Mapping[str, str] | None = None, log: Log | None = None
    ) -> None:
        self._connection = connection
        self._log = log or _logger
        self.request_timeout = self._attempt_seconds = connection.request_timeout
        self._failures = RequestFailures(connection)
        self._config = _DEFAULTS | connection.librdkafka_config() | dict(properties or {})
        # No reference to this object: a cycle would keep the client alive.
        self._callbacks: dict[str, Any] = {"error_cb": self._failures.add}
        config: dict[str, Any] = self._config | self._callbacks
        # Reads the certificates and keys of Spark's reader now, to fail before anything runs.
        connection.java_config()
        self._open_client: AdminClient | None = None
        try:
            self._open_client = AdminClient(config, logger=logging.getLogger(f"{__name__}.librdkafka"))
        except confluent_kafka.KafkaException as error:
            # librdkafka's message may contain values, and these may be secrets.
            text = re.sub(r'value "[^"]*"', 'value "..."', error.args[0].str()).strip()
            raise ConfigurationError(
                f"librdkafka rejects the settings for Kafka at {connection.bootstrap_servers}: {text}",
                "Correct it; if it is meant for Spark's Kafka client alone, put it in java_properties",
            ) from None

    def close(self) -> None:
        """Closes the client's threads and connections. Safe to call twice."""
        # The client has no close method; it ends when the last reference is gone.
        self._open_client = None

    @property
    def _client(self) -> AdminClient:
        if self._open_client is None:
            msg = f"the client for Kafka at {self._connection.bootstrap_servers} is closed; create a new KafkaCluster"
            raise ConfigurationError(msg)
        return self._open_client

    def reach(self) -> None:
        """Waits for a broker's first answer; errors that a retry can't fix end the wait. Later calls return at once."""
        if not self._failures.has_answered:
            self._first_contact()

    def _first_contact(self) -> str | None:
        future = self._client.describe_cluster(request_timeout=self.request_timeout)
        with self._said("the cluster's id"):
            while not future.done():
                # A poll would wait for its whole time: the answer comes in another thread.
                concurrent.futures.wait([future], timeout=0.05)
                self._client.poll(0)
                self._failures.raise_if_permanent()
        try:
            cluster_id = self._result(future, Asked("the cluster's id")).cluster_id
        except TransientError as error:
            raise error.final from None
        self._failures.has_answered = True
        self.forget_connection_errors()
        return cluster_id

    def repeat(self, ask: Callable[[], T]) -> T:
        """Asks again for up to one request timeout: only another request goes to a dead leader's successor."""
        end, before = time.monotonic() + self.request_timeout, self._attempt_seconds
        number, last = 0, ""
        with self._said(lambda: last):
            while True:
                # Twice each length: for an answer that takes long, too.
                seconds = FIRST_ATTEMPT_SECONDS * 2 ** (number // 2)
                self._attempt_seconds = max(_SHORTEST_SECONDS, min(seconds, end - time.monotonic()))
                try:
                    answer = ask()
                except TransientError as error:
                    pause = min(2.0, 0.1 * 2**number)
                    if time.monotonic() + pause >= end:
                        raise error.final from None
                    number, last = number + 1, error.reason
                    self._log.info("%s; asking again in %.1f s", last, pause)
                    time.sleep(pause)
                else:
                    self.forget_connection_errors()
                    return answer
                finally:
                    self._attempt_seconds = before

    def _said(self, what: str | Callable[[], str]) -> AbstractContextManager[object]:
        where = f"Kafka at {self._connection.bootstrap_servers}"
        return said_while_waiting(self._log, lambda: f"{where}: {what if isinstance(what, str) else what()}")

    def forget_connection_errors(self) -> None:
        self._client.poll(0)
        self._failures.forget()

    def cluster_id(self) -> str | None:
        return self._ask_for_cluster_id() if self._failures.has_answered else self._first_contact()

    @until_answered
    def _ask_for_cluster_id(self) -> str | None:
        future = self._client.describe_cluster(request_timeout=self._attempt_seconds)
        return self._result(future, Asked("the cluster's id")).cluster_id

    @until_answered
    def broker_addresses(self) -> tuple[str, ...]:
        future = self._client.describe_cluster(request_timeout=self._attempt_seconds)
        nodes = self._result(future, Asked("the brokers' addresses")).nodes
        return tuple(sorted(f"{node.host}:{node.port}" for node in nodes))

    def _answered(self, futures: Mapping[Any, Future[Any]]) -> dict[TopicPartition, Any]:
        found = {
            TopicPartition(key.topic, key.partition): self._result(
                future, Asked(f"the offsets of {key.topic}-{key.partition}", topic=key.topic)
            )
            for key, future in futures.items()
        }
        for tp, info in found.items():
            if info.offset == confluent_kafka.OFFSET_INVALID:
                # librdkafka's result for a missing answer, without an error.
                self._client.poll(0)
                raise self._failures.unanswered(f"the offsets of {tp}", "timed out")
        return found

    def _result(self, future: Future[T], asked: Asked) -> T:
        try:
            return future.result()
        except confluent_kafka.KafkaException as error:
            raise self._error(error.args[0], asked) from None

    def _error(self, error: confluent_kafka.KafkaError, asked: Asked) -> Exception:
        # librdkafka passes its own diagnosis ("Connect to ... failed") to a callback, and only when polled.
        self._client.poll(0)
        return self._failures.error(error, asked)
