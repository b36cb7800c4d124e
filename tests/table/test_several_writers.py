"""Two writers of a table on S3 are refused, unless Delta's own means are set up that keep them apart."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_kafka_flip.errors import UnsafeStoreError
from dagster_kafka_flip.table.store_lock import check_writers

pytestmark = pytest.mark.spark

_COORDINATOR = "delta.coordinatedCommits.commitCoordinator-preview"


def _never():
    raise AssertionError("nobody is to ask")


def test_plain_s3_is_refused_unless_something_keeps_two_writers_apart(spark):
    for scheme in ("s3", "s3a", "s3n", "S3A"):
        with pytest.raises(UnsafeStoreError) as error:
            check_writers(spark, f"{scheme}://bucket/t", single_writer=False, properties=lambda: {"a": "b"})
        assert str(error.value) == (
            f"the table {scheme}://bucket/t is on S3, where two concurrent runs can overwrite each other's commits. "
            "Set single_writer of its DeltaTarget (or DeadLetters) to true, and give its runs a "
            f"pool with the limit 1; or give the table a commit coordinator, by its property {_COORDINATOR}=dynamodb"
        )
        with pytest.raises(UnsafeStoreError, match=r"is on S3 and does not exist yet, .* let one run create it\. "):
            check_writers(spark, f"{scheme}://bucket/t", single_writer=False, properties=lambda: None)
        check_writers(spark, f"{scheme}://bucket/t", single_writer=True, properties=_never)
    for location in ("/lake/t", "file:/lake/t", "hdfs://n:9/t", "gs://bucket/t", "abfss://c@a.net/t"):
        check_writers(spark, location, single_writer=False, properties=_never)


def test_a_store_that_is_not_known_is_refused_unless_there_is_one_writer(spark):
    for location in ("oss://bucket/t", "obs://bucket/t", "cos://bucket/t"):
        with pytest.raises(UnsafeStoreError, match=r"it is unknown whether two .* single_writer of its") as error:
            check_writers(spark, location, single_writer=False, properties=_never)
        assert ("IBMCOSLogStore" in str(error.value)) == location.startswith("cos")
        check_writers(spark, location, single_writer=True, properties=_never)
    session: Any = _Started({"spark.delta.logStore.cos.impl": "io.delta.storage.IBMCOSLogStore"})
    check_writers(session, "cos://bucket/t", single_writer=False, properties=_never)


def test_only_the_dynamodb_commit_coordinator_is_known_to_keep_writers_apart(spark):
    check_writers(spark, "s3a://bucket/t", single_writer=False, properties=lambda: {_COORDINATOR: "dynamodb"})
    for other in ("in-memory", "DynamoDB2", ""):
        with pytest.raises(UnsafeStoreError, match="where two concurrent runs can overwrite"):
            check_writers(
                spark, "s3a://bucket/t", single_writer=False, properties=lambda other=other: {_COORDINATOR: other}
            )


class _Started:
    """A session of a Spark that was started with some settings."""

    def __init__(self, started, later=()):
        self._started = started
        self.conf = {**started, **dict(later)}

    def newSession(self):  # noqa: N802 - pyspark's name
        return _Started(self._started)


@pytest.mark.parametrize(
    ("started", "later", "is_safe"),
    [
        ({"spark.delta.logStore.s3a.impl": "io.delta.storage.S3DynamoDBLogStore"}, {}, True),
        ({"spark.delta.logStore.class": "io.delta.storage.S3DynamoDBLogStore"}, {}, True),
        # Delta looks at what Spark was started with.
        ({}, {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3DynamoDBLogStore"}, False),
        ({"spark.delta.logStore.s3a.impl": "io.delta.storage.S3SingleDriverLogStore"}, {}, False),
        # They rename, or look and then write, and S3 does neither in one step.
        ({"spark.delta.logStore.s3a.impl": "io.delta.storage.HDFSLogStore"}, {}, False),
        ({"spark.delta.logStore.class": "my.own.LogStore"}, {}, False),
        ({"spark.delta.logStore.gs.impl": "io.delta.storage.S3DynamoDBLogStore"}, {}, False),
    ],
)
def test_only_the_log_store_for_several_writers_is_safe_and_only_if_spark_was_started_with_it(started, later, is_safe):
    session = _Started(started, later)

    def check():
        check_writers(session, "s3a://bucket/t", single_writer=False, properties=dict)  # pyright: ignore[reportArgumentType]

    if is_safe:
        check()
        return
    with pytest.raises(UnsafeStoreError):
        check()
