"""docs/getting-started.md, step by step, as a reader would: in a folder of its own, on the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from dagster import AssetKey, DagsterInstance, TableMetadataValue

from dagster_kafka_flip import LocalBroker
from tests.document_tests import ROOT, blocks, commands
from tests.processes import LIGHT_JVM

PAGE = ROOT / "docs" / "getting-started.md"
FILE = "getting started, "

# Done by the project's own installation, by the tests' broker, and by tests of the web server.
NOT_HERE = ("pip install", "dagster-kafka-flip broker", "export KAFKA_BOOTSTRAP_SERVERS", "dagster dev")


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.nightly
def test_the_steps_lead_to_rows_in_a_table(tmp_path):
    files = [block for block in blocks(PAGE) if block.language == "python"]
    assert [block.marker for block in files] == [f"{FILE}{name}.py" for name in ("produce", "definitions", "rows")]
    for block in files:
        (tmp_path / block.marker.removeprefix(FILE)).write_text(block.code, encoding="utf-8")
    steps = [line for line in commands(PAGE) if not line.startswith(NOT_HERE)]
    # The page's topic has a name that other tests may use as well.
    with LocalBroker(tmp_path / "kafka") as own:
        done = subprocess.run(
            ["bash", "-c", "\n".join(["set -eux", *steps])],
            cwd=tmp_path,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "KAFKA_BOOTSTRAP_SERVERS": own.bootstrap_servers,
                "PYSPARK_SUBMIT_ARGS": LIGHT_JVM,
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "99 rows" in done.stdout

    settings = str(tmp_path / ".dagster_home")
    with DagsterInstance.from_config(settings) as instance:
        events = instance.fetch_materializations(AssetKey("orders"), limit=10).records
        idle = instance.fetch_observations(AssetKey("orders"), limit=10).records
    (first,) = [event.asset_materialization.metadata for event in events if event.asset_materialization]
    (second,) = [event.asset_observation.metadata for event in idle if event.asset_observation]
    output = {key: first[key].value for key in ("kafka/records_read", "delta/rows_written", "kafka/lag_after")}
    assert output == {"kafka/records_read": 100, "delta/rows_written": 99, "kafka/lag_after": 0}
    assert first["dagster/row_count"].value == 99
    position = first["kafka/position"]
    assert isinstance(position, TableMetadataValue)
    assert len(position.records) == 2
    assert (second["kafka/idle"].value, second["spark/started"].value) == (True, False)
