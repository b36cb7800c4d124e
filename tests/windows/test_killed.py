"""A backfill that is killed: what it had committed stays, and a repeat makes it whole."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from dagster_kafka_flip.source.plan import Limits
from tests.windows.conftest import HOUR, START, hours

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

# Dies by its own hand after the first commit, in the middle of the second: its rows are being written then.
_SCRIPT = """
import os, signal, sys
from dagster_kafka_flip import DeltaTarget, KafkaConnection, KafkaSource, Limits, StringFormat, build_session
from dagster_kafka_flip.ingestion.rewrite_windows import rewrite_windows
from dagster_kafka_flip.table.windowed_table import WindowedTable
from tests.faults.ingesting import SPARK_CONFIG
from tests.windows.conftest import hours

servers, topic, table = sys.argv[1:]
spark = build_session(master="local[2]", config=SPARK_CONFIG)
rewrite, done = WindowedTable.rewrite, []

def deadly(self, rows, *args):
    if done:
        os.kill(os.getpid(), signal.SIGKILL)
    return rewrite(self, rows, *args)

WindowedTable.rewrite = deadly
for result in rewrite_windows(
    KafkaSource(topics=(topic,)), DeltaTarget(table=table, partition_by=("kafka_window",)), hours(0, 4),
    spark=lambda: spark, connection=KafkaConnection(bootstrap_servers=servers), value_format=StringFormat(),
    definition="hours", limits=Limits(max_records_per_batch=4),
):
    done.append(result)
"""


def test_a_backfill_that_is_killed_leaves_whole_windows_and_continues(kafka, broker, rewrite, rows, topic, table):
    kafka.create(topic)
    for minute in range(0, 240, 30):
        kafka.produce(topic, [(None, str(minute))], timestamp=START + minute * 60_000)
    killed = subprocess.run(
        [sys.executable, "-c", _SCRIPT, broker, topic, table], capture_output=True, text=True, timeout=600, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [key for key, *_ in rows()] == ["h000", "h000"]
    rewrite(hours(0, 4), limits=Limits(max_records_per_batch=4))
    found = rows()
    assert [(key, int(minute)) for key, _, _, minute in found] == sorted(
        (f"h{minute * 60_000 // HOUR:03}", minute) for minute in range(0, 240, 30)
    )
