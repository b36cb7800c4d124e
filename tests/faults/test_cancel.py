"""Cancelling a run: the Spark job ends with it, and nothing of the batch is in the table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.kafka_source import KafkaSource
from tests import landed
from tests.processes import descendants, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


def test_a_cancelled_run_stops_its_spark_job_and_leaves_the_table_as_it_was(
    kafka, connection, spark, spark_of, topic, table, tmp_path
):
    kafka.create(topic)
    kafka.produce(topic, [(None, "x")] * 3)
    mark = tmp_path / "spark-has-a-record"
    run = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.cancelled_run", connection.bootstrap_servers, topic, table, str(mark)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        wait_until(lambda: mark.exists() or run.poll() is not None, seconds=120)
        assert mark.exists(), run.communicate()[0]
        started = descendants(run.pid)
        assert any("java" in process.command for process in started)
        begin = time.monotonic()
        # As a container is stopped. SIGINT, by which Dagster itself cancels a run, has the same handler there.
        run.send_signal(signal.SIGTERM)
        output, _ = run.communicate(timeout=120)
    finally:
        run.kill()
    assert time.monotonic() - begin < 60, "the write takes ten minutes, and was waited for"
    assert "interrupted; stopping the Spark jobs of the batch" in output
    assert "the write is still running" not in output, "Spark's job was not stopped, but ended with the process"
    assert "DagsterExecutionInterruptedError" in output, output
    assert "WriteFailedError" not in output
    wait_until(lambda: not any(process.is_alive() for process in started), seconds=30)
    assert landed.operations(table) == ["CREATE TABLE"]
    assert ingest(KafkaSource(topics=(topic,)), table, spark=spark_of, connection=connection).rows == 3
