"""Finds pyspark's own Spark installation."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path


def spark_home() -> Path:
    """The Spark home that pyspark uses."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    spec = importlib.util.find_spec("pyspark")
    return Path(next(iter((spec.submodule_search_locations or ()) if spec else ()), "."))
