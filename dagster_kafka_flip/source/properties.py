"""Settings of both Kafka clients: which are refused, and how the Java consumer's translate for librdkafka.

Users set each setting once, by the Java consumer's name. Planning uses librdkafka, which has other names and ranges for
some settings and lacks others. What is neither refused nor translated is passed on: librdkafka refuses a name that it
does not know, Kafka logs it. Values may be secrets and never appear in messages.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from dagster_kafka_flip.settings.names import listed, meant_by

if TYPE_CHECKING:
    from collections.abc import Mapping


class Client(enum.Enum):
    """The client that a set of settings is for."""

    BOTH = "both clients"
    JAVA = "the Java consumer"
    LIBRDKAFKA = "librdkafka"


CLIENT_OF_FIELD = {
    "properties": Client.BOTH,
    "librdkafka_properties": Client.LIBRDKAFKA,
    "java_properties": Client.JAVA,
}
"""The fields with settings, in sources and connections, and the client of each."""


_LIBRDKAFKA_ALIASES: Mapping[str, str] = {
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
}

# The shared settings that planning uses: all that concern connections and requests. Excluded are
# - fetch settings, such as fetch.min.bytes: planning fetches no records, and librdkafka's narrower ranges
#   would only make it fail;
# - allow.auto.create.topics: planning must see that a topic does not exist;
# - settings with the same name and another meaning: sasl.kerberos.kinit.cmd (a path, a shell command),
#   sasl.kerberos.min.time.before.relogin (a thread's sleep, kinit's interval), ssl.cipher.suites (names of
#   the JDK, of OpenSSL), ssl.keystore.* (any type, PKCS#12);
# - metadata.recovery.*, which only matters to long-lived clients, and which librdkafka 2.6 does not support.
_SAME_TO_BOTH = listed(
    """
    client.dns.lookup, connections.max.idle.ms, enable.metrics.push, reconnect.backoff.max.ms, reconnect.backoff.ms,
    retry.backoff.max.ms, retry.backoff.ms, sasl.kerberos.service.name, sasl.oauthbearer.assertion.algorithm,
    sasl.oauthbearer.assertion.claim.aud, sasl.oauthbearer.assertion.claim.exp.seconds,
    sasl.oauthbearer.assertion.claim.iss, sasl.oauthbearer.assertion.claim.jti.include,
    sasl.oauthbearer.assertion.claim.nbf.seconds, sasl.oauthbearer.assertion.claim.sub,
    sasl.oauthbearer.assertion.file, sasl.oauthbearer.assertion.private.key.file,
    sasl.oauthbearer.assertion.private.key.passphrase, sasl.oauthbearer.scope, sasl.oauthbearer.sub.claim.name,
    sasl.oauthbearer.token.endpoint.url, socket.connection.setup.timeout.ms, ssl.endpoint.identification.algorithm
    """
)
_FETCHING = frozenset({"check.crcs", "fetch.max.bytes", "fetch.min.bytes", "max.partition.fetch.bytes"})
_TRANSLATIONS: Mapping[str, str] = {
    **{name: name for name in sorted(_SAME_TO_BOTH)},
    # librdkafka also has a metadata.max.age.ms: how long it trusts its metadata.
    "metadata.max.age.ms": "topic.metadata.refresh.interval.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "sasl.oauthbearer.assertion.template.file": "sasl.oauthbearer.assertion.jwt.template.file",
    **_LIBRDKAFKA_ALIASES,
}
# Values that librdkafka takes, but not for what they mean in Java: "no check", and "never older than this".
_OTHER_VALUES = {
    ("ssl.endpoint.identification.algorithm", ""): "none",
    # librdkafka would never refresh.
    ("metadata.max.age.ms", "0"): "1",
}
_JAVA_NAMES: Mapping[str, str] = {other: java for java, other in _TRANSLATIONS.items() if other != java}

_NEVER_COMMITTED = "offsets are stored in the table's commits, and the clients never commit them automatically"
_OWNED_PROPERTIES: Mapping[str, str] = {
    "auto.commit.enable": _NEVER_COMMITTED,
    "auto.commit.interval.ms": _NEVER_COMMITTED,
    "auto.offset.reset": "use starting_offsets; a position outside the log is an error, never a silent reset",
    "bootstrap.servers": "use the connection's bootstrap_servers",
    "client.id": "use the connection's client_id",
    "client.rack": "use client_rack",
    "enable.auto.commit": _NEVER_COMMITTED,
    "enable.auto.offset.store": _NEVER_COMMITTED,
    "group.id": "use group_id",
    "isolation.level": "use isolation_level, which planning also needs",
    "key.deserializer": "use key_format",
    "metadata.broker.list": "use the connection's bootstrap_servers",
    "value.deserializer": "use value_format",
}
_NEVER_JOINED = "has no effect, because the consumer group is never joined: remove it"
_NEVER_SHARED = "has no effect, because share groups are not used: remove it"
_REFUSED_PROPERTIES: Mapping[str, str] = {
    "exclude.internal.topics": "has no effect, because topic partitions are assigned explicitly: remove it",
    # Of Flink's source.
    "commit.offsets.on.checkpoint": "has no effect: use commit_offsets",
    "partition.discovery.interval.ms": "has no effect, because every plan looks for new topic partitions: remove it",
    "register.consumer.metrics": "has no effect: remove it",
    "group.instance.id": _NEVER_JOINED,
    "group.remote.assignor": _NEVER_JOINED,
    "heartbeat.interval.ms": _NEVER_JOINED,
    "interceptor.classes": "is rejected by Spark, because interceptors could change records: remove it",
    "max.poll.interval.ms": _NEVER_JOINED,
    "partition.assignment.strategy": _NEVER_JOINED,
    "session.timeout.ms": _NEVER_JOINED,
    "share.acknowledgement.mode": _NEVER_SHARED,
    "share.acquire.mode": _NEVER_SHARED,
    "socket.timeout.ms": "belongs to the connection: use its request_timeout",
}
_REQUEST_TIMEOUT = "request.timeout.ms"
_REQUEST_TIMEOUT_ADVICE = (
    "belongs to the connection: use its request_timeout for requests of planning, and java_properties for requests of "
    "Spark's reader"
)

# A source must not contain secrets, and both clients need the connection's settings.
_CONNECTION_PREFIXES = ("sasl.", "ssl.", "security.", "https.", "enable.sasl.", "enable.ssl.")
CONNECTION_FIELDS: Mapping[str, str] = {
    "bootstrap.servers": "bootstrap_servers",
    "client.id": "client_id",
    "metadata.broker.list": "bootstrap_servers",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.password": "sasl_password",
    "sasl.username": "sasl_username",
    "security.protocol": "security_protocol",
    "socket.timeout.ms": "request_timeout",
    "ssl.ca.location": "ssl_ca_location",
    "ssl.certificate.location": "ssl_certificate_location",
    "ssl.key.location": "ssl_key_location",
    "ssl.key.password": "ssl_key_password",
}
"""Settings that fields of a connection have, by the names of either client."""


def check_properties(properties: Mapping[str, object], client: Client, *, connection: bool = False) -> None:
    """Rejects settings with a field or no effect, or for one client if both need them. Values are not checked."""
    for key in properties:
        name = key.removeprefix("kafka.")
        if key != "".join(key.lower().split()):
            # Spark's options are case-insensitive: this one could replace another that is set here.
            raise ValueError(f"the property {key!r} has capital letters or spaces, which no setting of Kafka has")
        if connection and name in CONNECTION_FIELDS:
            raise ValueError(f"the property {key} has its own field: use {CONNECTION_FIELDS[name]}")
        if name in _OWNED_PROPERTIES:
            raise ValueError(f"the property {key} belongs to the source: {_OWNED_PROPERTIES[name]}")
        if name in _REFUSED_PROPERTIES:
            raise ValueError(f"the property {key} {_REFUSED_PROPERTIES[name]}")
        # The field only applies to planning, so the reader's timeout must be settable here.
        if name == _REQUEST_TIMEOUT and client is not Client.JAVA:
            raise ValueError(f"the property {key} {_REQUEST_TIMEOUT_ADVICE}")
        if not connection and name.startswith(_CONNECTION_PREFIXES):
            raise ValueError(
                f"the property {key} belongs to the connection: use the connection's fields, or its properties if "
                "there is no field"
            )
        if key != name:
            msg = f"write the property {key} without the prefix: {name}"
            raise ValueError(msg)
        _check_clients_name(name, client)


def java_properties(shared: Mapping[str, str], java_only: Mapping[str, str]) -> dict[str, str]:
    """Returns the Java consumer's settings: the shared ones and its own, which take precedence."""
    return {**shared, **java_only}


def librdkafka_properties(shared: Mapping[str, str], librdkafka_only: Mapping[str, str]) -> dict[str, str]:
    """Returns librdkafka's settings: the shared ones that it supports and its own, which take precedence."""
    # A value that librdkafka can't have is refused by it, before anything runs.
    translated = {
        _TRANSLATIONS[name]: _OTHER_VALUES.get((name, value.strip()), value)
        for name, value in shared.items()
        if name in _TRANSLATIONS
    }
    return translated | {_LIBRDKAFKA_ALIASES.get(name, name): value for name, value in librdkafka_only.items()}


def is_shared(name: str) -> bool:
    """Whether both clients have a setting by this name with the same meaning, or both may fetch by it."""
    return name in _SAME_TO_BOTH or name in _FETCHING


def _check_clients_name(name: str, client: Client) -> None:
    if client is Client.LIBRDKAFKA:
        if _TRANSLATIONS.get(name, name) != name and name not in _LIBRDKAFKA_ALIASES:
            msg = f"the property {name} is a Java consumer name: librdkafka's name is {_TRANSLATIONS[name]}"
            raise ValueError(msg)
    elif name in _JAVA_NAMES:
        msg = f"the property {name} is a librdkafka name: the Java consumer's name is {_JAVA_NAMES[name]}"
        raise ValueError(msg)
    # A login or trust store for only one client would go unnoticed.
    elif client is Client.BOTH and name.startswith(_CONNECTION_PREFIXES) and name not in _TRANSLATIONS:
        close = meant_by(name, _TRANSLATIONS, likeness=0.8)
        msg = (
            f"the property {name} does not translate for librdkafka"
            + (f" (did you mean {close[0]}?)" if close else "")
            + ": put it in java_properties, and librdkafka's own setting in librdkafka_properties"
        )
        raise ValueError(msg)
