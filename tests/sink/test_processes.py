"""Real processes that publish through Spark Connect, killed in mid-transaction, or stopped and resumed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.connect_server import ConnectServer
from tests.processes import LIGHT_SPARK, wait_until
from tests.sink.publishing import by_last_digit

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.nightly]


def test_a_killed_and_a_resumed_process_leave_each_record_once(published, broker, tmp_path):
    published.create()
    published.sql("INSERT INTO {t} SELECT id, concat('a', id) FROM range(9)")
    published.sql("UPDATE {t} SET v = concat('b', id)")
    published.sql("DELETE FROM {t} WHERE id = 3")
    with ConnectServer(tmp_path / "server", LIGHT_SPARK) as server:

        def start(name: str) -> tuple[subprocess.Popen[str], Path]:
            folder = tmp_path / name
            folder.mkdir()
            reported = [server.remote, broker, published.topic, published.table, str(folder)]
            command = [sys.executable, "-m", "tests.sink.publishing", *reported]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            wait_until(lambda: (folder / "there").exists() or process.poll() is not None, seconds=240)
            assert process.poll() is None, process.communicate()
            return process, folder

        killed, _ = start("killed")
        killed.kill()
        killed.communicate()

        stopped, folder = start("stopped")
        stopped.send_signal(signal.SIGSTOP)
        try:
            result = published.run(start=0, lanes=2, partitioner=by_last_digit)
        finally:
            (folder / "go").touch()
            stopped.send_signal(signal.SIGCONT)
        reported, _ = stopped.communicate(timeout=240)
    assert reported.startswith("SinkFencedError"), reported
    assert result.lag_versions == 0
    # Each dead process committed a batch before.
    assert result.records < 19 - 5
    assert published.texts() == {key: [f"a{key}", f"b{key}", *([None] if key == 3 else [])] for key in range(9)}
