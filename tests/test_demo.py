"""The demo, run as a user runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import LIGHT_JVM, descendants, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent
OK = "demo: OK 2000 records, 2000 rows, 0 lost, 0 doubled; 92 of 92 days as they are"
# What is in the log then.
SPARK_IS_STARTING = "incubator modules"
SPARK_IS_WORKING = "planned 4 splits"


def start(folder: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "examples.demo", "--records", "2000", "--work-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": LIGHT_JVM, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def wait_for(text: str, demo: subprocess.Popen[str], folder: Path) -> None:
    """Waits until something is in the demo's log."""
    log = folder / "demo.log"
    wait_until(lambda: demo.poll() is not None or (log.exists() and text in log.read_text()), seconds=300)
    assert demo.poll() is None, demo.communicate()[0]


def finish(demo: subprocess.Popen[str], *, code: int) -> str:
    output, _ = demo.communicate(timeout=400)
    assert demo.returncode == code, output
    return output


def test_the_tables_equal_the_topic_and_no_process_or_file_is_left(tmp_path: Path):
    folder = tmp_path / "demo"
    demo = start(folder)
    wait_for(SPARK_IS_WORKING, demo, folder)
    started = descendants(demo.pid)
    # The broker's and Spark's.
    assert len([process for process in started if "java" in process.command]) == 2
    output = finish(demo, code=0)

    lines = output.rstrip().splitlines()
    assert lines[-1] == OK, output
    assert lines[-2].startswith("The demo took ")
    rows = [line.split() for line in lines]
    read = [row[1:4] for row in rows if row[:1] == ["flights"]]
    assert read == [["1,000", "1,000", "0"], ["1,000", "2,000", "0"], ["0", "2,000", "0"], ["2,000", "2,000", "0"]]
    assert "Traceback" not in output
    assert "WARN" not in output
    assert [process for process in started if process.is_alive()] == []
    assert not folder.exists()


def test_without_java_the_demo_says_what_to_do(tmp_path: Path):
    output = finish(start(tmp_path / "demo", JAVA_HOME=str(tmp_path / "nowhere")), code=1)
    assert output.endswith("\ndemo: FAILED JavaNotFoundError\n")
    assert "set JAVA_HOME to an installed one" in output
    assert "Traceback" not in output
    assert str(tmp_path / "demo" / "demo.log") in output


def test_a_folder_that_no_demo_made_is_left_alone(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("years of work")
    output = finish(start(tmp_path), code=1)
    assert output.endswith("\ndemo: FAILED DemoError\n")
    assert "is not empty, and its content is not from a demo" in output.replace("\n", " ")
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_a_work_directory_that_cannot_be_made_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    output = finish(start(tmp_path / "file" / "demo"), code=1)
    assert output.endswith("\ndemo: FAILED DemoError\n")
    assert "can't be used as the work directory" in output


@pytest.mark.nightly
def test_an_interrupt_in_the_middle_of_spark_ends_everything(tmp_path: Path):
    folder = tmp_path / "demo"
    demo = start(folder)
    wait_for(SPARK_IS_STARTING, demo, folder)
    started = descendants(demo.pid)
    assert len([process for process in started if "java" in process.command]) == 2
    demo.send_signal(signal.SIGINT)
    assert finish(demo, code=1).endswith("\ndemo: FAILED interrupted\n")
    assert [process for process in started if process.is_alive()] == []
