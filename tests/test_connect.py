"""The same ingestion through Spark Connect, on a real server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from dagster_kafka_flip.session import fetch_jars

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

_ROOT = Path(__file__).parent.parent
_STARTED = re.compile(r"Spark Connect server started at: .*?:(\d+)\s*$")


@pytest.fixture
def server(tmp_path):
    """The address of a server that picks a free port itself and tells it in its log."""
    settings = {
        "spark.master": "local[2]",
        "spark.jars": ",".join(fetch_jars()),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
    }
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-submit"), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for key, value in settings.items():
        command += ["--conf", f"{key}={value}"]
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "spark-internal"],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
            env={**os.environ, "SPARK_HOME": str(home)},
        )
    try:
        yield f"sc://127.0.0.1:{_wait_for_port(process, log)}"
    finally:
        # spark-submit has become the server's JVM, so this is the server itself.
        process.terminate()
        process.wait(30)


def _wait_for_port(process: subprocess.Popen[bytes], log: Path) -> str:
    with log.open(encoding="utf-8", errors="replace") as lines:
        while True:
            line = lines.readline()
            found = _STARTED.search(line)
            if found:
                return found[1]
            if not line and process.poll() is not None:
                pytest.fail(f"the server ended with {process.returncode}:\n{log.read_text(errors='replace')[-4000:]}")
            if not line:
                try:
                    # Waits for more of the log, or for the end of the process.
                    process.wait(0.1)
                except subprocess.TimeoutExpired:
                    continue


def test_the_same_ingestion_runs_through_spark_connect(server, broker, topic, table):
    done = subprocess.run(
        [sys.executable, "-m", "tests.connect_run", server, broker, topic, table],
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    columns = [["id", "int"], ["name", "string"], ["kafka_partition", "int"], ["kafka_offset", "bigint"]]
    run = {"rows": 3, "records": 3, "is_idle": False, "table_rows": 3, "versions": [1], "columns": columns}
    print("SEEN", seen)
    assert seen["first"] == run
    assert seen["second"] == {**run, "rows": 2, "records": 2, "table_rows": 5, "versions": [2]}
    assert seen["idle"] == {"rows": 0, "records": 0, "is_idle": True, "table_rows": 5, "versions": [], "columns": []}
    assert seen["rejected"] == (
        f"2 records can't be decoded, nothing was written: {topic}-0 offset 3: not a JSON object; {topic}-0 offset 5: "
        "the required field id is missing or null. Correct the format or its schema, or set on_error='null' to keep "
        "such records with their bytes and the reason"
    )
    assert seen["version"] == 2
    assert seen["rows"] == [[0, "ü0", 0, 0], [1, "ü1", 0, 1], [2, "ü2", 0, 2], [9, None, 1, 0], [None, None, 1, 1]]
    assert seen["dead letters"] == [1, [3, "not a JSON object"], [5, "the required field id is missing or null"]]
    assert "connect" in seen["session"]
