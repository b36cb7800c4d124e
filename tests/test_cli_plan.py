"""`dagster-kafka-flip plan`: what a run would read, as the next run then does read it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dagster_kafka_flip.cli.app import main
from dagster_kafka_flip.cli.asset import find_asset

COMMAND = str(Path(sys.executable).with_name("dagster-kafka-flip"))
MINUTE = 60_000
T0 = 1_700_000_000_000

DEFINITIONS = """
from dagster import AssetSpec, Definitions, EnvVar, asset
from dagster_kafka_flip import (
    DeltaTarget, KafkaResource, KafkaSource, Limits, SparkResource, build_kafka_delta_asset
)

print("a project that prints while it is loaded")

@asset
def other(): ...

landed = build_kafka_delta_asset(
    key=["lake", "landed"],
    source=KafkaSource.builder().set_topics({topic!r}).build(),
    table={table!r},
    limits=Limits(max_records_per_batch=2),
)
defs = Definitions(
    assets=[landed, other, AssetSpec("external")],
    resources={{"kafka": KafkaResource(bootstrap_servers=EnvVar("TEST_BROKER"){more}), "spark": SparkResource()}},
)
"""


def run(*arguments: str, code: int = 0, **env: str | None):
    finished = CliRunner().invoke(main, ["plan", *arguments], env={"KAFKA_BOOTSTRAP_SERVERS": None, **env})
    assert finished.exit_code == code, finished.output
    assert finished.exception is None or isinstance(finished.exception, SystemExit)
    return finished


def planned(*arguments: str, **env: str | None):
    finished = run(*arguments, "--json", code=0, **env)
    assert len(finished.stdout.splitlines()) == 1
    return json.loads(finished.stdout)


@pytest.fixture
def records(kafka, topic):
    """Five records on one topic partition, two on another, none on a third."""
    kafka.create(topic, partitions=3)
    for minute, value in enumerate(("a", "b", "c", "d", "e")):
        kafka.produce(topic, [("k", value)], partition=0, timestamp=T0 + minute * MINUTE)
    kafka.produce(topic, [("k", "x" * 99), (None, "y")], partition=1, timestamp=T0 + 10 * MINUTE)
    return topic


@pytest.fixture
def project(tmp_path, topic, table):
    """Writes a project's definitions, and gives their path."""

    def write(more: str = "") -> str:
        # A name of its own: Python keeps a module that it has once loaded.
        path = tmp_path / f"project_{topic.replace('-', '_')}.py"
        path.write_text(DEFINITIONS.format(topic=topic, table=table, more=more))
        return str(path)

    return write


@pytest.mark.kafka
def test_all_that_is_known_of_a_plan(broker, kafka, records):
    topic = records
    document = planned("--bootstrap-servers", broker, "--topic", topic, "--parallelism", "2")
    assert document["splits"] == [
        {"topic": topic, "partition": 0, "start": 0, "stop": 5, "records_at_most": 5, "lag_after": 0, "tasks": 1},
        {"topic": topic, "partition": 1, "start": 0, "stop": 2, "records_at_most": 2, "lag_after": 0, "tasks": 1},
    ]
    assert document["totals"] == {
        "topic_partitions": 3,
        "splits": 2,
        "records_at_most": 7,
        "lag_before": 7,
        "lag_after": 0,
        "tasks": 2,
        "batches": 1,
        "held_back": 0,
        "paused": 0,
    }
    assert document["cluster_id"]
    assert (document["source"], document["bootstrap_servers"], document["asset"]) == (topic, broker, None)
    assert document["position"] == "none; a new stream, which starts at earliest"
    assert (document["dagster_record"], document["start_overridden"]) == (None, False)

    text = run("--topic", topic, KAFKA_BOOTSTRAP_SERVERS=broker).stdout
    assert re.search(rf"^  {topic} +0 +0 +5 +5 +0 +1 *$", text, flags=re.MULTILINE)
    assert re.search(rf"^cluster_id +{document['cluster_id']}$", text, flags=re.MULTILINE)
    assert re.search(r"^  records_at_most +7$", text, flags=re.MULTILINE)
    assert re.search(r"^  lag_before +7\n  lag_after +0$", text, flags=re.MULTILINE)


@pytest.mark.kafka
def test_an_asset_without_a_record_in_dagster(broker, records, project, table, tmp_path):
    where = ("--asset", "lake/landed", "-f", project())
    document = planned(*where, TEST_BROKER=broker, DAGSTER_HOME=None)
    assert document["asset"] == "lake/landed"
    assert document["position"].startswith(f"none; there is no table at {table} yet, so it is a new stream")
    assert [batch["records_at_most"] for batch in document["batches"]] == [2, 2, 2, 1], "by the asset's own limit"

    home = tmp_path / "home"
    home.mkdir()
    text = run(*where, "--max-records-per-batch", "7", TEST_BROKER=broker, DAGSTER_HOME=str(home)).stdout
    assert f"none; there is no table at {table} yet, so it is a new stream" in " ".join(text.split())
    assert "--ask-table" not in text, "there is no position to look up"
    assert re.search(r"^  batches +1$", text, flags=re.MULTILINE)


@pytest.mark.kafka
@pytest.mark.spark
def test_an_asset_is_planned_from_dagsters_record(  # noqa: PLR0915 - one landing for all of it
    broker, kafka, spark, records, project, table, tmp_path, monkeypatch
):
    from dagster import AssetKey, AssetMaterialization, DagsterInstance, materialize

    from dagster_kafka_flip import KafkaResource, SparkResource

    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    path = project()
    namespace: dict[str, Any] = {"__name__": "project"}
    exec(Path(path).read_text(), namespace)
    with DagsterInstance.get() as instance:
        resources = {"kafka": KafkaResource(bootstrap_servers=broker), "spark": SparkResource()}
        done = materialize([namespace["landed"]], instance=instance, resources=resources)
        event = instance.get_latest_materialization_event(AssetKey(["lake", "landed"]))
    assert done.success
    assert event is not None

    where = ("--asset", "lake/landed", "-f", path)
    idle = run(*where, TEST_BROKER=broker).stdout
    assert re.search(r"^  topic_partitions +3\n  splits +0$", idle, flags=re.MULTILINE)
    assert "Dagster's record: the table's version 4" in idle
    assert f"by run {event.run_id}" in idle

    kafka.grow(records, 4)
    kafka.produce(records, [(None, "new")], partition=3)
    kafka.produce(records, [(None, "next")], partition=1)
    document = planned(*where, TEST_BROKER=broker)
    assert [(split["partition"], split["start"], split["stop"]) for split in document["splits"]] == [
        (1, 2, 3),
        (3, 0, 1),
    ]
    assert document["new"] == [f"{records}-3"]
    assert document["dagster_record"]["run_id"] == event.run_id

    overridden = planned(*where, "--start", "earliest", TEST_BROKER=broker)
    assert [(split["start"], split["stop"]) for split in overridden["splits"]] == [(0, 5), (0, 3), (0, 1)]
    assert overridden["start_overridden"] is True
    back = (*where, "--start", "earliest", "--stop", f"timestamp:{T0 + MINUTE}")
    assert "before the position 5 (also affects 1 more" in run(*back, code=1, TEST_BROKER=broker).stderr

    moved = Path(path.replace("project_", "moved_"))
    moved.write_text(
        Path(path)
        .read_text()
        .replace("table=", "table=DeltaTarget(stream='other', table=")
        .replace(",\n    limits", "),\n    limits")
    )
    unknown = run("--asset", "lake/landed", "-f", str(moved), code=1, TEST_BROKER=broker).stderr
    assert "is not known without the table: Dagster's record belongs to the stream 'main' of" in unknown
    assert "--ask-table" in unknown
    new = planned("--asset", "lake/landed", "-f", str(moved), "--ask-table", TEST_BROKER=broker)["position"]
    assert new == "none in the table; a new stream, which starts at earliest"

    def starts(*more, **env):
        document = planned(*where, *more, TEST_BROKER=broker, **env)
        return {split["partition"]: split["start"] for split in document["splits"]}

    with DagsterInstance.get() as instance:
        # As `mode: replace` leaves one: a materialization that tells no position.
        instance.report_runless_asset_event(AssetMaterialization(AssetKey(["lake", "landed"])))
    assert starts() == {1: 2, 3: 0}
    to = f'offsets:{{"{records}": {{"0": 3}}}}'
    set_position = ["position", "set", "--asset", "lake/landed", "-f", path, "--to", to, "--reason", "test", "--yes"]
    done = CliRunner().invoke(main, set_position, env={"TEST_BROKER": broker})
    assert done.exit_code == 0, done.output
    assert "set manually in the table's version 5" in run(*where, TEST_BROKER=broker).stdout
    assert starts() == starts("--ask-table") == starts("--ask-table", DAGSTER_HOME=None) == {0: 3, 1: 2, 3: 0}

    spark.sql(f"RESTORE delta.`{table}` TO VERSION AS OF 0")
    undone = planned(*where, "--ask-table", TEST_BROKER=broker)
    assert "a RESTORE undid the stream's commits, so it begins again where it began" in undone["position"]
    assert starts("--ask-table") == {0: 0, 1: 0, 3: 0}

    kafka.delete(records)
    kafka.create(records)
    assert "was deleted and recreated" in run(*where, code=1, TEST_BROKER=broker).stderr


def test_a_project_as_dg_finds_it_and_the_default_file(project, tmp_path, monkeypatch):
    path = Path(project())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.other]\n")
    path.rename(tmp_path / "definitions.py")
    found = find_asset("lake/landed")
    assert found.defined_in == found.located == ("-f", "definitions.py")

    root = f"root_{path.stem}"
    (tmp_path / root).mkdir()
    (tmp_path / "definitions.py").rename(tmp_path / root / "definitions.py")
    settings = f'[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "{root}"\n'
    (tmp_path / "pyproject.toml").write_text(settings)
    found = find_asset("lake/landed")
    assert (found.defined_in, found.located) == ((), ("-m", f"{root}.definitions"))
    wrong = run("--asset", "lake/lnded", code=1).stderr
    assert f"the module {root}.definitions has no asset lake/lnded; assets of this package: lake/landed" in wrong


@pytest.mark.kafka
def test_standard_output_has_only_the_answer(broker, records, project, tmp_path):
    env = {**os.environ, "TEST_BROKER": broker}
    env.pop("DAGSTER_HOME", None)
    command = [COMMAND, "plan", "--asset", "lake/landed", "-f", project(), "--json"]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=env, cwd=tmp_path)
    assert json.loads(finished.stdout)["totals"]["records_at_most"] == 7
    assert "a project that prints while it is loaded" in finished.stderr
    assert not (tmp_path / "spark-warehouse").exists()

    missing = subprocess.run(
        [COMMAND, "plan", "--bootstrap-servers", broker, "--topic", "not-there"],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr.startswith("Error: the topic not-there does not exist")
    assert "Traceback" not in missing.stderr


def test_another_thing_at_the_tables_path_is_reported_without_spark(project, table):
    def answer():
        env = {"TEST_BROKER": "127.0.0.1:1", "DAGSTER_HOME": None}
        return run("--asset", "lake/landed", "-f", project(", request_timeout=2"), code=1, **env).stderr

    place = Path(table)
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("not a folder")
    assert f"{table} is a file, but a Delta table is a folder" in answer()
    place.unlink()
    log = place / "_delta_log"
    log.mkdir(parents=True)
    (place / "part-0.parquet").touch()
    assert f"{table} is not empty and not a Delta table" in answer()
    # The first commits of a table expire. Spark finds out whether it is one.
    (log / f"{10:020}.checkpoint.parquet").touch()
    (log / f"{10:020}.json").touch()
    assert "is not known without the table" in answer()


SASL = ", request_timeout=2, security_protocol='SASL_PLAINTEXT', sasl_mechanism='PLAIN', sasl_username='u'"


@pytest.mark.parametrize(
    "more",
    [
        f"{SASL}, sasl_password='s3cret'",
        ", properties={'sasl.oauthbearer.client.credentials.client.secret': 's3cret'}",
        ", request_timeout={'s3cret': 1}",
    ],
    ids=["password", "property", "wrong"],
)
def test_a_dead_address_is_reported_and_a_password_never(project, more):
    finished = run("--asset", "lake/landed", "-f", project(more), code=1, TEST_BROKER="127.0.0.1:1", DAGSTER_HOME=None)
    assert finished.stdout == ""
    assert finished.stderr.startswith("a project that prints")
    assert "s3cret" not in finished.stderr
    if "request_timeout=2" in more:
        assert "Kafka at 127.0.0.1:1 did not return" in finished.stderr
