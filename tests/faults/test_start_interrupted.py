"""An interrupt while Spark starts ends what was started so far."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import descendants, wait_until

pytestmark = [pytest.mark.spark]


def test_an_interrupt_while_the_jvm_starts_leaves_no_jvm_behind():
    run = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.starting_spark"],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert run.stdout is not None
        # The JVM is there, and takes seconds before it can be talked to.
        wait_until(
            lambda: (
                any(
                    "PythonGatewayServer" in each.command or "pyspark-shell" in each.command
                    for each in descendants(run.pid)
                )
                or run.poll() is not None
            ),
            seconds=120,
        )
        run.send_signal(signal.SIGTERM)
        assert run.stdout.readline() == "interrupted\n"
        # The process itself goes on: what ends with it shows nothing.
        wait_until(lambda: descendants(run.pid) == [], seconds=60)
        assert run.poll() is None
    finally:
        run.communicate()
    assert run.returncode == 0
