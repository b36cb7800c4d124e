"""The benchmarks run to their end and report everything; how fast anything is, is not asserted."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.processes import LIGHT_JVM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

pytestmark = [pytest.mark.kafka, pytest.mark.nightly, pytest.mark.timeout(2400)]

ROOT = Path(__file__).resolve().parent.parent
LOOPS = {"loop: watermarks", "loop: watermarks and timestamps"}
PLANS = {"first plan, at earliest", "nothing new", "timestamps", "committed offsets", "alignment"}


# One after the other in one process: each has a broker and a Spark session of its own, and all of them one JVM.
_RUN = """
import json, sys
from importlib import import_module

for name, options in json.loads(sys.argv[1]).items():
    print(f"@{name}", flush=True)
    import_module(f"benchmarks.{name}").main(options, standalone_mode=False)
"""
_SMALL = {
    "throughput": ("--records", "400", "--rounds", "1", "--warm-up", "0"),
    "tasks": ("--records", "400", "--thin-partitions", "8", "--rounds", "1", "--warm-up", "0"),
    "starts": ("--rounds", "1", "--warm-up", "1"),
    "growth": ("--up-to", "1", "--rounds", "1"),
    # Without the settings of a session, Parquet would buffer the large ones in a heap that is too small.
    "memory": ("--topic", "40", "100", "--topic", "200", str(5 << 20)),
    "merges": ("--rows", "800", "--share", "1", "--share", "100", "--rounds", "1", "--warm-up", "0"),
    "publishing": ("--rows", "200", "--rounds", "1", "--warm-up", "0"),
    # No two records of a topic partition are an hour apart: planning would take a closer look at such gaps.
    "backfills": ("--records", "1600", "--record-bytes", "100", "--days", "8", "--windows", "2", "--rounds", "1"),
}


def run(folder: Path, benchmarks: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, dict[str, Any]]]:
    """What each benchmark said, and what it wrote."""
    options = {name: [*options, "--json", str(folder / f"{name}.json")] for name, options in benchmarks.items()}
    finished = subprocess.run(
        [sys.executable, "-c", _RUN, json.dumps(options)],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": LIGHT_JVM},
        capture_output=True,
        text=True,
        check=False,
        timeout=2000,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    message = re.split(r"^@(\w+)$", finished.stdout, flags=re.MULTILINE)[1:]
    return {
        name: (output, json.loads((folder / f"{name}.json").read_text()))
        for name, output in zip(message[::2], message[1::2], strict=True)
    }


@pytest.fixture(scope="module")
def on_spark(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, dict[str, Any]]]:
    """The benchmarks that need Spark, with few records."""
    return run(tmp_path_factory.mktemp("benchmarks"), _SMALL)


def test_planning_sends_no_more_requests_for_more_topic_partitions(tmp_path: Path):
    few, many = 3, 40
    options = ("--partitions", str(few), "--partitions", str(many), "--rounds", "1")
    output, results = run(tmp_path, {"planning": options})["planning"]

    found = {(each["what"], each["partitions"]): each["requests"] for each in results["plans"]}
    assert found.keys() == {(what, count) for what in PLANS | LOOPS for count in (few, many)}
    assert all(what in output for what in PLANS | LOOPS)
    assert {each["partitions"] for each in results["sizes"]} == {few, many}
    for what in PLANS:
        # A new client may ask for the metadata once more while it connects.
        one, other = ({**found[what, count], "Metadata": 0} for count in (few, many))
        assert one == other
        assert found[what, many].get("Metadata", 0) <= 4
    for count in (few, many):
        # Two for a pair of watermarks, and then one for each of two timestamps.
        assert [found[what, count]["ListOffsets"] for what in sorted(LOOPS)] == [2 * count, 4 * count]


@pytest.mark.spark
def test_every_way_to_get_a_topic_into_delta_lands_all_of_it(on_spark: dict[str, Any]):
    output, results = on_spark["throughput"]

    floors = {"reading (and parsing) alone", "writing alone, from memory"}
    ways = {"ingest()", "AvailableNow", "AvailableNow, tuned", "plain batch, tuned", *floors}
    only_json = {'ingest(), on_error="null"', "a Python loop, start included", "ingest(), start included"}
    rows = {(each["form"], each["way"]): each["rows"] for each in results["landings"]}
    both = {("avro", way) for way in ways} | {("protobuf", "ingest()")}
    assert rows.keys() == {("raw", way) for way in ways} | {("json", way) for way in ways | only_json} | both
    assert all(way in output for way in ways | only_json)
    assert {count for (_, way), count in rows.items() if way != "reading (and parsing) alone"} == {400}
    assert {each["ratio"] for each in results["landings"] if each["way"] == "ingest()"} == {1.0}


@pytest.mark.spark
def test_both_ways_to_deal_out_tasks_land_everything(on_spark: dict[str, Any]):
    output, results = on_spark["tasks"]

    found = {(each["topic"], each["way"]): each for each in results["landings"]}
    ways = ("as it is", "one task each")
    assert found.keys() == {(topic, way) for topic in ("skewed", "thin") for way in ways}
    assert all(way in output for way in ways)
    assert {topic: each["rows"] for (topic, _), each in found.items()} == {"skewed": 400, "thin": 80}
    assert found["thin", "one task each"]["tasks"] == found["thin", "one task each"]["files"] == 8
    assert found["thin", "as it is"]["tasks"] == 2


@pytest.mark.spark
def test_one_run_of_many_windows_lands_what_a_run_for_each_lands(on_spark: dict[str, Any]):
    output, results = on_spark["backfills"]

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


@pytest.mark.spark
def test_every_way_to_publish_a_table_publishes_all_of_it(on_spark: dict[str, Any]):
    output, results = on_spark["publishing"]

    found = {each["way"]: each for each in results["publications"]}
    ways = ("publish()", "publish(), 4 lanes", 'publish(), "at_least_once"', "Spark's Kafka sink")
    assert tuple(found) == ways
    assert all(way in output for way in ways)
    assert {each["records"] for each in found.values()} == {200}
    assert found["publish()"]["ratio"] == 1.0


@pytest.mark.spark
def test_every_way_to_merge_changes_leaves_the_same_rows(on_spark: dict[str, Any]):
    output, results = on_spark["merges"]

    found = {(each["share"], each["way"]): each for each in results["merges"]}
    ways = ("ingest(), Upsert", "foreachBatch MERGE", "foreachBatch MERGE, deletion vectors")
    assert found.keys() == {(share, way) for share in (1, 100) for way in ways}
    assert all(way in output for way in ways)
    assert {share: each["changes"] for (share, _), each in found.items()} == {1: 8, 100: 800}
    assert {each["rows"] for each in found.values()} == {800}
    contents = {share: {each["contents"] for (of, _), each in found.items() if of == share} for share in (1, 100)}
    assert [len(hashes) for hashes in contents.values()] == [1, 1]
    assert contents[1] != contents[100]
