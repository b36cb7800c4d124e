"""Spark's functions of columns, as `pyspark.sql.functions`; Spark is loaded when one is used, and not by the import."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    from pyspark.sql import functions

    return getattr(functions, name)
