"""`plan --from --to`: a range of time is planned, and the command that it names lands it again."""

from __future__ import annotations

import json
import re
import shlex

import pytest
from click.testing import CliRunner
from dagster import AssetKey, DagsterInstance
from dagster._cli.asset import asset_materialize_command

from dagster_kafka_flip.cli.app import main
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from tests.windows.conftest import DAY, HOUR, START

DEFINITIONS = """
from dagster import (
    AssetSpec, BackfillPolicy, DailyPartitionsDefinition, Definitions, EnvVar, MultiPartitionsDefinition,
    StaticPartitionsDefinition, in_process_executor,
)
from dagster_kafka_flip import KafkaResource, KafkaSource, SparkResource, StringFormat, build_kafka_delta_asset

print("a project that prints while it is loaded")
topic, folder = {topic!r}, {folder!r}
days = DailyPartitionsDefinition("2013-03-01")
days_of_apia = DailyPartitionsDefinition("2011-12-28", end_date="2012-01-03", timezone="Pacific/Apia")
by_letter = MultiPartitionsDefinition({{"day": days, "letter": StaticPartitionsDefinition(["a", "b"])}})

def asset(name, topics=(topic,), **options):
    return build_kafka_delta_asset(
        key=["lake", name],
        source=KafkaSource(topics=topics),
        table=folder + "/" + name,
        value_format=StringFormat(),
        **options,
    )

letters = {{"topics": (topic + "-a", topic + "-b"), "partitions_def": by_letter}}
letters["topics_of"] = {{"a": (topic + "-a",), "b": (topic + "-b",)}}
defs = Definitions(
    assets=[
        asset("daily", partitions_def=days),
        asset("stream"),
        asset("skipped_day", partitions_def=days_of_apia),
        asset("at_once", **letters),
        asset("by_two", **letters, backfill_policy=BackfillPolicy.multi_run(2)),
        AssetSpec("external"),
    ],
    resources={{
        "kafka": KafkaResource(bootstrap_servers=EnvVar("TEST_BROKER")),
        "spark": SparkResource(),
    }},
    # In this process and its Spark: a process for each step starts one of its own.
    executor=in_process_executor,
)
"""
DAYS = ["2013-03-01", "2013-03-02", "2013-03-03"]
THREE_DAYS = ("--from", "2013-03-01T00:00:00Z", "--to", "2013-03-04T00:00:00Z")


@pytest.fixture
def home(tmp_path):
    """The folder of a new instance."""
    path = tmp_path / "home"
    path.mkdir()
    return path


@pytest.fixture
def run(broker, home, topic, tmp_path):
    """Runs the command in a project with the test's topic."""
    definitions = tmp_path / f"project_{topic.replace('-', '_')}.py"
    definitions.write_text(DEFINITIONS.format(topic=topic, folder=str(tmp_path)))

    def invoke(*arguments: str, code: int = 0, **env: str | None):
        finished = CliRunner().invoke(
            main, ["plan", "--asset", *arguments, "-f", str(definitions)], env={"TEST_BROKER": broker, **env}
        )
        assert finished.exit_code == code, finished.output
        assert finished.exception is None or isinstance(finished.exception, SystemExit), finished.exc_info
        return finished

    return invoke


@pytest.fixture
def land(broker, home, monkeypatch):
    """Runs a command of Dagster as it is printed."""
    monkeypatch.setenv("TEST_BROKER", broker)
    monkeypatch.setenv("DAGSTER_HOME", str(home))

    def invoke(command: str):
        words = shlex.split(command)
        assert words[:3] == ["dagster", "asset", "materialize"]
        finished = CliRunner().invoke(asset_materialize_command, words[3:])
        assert finished.exit_code == 0, finished.output

    return invoke


@pytest.fixture
def rows(spark, tmp_path):
    """Some columns of the table of an asset, sorted."""

    def read(name, *columns):
        table = spark.read.format("delta").load(str(tmp_path / name))
        return sorted(tuple(row) for row in table.select(*columns).collect())

    return read


def produce(kafka, topic, hours):
    kafka.create(topic)
    for hour in hours:
        kafka.produce(topic, [(None, str(hour))], timestamp=START + hour * HOUR)


def recorded(home):
    """All runs of the instance, the first one first."""
    with DagsterInstance.from_config(str(home)) as instance:
        return list(reversed(instance.get_runs()))


@pytest.mark.kafka
@pytest.mark.spark
def test_days_are_planned_and_landed_in_one_run_by_the_command_of_the_plan(
    kafka, run, land, rows, home, topic, tmp_path
):
    produce(kafka, topic, range(0, 96, 6))
    # The records of three days, and those of the hour after, in which others may come late.
    plan = run("lake/daily", *THREE_DAYS).stdout
    assert re.search(rf"^  {topic} +0 +0 +13 +13 *$", plan, flags=re.MULTILINE)
    assert re.search(r"^records_at_most +13$", plan, flags=re.MULTILINE)
    assert re.search(r"^runs\n  partitions +\n  2013-03-01, 2013-03-02, 2013-03-03 *$", plan, re.MULTILINE)
    assert not (tmp_path / "daily").exists()
    assert recorded(home) == []

    within = ("--from", "2013-02-01T00:00:00Z", "--to", "2013-03-03T18:00:00+02:00")
    cut = run("lake/daily", *within, "--json")
    assert "only part of the window 2013-03-03 [2013-03-03T00:00:00Z, 2013-03-04T00:00:00Z); skipping it" in (
        cut.stderr
    )
    document = json.loads(cut.stdout)
    assert [window["key"] for window in document["windows"]] == DAYS[:2]
    assert [window["key"] for window in document["left_out"]] == DAYS[2:]
    assert document["runs"] == [{"partitions": DAYS[:2]}]
    assert document["splits"] == [{"topic": topic, "partition": 0, "start": 0, "stop": 9, "records_at_most": 9}]

    command = json.loads(run("lake/daily", *THREE_DAYS, "--json").stdout)["command"]
    assert " ".join(command.split()) in " ".join(plan.split())
    land(command)
    assert rows("daily", "kafka_window", "kafka_value") == sorted((DAYS[n // 24], str(n)) for n in range(0, 72, 6))
    (only,) = recorded(home)
    assert only.is_success
    with DagsterInstance.from_config(str(home)) as instance:
        assert instance.get_materialized_partitions(AssetKey(["lake", "daily"])) == set(DAYS)

    kafka.trim(topic, 0, 2)
    shown = run("lake/daily", *THREE_DAYS, code=1)
    assert "records of the window 2013-03-01 [2013-03-01T00:00:00Z, 2013-03-02T00:00:00Z) may be gone" in shown.stderr
    assert shown.stdout == ""


@pytest.mark.kafka
@pytest.mark.spark
def test_a_range_of_a_stream_is_replaced_and_its_position_stays(kafka, run, land, rows, spark, home, topic, tmp_path):
    produce(kafka, topic, range(0, 48, 6))
    (definitions,) = tmp_path.glob("project_*.py")
    first = f"dagster asset materialize --select lake/stream -f {definitions}"
    land(first)
    landed = rows("stream", "kafka_offset", "kafka_value")
    assert len(landed) == 8
    spark.sql(f"UPDATE delta.`{tmp_path}/stream` SET kafka_value = 'wrong' WHERE kafka_offset IN (1, 5)")
    kafka.produce(topic, [(None, "not landed yet")], timestamp=START + HOUR)

    day = ("--from", "2013-03-01T00:00:00Z", "--to", "2013-03-02T00:00:00Z")
    plan = run("lake/stream", *day).stdout
    assert "the run limits the offsets to the stream's position" in plan
    assert "\nwindows\n" not in plan
    document = json.loads(run("lake/stream", *day, "--json", "--time-column", "kafka_timestamp").stdout)
    config = {
        "start": f"timestamp:{START}",
        "stop": f"timestamp:{START + DAY}",
        "mode": "replace",
        "time_column": "kafka_timestamp",
    }
    assert (document["runs"], document["config"]) == ([{"partitions": []}], config)
    land(document["command"])
    _, replaced = recorded(home)
    assert replaced.run_config == {"ops": {"lake__stream": {"config": config}}}
    assert rows("stream", "kafka_offset", "kafka_value") == [
        (offset, "wrong" if offset == 5 else value) for offset, value in landed
    ]
    land(first)
    assert rows("stream", "kafka_offset", "kafka_value")[8:] == [(8, "not landed yet")], "it goes on where it stood"
    # Its milliseconds would look like seconds.
    early = run("lake/stream", "--from", "1970-01-16T00:00:00Z", "--to", "1970-01-18T00:00:00Z", "--json").stdout
    config = json.loads(early)["config"]
    start, stop = (OffsetsInitializer.parse(config[name]).timestamp_ms for name in ("start", "stop"))
    assert (start, stop) == (15 * DAY, 17 * DAY)


@pytest.mark.kafka
def test_runs_follow_the_backfill_policy_and_several_are_left_to_dagster(kafka, run, topic):
    for letter in "ab":
        produce(kafka, f"{topic}-{letter}", (1, 25))
    two_days = ("--from", "2013-03-01T00:00:00Z", "--to", "2013-03-03T00:00:00Z")
    at_once = json.loads(run("lake/at_once", *two_days, "--json").stdout)
    keys = [f"{day}|{letter}" for letter in "ab" for day in DAYS[:2]]
    assert (at_once["runs"], at_once["command"]) == ([{"partitions": keys}], None)

    by_two = json.loads(run("lake/by_two", *THREE_DAYS, "--json").stdout)
    assert len(by_two["runs"]) == 4
    assert by_two["runs"][0] == {"partitions": ["2013-03-01|a", "2013-03-02|a"]}
    assert by_two["notes"] == ["a backfill of these partitions in Dagster's UI lands them"]


@pytest.mark.kafka
def test_partitions_that_overlap_are_refused_with_ways_around_them(kafka, run, topic):
    kafka.create(topic)

    def days(start, stop, code=0):
        return run("lake/skipped_day", "--from", start, "--to", stop, code=code)

    refused = days("2011-12-29T10:00:00Z", "2012-01-01T10:00:00Z", code=1).stderr
    ways = (
        "Land the time before them with --to 2011-12-30T10:00:00Z, and the time after them with --from "
        "2011-12-31T10:00:00Z. Materialize only one of the two, by its key: dagster asset materialize "
        "--select lake/skipped_day --partition 2011-12-31 "
    )
    assert ways in refused
    assert re.search(r"^  2011-12-29 ", days("2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z").stdout, re.MULTILINE)
    assert re.search(r"^  2012-01-01 ", days("2011-12-31T10:00:00Z", "2012-01-01T10:00:00Z").stdout, re.MULTILINE)
