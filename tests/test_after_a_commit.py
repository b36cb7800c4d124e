"""What a run meets behind a commit: it is recorded, and the commit counts."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest
from pydantic import Field

from dagster_kafka_flip.errors import (
    DeadLetterLostError,
    ForeignRowsError,
    KafkaFlipError,
    RetentionOvertookPositionError,
)
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.ingestion.dead_letters import DEAD_LETTER_SCHEMA
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed
from tests.numbers import Numbers, NumbersEnumerator, counting, numbers

__all__ = ["counting"]
pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("counting")]

# No number is a JSON object.
REJECTED: dict[str, Any] = {"value_format": JsonFormat(schema="n INT"), "limits": Limits(max_records_per_batch=2)}


class TrimmedEnumerator(NumbersEnumerator):
    looks: list[int]
    readable_looks = 0

    def replay(self, splits):
        """Finds the log trimmed behind the splits, but for the first look at each."""
        (split,) = splits
        self.looks.append(split.starting_offset)
        if self.looks.count(split.starting_offset) > self.readable_looks:
            raise RetentionOvertookPositionError(
                f"{split} is gone", log_start_offsets={("numbers", 0): split.stopping_offset}
            )
        return super().replay(splits)


class Trimmed(Numbers):
    """Numbers that are gone when a batch is to be read again: at once, or after some looks."""

    readable_looks: int = 0
    looks: list[int] = Field(default_factory=list[int])

    def restore_enumerator(self, context, state):
        enumerator: Any = TrimmedEnumerator(self, cast("Any", None), context, state)
        enumerator.end, enumerator.looks, enumerator.readable_looks = self.end, self.looks, self.readable_looks
        return enumerator


def recorded(spark, table):
    """The errors that each commit of the stream records, first commit first."""
    history = DeltaTable(spark, DeltaTarget(table=table)).history() or ()
    documents = [document for commit in reversed(history) if (document := commit.document()) is not None]
    return [[incident.error for incident in document.incidents] for document in documents]


@pytest.mark.parametrize("readable_looks", [0, 1])
def test_dead_letters_that_a_log_lost_behind_a_commit_are_recorded_in_the_next_one(
    spark, spark_of, table, readable_looks
):
    result = ingest(
        numbers(4, Trimmed, readable_looks=readable_looks),
        table,
        spark=spark_of,
        dead_letter=f"{table}-dead",
        tolerate=[RetentionOvertookPositionError],
        **REJECTED,
    )
    assert [batch.committed.version for batch in result.batches] == [1, 2]
    assert [incident.message.partition(" [")[0] for incident in result.incidents] == ["numbers-0"] * 2
    assert recorded(spark, table) == [[], ["RetentionOvertookPositionError"]]


@pytest.mark.parametrize("readable_looks", [0, 1])
def test_dead_letters_that_a_log_lost_behind_a_commit_end_the_run(spark_of, table, readable_looks):
    with pytest.raises(
        DeadLetterLostError,
        match=r"^dead letters can no longer be read: numbers-0 \[0, 2\) is gone",
    ):
        ingest(
            numbers(4, Trimmed, readable_looks=readable_looks),
            table,
            spark=spark_of,
            dead_letter=f"{table}-dead",
            **REJECTED,
        )


def test_what_is_tolerated_of_the_dead_letter_table_is_recorded_in_the_first_commit(spark, spark_of, table):
    dead = f"{table}-dead"
    spark.createDataFrame([("t",)], "kafka_topic STRING").write.format("delta").save(dead)
    spark.createDataFrame([], DEAD_LETTER_SCHEMA).write.format("delta").option("mergeSchema", "true").mode(
        "append"
    ).save(dead)
    tolerate: list[type[KafkaFlipError]] = [ForeignRowsError]
    result = ingest(numbers(1), table, spark=spark_of, dead_letter=dead, tolerate=tolerate, **REJECTED)
    assert [incident.error for incident in result.incidents] == ["ForeignRowsError"]
    assert recorded(spark, table) == [["ForeignRowsError"]]


def test_rows_that_others_add_behind_the_last_commit_are_counted_once(spark, spark_of, table):
    ingest(numbers(2), table, spark=spark_of)

    def add_a_row(*_):
        spark.read.format("delta").load(table).limit(1).write.format("delta").mode("append").save(table)

    class AddsARow(logging.Handler):
        def emit(self, record):
            if record.getMessage().startswith("committed version"):
                add_a_row()

    def transform(rows):
        add_a_row()
        return rows

    log = logging.getLogger(f"{__name__}.{table}")
    log.setLevel(logging.INFO)
    log.addHandler(AddsARow())
    known = ingest(numbers(3), table, spark=spark_of, transform=transform, logger=log).known
    assert (known.table_version, known.table_rows) == (3, 4)
    idle = ingest(numbers(3), table, spark=pytest.fail, known=known)
    assert (idle.known.table_version, idle.known.table_rows) == (4, len(landed.rows(table, "kafka_offset"))) == (4, 5)
