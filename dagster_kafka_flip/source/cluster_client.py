"""The client of one cluster: it reaches a broker, asks again after transient answers, and explains failures."""

from __future__ import annotations

import concurrent.futures
import functools
import logging
import re
import time
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import confluent_kafka
from confluent_kafka.admin import AdminClient

from dagster_kafka_flip.errors import (
    ClusterAccessError,
    ClusterRequestError,
    ClusterUnreachableError,
    ConfigurationError,
    KafkaFlipError,
    TopicNotFoundError,
)
from dagster_kafka_flip.settings.names import listed
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.telemetry.repeatedly import said_while_waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.telemetry.repeatedly import Log

_logger = logging.getLogger(__name__)

# Seconds to retry the first connection after a refusal, because other brokers may answer, and after DNS failures or
# closed connections.
_REFUSED_SECONDS = 2.0
_NOBODY_SECONDS = 5.0
# librdkafka waits ten seconds for the answer to a connection's first request. A listener that closes is faster.
_MUTE_SECONDS = 9.0
UNANSWERED = "connections are accepted, but not answered"
"""The reason of a failure if brokers are down and librdkafka names no other."""

_REFUSALS = frozenset({"_AUTHENTICATION", "_SSL", "SASL_AUTHENTICATION_FAILED"})
# What librdkafka says of an answer that is not Kafka's.
_NOT_KAFKA = "Invalid response size"
# Prefix of librdkafka's messages about one broker.
_SAID_OF_A_BROKER = re.compile(r"(\w+://)?\S+:\d+/\w+: ")


class BrokerErrors:
    """Errors about brokers since the last answer of one."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._began = time.monotonic()
        self.last: str | None = None
        # Each broker's address and the time of its first error.
        self._errors: dict[tuple[str, str], tuple[float, str]] = {}

    def add(self, error: confluent_kafka.KafkaError) -> None:
        name, text = error.name(), error.str()
        _logger.debug("librdkafka: %s: %s", name, text)
        # "All brokers are down" only summarizes earlier, more specific errors.
        is_summary = name == "_ALL_BROKERS_DOWN"
        self._errors.setdefault((name, "" if is_summary else _address(text)), (time.monotonic(), text))
        self.last = self.last if is_summary else text

    def forget(self) -> None:
        """Clears earlier errors after an answer: they can't explain later failures."""
        self.last = None
        self._errors.clear()

    def reason(self, otherwise: str) -> str:
        if self.last is None and ("_ALL_BROKERS_DOWN", "") in self._errors:
            return UNANSWERED
        why = self.last or otherwise
        if _NOT_KAFKA in why:
            return _not_kafka(why)
        return re.sub(r"\bipv[46]#", "", _reason(why)) if _SAID_OF_A_BROKER.match(why) else why

    def raise_if_permanent(self) -> None:
        """Ends the wait for the first answer if a retry can't bring one."""
        now, addresses = time.monotonic(), len(self._connection.bootstrap_servers.split(","))
        told = [(since, self._permanent(name, text)) for (name, _), (since, text) in self._errors.items()]
        for kind, patience in ((ClusterAccessError, _REFUSED_SECONDS), (ClusterUnreachableError, _NOBODY_SECONDS)):
            met = [(since, error) for since, error in told if isinstance(error, kind)]
            is_all = kind is ClusterAccessError and len(met) >= addresses
            if met and (is_all or now - min(since for since, _ in met) > patience):
                raise met[-1][1]
        silent = self._errors.get(("_ALL_BROKERS_DOWN", ""))
        if silent is None or len(self._errors) > 1 or silent[0] - self._began > _MUTE_SECONDS:
            return
        if now - silent[0] > _NOBODY_SECONDS:
            raise ClusterUnreachableError(
                f"Kafka at {self._connection.bootstrap_servers} closes every connection without an answer",
                "Check whether the listener uses TLS or expects another security_protocol than "
                f"{self._connection.security_protocol}, or a proxy is in front of a broker that is down, then run "
                "again",
            )

    def _permanent(self, name: str, text: str) -> ClusterAccessError | ClusterUnreachableError | None:
        connection, reason = self._connection, _reason(text)
        where, protocol = f"Kafka at {connection.bootstrap_servers}", connection.security_protocol
        if _NOT_KAFKA in text:
            return ClusterUnreachableError(
                f"{where}: {_not_kafka(text)} with security_protocol {protocol}",
                "Check the port in bootstrap_servers, whether the listener uses TLS, and any proxy in front of the "
                "broker, then run again",
            )
        if name == "_RESOLVE":
            return ClusterUnreachableError(
                f"{where}: the host name can't be resolved: {reason}", "Check bootstrap_servers and DNS, then run again"
            )
        if name not in _REFUSALS and not (name == "_TRANSPORT" and "SSL" in reason):
            return None
        if "SSL" not in text and reason.endswith("supported mechanisms:"):
            plain = "SSL" if "SSL" in protocol else "PLAINTEXT"
            return ClusterAccessError(
                f"{where}: this listener does not use SASL, but security_protocol is {protocol}",
                f"Set security_protocol to {plain}, or use the port of a SASL listener",
            )
        if "SSL" not in text:
            user = connection.sasl_username
            return ClusterAccessError(
                f"{where} refuses the login{'' if user is None else f' of the user {user}'}: {reason}",
                "Correct sasl_mechanism, sasl_username or sasl_password, then run again",
            )
        authority = connection.ssl_ca_location or "the system's CAs, in place of which you can set ssl_ca_location"
        advice = (
            f"Check that the listener uses TLS (security_protocol is {protocol}), and that its certificate is valid "
            f"today, names this address, and is signed by a CA in {authority}; then run again"
        )
        if "alert" in text and connection.ssl_certificate_location is None:
            advice = "If the broker requires a client certificate, set ssl_certificate_location and ssl_key_location"
        return ClusterAccessError(f"{where}: the TLS connection to {_address(text)} failed: {reason}", advice)


def _not_kafka(text: str) -> str:
    """What answers, in place of librdkafka's own advice to allow larger answers."""
    return f"what answers at {_address(text)} does not speak the Kafka protocol"


def _address(text: str) -> str:
    """Host and port from "sasl_ssl://localhost:9093/bootstrap: SSL handshake failed: ..."."""
    return text.partition(": ")[0].partition("://")[2].partition("/")[0] or text.partition("/")[0]


def _reason(text: str) -> str:
    return re.sub(r"\s*\(after \d+ms in state \w+.*\)$", "", text.partition(": ")[2] or text)


# What the codes of Kafka and librdkafka mean for a request. After all others, the cluster has failed to return it.
_UNREACHABLE = listed("_RESOLVE, _AUTHENTICATION, _SSL")
# A retry may find another broker, or another leader. A connection that breaks during a request has the last two names.
_UNANSWERED = listed(
    "_TRANSPORT, _TIMED_OUT, _ALL_BROKERS_DOWN, _TIMED_OUT_QUEUE, REQUEST_TIMED_OUT, _NOENT, _DESTROY_BROKER"
)
_TRANSIENT = listed(
    """
    NOT_LEADER_FOR_PARTITION, LEADER_NOT_AVAILABLE, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, REPLICA_NOT_AVAILABLE,
    OFFSET_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR
    """
)

# Kafka's authorization errors and the resource type of each.
REFUSED_RIGHTS = {
    "TOPIC_AUTHORIZATION_FAILED": "topic",
    "GROUP_AUTHORIZATION_FAILED": "consumer group",
    "CLUSTER_AUTHORIZATION_FAILED": "cluster",
}


class TransientError(Exception):
    """A transient answer, for example while a topic partition has no leader."""

    def __init__(self, final: KafkaFlipError, reason: str) -> None:
        super().__init__(reason)
        self.final, self.reason = final, reason


class Asked(NamedTuple):
    """A request, in words, and the ACL operation that it needs on its topic or consumer group."""

    what: str
    operation: str = "DESCRIBE"
    topic: str | None = None
    group: str | None = None

    def right(self, kind: str) -> str:
        """The missing ACL for a resource type, for messages."""
        name = {"topic": self.topic, "consumer group": self.group}.get(kind)
        return f"{self.operation} on the {kind}{'' if name is None else f' {name}'}"


class RequestFailures(BrokerErrors):
    """Creates the errors of one cluster's requests."""

    has_answered = False

    def error(self, error: confluent_kafka.KafkaError, asked: Asked) -> Exception:
        """Creates the error about a request that failed: a TransientError if a retry may succeed."""
        name, what, where = error.name(), asked.what, f"Kafka at {self._connection.bootstrap_servers}"
        if (kind := REFUSED_RIGHTS.get(name)) is not None:
            # Without DESCRIBE, Kafka does not reveal whether the topic exists.
            or_else = ", or correct the topic's name" if kind == "topic" and asked.operation == "DESCRIBE" else ""
            return ClusterAccessError(
                f"{where} refuses {self._connection.user} {what}: {name}",
                f"Grant {asked.right(kind)}{or_else}, then run again",
            )
        if name == "UNKNOWN_TOPIC_OR_PART":
            return TopicNotFoundError(
                f"{what} does not exist on {self._connection.bootstrap_servers}, or this client may not describe it",
                "Check the name, create it, or remove it from the source",
            )
        if name in _UNREACHABLE:
            return self.unreachable(what, error.str())
        if name in _UNANSWERED:
            return self.unanswered(what, error.str())
        reason = f"{what}: {name}: {error.str()}"
        failed, advice = f"{where} failed to return {reason}", ""
        if name == "LEADER_NOT_AVAILABLE":
            failed += ". No broker leads the topic partition"
            advice = "Start the brokers that have its replicas, or wait until one of them is elected, then run again"
        refused = ClusterRequestError(failed, advice)
        return TransientError(refused, reason) if name in _TRANSIENT else refused

    def unanswered(self, what: str, reason: str) -> TransientError:
        """Creates the error about an answer that may come to another request; see `unreachable`."""
        return TransientError(self.unreachable(what, reason), f"{what}: {self.reason(reason)}")

    def unreachable(self, what: str, reason: str) -> ClusterUnreachableError:
        """Creates the error about an answer that did not come."""
        why = self.reason(reason)
        advice = "Check the address, the network and the credentials"
        if "Connection refused" in why:
            advice = "No process listens on this port: start the broker, or correct bootstrap_servers"
        elif why == UNANSWERED:
            advice = (
                "Check whether the listener expects another security_protocol than "
                f"{self._connection.security_protocol}, and whether the broker, or a proxy in front of it, hangs"
            )
        elif self.has_answered:
            advice = "A broker has answered before: start those that are down, or check whether all can be reached"
        return ClusterUnreachableError(
            f"Kafka at {self._connection.bootstrap_servers} did not return {what} within "
            f"{self._connection.request_timeout:g} s: {why}",
            advice,
        )


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
