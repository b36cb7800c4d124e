"""A process outlives its Spark, such as under the in-process executor."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.nightly]


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


_LANDS = """
import os, signal, sys
from dagster_kafka_flip import KafkaSource, build_session, ingest
from dagster_kafka_flip.errors import SparkSessionError
from tests.processes import descendants, wait_until

spark = build_session(master="local[1]", config={"spark.ui.enabled": "false"})

def dies(records):
    if not os.path.exists(sys.argv[3]):
        return records  # the table is made with its columns
    jvms = [each for each in descendants(os.getpid()) if "pyspark-shell" in each.command]
    for jvm in jvms:
        os.kill(jvm.pid, signal.SIGKILL)
    wait_until(lambda: not any(jvm.is_alive() for jvm in jvms), seconds=60)
    return records

source = KafkaSource.builder().set_bootstrap_servers(sys.argv[1]).set_topics(sys.argv[2]).build()
try:
    ingest(source, sys.argv[3], spark=lambda: spark, transform=dies)
except SparkSessionError as error:
    print(error)
"""


@pytest.mark.kafka
def test_a_jvm_that_ends_between_two_batches_is_an_error(kafka, broker, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [(None, "x")])
    run = subprocess.run(
        [sys.executable, "-c", _LANDS, broker, topic, table],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "has ended: its JVM stopped" in run.stdout, run.stdout + run.stderr
