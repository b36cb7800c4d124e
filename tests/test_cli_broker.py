from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dagster_kafka_flip.broker.local_broker import LocalBroker
from dagster_kafka_flip.cli.app import main

COMMAND = [str(Path(sys.executable).with_name("dagster-kafka-flip")), "broker"]


def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    finished = subprocess.run([*COMMAND, *arguments], check=False, capture_output=True, text=True, timeout=120)
    assert finished.returncode == code, finished.stderr
    assert "Traceback" not in finished.stderr
    return finished


@pytest.mark.kafka
def test_a_daemon_is_started_shown_and_stopped(tmp_path: Path):
    here = ["--data-dir", str(tmp_path)]
    shown = json.loads(run("start", "--daemon", "--port", "0", "--json", *here).stdout)
    try:
        assert shown["data_dir"] == str(tmp_path)
        assert run("status", *here).stdout.splitlines()[0].split() == ["bootstrap_servers", shown["bootstrap_servers"]]
        status = json.loads(run("status", "--json", *here).stdout)
        assert {**status, "uptime_seconds": 0} == {**shown, "uptime_seconds": 0}
        # Another start, even one in the foreground, finds it and has nothing to wait for.
        assert json.loads(run("start", "--port", "0", "--json", *here).stdout)["pid"] == shown["pid"]
        refused = run("start", "--port", "9", *here, code=1)
        assert refused.stderr.startswith(f"Error: A broker is already running on {tmp_path}, at")
    finally:
        assert run("stop", *here).stdout == f"Stopped the broker on {tmp_path}.\n"
    assert run("stop", *here).stdout == f"No broker was running on {tmp_path}.\n"
    assert run("status", *here, code=1).stdout == f"No broker is running on {tmp_path}.\n"


@pytest.mark.nightly
@pytest.mark.kafka
def test_a_signal_ends_the_foreground_and_the_broker(tmp_path: Path):
    command = [*COMMAND, "start", "--port", "0", "--json", "--data-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        shown = json.loads(process.stdout.readline())
        running = LocalBroker(tmp_path).status()
        assert running is not None
        assert running.pid == shown["pid"]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert errors.endswith("Stopped the broker.\n")
    assert not Path(f"/proc/{shown['pid']}").exists()


def test_an_error_is_one_message_and_no_traceback(tmp_path: Path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        refused = run("start", "--port", str(port), "--data-dir", str(tmp_path), code=1)
    assert refused.stdout == ""
    assert refused.stderr.startswith(f"Error: Port {port} on 127.0.0.1 is in use by another program")


def test_the_data_folder_can_come_from_the_environment(tmp_path: Path):
    finished = CliRunner().invoke(main, ["broker", "status"], env={"DAGSTER_KAFKA_FLIP_BROKER_DIR": str(tmp_path)})
    assert (finished.exit_code, finished.output) == (1, f"No broker is running on {tmp_path}.\n")


def test_help_and_version_load_nothing_heavy():
    script = (
        "import sys, dagster_kafka_flip; before = set(sys.modules)\n"
        "import dagster_kafka_flip.cli.app\n"
        "loaded = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(loaded & {'confluent_kafka', 'dagster', 'filelock', 'psutil', 'pyspark', 'rich', 'tenacity'}))"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n"
    version = subprocess.run([COMMAND[0], "--version"], capture_output=True, text=True, check=True).stdout
    assert version.startswith("dagster-kafka-flip, version ")
