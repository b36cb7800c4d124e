"""Tags of Spark jobs, by which any thread can stop them.

Without Spark Connect these are the SparkContext's tags: in Spark 4.0, `SparkSession.interruptTag` finds only jobs that
its own thread has tagged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.runtime.remote import is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def tag_jobs(spark: SparkSession, tag: str) -> None:
    """Tags the jobs that this thread starts from now on.

    Args:
        spark: The session.
        tag: The tag.
    """
    if is_remote(spark):
        spark.addTag(tag)
    else:
        spark.sparkContext.addJobTag(tag)


def untag_jobs(spark: SparkSession, tag: str) -> None:
    """Ends `tag_jobs`.

    Args:
        spark: The session.
        tag: The tag.
    """
    if is_remote(spark):
        spark.removeTag(tag)
    else:
        spark.sparkContext.removeJobTag(tag)


def stop_jobs(spark: SparkSession, tag: str) -> None:
    """Cancels the running jobs with a tag, whichever thread started them.

    Args:
        spark: The session.
        tag: The tag.
    """
    if is_remote(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)
