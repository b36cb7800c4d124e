"""The benchmarks run to their end and report everything; how fast anything is, is not asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import LIGHT_JVM

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent
LOOPS = {"loop: watermarks", "loop: watermarks and timestamps"}
PLANS = {"first plan, at earliest", "nothing new", "timestamps", "committed offsets", "alignment"}


def run(name: str, folder: Path, *options: str) -> tuple[str, dict[str, Any]]:
    results = folder / "results.json"
    finished = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *options, "--json", str(results)],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": LIGHT_JVM},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout, json.loads(results.read_text())


def test_planning_sends_no_more_requests_for_more_topic_partitions(tmp_path: Path):
    few, many = 3, 40
    output, results = run("planning", tmp_path, "--partitions", str(few), "--partitions", str(many), "--rounds", "1")

    found = {(each["what"], each["partitions"]): each["requests"] for each in results["plans"]}
    assert found.keys() == {(what, count) for what in PLANS | LOOPS for count in (few, many)}
    assert all(what in output for what in PLANS | LOOPS)
    assert {each["partitions"] for each in results["sizes"]} == {few, many}
    for what in PLANS:
        # A new client may ask for the metadata once more while it connects.
        one, other = ({**found[what, count], "Metadata": 0} for count in (few, many))
        assert one == other
        assert found[what, many]["Metadata"] <= 4
    for count in (few, many):
        # Two for a pair of watermarks, and then one for each of two timestamps.
        assert [found[what, count]["ListOffsets"] for what in sorted(LOOPS)] == [2 * count, 4 * count]


@pytest.mark.spark
def test_every_way_to_get_a_topic_into_delta_lands_all_of_it(tmp_path: Path):
    output, results = run("throughput", tmp_path, "--records", "400", "--rounds", "1", "--warm-up", "0")

    ways = {"ingest()", "AvailableNow", "AvailableNow, tuned", "plain batch, tuned", "reading (and parsing) alone"}
    only_json = {'ingest(), on_error="null"', "a Python loop, start included"}
    rows = {(each["form"], each["way"]): each["rows"] for each in results["landings"]}
    both = {("avro", way) for way in ways} | {("protobuf", "ingest()")}
    assert rows.keys() == {("raw", way) for way in ways} | {("json", way) for way in ways | only_json} | both
    assert all(way in output for way in ways | only_json)
    assert {count for (_, way), count in rows.items() if way != "reading (and parsing) alone"} == {400}
    assert {each["ratio"] for each in results["landings"] if each["way"] == "ingest()"} == {1.0}


@pytest.mark.spark
def test_both_ways_to_deal_out_tasks_land_everything(tmp_path: Path):
    options = ("--records", "400", "--thin-partitions", "8", "--rounds", "1", "--warm-up", "0")
    output, results = run("tasks", tmp_path, *options)

    found = {(each["topic"], each["way"]): each for each in results["landings"]}
    ways = ("as it is", "one task each")
    assert found.keys() == {(topic, way) for topic in ("skewed", "thin") for way in ways}
    assert all(way in output for way in ways)
    assert {topic: each["rows"] for (topic, _), each in found.items()} == {"skewed": 400, "thin": 80}
    assert found["thin", "one task each"]["tasks"] == found["thin", "one task each"]["files"] == 8
    assert found["thin", "as it is"]["tasks"] == 2


@pytest.mark.spark
def test_one_run_of_many_windows_lands_what_a_run_for_each_lands(tmp_path: Path):
    # No two records of a topic partition are an hour apart: planning would take a closer look at such gaps.
    sizes = ("--records", "1600", "--record-bytes", "100", "--days", "8", "--windows", "2")
    output, results = run("backfills", tmp_path, *sizes, "--rounds", "1")

    reads = {(each["days"], each["way"]): each for each in results["reads"]}
    ways = ("as it is", "fetches of 16 MiB", "a plain consumer")
    assert reads.keys() == {(days, way) for days in (1, 8) for way in ways}
    assert all(way in output for way in ways)
    for (days, _), read in reads.items():
        assert (read["records"], read["record_bytes"]) == (days * 200, days * 200 * 100)
        assert read["record_bytes"] < read["range_bytes"] <= read["planned_bytes"]
        assert read["fetched_bytes"] >= read["range_bytes"]

    backfills = {each["way"]: each for each in results["backfills"]}
    assert {way: each["commits"] for way, each in backfills.items()} == {
        "one run of all windows": 1,
        "a run for each window": 2,
    }
    assert all(way in output for way in backfills)
    assert {each["rows"] for each in backfills.values()} == {400}
    assert results["contents"] == [{"rows": [400, 400], "windows": [2, 2], "differing": 0}]
