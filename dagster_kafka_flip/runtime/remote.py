"""Whether a Spark Connect server does the work."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def is_remote(of: SparkSession | DataFrame) -> bool:
    """Whether a session or a DataFrame is Spark Connect's.

    Spark Connect has separate classes, in a module that needs packages which may be missing.
    """
    return "connect" in type(of).__module__
