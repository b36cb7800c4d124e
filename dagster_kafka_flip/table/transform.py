"""Applies the user's transform, and validates its result."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.runtime.session_settings import SESSION_ZONE
from dagster_kafka_flip.settings.names import twice

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame


def transformed(rows: DataFrame, transform: Callable[[DataFrame], DataFrame] | None) -> DataFrame:
    from pyspark.sql import DataFrame

    if transform is None:
        return rows
    conf = rows.sparkSession.conf
    zone = str(conf.get(SESSION_ZONE))
    result: Any = transform(rows)
    if (changed := conf.get(SESSION_ZONE)) != zone:
        # A run after this one would begin with it.
        conf.set(SESSION_ZONE, zone)
        raise ConfigurationError(
            f"the transform set {SESSION_ZONE} from {zone} to {changed}: from the next batch on, times without an "
            "offset would be other ones. It is set back",
            "Set the zone before the run, in the session's config; or convert in the transform, such as with "
            "to_utc_timestamp()",
        )
    # Not by an attribute: a Column has every one.
    if not isinstance(result, DataFrame):
        # Includes the module, because pandas also has a DataFrame.
        kind = type(result)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        returned = "None; end it with `return`" if result is None else name
        raise ConfigurationError(f"the transform must return a Spark DataFrame, but returned {returned}")
    # Checked before the table is created with its columns.
    if result.isStreaming:
        raise ConfigurationError("the transform returned a streaming DataFrame; build the rows from the given records")
    if not result.columns:
        raise ConfigurationError("the transform returned a DataFrame without columns; keep at least one")
    if (doubled := twice(result.columns)) is not None:
        raise ConfigurationError(
            f"the transform returned two columns {doubled!r}; column names in Spark and Delta are case-insensitive",
            "Rename or drop one of them",
        )
    return result


def analyzed_plan(rows: DataFrame) -> str:
    """Returns Spark's analyzed plan of a DataFrame as text, without reading anything."""
    view = f"dagster_kafka_flip_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(view)
    try:
        explained = rows.sparkSession.sql(f"EXPLAIN EXTENDED TABLE {view}").first()
    finally:
        rows.sparkSession.catalog.dropTempView(view)
    text = "" if explained is None else str(explained[0])
    return text.partition("== Analyzed Logical Plan ==\n")[2].partition("\n== Optimized Logical Plan ==")[0]
