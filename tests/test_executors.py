"""The same job under each kind of executor: the same rows once, and no Spark that is left."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from dagster import AssetKey, DagsterInstance

from tests import landed
from tests.processes import all_processes, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.nightly]

_ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("job", ["multiprocess", "fresh_process"])
def test_a_job_of_two_assets_lands_the_same_rows_once_under_any_executor(kafka, broker, spark, topic, tmp_path, job):
    kafka.create(topic)
    kafka.produce(topic, [(None, str(number)) for number in range(5)])
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "job", "execute", "-m", "tests.executor_project", "-j", job],
        cwd=_ROOT,
        env={
            **os.environ,
            "DAGSTER_HOME": str(home),
            "KAFKA_BOOTSTRAP_SERVERS": broker,
            "TEST_TOPIC": topic,
            "TEST_FOLDER": str(tmp_path),
            "TEST_APP_NAME": topic,
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    columns = ("kafka_offset", "CAST(kafka_value AS STRING)", "process", "application")
    rows = {name: landed.rows(tmp_path / name, *columns) for name in ("first", "second")}
    for found in rows.values():
        assert [row[:2] for row in found] == [(number, str(number)) for number in range(5)]
    everything = [row for found in rows.values() for row in found]
    # A process and a Spark for each table.
    assert len({process for _, _, process, _ in everything}) == 2
    assert len({application for *_, application in everything}) == 2
    with DagsterInstance.from_config(str(home)) as instance:
        for name in rows:
            event = instance.get_latest_materialization_event(AssetKey(name))
            assert event is not None
            assert event.asset_materialization is not None
            address = event.asset_materialization.metadata["spark/ui"].value
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+", str(address))
            assert f"Spark started: ui={address} parallelism=" in done.stderr
            # One line for what a step has done, which a machine can read too.
            committed = re.search(rf"committed version 1 of {tmp_path / name}: (.*)", done.stderr)
            assert committed
            found = dict(fact.split("=") for fact in committed[1].split())
            assert {"rows": "5", "records": "5", "lag": "0", "splits": "1"}.items() <= found.items()
    # Spark's JVM has the application's name in its command line.
    wait_until(lambda: not [each for each in all_processes() if topic in each.command], seconds=30)
