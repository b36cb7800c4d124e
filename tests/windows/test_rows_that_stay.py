"""What landing a window again must not take away: rows of what the run did not read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dagster_kafka_flip.errors import (
    ConfigurationError,
    SchemaMismatchError,
    TopicNotFoundError,
    TopicRecreatedError,
    WindowBeyondRetentionError,
    WindowsChangedError,
)
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.formats.string import StringFormat
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.window import Window, Windows
from dagster_kafka_flip.table import windowed_table
from dagster_kafka_flip.table.document import WINDOWS_PROPERTY
from dagster_kafka_flip.table.target import DeltaTarget
from dagster_kafka_flip.table.windowed_table import WindowedTable
from tests import landed
from tests.windows.conftest import HOUR, START, hours

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def write(kafka):
    """Makes a topic of two partitions with a record in each of two hours, in each partition."""

    def run(topic, partitions=2, **config):
        kafka.create(topic, partitions=partitions, **config)
        for partition in range(partitions):
            for hour in range(2):
                kafka.produce(topic, [("k", topic)], partition=partition, timestamp=START + hour * HOUR)

    return run


@pytest.fixture
def counts():
    """Rows by topic (its last letter) and topic partition."""

    def read(table):
        rows = landed.rows(table, "kafka_topic", "kafka_partition")
        return dict(Counter(f"{topic[-1]}{partition}" for topic, partition in rows))

    return read


ALL = {"a0": 2, "a1": 2, "b0": 2, "b1": 2}


def only_b(rewrite, table, **options):
    """Lands the two hours, of which only b is read."""
    [result] = rewrite(hours(0, 2), target=DeltaTarget(table=table, partition_by=("kafka_window",)), **options)
    return result


def test_rows_of_a_topic_that_is_gone_or_taken_out_stay(kafka, write, rewrite, counts, spark, topic, tmp_path, caplog):
    names = (f"{topic}-a", f"{topic}-b")
    for name in names:
        write(name)
    listed, pattern = KafkaSource(topics=names), KafkaSource(topic_pattern=f"{topic}-.*")
    tables = {name: str(tmp_path / name) for name in ("narrowed", "pattern")}
    for name, table in tables.items():
        only_b(rewrite, table, source=pattern if name == "pattern" else listed)
        assert counts(table) == ALL
    # A source of fewer topics, and of fewer topic partitions.
    result = only_b(rewrite, tables["narrowed"], source=listed.only([names[1]]))
    assert counts(tables["narrowed"]) == ALL
    assert result.kept == (TopicPartition(names[0], 0), TopicPartition(names[0], 1))
    assert result.rows == {"h000": 4, "h001": 4}, "rows that the table has of the window"
    assert f"has windows of {names[0]}-0 and 1 more topic partition, which this run does not read" in caplog.text
    only_b(rewrite, tables["narrowed"], source=KafkaSource(partitions=(TopicPartition(names[1], 1),)))
    assert counts(tables["narrowed"]) == ALL
    kafka.delete(names[0])
    kafka.produce(names[1], [(None, "new")], partition=1, timestamp=START + HOUR + 1)
    with pytest.raises(TopicNotFoundError):
        only_b(rewrite, tables["narrowed"], source=listed)
    # What is new is found also where Delta has forgotten what the last landing read.
    forget(spark, tables["pattern"])
    only_b(rewrite, tables["pattern"], source=pattern)
    assert counts(tables["pattern"]) == {**ALL, "b1": 3}


def forget(spark, table):
    """What Delta does with a log that has expired: a checkpoint is kept, the commits before it go."""
    last = landed.version(table)
    for interval in (1, 10):
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.checkpointInterval' = '{interval}')")
    log = Path(table, "_delta_log")
    checkpoint = max(int(file.name[:20]) for file in log.glob("*.checkpoint*.*") if not file.name.startswith("."))
    assert checkpoint > last
    for version in range(checkpoint):
        (log / f"{version:020}.json").unlink(missing_ok=True)


def test_windows_with_other_keys_or_another_definition_that_come_just_before_a_write_are_refused(
    kafka, rewrite, spark, topic, table, monkeypatch
):
    def after(owner, method, something):
        original, left = getattr(owner, method), [something]

        def wait(*args, **options):
            if left:
                left.pop()()
            return original(*args, **options)

        monkeypatch.setattr(owner, method, wait)

    kafka.create(topic)
    rewrite(hours(0, 1))
    spark.sql(f"ALTER TABLE delta.`{table}` UNSET TBLPROPERTIES ('{WINDOWS_PROPERTY}')")
    after(windowed_table, "set_properties", lambda: rewrite(hours(0, 1), definition="days"))
    with pytest.raises(WindowsChangedError, match=r"it was created for 'days', but this run has 'hours'"):
        rewrite(hours(0, 1))

    kafka.produce(topic, [(None, "x")], timestamp=START + 1)
    (hour,) = hours(0, 1)
    after(WindowedTable, "rewrite", lambda: rewrite([Window("half", START, START + HOUR // 2)], definition="days"))
    with pytest.raises(WindowsChangedError, match=r"the window h000 .* overlaps the landed window half"):
        rewrite([hour], definition="days")
    assert landed.values(table, "kafka_window") == ["half"]


def test_without_a_column_that_distinguishes_topics_nothing_is_replaced(write, rewrite, rows, spark, table, topic):
    names = (f"{topic}-a", f"{topic}-b")
    for name in names:
        write(name)
    both = KafkaSource(topics=names)
    columns = KafkaColumns(fields=("partition", "offset", "timestamp"))
    options = {"columns": columns, "transform": lambda records: records.drop("kafka_timestamp")}
    rewrite(hours(0, 2), source=both, **options)
    with pytest.raises(WindowsChangedError) as refused:
        rewrite(hours(0, 2), source=both.only([names[1]]), **options)
    assert f"has windows of {names[0]}-0 and 1 more topic partition, which this run does not read" in str(refused.value)
    assert len(rows()) == 8
    # Of all topics it goes on; and what the message says helps where the rows may go.
    rewrite(hours(0, 2), source=both, **options)
    spark.sql(str(refused.value)[str(refused.value).index("ALTER TABLE") :])
    rewrite(hours(0, 2), source=both.only([names[1]]), **options)
    assert len(rows()) == 4


def test_a_transforms_changes_to_the_columns_that_locate_rows(write, rewrite, counts, spark, table, topic):
    from pyspark.sql import functions as f

    names = (f"{topic}-a", f"{topic}-b")
    for name in names:
        write(name)
    both = KafkaSource(topics=names)
    rewrite(hours(0, 2), source=both)
    source = both.only([names[1]])
    for changed, message in (
        (lambda records: records.withColumn("kafka_topic", f.upper("kafka_topic")), "returns rows outside the"),
        (lambda records: records.withColumn("kafka_window", f.lit("h007")), "returns rows outside the windows"),
        (
            lambda records: records.drop("kafka_topic"),
            "dropped the column kafka_topic, which is needed to find the rows to replace",
        ),
        (lambda records: records.withColumn("more", f.lit(1)), "has no column more"),
    ):
        with pytest.raises((ConfigurationError, SchemaMismatchError), match=message):
            rewrite(hours(0, 2), source=source, transform=changed)
    assert counts(table) == ALL
    # As long as nothing has to stay, a topic may have another name in the table.
    other = table + "-other"
    for _ in range(2):
        rewrite(
            hours(0, 2),
            source=both,
            target=DeltaTarget(table=other, partition_by=("kafka_window",)),
            transform=lambda records: records.withColumn("kafka_topic", f.upper("kafka_topic")),
        )
    assert sum(counts(other).values()) == 8


@pytest.mark.nightly
def test_a_window_of_a_compacted_topic_is_landed_again_only_if_that_is_tolerated(kafka, write, rewrite, rows, topic):
    write(topic, cleanup_policy="compact")
    rewrite(hours(0, 1))
    # What the table does not have yet can't be lost by it.
    rewrite(hours(1, 2))
    with pytest.raises(
        WindowBeyondRetentionError, match=r"the topic \S+ is compacted \(cleanup.policy\), and the table"
    ):
        rewrite(hours(0, 2))
    assert len(rows()) == 4
    [result] = rewrite(hours(0, 2), tolerate=(WindowBeyondRetentionError,))
    assert [incident.error for incident in result.plan.incidents] == ["WindowBeyondRetentionError"]


@pytest.mark.nightly
def test_a_repair_leaves_rows_of_an_earlier_topic_alone(kafka, rewrite, connection, spark_of, counts, table, topic):
    name = f"{topic}-a"

    def land(stream):
        target = DeltaTarget(table=table, stream=stream)
        ingest(KafkaSource(topics=(name,)), target, spark=spark_of, connection=connection, value_format=StringFormat())

    def repair(stream, window, **options):
        return rewrite(
            [window],
            rules=Windows(repair=True),
            source=KafkaSource(topics=(name,)),
            target=DeltaTarget(table=table, stream=stream),
            **options,
        )

    kafka.create(name)
    kafka.produce(name, [(None, "old")] * 10, timestamp=START)
    land("main")
    kafka.delete(name)
    kafka.create(name)
    kafka.produce(name, [(None, "new")] * 6, timestamp=START)
    kafka.produce(name, [(None, "newer")] * 6, timestamp=START + HOUR)
    land("main-2")
    day = Window("day", START, START + 24 * HOUR)
    with pytest.raises(
        TopicRecreatedError,
        match=r"-0: the table \S+ also has, or may have, rows of an earlier topic of this name .* Choose a later "
        r"range, which begins at the time of the record at offset \d+ or later",
    ):
        repair("main-2", day)
    assert counts(table) == {"a0": 22}
    # From the offset on that the message names, rows are of the new topic alone.
    kafka.produce(name, [(None, "newest")] * 2, timestamp=START + 2 * HOUR)
    land("main-2")
    repair("main-2", Window("later", START + 2 * HOUR, START + 3 * HOUR))
    assert counts(table) == {"a0": 24}
    repair("main-2", day, tolerate=(TopicRecreatedError,))
    assert counts(table) == {"a0": 14}


def test_a_stream_and_windows_in_one_table_are_found_out(
    write, rewrite, rows, connection, spark, spark_of, table, topic, monkeypatch
):
    write(topic)
    source = KafkaSource(topics=(topic,))
    stream = f"{table}-of-the-stream"
    ingest(source, stream, spark=spark_of, connection=connection, value_format=StringFormat())
    last = spark.sql(f"DESCRIBE HISTORY delta.`{stream}` LIMIT 1").first()["userMetadata"]

    def append():
        landed = spark.read.format("delta").load(stream).selectExpr("*", "'h001' AS kafka_window")
        landed.writeTo(f"delta.`{table}`").option("userMetadata", last).append()

    # A stream that looked before there were windows, and commits while they are written.
    original = WindowedTable.rewrite

    def first_the_stream(*args):
        append()
        return original(*args)

    rewrite(hours(0, 2))
    with monkeypatch.context() as patch:
        patch.setattr(WindowedTable, "rewrite", first_the_stream)
        with pytest.raises(WindowsChangedError) as refused:
            rewrite(hours(0, 1))
    assert "the stream 'main' has committed version 2 to" in str(refused.value)
    assert len(rows()) > 4
    # No other run goes on, until somebody does what the message says.
    with pytest.raises(WindowsChangedError) as refused:
        rewrite(hours(0, 1))
    assert "RESTORE the table to version 1" in str(refused.value)
    spark.sql(f"RESTORE delta.`{table}` TO VERSION AS OF 1")
    rewrite(hours(0, 2))
    assert len(rows()) == 4
