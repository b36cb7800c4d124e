"""Many runs of one asset at once, in the queue of Dagster's daemon."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from dagster_kafka_flip.source.connection import KafkaConnection
from tests import landed
from tests.dev_server import Server, serving
from tests.kafka_topic import Kafka, committed_records
from tests.processes import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.nightly, pytest.mark.timeout(2400)]

_RUNS = 15
_SECONDS = 2000
_ENDED = """
query($id: ID!) { runOrError(runId: $id) { ... on Run {
  status
  stepStats { startTime endTime }
  assetMaterializations { metadataEntries { label ... on IntMetadataEntry { intRepr } } }
} } }
"""


def test_many_runs_of_one_asset_wait_for_each_other_and_land_each_record_once() -> None:
    with tempfile.TemporaryDirectory(prefix="queue-") as folder, serving(folder) as server:
        kafka = Kafka(server.broker)
        runs = [server.launch("flights_raw") for _ in range(_RUNS)]
        # Some of the runs find records that were not there when they were launched.
        for number in range(0, _RUNS, 5):
            wait_until(lambda least=number: len(_ended(server)) >= least, seconds=_SECONDS, every=2.0)
            kafka.produce("flights", [(f"late-{number}", str(record)) for record in range(10)])
        wait_until(lambda: len(_ended(server)) == _RUNS, seconds=_SECONDS, every=2.0)
        # What came after the last run had planned.
        last = server.launch("flights_raw")
        wait_until(lambda: len(_ended(server)) == _RUNS + 1, seconds=_SECONDS, every=2.0)

        ended = [_run(server, run) for run in [*runs, last]]
        assert [run["status"] for run in ended] == ["SUCCESS"] * (_RUNS + 1)
        steps = sorted((step["startTime"], step["endTime"]) for run in ended for step in run["stepStats"])
        assert len(steps) == _RUNS + 1
        assert all(end <= start for (_, end), (start, _) in pairwise(steps))
        connection = KafkaConnection(bootstrap_servers=server.broker)
        table = Path(folder, "warehouse", "flights_raw")
        assert table.is_dir(), sorted(Path(folder).iterdir())
        expected = [
            (record.topic_partition.partition, record.offset) for record in committed_records(connection, "flights")
        ]
        assert landed.rows(table, "kafka_partition", "kafka_offset") == expected
        assert sum(_rows_written(run) for run in ended) == len(expected)
        kafka.close()


def _ended(server: Server) -> list[dict[str, Any]]:
    return server.runs(pipelineName="__ASSET_JOB", statuses=["SUCCESS", "FAILURE", "CANCELED"])


def _run(server: Server, run: str) -> dict[str, Any]:
    return server.ask(_ENDED, id=run)["runOrError"]


def _rows_written(run: dict[str, Any]) -> int:
    if not run["assetMaterializations"]:
        return 0  # It found nothing new.
    (materialization,) = run["assetMaterializations"]
    (rows,) = (entry for entry in materialization["metadataEntries"] if entry["label"] == "delta/rows_written")
    return int(rows["intRepr"])
