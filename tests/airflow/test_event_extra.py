"""What a run finds in the events of earlier ones, in a real Airflow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dagster_kafka_flip.airflow.event_extra import is_reported
from dagster_kafka_flip.sink.progress import Origin, Progress
from tests.document_tests import ROOT

ASK = """
import json
from pathlib import Path

from airflow.sdk import DAG, Asset, task

from dagster_kafka_flip.airflow.event_extra import last_progress

PUBLISHED = Asset("published")

with DAG("ask", schedule=None):

    @task(outlets=[PUBLISHED])
    def ask():
        with Path("FOUND").open("a") as lines:
            print(json.dumps(last_progress(PUBLISHED, "orders-out")), file=lines)

    ask()
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_progress_is_found_behind_more_events_of_one_time_than_a_request_returns(tmp_path: Path):
    dags, found = tmp_path / "dags", tmp_path / "found"
    dags.mkdir()
    (dags / "ask.py").write_text(ASK.replace("FOUND", str(found)), encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    environment.pop("_AIRFLOW__AS_LIBRARY", None)
    command = [sys.executable, "-m", "tests.airflow.many_events", str(dags), "250"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    assert [json.loads(line) for line in found.read_text(encoding="utf-8").splitlines()] == [{}, {"0": [7, 0]}]


def test_a_progress_that_no_event_has_is_not_reported():
    def lanes(*reached: int) -> list[Progress]:
        return [
            Progress(lane, len(reached), "o", "u", "t", "i", Origin(3, snapshot=False), version, 0, "id", "s")
            for lane, version in enumerate(reached)
        ]

    assert is_reported(lanes(5, 5), {0: (5, 0), 1: (5, 0)})
    assert not is_reported(lanes(5, 6), {0: (5, 0), 1: (5, 0)})
    before = Origin(3, snapshot=False).before
    assert is_reported(lanes(before, before), {})
    assert not is_reported(lanes(before, before + 1), {})
