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
        ConfigurationError: It returned no DataFrame, or one without columns.
    """
    if transform is None:
        return rows
    result = transform(rows)
    if not hasattr(result, "writeTo"):
        msg = f"the transform has to return a DataFrame, and returned {type(result).__name__}"
        raise ConfigurationError(msg)
    if not result.columns:
        msg = "the transform returned a DataFrame without columns; keep at least one"
        raise ConfigurationError(msg)
    return result
