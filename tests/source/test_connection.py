"""KafkaConnection: the settings of both clients, and secrets that are never shown."""

from __future__ import annotations

from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from dagster import EnvVar, build_resources

from dagster_kafka_flip.assets.resources import KafkaClusterConfig, KafkaResource, SparkResource
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.hidden import without_parameters
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.connection import KafkaConnection

SECRET = "hunter2-secret"
KEY_SECRET = "key-secret-4711"


def _sasl(**changes):
    values: dict[str, Any] = {
        "bootstrap_servers": "a:1",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "flip",
        "sasl_password": SECRET,
    }
    return KafkaConnection(**{**values, **changes})


def test_a_plain_connection_gives_both_clients_the_same_address():
    connection = KafkaConnection(bootstrap_servers=" a:9092, b.example:9093 ", request_timeout=3)
    assert connection.bootstrap_servers == "a:9092,b.example:9093"
    assert connection.librdkafka_config() == {
        "bootstrap.servers": "a:9092,b.example:9093",
        "client.id": "dagster-kafka-flip",
        "security.protocol": "PLAINTEXT",
        "socket.timeout.ms": 3000,
    }
    assert connection.java_config() == {
        "bootstrap.servers": "a:9092,b.example:9093",
        "client.id": "dagster-kafka-flip",
        "security.protocol": "PLAINTEXT",
    }


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "org.apache.kafka.common.security.plain.PlainLoginModule"),
        ("SCRAM-SHA-256", "org.apache.kafka.common.security.scram.ScramLoginModule"),
        ("SCRAM-SHA-512", "org.apache.kafka.common.security.scram.ScramLoginModule"),
    ],
)
def test_sasl_credentials_are_translated_for_both_clients(mechanism, module):
    connection = _sasl(sasl_mechanism=mechanism, client_id="me")
    assert connection.librdkafka_config() == {
        "bootstrap.servers": "a:1",
        "client.id": "me",
        "security.protocol": "SASL_SSL",
        "socket.timeout.ms": 20000,
        "sasl.mechanism": mechanism,
        "sasl.username": "flip",
        "sasl.password": SECRET,
    }
    assert connection.java_config() == {
        "bootstrap.servers": "a:1",
        "client.id": "me",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} required username="flip" password="{SECRET}";',
    }


def test_quotes_and_backslashes_in_a_password_do_not_end_the_java_setting():
    connection = _sasl(sasl_username='a"b', sasl_password='x"; y\\')
    assert connection.java_config()["sasl.jaas.config"].endswith(r'username="a\"b" password="x\"; y\\";')
    assert connection.librdkafka_config()["sasl.password"] == 'x"; y\\'


_CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def _key(name: str) -> bytes:
    """A private key in a PEM file, by the way it is written."""
    key = rsa.generate_private_key(65537, 2048) if name == "PKCS#1" else ec.generate_private_key(ec.SECP256R1())
    if name == "Ed25519":
        key = ed25519.Ed25519PrivateKey.generate()
    form = serialization.PrivateFormat.PKCS8 if name not in {"PKCS#1", "SEC1"} else None
    encryption = serialization.NoEncryption()
    if name == "PBES2":
        encryption = serialization.BestAvailableEncryption(KEY_SECRET.encode())
    return key.private_bytes(
        serialization.Encoding.PEM, form or serialization.PrivateFormat.TraditionalOpenSSL, encryption
    )


def _mutual(tmp_path, key, **fields):
    (tmp_path / "ca").write_bytes("# Zertifizierungsstelle für Tests\n".encode("latin-1") + _CERTIFICATE.encode())
    (tmp_path / "certificate").write_text(f"subject=CN = ann\n{_CERTIFICATE}issuer=CN = ca\n{_CERTIFICATE}")
    (tmp_path / "key").write_bytes(key)
    return KafkaConnection(
        bootstrap_servers="a:1",
        security_protocol="SSL",
        ssl_ca_location=str(tmp_path / "ca"),
        ssl_certificate_location=str(tmp_path / "certificate"),
        ssl_key_location=str(tmp_path / "key"),
        **fields,
    )


@pytest.mark.parametrize("kind", ["PKCS#8", "PKCS#1", "SEC1", "PBES2"])
def test_certificates_and_keys_are_handed_to_spark_as_text_that_java_takes_and_to_librdkafka_as_files(tmp_path, kind):
    connection = _mutual(tmp_path, _key(kind), ssl_key_password=KEY_SECRET if kind == "PBES2" else None)
    java = {key: value for key, value in connection.java_config().items() if key.startswith("ssl.")}
    key = java.pop("ssl.keystore.key")
    assert java == {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": _CERTIFICATE,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": _CERTIFICATE * 2,
    }
    assert key.startswith("This is a secret.\n-----BEGIN PRIVATE KEY-----\n")
    assert serialization.load_pem_private_key(key.partition("\n")[2].encode(), None)
    librdkafka = connection.librdkafka_config()
    assert {key: value for key, value in librdkafka.items() if key.startswith("ssl.")} == {
        "ssl.ca.location": str(tmp_path / "ca"),
        "ssl.certificate.location": str(tmp_path / "certificate"),
        "ssl.key.location": str(tmp_path / "key"),
        **({"ssl.key.password": KEY_SECRET} if kind == "PBES2" else {}),
    }


def test_a_password_that_a_key_does_not_need_is_not_an_error(tmp_path):
    assert _mutual(tmp_path, _key("PKCS#8"), ssl_key_password=KEY_SECRET).java_config()["ssl.keystore.key"]


@pytest.mark.parametrize(
    ("kind", "password", "words"),
    [
        ("PBES2", None, r"the private key in \S+key is encrypted; set ssl_key_password$"),
        ("PBES2", "wrong", r"the private key in \S+key can't be decrypted; check ssl_key_password$"),
        ("Ed25519", None, r"\S+key has an Ed25519 key; Kafka's Java client supports RSA, EC and DSA keys only$"),
    ],
)
def test_a_key_that_java_could_not_use_is_refused_before_anything_runs(tmp_path, kind, password, words):
    with pytest.raises(ConfigurationError, match=f"^ssl_key_location: {words}"):
        KafkaCluster(_mutual(tmp_path, _key(kind), ssl_key_password=password))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", r"has no private key \(no line BEGIN ... PRIVATE KEY\)$"),
        (b"-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\n", "can't be read; it is damaged, or its "),
    ],
)
def test_a_file_without_a_usable_key_is_named(tmp_path, content, words):
    with pytest.raises(ConfigurationError, match=words):
        _mutual(tmp_path, content).java_config()


def test_a_file_without_certificates_is_named(tmp_path):
    def connection(name):
        return KafkaConnection(bootstrap_servers="a:1", security_protocol="SSL", ssl_ca_location=str(tmp_path / name))

    with pytest.raises(ConfigurationError) as error:
        connection("no").java_config()
    assert str(error.value) == f"ssl_ca_location: the file {tmp_path / 'no'} can't be read: No such file or directory"
    (tmp_path / "binary").write_bytes(b"\x80\x81")
    with pytest.raises(ConfigurationError, match=r"^ssl_ca_location: the file \S+binary has no certificate"):
        connection("binary").java_config()


_OAUTH: dict[str, Any] = {
    "bootstrap_servers": "a:1",
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "OAUTHBEARER",
    "properties": {
        "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
        "receive.buffer.bytes": "65536",
        "default.api.timeout.ms": "5000",
    },
    "librdkafka_properties": {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "flip",
        "sasl.oauthbearer.client.secret": SECRET,
    },
    "java_properties": {"sasl.jaas.config": f'Module required clientSecret="{SECRET}";', "receive.buffer.bytes": "1"},
}


def test_properties_reach_the_client_that_knows_them_under_its_names():
    connection = KafkaConnection(**_OAUTH)
    assert connection.librdkafka_config() == {
        "bootstrap.servers": "a:1",
        "client.id": "dagster-kafka-flip",
        "security.protocol": "SASL_SSL",
        "socket.timeout.ms": 20000,
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
        "socket.receive.buffer.bytes": "65536",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": "flip",
        "sasl.oauthbearer.client.secret": SECRET,
    }
    assert connection.java_config() == {
        "bootstrap.servers": "a:1",
        "client.id": "dagster-kafka-flip",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
        "receive.buffer.bytes": "1",
        "default.api.timeout.ms": "5000",
        "sasl.jaas.config": f'Module required clientSecret="{SECRET}";',
    }


@pytest.mark.parametrize("mechanism", ["GSSAPI", "OAUTHBEARER"])
def test_a_mechanism_without_a_password_is_configured_by_properties_alone(mechanism):
    connection = KafkaConnection(bootstrap_servers="a:1", security_protocol="SASL_SSL", sasl_mechanism=mechanism)
    assert connection.librdkafka_config()["sasl.mechanism"] == mechanism
    java = connection.java_config()
    assert java["sasl.mechanism"] == mechanism
    assert "sasl.jaas.config" not in java


def test_a_resource_makes_the_connection_of_its_fields():
    assert set(KafkaResource.model_fields) == {*KafkaConnection.model_fields, "clusters"}
    assert set(KafkaClusterConfig.model_fields) == set(KafkaConnection.model_fields)
    for name, field in KafkaConnection.model_fields.items():
        assert KafkaClusterConfig.model_fields[name].get_default(call_default_factory=True) == field.get_default(
            call_default_factory=True
        )
    other: dict[str, Any] = {"bootstrap_servers": "a:1", "read_timeout": 7, "request_timeout": 3, "client_id": "me"}
    for values in (_OAUTH, other):
        assert KafkaResource(**values).connection() == KafkaConnection(**values)


def test_a_resource_takes_the_value_of_a_property_from_the_environment(monkeypatch):
    monkeypatch.setenv("FLIP_TEST_SECRET", SECRET)
    own: dict[str, str] = {"sasl.oauthbearer.client.secret": EnvVar("FLIP_TEST_SECRET")}
    values: dict[str, Any] = {**_OAUTH, "librdkafka_properties": own}
    resource = KafkaResource(**values)
    assert SECRET not in repr(resource.librdkafka_properties)
    with build_resources({"kafka": resource}) as resources:
        assert resources.kafka.connection().librdkafka_config()["sasl.oauthbearer.client.secret"] == SECRET


@pytest.mark.parametrize("make", [_sasl, lambda: KafkaConnection(**_OAUTH)])
def test_secrets_are_in_no_text_of_a_connection(make):
    connection = make()
    for text in (repr(connection), str(connection), f"{connection}", str(connection.model_dump())):
        assert SECRET not in text
    assert SECRET not in connection.model_dump_json()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bootstrap_servers": "nowhere"}, "invalid bootstrap server 'nowhere': expected comma-separated host:port"),
        ({"security_protocol": "TLS"}, "security_protocol: must be 'PLAINTEXT', 'SSL', 'SASL_PLAINTEXT' or 'SASL_SSL'"),
        ({"sasl_mechanism": "DIGEST-MD5"}, "sasl_mechanism: must be 'PLAIN', 'SCRAM-SHA-256', 'SCRAM-SHA-512'"),
        ({"sasl_password": [SECRET]}, "sasl_password: expected a string"),
        ({"request_timeout": 0}, "request_timeout: must be greater than 0"),
        ({"read_timeout": 0}, "read_timeout: must be greater than 0"),
        ({"properties": {"retry.backoff.ms": 5}}, "properties.retry.backoff.ms: expected a string"),
        ({"java_properties": SECRET}, "java_properties: expected a mapping of names to values"),
        (
            {"properties": {"ssl.truststore.password": SECRET}},
            "the property ssl.truststore.password does not translate",
        ),
        ({"java_properties": {"ssl.key.password": SECRET}}, "the property ssl.key.password has its own field: use"),
        ({"librdkafka_properties": {"sasl.password": SECRET}}, "the property sasl.password has its own field: use"),
        ({"properties": {"group.id": SECRET}}, "the property group.id belongs to the source: use group_id"),
        ({"sasl_pasword": SECRET}, "sasl_pasword: unknown field; did you mean sasl_password or ssl_key_password?"),
        ({"ssl_ca": SECRET}, "ssl_ca: unknown field; did you mean ssl_ca_location?"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_without_showing_a_secret(changes, message):
    with pytest.raises(ConfigurationError) as error:
        _sasl(**changes)
    assert str(error.value).startswith(f"invalid KafkaConnection: {message}")
    assert error.value.__cause__ is None
    assert SECRET not in str(error.value)
    assert SECRET not in repr(error.value)


@pytest.mark.parametrize("address", ["", "a", "a:", ":9092", "a:b", "a:1,,b:2", "a:1;b:x"])
def test_an_address_is_host_and_port(address):
    with pytest.raises(ConfigurationError, match=r"expected comma-separated host:port"):
        KafkaConnection(bootstrap_servers=address)


_PLAIN_LOGIN = {"sasl_mechanism": "PLAIN", "sasl_username": "flip", "sasl_password": SECRET}


@pytest.mark.parametrize(
    ("protocol", "values", "message"),
    [
        ("SASL_SSL", {"sasl_mechanism": "PLAIN", "sasl_password": SECRET}, "needs sasl_mechanism, sasl_username and"),
        ("PLAINTEXT", {"sasl_password": SECRET}, "SASL credentials are given, but security_protocol PLAINTEXT does"),
        ("SASL_SSL", {}, "SASL_SSL needs sasl_mechanism, and for PLAIN and SCRAM a username and a"),
        ("SASL_SSL", {"sasl_mechanism": "GSSAPI", "sasl_username": "flip"}, "are for PLAIN and SCRAM, not for GSSAPI"),
        ("SSL", {"librdkafka_properties": {"sasl.oauthbearer.client.secret": SECRET}}, "but security_protocol SSL"),
        (
            "SASL_SSL",
            {**_PLAIN_LOGIN, "java_properties": {"sasl.jaas.config": SECRET}},
            "the property sasl.jaas.config contradicts sasl_password",
        ),
        (
            "SSL",
            {"ssl_ca_location": "/ca", "java_properties": {"ssl.truststore.password": SECRET}},
            "the property ssl.truststore.password contradicts ssl_ca_location",
        ),
        (
            "SSL",
            {
                "ssl_certificate_location": "/c",
                "ssl_key_location": "/k",
                "librdkafka_properties": {"ssl.key.pem": SECRET},
            },
            "the property ssl.key.pem contradicts ssl_certificate_location",
        ),
        ("SSL", {"ssl_key_location": "/k"}, "needs both ssl_certificate_location and ssl_key_location"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(protocol, values, message):
    with pytest.raises(ConfigurationError) as error:
        KafkaConnection(bootstrap_servers="a:1", security_protocol=protocol, **values)
    assert message in str(error.value)
    assert SECRET not in repr(error.value)


def test_values_of_a_resources_properties_are_never_shown():
    values: dict[str, Any] = {
        "bootstrap_servers": "k:9092",
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "OAUTHBEARER",
        "java_properties": {"sasl.jaas.config": SECRET},
    }
    kafka = KafkaResource(**values, clusters={"other": KafkaClusterConfig(**values)})
    for text in (repr(kafka), str(kafka)):
        assert SECRET not in text


def test_connect_tokens_and_spark_settings_are_never_shown():
    remote = f"sc://me:{SECRET}@spark:15002/;token={SECRET};use_ssl=true"
    spark = SparkResource(remote=remote, config={"spark.hadoop.fs.s3a.secret.key": SECRET})
    for text in (repr(spark), str(spark)):
        assert SECRET not in text
        assert "spark:15002/;token=" in text
        assert "spark.hadoop.fs.s3a.secret.key" in text
    with pytest.raises(ConfigurationError) as error:
        SparkResource(remote=remote, master="local").session()
    assert SECRET not in str(error.value)
    assert SECRET not in without_parameters(f"can't parse {remote}, nor 'token={SECRET}'", remote)
    without_token = remote.partition(";")[0]
    assert SECRET not in without_parameters(f"can't parse 'me:{SECRET}@spark:15002'", without_token)
