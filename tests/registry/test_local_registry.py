"""The development registry: it starts, answers, and is gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from dagster_kafka_flip.broker.local_registry import APICURIO_ARCHIVE, LocalRegistry
from dagster_kafka_flip.errors import BrokerError, ConfigurationError, JarDownloadError, SchemaRegistryError
from dagster_kafka_flip.registry.schema_registry import SchemaRegistry
from dagster_kafka_flip.runtime.server_folder import process_start
from tests.test_jars import DEAD_PROXY

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
def test_it_starts_empty_and_ends_with_its_block(tmp_path: Path):
    with LocalRegistry(tmp_path) as local:
        url = local.url
        with pytest.raises(BrokerError, match="already running"):
            LocalRegistry(tmp_path).start()
        with SchemaRegistry(url=url).schemas() as schemas, pytest.raises(SchemaRegistryError) as raised:
            schemas.by_id(1)
        assert raised.value.code == 40403
    with pytest.raises(BrokerError, match="start it first"):
        _ = local.url
    assert not local.stop()
    assert local.log_path.stat().st_mode & 0o077 == 0


_ABANDONED = """
import sys, time
from dagster_kafka_flip.broker.local_registry import APICURIO_ARCHIVE, LocalRegistry
registry = LocalRegistry(sys.argv[1])
registry.start()
print(registry._folder.running().process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_it_ends_with_a_process_that_is_killed(tmp_path: Path):
    with subprocess.Popen([sys.executable, "-c", _ABANDONED, str(tmp_path)], stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        pid = int(user.stdout.readline())
        os.kill(user.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while process_start(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert process_start(pid) is None


@pytest.mark.slow
def test_a_port_that_is_taken_is_named(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(BrokerError, match=f"Port {port} on 127.0.0.1 is in use"):
            LocalRegistry(tmp_path, port=port).start()


def test_without_a_network_the_download_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", DEAD_PROXY)
    with pytest.raises(JarDownloadError, match=f"{APICURIO_ARCHIVE} could not be downloaded"):
        LocalRegistry(tmp_path / "data", cache_dir=tmp_path / "cache").start()


def test_what_is_no_port_is_refused(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="65536"):
        LocalRegistry(tmp_path, port=65536)
    with pytest.raises(ConfigurationError, match="data_dir"):
        LocalRegistry(None)  # pyright: ignore[reportArgumentType]
