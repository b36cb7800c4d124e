"""What Spark takes of the cores: it says more than seconds on a machine that has other work to do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def cpu_seconds(spark: SparkSession) -> float:
    """What the JVM of a session has taken of the cores so far."""
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    stat = Path(f"/proc/{gateway.proc.pid}/stat")
    if not stat.exists():
        return 0.0
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
