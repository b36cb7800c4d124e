"""The user's own function between decoding and landing, and what it must give back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame


def transformed(rows: DataFrame, transform: Callable[[DataFrame], DataFrame] | None) -> DataFrame:
    """Rows after the transform; the same if there is none.

    Raises:
        ConfigurationError: It returned something else than a Spark DataFrame, a streaming one, or one without columns.
    """
    if transform is None:
        return rows
    result = transform(rows)
    if not hasattr(result, "writeTo"):
        # With the module: what pandas has is called DataFrame, too.
        kind = type(result)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        msg = f"the transform has to return a Spark DataFrame, and returned {name}"
        raise ConfigurationError(msg)
    # Told before a table is created with its columns, which the rows that are meant would not fit.
    if result.isStreaming:
        msg = "the transform returned a streaming DataFrame; build the rows from the records that it is given"
        raise ConfigurationError(msg)
    if not result.columns:
        msg = "the transform returned a DataFrame without columns; keep at least one"
        raise ConfigurationError(msg)
    return result
