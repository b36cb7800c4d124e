"""A local Spark server is started, used, found again and stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dagster_kafka_flip.errors import ConfigurationError, SparkSessionError
from dagster_kafka_flip.runtime.spark_server import SparkServer
from tests.processes import Process, descendants, wait_until

COMMAND = [str(Path(sys.executable).with_name("dagster-kafka-flip")), "spark"]


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    finished = subprocess.run([*COMMAND, *arguments], check=False, capture_output=True, text=True, timeout=180)
    assert finished.returncode == code, finished.stderr
    assert "Traceback" not in finished.stderr
    return finished


@pytest.mark.nightly
@pytest.mark.slow
def test_a_server_starts_whatever_its_user_has_for_spark_and_a_kill_leaves_no_process(tmp_path, monkeypatch):
    missing = "/missing/python"
    configuration = tmp_path / "spark-defaults.conf"
    configuration.write_text(f"spark.pyspark.driver.python {missing}\nspark.pyspark.python {missing}\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", missing)
    # As pyspark sets them in a process that has used a server, and as its users may.
    for name, value in (
        ("SPARK_REMOTE", "sc://127.0.0.1:15002"),
        ("SPARK_LOCAL_REMOTE", "1"),
        ("SPARK_CONNECT_MODE_ENABLED", "1"),
        ("SPARK_CONNECT_MODE", "1"),
        ("SPARK_API_MODE", "connect"),
    ):
        monkeypatch.setenv(name, value)
    # A user's plugins stay, and one that is there already is not loaded twice: it could not have the port.
    server = SparkServer(tmp_path, config={"spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin"})
    pid = server.start().pid

    def waiting() -> list[Process]:
        return [process for process in descendants(pid) if process.command.startswith("cat")]

    # A moment after clients can connect.
    wait_until(lambda: bool(waiting()), seconds=30)
    started = waiting()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(process.is_alive() for process in started), seconds=30)
    assert server.status() is None


def test_a_folder_without_spark_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "none"))
    failed = run("start", "--port", "0", "--data-dir", str(tmp_path), code=1)
    assert failed.stderr.startswith(f"Error: There is no {tmp_path / 'none' / 'bin' / 'spark-submit'}")
    assert SparkServer(tmp_path).status() is None


def test_a_server_that_does_not_start_shows_its_log(tmp_path):
    failed = run("start", "--port", "0", "--conf", "spark.driver.memory=much", "--data-dir", str(tmp_path), code=1)
    assert failed.stderr.startswith(f"Error: The Spark server on {tmp_path} ended during its start.")
    assert "much" in failed.stderr
    assert SparkServer(tmp_path).status() is None


def test_a_server_that_does_not_answer_yet_is_waited_for(tmp_path):
    # As it is left by a process that was killed while its server started: the server runs, and listens on no port.
    with socket.socket() as silent, subprocess.Popen(["sleep", "600"], cwd=tmp_path) as starting:
        silent.bind(("127.0.0.1", 0))
        state = {
            "ports": {"port": silent.getsockname()[1]},
            "pid": starting.pid,
            "started_at": "2026-01-01T00:00:00+00:00",
        }
        (tmp_path / "spark-server.json").write_text(json.dumps(state))
        try:
            with pytest.raises(SparkSessionError, match=r"did not answer at sc://127\.0\.0\.1:\d+ within 0\.1 s"):
                SparkServer(tmp_path, timeout=0.1).start(daemon=True)
        finally:
            starting.kill()


def test_a_server_that_was_never_started_is_not_running(tmp_path):
    server = SparkServer(tmp_path / "none")
    assert server.status() is None
    assert not server.stop()
    assert not (tmp_path / "none").exists()
    with pytest.raises(ConfigurationError, match="Invalid port 70000"):
        SparkServer(tmp_path, port=70_000)
