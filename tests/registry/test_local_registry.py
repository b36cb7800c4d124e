"""The development registry: it starts, answers, and is gone."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition

from dagster_kafka_flip.broker.local_registry import APICURIO_ARCHIVE, LocalRegistry
from dagster_kafka_flip.errors import BrokerError, JarDownloadError, SchemaRegistryError
from dagster_kafka_flip.registry.schema_registry import SchemaRegistry
from tests.document_tests import ROOT, blocks
from tests.kafka_topic import QUIET
from tests.processes import wait_until
from tests.test_jars import DEAD_PROXY

if TYPE_CHECKING:
    from pathlib import Path


def _snippet(name: str) -> str:
    """A file of docs/formats.md."""
    page = ROOT / "docs" / "formats.md"
    (code,) = [block.code for block in blocks(page) if block.marker == f"a registry, {name}"]
    return code


@pytest.mark.slow
def test_it_starts_empty_and_ends_with_its_block(tmp_path: Path):
    with LocalRegistry(tmp_path) as local:
        url = local.url
        with LocalRegistry(tmp_path) as same:
            assert same.url == url
        with SchemaRegistry(url=url).schemas() as schemas, pytest.raises(SchemaRegistryError) as raised:
            schemas.by_id(1)
        assert raised.value.code == 40403
    with pytest.raises(BrokerError, match="start it first"):
        _ = local.url
    assert not local.stop()
    assert local.log_path.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_the_pages_registry_ends_with_its_process_even_if_that_is_killed(tmp_path: Path):
    # As the page has it, but on a port that is free for sure.
    code = _snippet("registry.py").replace("port=8081", "port=0")
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as user:
        assert user.stdout is not None
        output = user.stdout.readline()
        assert re.fullmatch(r"The registry is http://127\.0\.0\.1:\d+/apis/ccompat/v7\n", output)
        pid = json.loads((tmp_path / ".registry" / "registry.json").read_text(encoding="utf-8"))["pid"]
        assert psutil.pid_exists(pid)
        os.kill(user.pid, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(pid), seconds=30)


@pytest.mark.kafka
@pytest.mark.slow
def test_the_pages_producer_writes_a_schemas_id_before_each_record(kafka, broker, registry, topic, monkeypatch):
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", broker)
    url = "http://127.0.0.1:8081/apis/ccompat/v7"
    code = _snippet("produce_avro.py")
    assert url in code
    exec(compile(code.replace(url, registry.url).replace("orders_avro", topic), "produce_avro.py", "exec"), {})

    with registry.schemas() as schemas:
        schema = schemas.latest(f"{topic}-value")
    assert kafka.end_offset(topic) == 10
    consumer = Consumer({"bootstrap.servers": broker, "group.id": topic, **QUIET})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = [message.value() or b"" for message in consumer.consume(10, timeout=30)]
    consumer.close()
    assert [value[:5] for value in values] == 10 * [b"\0" + schema.schema_id.to_bytes(4, "big")]


def test_without_a_network_the_download_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", DEAD_PROXY)
    with pytest.raises(JarDownloadError, match=f"{APICURIO_ARCHIVE} could not be downloaded"):
        LocalRegistry(tmp_path / "data", cache_dir=tmp_path / "cache").start()
