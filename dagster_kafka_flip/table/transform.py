"""Applies the user's transform, and validates its result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame


def transformed(rows: DataFrame, transform: Callable[[DataFrame], DataFrame] | None) -> DataFrame:
    """The rows after the transform; the records if there is none.

    Raises:
        ConfigurationError: The result is not a Spark DataFrame, is a streaming DataFrame, or has no columns.
    """
    if transform is None:
        return rows
    result = transform(rows)
    if not hasattr(result, "writeTo"):
        # Includes the module, because pandas also has a DataFrame.
        kind = type(result)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        msg = f"the transform must return a Spark DataFrame, but returned {name}"
        raise ConfigurationError(msg)
    # Checked before the table is created with its columns.
    if result.isStreaming:
        msg = "the transform returned a streaming DataFrame; build the rows from the given records"
        raise ConfigurationError(msg)
    if not result.columns:
        msg = "the transform returned a DataFrame without columns; keep at least one"
        raise ConfigurationError(msg)
    return result
