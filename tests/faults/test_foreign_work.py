"""What others do to a table while a stream lands in it: their statements fall into the middle of its writes."""

from __future__ import annotations

import threading
from pathlib import Path

import deltalake
import pytest
from deltalake.schema import PrimitiveType

from dagster_kafka_flip.formats.string import StringFormat
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import TopicPartition
from tests import landed
from tests.processes import wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

_BATCH = 10
_BATCHES = 6

# One in the middle of each batch's write. At those that change the table's description, Delta refuses the write, and
# the batch is planned and written once more, with the next statement in its middle.
_STATEMENTS = (
    "ALTER TABLE {table} SET TBLPROPERTIES ('delta.dataSkippingNumIndexedCols' = '4')",
    "INSERT INTO {table} (kafka_topic, kafka_offset) VALUES ('foreign', 0), ('foreign', 1)",
    "OPTIMIZE {table}",
    "ALTER TABLE {table} ADD COLUMNS (note STRING)",
    "DELETE FROM {table} WHERE kafka_topic = 'foreign' AND kafka_offset = 1",
    "INSERT INTO {table} (kafka_topic, kafka_offset, note) VALUES ('foreign', 2, 'new')",
    "UPDATE {table} SET note = 'seen' WHERE kafka_topic = 'foreign' AND kafka_offset = 0",
    "OPTIMIZE {table}",
)
_CHANGES_OF_THE_DESCRIPTION = 2


class _Others:
    """Others, who wait until a write is in its middle, and let it go on when they are done.

    Args:
        spark: The session that they share with the stream.
        folder: For the files by which they and Spark's tasks wait for each other.
        table: The table, as a statement names it.
        statements: What they do, one in each write; in the others they do nothing.
    """

    def __init__(self, spark, folder: Path, table: str, statements) -> None:
        self._spark = spark
        self._folder = folder
        self._statements = [statement.format(table=table) for statement in statements]
        self._threads: list[threading.Thread] = []
        self._is_over = False
        self.writes = 0
        self.failures: list[BaseException] = []

    def transform(self, records):
        """Stops the write at its first record until the statement has been carried out."""
        from pyspark.sql import functions as f

        if not self._statements:
            return records
        statement = self._statements.pop(0)
        self.writes += 1
        writing, done = (self._folder / f"{name}-{self.writes}" for name in ("writing", "done"))
        thread = threading.Thread(target=self._work, args=(statement, writing, done))
        self._threads.append(thread)
        thread.start()

        @f.udf("boolean", useArrow=False)
        def stop(_: int) -> bool:
            import time

            writing.touch()
            while not done.exists():
                time.sleep(0.01)
            return True

        return records.where(stop("kafka_offset"))

    def join(self) -> None:
        """Waits for them, and makes sure that they have done everything."""
        self._is_over = True
        for thread in self._threads:
            thread.join()
        assert self.failures == []
        assert self._statements == []

    def _work(self, statement: str, writing: Path, done: Path) -> None:
        try:
            wait_until(lambda: writing.exists() or self._is_over, seconds=120)
            assert writing.exists(), f"no write was stopped for: {statement}"
            self._spark.sql(statement).collect()
        except BaseException as error:  # noqa: BLE001 - it is the test's, which joins this thread
            self.failures.append(error)
        finally:
            done.touch()


@pytest.fixture
def land(connection, spark_of, topic, table):
    """A run of the stream in small batches."""

    def run(transform=None):
        return ingest(
            KafkaSource(topics=(topic,)),
            table,
            spark=spark_of,
            connection=connection,
            value_format=StringFormat(),
            transform=transform,
            limits=Limits(max_records_per_batch=_BATCH),
        )

    return run


@pytest.fixture
def offsets(table, topic):
    """The offsets of the stream's rows."""

    return lambda: [offset for (offset,) in landed.rows(table, "kafka_offset", where=f"kafka_topic = '{topic}'")]


def _produce(kafka, topic, batches):
    kafka.produce(topic, [(None, "x")] * (batches * _BATCH))


def test_other_writers_in_the_middle_of_each_write_neither_lose_nor_double_a_record(
    kafka, spark, land, offsets, topic, table, tmp_path
):
    kafka.create(topic)
    # The table is there before, because its columns are asked of the transform too.
    _produce(kafka, topic, 1)
    assert len(land().batches) == 1
    _produce(kafka, topic, _BATCHES)
    others = _Others(spark, tmp_path, f"delta.`{table}`", _STATEMENTS)
    try:
        result = land(others.transform)
    finally:
        others.join()
    end = (1 + _BATCHES) * _BATCH
    assert others.writes == len(_STATEMENTS) == _BATCHES + _CHANGES_OF_THE_DESCRIPTION
    assert len(result.batches) == _BATCHES
    assert result.rows == _BATCHES * _BATCH
    assert offsets() == list(range(end))
    assert result.state.position == {TopicPartition(topic, 0): end}
    foreign = landed.rows(table, "kafka_offset", "note", where="kafka_topic = 'foreign'")
    assert foreign == [(0, "seen"), (2, "new")]
    assert land().is_idle


def test_delta_rs_changing_the_tables_description_does_not_stop_the_stream(kafka, spark, land, offsets, topic, table):
    kafka.create(topic)
    _produce(kafka, topic, 1)
    land()
    alter = deltalake.DeltaTable(table).alter
    alter.add_columns([deltalake.Field("note", PrimitiveType("string"))])
    alter.set_column_metadata("note", {"comment": "of others"})
    alter.set_table_description("flights")
    alter.add_feature(deltalake.TableFeatures.AppendOnly, allow_protocol_versions_increase=True)
    _produce(kafka, topic, 1)
    assert land().rows == _BATCH
    assert offsets() == list(range(2 * _BATCH))
    assert spark.read.format("delta").load(table).where("note IS NOT NULL").count() == 0
    history = [row["operation"] for row in spark.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()]
    assert history[1:5] == ["ADD FEATURE", "UPDATE TABLE METADATA", "UPDATE FIELD METADATA", "ADD COLUMN"]
    assert land().is_idle


def test_a_restore_in_the_middle_of_a_write_has_what_it_undid_landed_again(
    kafka, spark, land, offsets, topic, table, tmp_path
):
    kafka.create(topic)
    _produce(kafka, topic, 2)
    assert len(land().batches) == 2
    _produce(kafka, topic, 2)
    others = _Others(spark, tmp_path, f"delta.`{table}`", ["RESTORE TABLE {table} TO VERSION AS OF 1"])
    try:
        result = land(others.transform)
    finally:
        others.join()
    # The second batch of the first run, and both of this one.
    assert result.rows == 3 * _BATCH
    assert offsets() == list(range(4 * _BATCH))
    assert result.state.position == {TopicPartition(topic, 0): 4 * _BATCH}
    assert land().is_idle
