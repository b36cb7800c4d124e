"""A topic that is deleted and made again while it is read: told, and the way out that is printed works."""

from __future__ import annotations

import re
from typing import Any

import pytest
from click.testing import CliRunner

from dagster_kafka_flip.cli.app import main
from dagster_kafka_flip.errors import LogChangedError, TopicNotFoundError, TopicRecreatedError
from dagster_kafka_flip.formats.string import StringFormat
from dagster_kafka_flip.ingestion.batch_writer import BatchWriter
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.ingestion.rewrite_windows import rewrite_windows
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.window import Window, Windows
from tests import landed as read_back

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def other(kafka, topic):
    """A topic of the same source that stays as it is."""
    name = f"{topic}-other"
    kafka.create(name)
    kafka.produce(name, [(None, f"other {number}") for number in range(10)])
    return name


@pytest.fixture
def land(kafka, topic, other, connection, spark_of, table):
    """Runs ingest() of both topics, in batches of 50; the topic may be made again before a batch is read."""
    kafka.create(topic)
    kafka.produce(topic, [(None, f"old {number}") for number in range(100)])

    def run(*, made_again_before: int | None = None, max_batches: int | None = None, **options):
        batches: list[int] = []

        def transform(records):
            batches.append(1)
            # Called once for the table's columns too, which are looked up before anything is read.
            if len(batches) == made_again_before:
                kafka.delete(topic)
                kafka.create(topic)
                kafka.produce(topic, [(None, f"new {number}") for number in range(100)])
            return records.selectExpr("kafka_value AS value")

        source = KafkaSource(topics=(topic, other))
        return ingest(
            source,
            table,
            spark=spark_of,
            connection=connection,
            value_format=StringFormat(),
            limits=Limits(max_records_per_batch=55, max_batches=max_batches),
            transform=transform,
            **options,
        )

    return run


def values(table):
    return read_back.values(table, "value")


def numbered(what, numbers):
    return [f"{what} {number}" for number in numbers]


def test_a_topic_recreated_while_a_run_reads_stops_it_and_the_printed_way_out_lands_each_record_once(
    kafka, broker, spark, land, topic, other, table
):
    with pytest.raises(LogChangedError) as stopped:
        land(made_again_before=3)
    message = str(stopped.value)
    assert f"the topic {topic} was deleted and recreated" in message
    assert f"version 2 of {table}" in message
    assert f"{topic}-0 [50, 100)" in message
    assert f"{other}-0" not in message, "it is the same, and no doubt is about it"
    assert values(table) == sorted(
        numbered("old", range(50)) + numbered("new", range(50, 100)) + numbered("other", range(10))
    )

    # Nobody goes on before somebody decides, also where a topic that is made again is tolerated.
    for tolerate in ((), (TopicRecreatedError,)):
        with pytest.raises(LogChangedError) as again:
            land(tolerate=tolerate)
        assert str(again.value) == message

    restore = re.search(r"RESTORE TABLE \S+ TO VERSION AS OF \d+", message)
    assert restore is not None
    spark.sql(restore[0])
    command = re.search(
        r"dagster-kafka-flip (position set .*) --bootstrap-servers <host:port> --to '(.*)' --reason", message
    )
    assert command is not None
    arguments = [*command[1].split(), "--bootstrap-servers", broker, "--to", command[2], "--reason", "a test", "--yes"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    land()
    assert values(table) == sorted(
        numbered("old", range(50)) + numbered("new", range(100)) + numbered("other", range(10))
    )


@pytest.mark.parametrize("partitions", [1, 0], ids=["with fewer topic partitions", "not at all"])
def test_a_topic_that_lacks_planned_topic_partitions_when_it_is_read_is_reported_and_nothing_is_written(
    kafka, connection, spark_of, topic, table, partitions
):
    kafka.create(topic, partitions=2)
    for partition in range(2):
        kafka.produce(topic, [(None, "old")] * 3, partition=partition)
    calls: list[int] = []

    def transform(records):
        calls.append(1)
        # The first call is for the table's columns.
        if len(calls) == 2:
            kafka.delete(topic)
            if partitions:
                kafka.create(topic, partitions)
        return records

    source = KafkaSource(topics=(topic,))
    wanted = TopicRecreatedError if partitions else TopicNotFoundError
    with pytest.raises(wanted, match=f"the topic {topic} "):
        ingest(source, table, spark=spark_of, connection=connection, transform=transform)
    assert read_back.count(table) == 0


def test_a_topic_that_was_recreated_while_a_run_that_died_read_it_is_not_tolerated_until_a_user_has_decided(
    kafka, spark, land, topic, table, monkeypatch
):
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(BatchWriter, "confirm", die)
        with pytest.raises(KeyboardInterrupt):
            land(made_again_before=2)
    assert values(table) == sorted(numbered("new", range(50)) + numbered("other", range(5)))

    # Version 0 made the table, and 1 is the commit of the run that died: no run has reported it.
    with pytest.raises(TopicRecreatedError) as stopped:
        land(tolerate=[TopicRecreatedError], reported=0)
    assert "RESTORE the table to the version before it, and run again" in str(stopped.value)
    spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF 0")
    result = land(tolerate=[TopicRecreatedError], reported=0)
    assert values(table) == sorted(numbered("new", range(100)) + numbered("other", range(10)))
    # A run that has ended well has asked.
    kafka.delete(topic)
    kafka.create(topic)
    kafka.produce(topic, [(None, "newest")])
    land(tolerate=[TopicRecreatedError], reported=result.batches[-1].committed.version)
    assert values(table) == sorted(["newest", *numbered("new", range(100)), *numbered("other", range(10))])


def test_a_topic_recreated_while_a_range_is_repaired_is_reported(kafka, connection, spark, spark_of, topic, table):
    day = Window.between(1_700_000_000_000, 1_700_086_400_000)
    made_again = []

    def transform(records):
        if not made_again:
            made_again.append(True)
            kafka.delete(topic)
            kafka.create(topic)
            kafka.produce(topic, [(None, "new")] * 3, timestamp=day.start_ms)
        return records

    options: dict[str, Any] = {"spark": spark_of, "connection": connection, "value_format": StringFormat()}
    kafka.create(topic)
    kafka.produce(topic, [(None, "old")] * 3, timestamp=day.start_ms)
    ingest(KafkaSource(topics=(topic,)), table, **options)
    repair = rewrite_windows(
        KafkaSource(topics=(topic,)), table, [day], rules=Windows(repair=True), transform=transform, **options
    )
    with pytest.raises(LogChangedError) as stopped:
        list(repair)
    restore = re.search(r"RESTORE TABLE \S+ TO VERSION AS OF \d+", str(stopped.value))
    assert restore is not None
    spark.sql(restore[0])
    assert read_back.values(table, "kafka_value") == ["old"] * 3
