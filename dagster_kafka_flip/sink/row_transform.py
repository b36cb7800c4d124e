"""The user's transform between table and topic: each row comes from one row alone, and keeps the change's columns."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.names import listed
from dagster_kafka_flip.sink.delta_source import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from dagster_kafka_flip.table.transform import analyzed_plan, transformed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_UNCHANGED = (CHANGE_TYPE, COMMIT_VERSION)

_FIELDS_SHOWN = "spark.sql.debug.maxToStringFields"
# The steps of a plan that make each row of one row, or only put rows elsewhere or in another order. Not MapInPandas: it
# sees many rows at once.
_BY_ROW = listed(
    """
    Project, Filter, Generate, Sort, Repartition, RepartitionByExpression, RebalancePartitions, ResolvedHint,
    CollectMetrics, SubqueryAlias, View, LogicalRDD, LocalRelation
    """
)
_STEP = re.compile(r"[ :|]*[+:]- (\w+)")
# Another run would get another value, and publish the rows in another order, or in other lanes. A plan shows some names
# in capitals.
_UNREPEATABLE = re.compile(
    r"\b(rand|random|randn|randstr|uniform|uuid|shuffle|monotonically_increasing_id|spark_partition_id|input_file_name"
    r"|input_file_block_start|input_file_block_length|current_timestamp|localtimestamp|current_date|now|aes_encrypt"
    r"|reflect|try_reflect|java_method)\(",
    flags=re.IGNORECASE,
)
# The differences between two plans of one transform: Spark's ids, and the names of temporary views.
_NUMBERED = re.compile(r"#\d+L?|_gen_alias_\d+")
_NAMED = re.compile(r"^[ :|]*(?:[+:]- )?(?:SubqueryAlias|View) .*$", flags=re.MULTILINE)
_PART = re.compile(r"[\[\](),\n]+")
_MOST_SHOWN = 60
# Spark keeps what a column's metadata says as long as the column is the same, under whatever name.
_SAME = "dagster_kafka_flip.same"


def checked_rows(changes: DataFrame, function: Callable[[DataFrame], DataFrame]) -> DataFrame:
    """Applies the transform after a look at its plan, of no rows at all."""
    _check(changes.sparkSession, changes.schema, function)
    rows = transformed(_marked(changes), function)
    # It may look at the rows, and do something else than without any.
    _check_there(rows)
    _check_unchanged(rows)
    return rows


def _marked(rows: DataFrame) -> DataFrame:
    for name in _UNCHANGED:
        # Not as an alias's metadata: withColumns() of Spark Connect forgets it.
        rows = rows.withMetadata(name, {_SAME: name})
    return rows


def _check(spark: SparkSession, schema: StructType, function: Callable[[DataFrame], DataFrame]) -> None:
    nothing = _marked(spark.createDataFrame([], schema))
    result = transformed(nothing, function)
    _check_there(result)
    with _all_fields_shown(spark):
        plan = analyzed_plan(result)
        again = analyzed_plan(transformed(nothing, function))
    steps = [step[1] for line in plan.splitlines()[1:] if (step := _STEP.match(line)) is not None]
    if others := [step for step in steps if step not in _BY_ROW]:
        raise ConfigurationError(
            f"the transform has a step {others[0]}, so its rows may depend on other rows: on the versions that a run "
            "reads together, or on other data at that time. A run after a failure would publish different rows",
            "Write the result to a table, and publish that table",
        )
    if call := _UNREPEATABLE.search(plan):
        raise ConfigurationError(
            f"the transform calls {call[1]}(), whose value may differ in each run: a run after a failure would not "
            "know which rows are already published",
            f"Leave it out; the record's timestamp is the time of its publication, and {COMMIT_TIMESTAMP} that of "
            "the commit. Or write the result to a table, and publish that table",
        )
    one, other = (_PART.split(_NAMED.sub("", _NUMBERED.sub("", each))) for each in (plan, again))
    if one != other:
        differing = [pair for pair in zip(one, other, strict=False) if pair[0] != pair[1]]
        shown = " and then ".join(each.strip()[:_MOST_SHOWN] for each in (differing or [("more", "less")])[0])
        raise ConfigurationError(
            f"the transform gives another plan each time it is called: {shown}. A run after a failure would not "
            "know which rows are already published",
            f"Leave out values that change, such as lit(datetime.now()); {COMMIT_TIMESTAMP} is the time of the commit",
        )
    _check_unchanged(result)


def _check_there(result: DataFrame) -> None:
    lacking = [name for name in _UNCHANGED if name not in result.columns]
    if lacking:
        raise ConfigurationError(
            f"the transform returns no column {' and no column '.join(lacking)}, so it is unknown what happened to "
            "a row",
            f"Name {CHANGE_TYPE} and {COMMIT_VERSION} in select(), too, or use withColumns() and drop(); they are "
            "not published",
        )


def _check_unchanged(result: DataFrame) -> None:
    for name in _UNCHANGED:
        if result.schema[name].metadata.get(_SAME) != name:
            raise ConfigurationError(
                f"the transform computes the column {name}, which says what happened to a row",
                f"Leave {CHANGE_TYPE} and {COMMIT_VERSION} unchanged. To delete a key from the topic, delete its row "
                "from the table, or filter it out",
            )


@contextlib.contextmanager
def _all_fields_shown(spark: SparkSession) -> Generator[None]:
    before = spark.conf.get(_FIELDS_SHOWN, None)
    spark.conf.set(_FIELDS_SHOWN, "100000")
    try:
        yield
    finally:
        if before is None:
            spark.conf.unset(_FIELDS_SHOWN)
        else:
            spark.conf.set(_FIELDS_SHOWN, before)
