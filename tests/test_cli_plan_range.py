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
    AssetSpec, BackfillPolicy, DailyPartitionsDefinition, Definitions, EnvVar, HourlyPartitionsDefinition,
    MultiPartitionsDefinition, StaticPartitionsDefinition, in_process_executor,
)
from dagster_kafka_flip import KafkaResource, KafkaSource, SparkResource, StringFormat, build_kafka_delta_asset

print("a project that prints while it is loaded")
topic, folder = {topic!r}, {folder!r}
days = DailyPartitionsDefinition("2013-03-01")
hours_of_lord_howe = HourlyPartitionsDefinition(
    "2023-09-30-00:00", end_date="2023-10-03-00:00", timezone="Australia/Lord_Howe"
)
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
        asset("half_hour", partitions_def=hours_of_lord_howe),
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
def test_holes_and_overlaps_of_partitions_are_reported(kafka, run, topic, tmp_path):
    kafka.create(topic)
    around_the_change = ("--from", "2023-09-30T13:30:00Z", "--to", "2023-09-30T17:00:00Z")
    hole = (
        "records with timestamps from 2023-09-30T15:30:00Z to 2023-09-30T16:00:00Z are in no partition: by definition "
        "2023-10-01-01:00 ends and 2023-10-01-02:30 begins at these times. To include them, use a time zone without "
        "clock changes, such as UTC, or longer partitions"
    )
    planned = run("lake/half_hour", *around_the_change).stdout
    assert hole in planned
    planned = json.loads(run("lake/half_hour", *around_the_change, "--json").stdout)
    assert [window["key"] for window in planned["windows"]] == [
        f"2023-10-01-{hour}" for hour in ("00:00", "01:00", "02:30")
    ]
    assert planned["notes"] == [hole, "the topics have no records in the range; rows of the table in it are removed"]

    def days(start, stop, code=0):
        return run("lake/skipped_day", "--from", start, "--to", stop, code=code)

    refused = days("2011-12-29T10:00:00Z", "2012-01-01T10:00:00Z", code=1).stderr
    assert refused == (
        "Error: the partitions 2011-12-30 [2011-12-30T10:00:00Z, 2011-12-31T10:00:00Z) and 2011-12-31 "
        "[2011-12-30T10:00:00Z, 2011-12-31T10:00:00Z) overlap by the asset's definition: a record with a timestamp in "
        "both would be written twice. Land the time before them with --to 2011-12-30T10:00:00Z, "
        "and the time after them with --from 2011-12-31T10:00:00Z. Materialize only one of the two, by its key: "
        "dagster asset materialize "
        f"--select lake/skipped_day --partition 2011-12-31 -f {tmp_path}/project_{topic.replace('-', '_')}.py\n"
    )
    assert re.search(r"^  2011-12-29 ", days("2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z").stdout, re.MULTILINE)
    assert re.search(r"^  2012-01-01 ", days("2011-12-31T10:00:00Z", "2012-01-01T10:00:00Z").stdout, re.MULTILINE)


@pytest.mark.kafka
def test_what_can_not_be_landed_is_refused(kafka, run, topic):
    produce(kafka, topic, range(0, 96, 6))

    def shown(*arguments, code=1, **options):
        finished = run(*arguments, code=code, **options)
        assert finished.stdout == ""
        return finished.stderr

    def between(start, stop):
        return ("--from", start, "--to", stop)

    no_offset = shown("lake/daily", *between("2013-03-01", "2013-03-02T00:00:00Z"), code=2)
    assert "the timestamp 2013-03-01T00:00:00 has no UTC offset; write one, such as 2013-03-01T00:00:00Z" in no_offset
    assert "write ISO 8601" in shown("lake/daily", *between("2013-03-01T00:00:00Z", "soon"), code=2)
    beyond = shown("lake/daily", *between("2013-03-01T00:00:00Z", "12013-03-01T00:00:00Z"), code=2)
    assert "write ISO 8601" in beyond
    early = shown("lake/daily", *between("0001-01-01T00:00:00+23:59", "2013-03-01T00:00:00Z"), code=2)
    assert "is before 1970" in early
    last_of_all = shown("lake/daily", *between("9999-12-31T00:00:00Z", "9999-12-31T23:59:59.999-23:59"))
    assert "contains no complete window of the asset's partitions; nearest: " in last_of_all
    assert "which is not after its start" in shown(
        "lake/daily", *between("2013-03-02T00:00:00Z", "2013-03-02T00:00:00Z"), code=2
    )
    none = shown("lake/daily", *between("2013-03-02T01:00:00Z", "2013-03-03T05:00:00Z"))
    assert "contains no complete window of the asset's partitions; nearest: 2013-03-02 [" in none
    assert "and 2013-03-03 [2013-03-03T00:00:00Z, 2013-03-04T00:00:00Z)" in none
    assert "nearest: 2013-03-01 [" in shown("lake/daily", *between("2012-03-01T00:00:00Z", "2012-05-01T00:00:00Z"))

    column = shown("lake/daily", *THREE_DAYS, "--time-column", "at", code=2)
    assert "--time-column is for a stream, but lake/daily has partitions" in column
    assert (
        "has no asset lake/dayly; assets of this package: lake/at_once, lake/by_two, lake/daily, lake/half_hour"
        in shown("lake/dayly", *THREE_DAYS)
    )
    assert "was not created by kafka_delta_asset" in shown("external", *THREE_DAYS)
    kafka.trim(topic, 0, 1)
    gone = shown("lake/daily", *THREE_DAYS)
    assert "records of the window 2013-03-01 [" in gone
    assert "may be gone: the log begins at offset 1, and the earliest remaining record has the timestamp" in gone
