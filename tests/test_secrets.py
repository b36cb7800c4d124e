"""No secret is seen in anything that a run writes, at any level of logging."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.ingestion.run_spec import start_spark
from dagster_kafka_flip.runtime.session import _start_jvm, build_session
from dagster_kafka_flip.runtime.session_settings import hide_from_logs, redaction_regex
from dagster_kafka_flip.settings.hidden import (
    HIDDEN,
    hidden_parameters,
    is_credential,
    marked_as_secret,
    without_parameters,
)

# Spark's default of spark.redaction.regex.
_DEFAULT_REGEX = r"(?i)secret|password|token|access[.]?key"


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.nightly
def test_a_run_at_debug_level_writes_no_secret(tmp_path: Path) -> None:
    from tests.kafka_topic import Kafka
    from tests.secured_broker import SecuredBroker

    folder, home = tmp_path / "written", tmp_path / "dagster-home"
    folder.mkdir()
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    with SecuredBroker(tmp_path) as broker:
        broker.add_user()
        kafka = Kafka(broker.bootstrap_servers)
        kafka.create("secured", partitions=1)
        kafka.produce("secured", [(None, "one"), (None, "two")])
        kafka.close()
        secrets = broker.secrets()
        connections = tmp_path / "connections.json"
        connections.write_text(json.dumps(broker.connections()))
        with (folder / "output.txt").open("wb") as output:
            finished = subprocess.run(
                [sys.executable, "-m", "tests.secrets_run", str(folder), str(connections)],
                env={**os.environ, "DAGSTER_HOME": str(home)},
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
    assert finished.returncode == 0, (folder / "output.txt").read_text(errors="replace")[-3000:]
    ends = json.loads((folder / "ends.json").read_text())
    assert ends == {"tls": True, "tls_encrypted": False, "plain": True, "scram": False, "wrong": False}
    files = [file for root in (folder, home) for file in root.rglob("*") if file.is_file()]
    texts = {file: file.read_bytes() for file in files}
    everything = b"".join(texts.values())
    # That there was something to find: both clients, at DEBUG, and each of the places.
    for seen in (
        b"AssignStrategy",
        b"py4j.clientserver",
        b"SparkListenerSQLExecutionStart",
        b"planDescription",
        b"the transform fails",
    ):
        assert seen in everything, seen
    found = [(name, str(file)) for file, text in texts.items() for name, one in secrets.items() if one.encode() in text]
    assert not found


def test_spark_redacts_what_kafkas_clients_call_credentials_and_what_its_user_asks_for() -> None:
    ours = re.compile(redaction_regex({}))
    for name in (
        "kafka.ssl.keystore.key",
        "kafka.sasl.jaas.config",
        "kafka.ssl.key.password",
        "kafka.sasl.oauthbearer.client.credentials.client.secret",
        "kafka.basic.auth.user.info",
        "spark.hadoop.fs.s3a.access.key",
        "spark.hadoop.fs.s3a.encryption.key",
        "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net",
        "spark.hadoop.fs.azure.sas.landing.lake.blob.core.windows.net",
        "spark.hadoop.fs.gs.auth.service.account.private.key",
    ):
        assert ours.search(name), name
        assert is_credential(name), name
    for name in ("kafka.bootstrap.servers", "spark.io.encryption.keySizeBits"):
        assert not ours.search(name), name
    theirs = re.compile(redaction_regex({"spark.redaction.regex": "(?i:my.own)"}))
    assert theirs.search("MY.OWN.setting")
    assert theirs.search("kafka.ssl.keystore.key")


def test_a_private_key_is_redacted_by_the_settings_that_every_spark_has() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIGHAgEA\n-----END PRIVATE KEY-----\n"
    assert not re.search(_DEFAULT_REGEX, key)
    assert re.search(_DEFAULT_REGEX, marked_as_secret(key))


def test_py4j_does_not_log_the_settings_of_a_kafka_client(caplog: pytest.LogCaptureFixture) -> None:
    hide_from_logs()
    hide_from_logs()
    logger = logging.getLogger("py4j.clientserver")
    with caplog.at_level(logging.DEBUG, logger="py4j.clientserver"):
        logger.debug("Command to send: %s", "c\no61\noption\nskafka.ssl.keystore.key\nsMIGHAgEA\ne\n")
        logger.debug("Command to send: %s", "c\no61\nload\ne\n")
    assert "MIGHAgEA" not in caplog.text
    assert "load" in caplog.text
    assert len(logger.filters) == 1


def test_the_client_of_a_connect_server_does_not_log_them_either(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.connect.client import core

    logger: logging.Logger = vars(core)["logger"]
    monkeypatch.setattr(logger, "disabled", False)
    monkeypatch.setattr(logger, "filters", [])
    hide_from_logs()
    with caplog.at_level(logging.DEBUG, logger=logger.name):
        logger.debug('Executing plan options { key: "kafka.sasl.jaas.config" value: "hidden" }')
        logger.debug("Received the schema.")
    assert "hidden" not in caplog.text + capsys.readouterr().err
    assert "Received the schema." in caplog.text


def test_a_session_of_the_users_own_does_not_log_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("py4j"), "filters", [])

    def session() -> None:
        assert logging.getLogger("py4j").filters
        raise StopIteration

    spec: Any = SimpleNamespace(log=logging.getLogger(), spark=session)
    with pytest.raises(StopIteration):
        start_spark(spec, cast("Any", None))


def test_a_jvm_is_started_without_settings_that_may_be_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark import SparkContext

    shown: dict[str, str] = {}
    monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda conf: shown.update(conf.getAll()))
    needed: dict[str, Any] = {
        "spark.driver.extraJavaOptions": "-Dtoken=1",
        "spark.jars": "/secrets/own.jar",
        "spark.ui.enabled": False,
    }
    hidden = {
        "spark.hadoop.javax.jdo.option.ConnectionURL": "jdbc:postgresql://meta/hive?password=x",
        "spark.hadoop.fs.s3a.secret.key": "x",
    }
    _start_jvm({**needed, **hidden})
    assert shown == {name: str(value) for name, value in needed.items()}


def test_only_what_may_be_secret_in_an_address_is_taken_out_of_a_text() -> None:
    address = "sc://host/;use_ssl=true;user_id=spark;token=abc;x-key=def"
    assert without_parameters("spark is true, abc def", address) == f"spark is true, {HIDDEN} {HIDDEN}"


def test_a_connect_address_is_shown_without_its_token() -> None:
    assert hidden_parameters("sc://host:15002/;use_ssl=true;token=abc").startswith("sc://host:15002/;")
    assert "abc" not in hidden_parameters("sc://host:15002/;use_ssl=true;token=abc")
    assert hidden_parameters("sc://host:15002") == "sc://host:15002"
    with pytest.raises(ConfigurationError) as refused:
        build_session(master="local[2]", remote="sc://host:15002/;token=abc")
    assert "abc" not in str(refused.value)
