"""`make dev`, run as a user runs it, on ports that are free."""

from __future__ import annotations

import fcntl
import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.processes import Process, descendants, wait_until

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Dev:
    process: subprocess.Popen[str]
    output: Path

    def match(self, pattern: str) -> str:
        found = re.search(pattern, self.output.read_text())
        assert found, self.output.read_text()
        return found[1]

    @property
    def ui(self) -> str:
        return self.match(r"Dagster +(http://\S+)")

    @property
    def broker(self) -> str:
        return self.match(r"Kafka +(127[0-9.]+:\d+)")

    def ask(self, query: str) -> Any:
        request = urllib.request.Request(
            f"{self.ui}/graphql", json.dumps({"query": query}).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["data"]


@contextmanager
def running(folder: Path, output: Path) -> Generator[Dev]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "examples.dev", "--port", str(port), "--data-dir", str(folder)]
    with (
        output.open("w") as file,
        subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, text=True) as process,
    ):
        try:
            wait_until(
                lambda: process.poll() is not None or "Ctrl-C stops everything" in output.read_text(), seconds=300
            )
            assert process.poll() is None, output.read_text()
            yield Dev(process, output)
        finally:
            # Only where a test has failed before.
            if process.poll() is None:
                process.terminate()


def is_open(address: str) -> bool:
    host, _, port = address.removeprefix("http://").partition(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0


def left(processes: list[Process]) -> list[Process]:
    return [process for process in processes if process.is_alive()]


@pytest.mark.nightly
def test_it_runs_until_it_is_interrupted_and_keeps_its_data(tmp_path: Path):
    folder = tmp_path / "dev"
    with running(folder, tmp_path / "first") as dev:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", dev.ui)
        answer = dev.ask("{ assetNodes { assetKey { path } } }")
        keys = {"/".join(node["assetKey"]["path"]) for node in answer["assetNodes"]}
        assert keys == {"kafka/flights", "flights_raw", "flights", "flights_daily"}
        assert dev.match(r"([0-9,]+) records in the topic") == "166,158"
        addresses = [dev.ui, dev.broker]
        assert all(is_open(address) for address in addresses)
        started = descendants(dev.process.pid)
        dev.process.send_signal(signal.SIGINT)
        assert dev.process.wait(120) == 0
    assert "Traceback" not in dev.output.read_text()
    assert left(started) == []
    assert not any(is_open(address) for address in addresses)

    # On the second start there is nothing to produce. And where one part ends by itself, everything is ended.
    with running(folder, tmp_path / "second") as dev:
        assert dev.match(r"([0-9,]+) records in the topic") == "166,158"
        started = descendants(dev.process.pid)
        daemon = next(process for process in started if "dagster-daemon" in process.command)
        subprocess.run(["kill", "-KILL", str(daemon.pid)], check=True)
        assert dev.process.wait(120) == 1
    log = folder / "logs" / "dagster-daemon.log"
    assert f"dagster-daemon ended with -9. The end of its log, {log}:" in dev.output.read_text()
    assert left(started) == []


@pytest.mark.nightly
def test_one_that_is_killed_leaves_no_process(tmp_path: Path):
    with running(tmp_path / "dev", tmp_path / "output") as dev:
        started = descendants(dev.process.pid)
        assert [process for process in started if "dagster-daemon" in process.command]
        dev.process.kill()
        assert dev.process.wait(60) == -signal.SIGKILL
        wait_until(lambda: not left(started), seconds=60)


def refused(folder: Path) -> str:
    """What a start that fails shows."""
    finished = subprocess.run(
        [sys.executable, "-m", "examples.dev", "--data-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert finished.returncode == 1
    return finished.stdout


def test_a_second_one_on_the_same_data_is_refused(tmp_path: Path):
    from dagster_kafka_flip import LocalBroker

    with LocalBroker(tmp_path / "kafka"):
        shown = refused(tmp_path)
    assert shown.startswith(f"a broker is already running in {tmp_path}, as process")


def test_a_daemon_that_an_earlier_one_left_behind_is_named(tmp_path: Path):
    log = tmp_path / "logs" / "dagster-daemon.log"
    log.parent.mkdir()
    with log.open("ab") as left_behind:
        fcntl.flock(left_behind, fcntl.LOCK_EX)
        shown = refused(tmp_path)
    assert shown.startswith(f"dagster-daemon of an earlier start still runs, and writes to {log}. Find it with")
    assert list(tmp_path.iterdir()) == [log.parent]


_MAKES_AN_ERROR_OF_AN_INTERRUPT = """
import os, signal
from examples import dev

def start(*_):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt as error:
        raise ValueError("reading failed") from error

dev._start = start
dev.main([])
"""


def test_an_interrupt_that_a_library_made_an_error_of_stops_everything():
    stopped = subprocess.run(
        [sys.executable, "-c", _MAKES_AN_ERROR_OF_AN_INTERRUPT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert stopped.stdout.endswith("Everything is stopped.\n")
