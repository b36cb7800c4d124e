"""What docs/migration.md says, done: from a streaming query and from a consumer loop, each record landed once."""

from __future__ import annotations

import re
import shlex
import types
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer
from dagster import DagsterInstance, materialize

from dagster_kafka_flip.cli.app import main
from dagster_kafka_flip.errors import ForeignRowsError
from tests import landed
from tests.document_tests import ROOT, blocks, commands
from tests.kafka_topic import QUIET

PAGE = ROOT / "docs" / "migration.md"
BLOCKS = blocks(PAGE)
COLUMNS = ("value", "topic", "partition", "offset", "timestamp")

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.nightly]


def _snippet(name: str) -> str:
    """The page's piece of Python that defines a name."""
    (code,) = [
        block.code
        for block in BLOCKS
        if block.language == "python" and re.search(rf"^{name} =", block.code, re.MULTILINE)
    ]
    return code


def _run(code: str) -> types.ModuleType:
    module = types.ModuleType("snippet")
    exec(compile(code, str(PAGE), "exec"), vars(module))
    return module


def _commands(old_job: str) -> list[str]:
    return [line for line in commands(PAGE) if old_job in line]


@pytest.fixture
def project(broker, topic, tmp_path, monkeypatch):
    """A folder to work in, with the page's definitions, for the test's topic instead of `flights`."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", broker)

    def own(code: str) -> str:
        return re.sub(r'(set_topics\(|\(|source=)"flights"', rf'\1"{topic}"', code).replace("flights-loader", topic)

    (tmp_path / "definitions.py").write_text(own(_snippet("flights")), encoding="utf-8")
    return own


@pytest.fixture
def ten_and_six(kafka, topic):
    """A topic with as many records as in the page's example."""
    kafka.create(topic, partitions=2)
    kafka.produce(topic, [(None, f"a{number}") for number in range(10)])
    kafka.produce(topic, [(None, f"b{number}") for number in range(6)], partition=1)


def _arrive(kafka, topic):
    """What comes after the old job was stopped."""
    kafka.produce(topic, [(None, "a10"), (None, "a11")])
    kafka.produce(topic, [(None, "b6")], partition=1)


EVERY_RECORD = sorted([(0, n, f"a{n}") for n in range(12)] + [(1, n, f"b{n}") for n in range(7)])


def _records(table, columns=("partition", "offset", "value")):
    return landed.rows(table, *(f'"{column}"' for column in columns))


def _stream(spark, broker, topic, folder: Path, batch: int = 100):
    """A query as people have it, which reads what there is and ends."""
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", broker)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", batch)
        .load()
    )
    query = (
        records.selectExpr("CAST(value AS STRING) AS value", *COLUMNS[1:])
        .writeStream.format("delta")
        .option("checkpointLocation", str(folder / "checkpoints" / "flights"))
        .trigger(availableNow=True)
        .start(str(folder / "warehouse" / "flights"))
    )
    query.awaitTermination()


def _land(asset, resources):
    with DagsterInstance.get() as instance:
        return materialize([asset], resources=resources, instance=instance)


def _land_twice(asset, resources):
    for _ in range(2):
        assert _land(asset, resources).success


def test_a_streaming_query_is_taken_over_in_its_own_table_and_in_a_new_one(
    kafka, broker, spark, resources, topic, tmp_path, project, ten_and_six
):
    _stream(spark, broker, topic, tmp_path, batch=9)
    definitions = _run((tmp_path / "definitions.py").read_text(encoding="utf-8"))
    ends_at = _run(next(block.code for block in BLOCKS if "def ends_at" in block.code)).ends_at
    # A query that was killed between its write and the end of its batch.
    (tmp_path / "checkpoints" / "flights" / "commits" / "1").unlink()
    with pytest.raises(SystemExit, match="batch 1 is not finished: run the query once more"):
        ends_at("checkpoints/flights")
    _stream(spark, broker, topic, tmp_path, batch=9)
    offsets = ends_at("checkpoints/flights")
    assert offsets == 'offsets:{"TOPIC":{"0":10,"1":6}}'.replace("TOPIC", topic)
    _arrive(kafka, topic)

    with pytest.raises(ForeignRowsError):
        _land(definitions.flights, resources)

    dry_run, for_good = _commands("Structured Streaming")
    for line in (dry_run, for_good):
        assert 'offsets:{"flights": {"0": 10, "1": 6}}' in line, "as the page says it"
        arguments = [offsets if word.startswith("offsets:") else word for word in shlex.split(line)[1:]]
        # Here is no terminal to ask.
        answer = CliRunner().invoke(main, arguments if line is dry_run else [*arguments, "--yes"])
        assert answer.exit_code == 0, answer.output
    assert "Nothing was changed" not in answer.output

    _land_twice(definitions.flights, resources)
    assert _records(tmp_path / "warehouse" / "flights") == EVERY_RECORD
    (comparison,) = [block.code for block in BLOCKS if block.language == "sql"]
    comparison = comparison.replace("/srv/warehouse/flights", str(tmp_path / "warehouse" / "flights"))
    assert spark.sql(comparison).collect() == []
    spark.sql(
        f"INSERT INTO delta.`{tmp_path}/warehouse/flights` SELECT * FROM delta.`{tmp_path}/warehouse/flights` LIMIT 1"
    )
    assert len(spark.sql(comparison).collect()) == 1

    since = _run(project(_snippet("flights_since"))).flights_since
    _land_twice(since, resources)
    columns = ("kafka_partition", "kafka_offset", "kafka_value")
    assert _records(tmp_path / "warehouse" / "flights_since", columns) == [(0, 10, "a10"), (0, 11, "a11"), (1, 6, "b6")]


def test_a_consumer_loop_is_taken_over_in_its_own_table_and_in_a_new_one(
    kafka, broker, spark, resources, topic, tmp_path, project, ten_and_six
):
    # The loop: it reads a few records, appends them, and then commits.
    consumer = Consumer(
        {
            "bootstrap.servers": broker,
            "group.id": topic,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **QUIET,
        }
    )
    consumer.subscribe([topic])
    messages = []
    while len(messages) < 16:
        messages += consumer.consume(16 - len(messages), timeout=1)
    rows = [(m.value().decode(), m.topic(), m.partition(), m.offset()) for m in messages]
    frame = spark.createDataFrame(rows, "value STRING, topic STRING, partition INT, offset BIGINT")
    frame.selectExpr("*", "current_timestamp() AS timestamp").write.format("delta").save(
        str(tmp_path / "warehouse" / "flights")
    )
    consumer.commit(asynchronous=False)
    consumer.close()
    _arrive(kafka, topic)

    definitions = _run((tmp_path / "definitions.py").read_text(encoding="utf-8"))
    with pytest.raises(ForeignRowsError):
        _land(definitions.flights, resources)
    (line,) = _commands("consumer loop")
    answer = CliRunner().invoke(main, [*shlex.split(project(line))[1:], "--yes"])
    assert answer.exit_code == 0, answer.output
    _land_twice(definitions.flights, resources)
    assert _records(tmp_path / "warehouse" / "flights") == EVERY_RECORD

    behind = _run(project(_snippet("flights_from_group"))).flights_from_group
    _land_twice(behind, resources)
    columns = ("kafka_partition", "kafka_offset", "kafka_value")
    rest = _records(tmp_path / "warehouse" / "flights_from_group", columns)
    assert sorted([*((p, o, v) for v, _, p, o in rows), *rest]) == EVERY_RECORD
