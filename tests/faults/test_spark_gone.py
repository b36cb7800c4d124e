"""A process outlives its Spark, such as under the in-process executor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark]


def test_asking_for_a_session_whose_jvm_has_ended_is_an_error():
    run = subprocess.run(
        [sys.executable, "-m", "tests.faults.gone_spark"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    reported = [line for line in run.stdout.splitlines() if line.startswith("the Spark session of this process")]
    assert len(reported) == 3, run.stdout + run.stderr
    assert run.stdout.endswith("ended\n")
    assert all("has ended: its JVM stopped" in line and "Run again: a new process" in line for line in reported)
