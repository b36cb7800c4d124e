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
NOT_HERE = ("pip install", "dagster-kafka-flip broker", "export KAFKA_BOOTSTRAP_SERVERS", "dg dev")


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.nightly
def test_the_steps_lead_to_rows_in_a_table(tmp_path):
    files = {block.marker.removeprefix(FILE): block.code for block in blocks(PAGE) if block.marker.startswith(FILE)}
    assert list(files) == ["produce.py", "defs.yaml"]
    project = tmp_path / "shop"
    # The page's topic has a name that other tests may use as well.
    with LocalBroker(tmp_path / "kafka") as own:
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{project / 'src'}",
            "KAFKA_BOOTSTRAP_SERVERS": own.bootstrap_servers,
            "PYSPARK_SUBMIT_ARGS": LIGHT_JVM,
        }
        written = f"cat > produce.py <<'END'\n{files['produce.py']}\nEND"
        steps = [line for line in commands(PAGE) if not line.startswith(NOT_HERE)]
        done = subprocess.run(
            ["bash", "-c", "\n".join(["set -eux", *steps]).replace("cd shop", f"cd shop\n{written}")],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "only showing top 5 rows" in done.stdout
    assert (project / "src" / "shop" / "defs" / "orders" / "defs.yaml").read_text(encoding="utf-8") == files[
        "defs.yaml"
    ]

    with DagsterInstance.from_config(str(project / ".dagster_home")) as instance:
        events = instance.fetch_materializations(AssetKey("orders"), limit=10).records
        idle = instance.fetch_observations(AssetKey("orders"), limit=10).records
    (first,) = [event.asset_materialization.metadata for event in events if event.asset_materialization]
    (second,) = [event.asset_observation.metadata for event in idle if event.asset_observation]
    output = {key: first[key].value for key in ("kafka/records_read", "delta/rows_written", "kafka/lag_after")}
    assert output == {"kafka/records_read": 100, "delta/rows_written": 100, "kafka/lag_after": 0}
    assert first["dagster/row_count"].value == 100
    position = first["kafka/position"]
    assert isinstance(position, TableMetadataValue)
    assert len(position.records) == 2
    assert (second["kafka/idle"].value, second["spark/started"].value) == (True, False)
