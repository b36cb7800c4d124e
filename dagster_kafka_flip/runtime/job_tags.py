"""Tags of Spark jobs, by which any thread can stop them.

Without Spark Connect these are the SparkContext's tags: `SparkSession.interruptTag` finds only jobs that its own thread
has tagged (Spark 4.0 to 4.2).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from dagster_kafka_flip.runtime.remote import is_remote

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import SparkSession


@contextlib.contextmanager
def tagged_jobs(spark: SparkSession, tag: str) -> Generator[None]:
    """Tags the jobs that this thread starts in the block."""
    if is_remote(spark):
        add, remove = spark.addTag, spark.removeTag
    else:
        add, remove = spark.sparkContext.addJobTag, spark.sparkContext.removeJobTag
    add(tag)
    try:
        yield
    finally:
        # Spark may be gone.
        with contextlib.suppress(Exception):
            remove(tag)


def stop_jobs(spark: SparkSession, tag: str) -> None:
    """Cancels the running jobs with a tag, whichever thread started them."""
    if is_remote(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)
