"""`dagster-kafka-flip ingest --replay`: an old commit's records, once more, in another table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dagster_kafka_flip import JsonFormat, KafkaSource, ingest
from dagster_kafka_flip.cli.app import main
from dagster_kafka_flip.source.connection import KafkaConnection
from tests import landed

DEFINITIONS = """
from dagster import Definitions, EnvVar
from dagster_kafka_flip import DeltaTarget, JsonFormat, KafkaResource, KafkaSource, SparkResource, kafka_delta_asset

@kafka_delta_asset(
    source=KafkaSource(topics=[{topic!r}]),
    table={table!r},
    value_format=JsonFormat("n INT"),
)
def landed(context, records, factor):
    context.log.info("as the asset would land them now")
    return records.selectExpr(f"n * {{factor}} AS n", "kafka_offset")

defs = Definitions(
    assets=[landed],
    resources={{
        "kafka": KafkaResource(bootstrap_servers=EnvVar("TEST_BROKER")),
        "spark": SparkResource(),
        "factor": 10,
    }},
)
"""


def run(*arguments: str, code: int = 0, **env: str | None) -> str:
    finished = CliRunner().invoke(main, ["ingest", *arguments], env=env)
    assert finished.exit_code == code, finished.output
    assert finished.exception is None or isinstance(finished.exception, SystemExit)
    return finished.output


@pytest.fixture
def where(broker, topic, table, tmp_path):
    """The options that name the asset, whose table is landed with a function that forgot the factor."""
    definitions = tmp_path / "replayed.py"
    definitions.write_text(DEFINITIONS.format(topic=topic, table=table))
    return ("--asset", "landed", "-f", str(definitions))


@pytest.mark.kafka
@pytest.mark.spark
def test_the_records_of_an_old_commit_are_landed_once_as_the_asset_would_now(
    kafka, broker, spark, spark_of, where, topic, table, tmp_path
):
    kafka.create(topic, partitions=2)
    into = str(tmp_path / "replayed")

    def rows(path):
        return landed.rows(path, "n", "kafka_offset")

    def land():
        return ingest(
            KafkaSource(topics=(topic,)),
            table,
            spark=spark_of,
            connection=KafkaConnection(bootstrap_servers=broker),
            value_format=JsonFormat("n INT"),
            transform=lambda records: records.select("n", "kafka_offset"),
        )

    for begin in (0, 3):
        kafka.produce(topic, [(None, f'{{"n": {n}}}') for n in range(begin, begin + 3)])
        land()
    replay = (*where, "--replay", "2", "--into", into)

    assert f"Wrote 3 rows from 3 offsets of 1 split in version 1 of {into}." in run(*replay, TEST_BROKER=broker)
    assert rows(into) == [(30, 3), (40, 4), (50, 5)]
    assert f"Version 1 of {into} already holds them; nothing was read." in run(*replay, TEST_BROKER=broker)
    run(*where, "--replay", "1", "--into", into, TEST_BROKER=broker)
    assert rows(into) == [(0, 0), (10, 1), (20, 2), (30, 3), (40, 4), (50, 5)]
    document = json.loads(landed.history(into, 1)[0]["userMetadata"])
    assert (document["replays"]["table"], document["replays"]["version"]) == (table, 1)
    assert (document["stream"], document["state"]["position"]) == ("main-replays", {topic: [3]})
    # The stream itself is where it was.
    assert land().is_idle
    assert rows(table) == [(n, n) for n in range(6)]

    for version, reported in (
        ("0", f"version 0 of {table} (CREATE TABLE) is not a commit of the stream 'main' with records"),
        ("7", f"{table} has no version 7 yet; its newest is 2"),
    ):
        assert reported in run(*where, "--replay", version, "--into", into, code=1, TEST_BROKER=broker)
    reported = run(*where, "--replay", "1", "--into", table, code=1, TEST_BROKER=broker)
    assert f"{table} is the stream's own table, which already holds these records" in reported
    kafka.trim(topic, 0, 4)
    reported = run(*where, "--replay", "2", "--into", f"{into}-2", code=1, TEST_BROKER=broker)
    assert f"{topic}-0: retention has overtaken the position. The next offset to read is 3" in reported
    assert not (tmp_path / "replayed-2").exists()


@pytest.mark.kafka
@pytest.mark.spark
def test_a_replay_adds_columns_where_the_asset_does(kafka, broker, spark, spark_of, where, topic, table, tmp_path):
    kafka.create(topic)
    for n in (1, 2):
        kafka.produce(topic, [(None, f'{{"n": {n}}}')])
        connection = KafkaConnection(bootstrap_servers=broker)
        ingest(KafkaSource(topics=(topic,)), table, spark=spark_of, connection=connection)
    into = str(tmp_path / "replayed")
    run(*where, "--replay", "1", "--into", into, TEST_BROKER=broker)

    def replay(name, code=0):
        # Of one name, Dagster would load the first one again.
        definitions = tmp_path / f"{name}.py"
        text = Path(where[-1]).read_text().replace('"kafka_offset")', '"kafka_offset", "true AS more")')
        definitions.write_text(text.replace(f"table={table!r}", f"table=DeltaTarget(table={table!r}, {name}=True)"))
        return run(*where[:-1], str(definitions), "--replay", "2", "--into", into, code=code, TEST_BROKER=broker)

    reported = replay("single_writer", code=1)
    assert "no column more (boolean). Nothing was written. Set schema_evolution of its DeltaTarget to true" in reported
    replay("schema_evolution")
    assert landed.rows(into, "n", "more") == [(10, None), (20, True)]


def test_an_asset_has_to_be_named():
    assert "select the asset of the commit with --asset" in run("--replay", "1", "--into", "a/b", code=2)
    assert "Missing option '--replay'" in run("--asset", "a", "--into", "a/b", code=2)
