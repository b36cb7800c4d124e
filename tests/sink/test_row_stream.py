"""The rows of a query on their way to the driver."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pyspark.sql import functions as f

from dagster_kafka_flip.errors import SparkSessionError
from dagster_kafka_flip.sink.table_rows import RowStream
from tests.processes import wait_until

_PATIENCE = 60


@pytest.mark.spark
def test_leaving_the_stream_stops_its_spark_job(spark, tmp_path):
    mark = tmp_path / "spark-has-a-row"

    @f.udf("boolean")
    def slow(_: int) -> bool:
        mark.touch()
        time.sleep(600)
        return True

    with RowStream(spark, spark.range(1).where(slow("id"))):
        wait_until(mark.exists, seconds=_PATIENCE)
    wait_until(lambda: not list(spark.sparkContext.statusTracker().getActiveJobsIds()), seconds=_PATIENCE)


class _RowsOfADeadSpark:
    """A DataFrame whose JVM has ended."""

    def toLocalIterator(self):  # noqa: N802 - pyspark names it
        raise ConnectionRefusedError


@pytest.mark.spark
def test_a_spark_that_ended_is_named_as_the_cause(spark):
    rows: Any = _RowsOfADeadSpark()
    with RowStream(spark, rows) as stream, pytest.raises(SparkSessionError, match="has ended"):
        list(stream.chunks(1.0))
