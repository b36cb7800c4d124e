"""Where pyspark's own Spark is."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path


def spark_home() -> Path:
    """Where pyspark starts Spark from."""
    if home := os.environ.get("SPARK_HOME"):
        return Path(home)
    spec = importlib.util.find_spec("pyspark")
    return Path(next(iter((spec.submodule_search_locations or ()) if spec else ()), "."))
