"""`dagster-kafka-flip position show`: where the streams of a real table stand, and against a real topic."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from dagster_kafka_flip import DeltaTarget, KafkaSource, ingest
from dagster_kafka_flip.cli.app import main
from dagster_kafka_flip.cli.position_report import report_position, streams_of
from dagster_kafka_flip.cli.streams import stream_to_json
from dagster_kafka_flip.source.split import TopicPartition
from tests.table.commits import append, create, document_of, foreign, own, restore

DEFINITIONS = """
from dagster import Definitions, EnvVar
from dagster_kafka_flip import DeltaTarget, KafkaResource, KafkaSource, SparkResource, build_kafka_delta_asset

landed = build_kafka_delta_asset(
    name="landed",
    source=KafkaSource.builder().set_topics({topic!r}).build(),
    table=DeltaTarget(table={table!r}, stream={stream!r}),
)
defs = Definitions(
    assets=[landed],
    resources={{
        "kafka": KafkaResource(
            bootstrap_servers=EnvVar("TEST_BROKER"), request_timeout=2, properties={{"fetch.min.bytes": "7"}}
        ),
        "spark": SparkResource(),
    }},
)
"""


def run(*arguments: str, code: int = 0, **env: str | None):
    finished = CliRunner().invoke(main, ["position", "show", *arguments], env=env)
    assert finished.exit_code == code, finished.output
    assert finished.exception is None or isinstance(finished.exception, SystemExit)
    return finished


def shown(*arguments: str, code: int = 0, **env: str | None):
    return json.loads(run(*arguments, "--json", code=code, **env).stdout)


@pytest.fixture
def land(kafka, connection, spark_of, topic, table):
    """Lands two records more of a topic of the stream's own."""

    def land(stream: str = "main", run_id: str = "a-run") -> str:
        name = f"{topic}-{stream}"
        if name not in kafka.admin.list_topics(timeout=20).topics:
            kafka.create(name, partitions=2)
        kafka.produce(name, [(None, "v"), (None, "w")])
        source = KafkaSource.builder().set_topics(name).build()
        ingest(source, DeltaTarget(table=table, stream=stream), spark=spark_of, connection=connection, run_id=run_id)
        return name

    return land


@pytest.mark.kafka
@pytest.mark.spark
def test_a_stream_with_its_anchor_its_commits_and_its_lag(kafka, broker, land, table):
    land(run_id="first")
    topic = land(run_id="second")
    kafka.produce(topic, [(None, "later")] * 3, partition=1)

    document = shown("--table", table)
    assert (document["table"], document["version"]) == (table, 2)
    (stream,) = document["streams"]
    assert (stream["stream"], stream["position"]) == ("main", {topic: [4, 0]})
    assert (stream["anchor"]["kind"], stream["anchor"]["version"]) == ("commit", 2)
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d\d\d\+00:00", stream["anchor"]["timestamp"])
    assert [
        (commit["version"], commit["rows"], commit["records_at_most"], commit["run_id"], commit["undone"])
        for commit in stream["commits"]
    ] == [(2, 2, 2, "second", False), (1, 2, 2, "first", False)]
    assert (stream["lag"], stream["lag_error"], stream["error"]) == (None, None, None)
    assert list(stream["topic_ids"]) == [topic]
    assert stream["cluster_id"]

    with_lag = shown("--table", table, "--bootstrap-servers", broker, "--commits", "1")["streams"][0]
    assert (with_lag["lag"], with_lag["lag_by_partition"]) == (3, {f"{topic}-0": 0, f"{topic}-1": 3})
    assert len(with_lag["commits"]) == 1

    text = run("--table", table, "--bootstrap-servers", broker, "--limit-rows", "1").stdout
    assert re.search(r"^  anchor\n    kind +commit\n    version +2\n    timestamp +20\d\d-", text, flags=re.MULTILINE)
    assert re.search(r"^  lag +3$", text, flags=re.MULTILINE)
    assert re.search(rf"^  lag_by_partition\n    {topic}-1 +3\n    {topic}-0 +0$", text, flags=re.MULTILINE)
    assert re.search(r"^    2 +20\S+ +2 +2 +second *\n    \.\.\. and 1 more$", text, flags=re.MULTILINE)


@pytest.mark.kafka
@pytest.mark.spark
def test_an_asset_names_table_stream_and_connection(kafka, broker, land, table, tmp_path):
    land("other")
    topic = land("mine")
    kafka.grow(topic, 3)
    kafka.produce(topic, [(None, "in a new partition")], partition=2)
    definitions = tmp_path / "an_assets_position.py"
    definitions.write_text(DEFINITIONS.format(topic=topic, table=table, stream="mine"))
    where = ("--asset", "landed", "-f", str(definitions))

    document = shown(*where, TEST_BROKER=broker)
    assert [stream["stream"] for stream in document["streams"]] == ["mine"]
    assert document["streams"][0]["lag"] == 1, "of the source, and not only of what the position knows"
    assert shown("--table", table, "--bootstrap-servers", broker)["streams"][0]["lag"] == 0
    assert shown(*where, "--stream", "other", TEST_BROKER=broker)["streams"][0]["lag"] == 0

    # A cluster that does not answer keeps nobody from seeing the position.
    dead = shown(*where, TEST_BROKER="127.0.0.1:1", code=1)["streams"][0]
    assert dead["position"] == {topic: [2, 0]}
    assert dead["lag_error"]["type"] == "ClusterUnreachableError"
    text = run(*where, TEST_BROKER="127.0.0.1:1", code=1).stdout
    assert re.search(
        r"^  lag_error\n    type +ClusterUnreachableError\n    message +Kafka at", text, flags=re.MULTILINE
    )


@pytest.mark.kafka
@pytest.mark.spark
def test_one_streams_error_does_not_hide_the_others(kafka, broker, spark, land, table):
    land("wiped")
    spark.sql(f"DELETE FROM delta.`{table}`")
    topic = land("well")
    gone = land("gone")
    kafka.delete(gone)

    document = shown("--table", table, code=1)
    gone_one, well, wiped = document["streams"]
    assert [one["stream"] for one in document["streams"]] == ["gone", "well", "wiped"]
    assert (wiped["position"], wiped["anchor"], wiped["error"]["type"]) == (None, None, "TableReplacedError")
    assert len(wiped["commits"]) == 1
    assert (well["position"], well["error"]) == ({topic: [2, 0]}, None)
    assert gone_one["position"] == {gone: [2, 0]}
    assert "was replaced or its rows were deleted" in run("--table", table, code=1).stdout
    assert "well" in shown("--table", table, "--stream", "well")["streams"][0]["stream"]
    lags = {
        one["stream"]: (one["lag"], one["lag_error"])
        for one in shown("--table", table, "--bootstrap-servers", broker, code=1)["streams"]
    }
    assert (lags["well"], lags["wiped"]) == ((0, None), (None, None))
    assert lags["gone"][1]["type"] == "TopicNotFoundError"
    assert "none of the stream's topics is on" in lags["gone"][1]["message"]


@pytest.mark.spark
def test_a_table_that_no_stream_has_written_to(spark, table):
    spark.sql(f"CREATE TABLE delta.`{table}` (n INT) USING delta")
    assert shown("--table", table) == {"table": table, "version": 0, "streams": []}
    fresh = shown("--table", table, "--stream", "main")["streams"][0]
    assert (fresh["position"], fresh["anchor"]["kind"], fresh["commits"]) == (None, "creation", [])
    assert "begins_at  the source's starting_offsets" in run("--table", table, "--stream", "main").stdout

    spark.sql(f"INSERT INTO delta.`{table}` VALUES (1)")
    assert shown("--table", table)["streams"] == []
    foreign_rows = shown("--table", table, "--stream", "main", code=1)["streams"][0]
    assert foreign_rows["error"]["type"] == "ForeignRowsError"


@pytest.mark.spark
def test_a_missing_table_is_reported(spark, table, tmp_path):
    for missing in (table, "lake.not_there"):
        finished = run("--table", missing, code=1)
        assert f"Error: there is no Delta table {missing}; check the path or the name" in finished.stderr
        assert finished.stdout == ""
    (tmp_path / "file.txt").write_text("text")
    assert "is not empty and not a Delta table" in run("--table", str(tmp_path), code=1).stderr
    elsewhere = run("--table", "nosuchfs://host/x", code=1).stderr
    assert 'No FileSystem for scheme "nosuchfs". Correct the scheme, or add' in elsewhere
    assert not Path(table).exists()


def test_a_report_is_made_of_history_alone():
    history = (append(5), own(4, stream="b"), restore(3, 1), own(2), own(1), create())
    assert streams_of(history) == ("b", "main")
    main_one = report_position(history, "main", "t", 1)
    assert main_one.anchor is not None
    assert (main_one.anchor.version, main_one.anchor_kind) == (3, "restore")
    assert main_one.anchor.state is not None
    assert main_one.anchor.state.position == {TopicPartition("t", 0): 10}
    assert [(entry.commit.version, entry.is_undone) for entry in main_one.commits] == [(2, True)]
    assert report_position(history, "b", "t", 10**30).anchor_kind == "commit"
    document = stream_to_json(main_one, {TopicPartition("t", 0): 0, TopicPartition("t", 1): 2})
    assert (document["position"], document["anchor"]["kind"], document["lag"]) == ({"t": [10]}, "restore", 2)
    assert list(document["lag_by_partition"].items()) == [("t-1", 2), ("t-0", 0)], "the largest first"
    replaced = (foreign(1, "TRUNCATE"), create())
    assert report_position(replaced, "main", "t", 5).anchor_kind == "replacement"
    assert streams_of(replaced) == ()
    doubt = replace(document_of(2), doubt=("the topic t was made again", "", ""))
    doubted = report_position((replace(own(2), user_metadata=doubt.to_text()), own(1), create()), "main", "t", 5)
    assert (type(doubted.error).__name__, str(doubted.error)) == ("LogChangedError", "the topic t was made again")
    assert doubted.anchor is not None
    assert doubted.anchor.version == 2, "where it stands is told all the same"
    lost = report_position((append(7),), "main", "t", 5)
    assert stream_to_json(lost, None)["error"]["type"] == "PositionLostError"
    assert (type(lost.error).__name__, lost.anchor, lost.anchor_kind) == ("PositionLostError", None, None)
