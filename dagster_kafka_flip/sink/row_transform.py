"""The user's transform between table and topic: each row comes from one row alone, and keeps the change's columns."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.sink.table_rows import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from dagster_kafka_flip.table.transform import analyzed_plan, transformed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.sink.progress import Segment

_KINDS = ("delete", "update_preimage", "update_postimage", "insert")
_KINDS_OF_A_SNAPSHOT = ("insert",)
_UNCHANGED = (CHANGE_TYPE, COMMIT_VERSION)

# Around the message of a query that met a wrong change.
MARK = re.compile(r"<<(the transform .*?)>>", flags=re.DOTALL)

_FIELDS_SHOWN = "spark.sql.debug.maxToStringFields"
# The steps of a plan that make each row of one row, or only put rows elsewhere or in another order.
_BY_ROW = frozenset(
    {
        "Project",
        "Filter",
        "Generate",
        "MapInPandas",
        "MapInArrow",
        "PythonMapInArrow",
        "Sort",
        "Repartition",
        "RepartitionByExpression",
        "RebalancePartitions",
        "ResolvedHint",
        "CollectMetrics",
        "SubqueryAlias",
        "View",
        "LogicalRDD",
        "LocalRelation",
    }
)
_STEP = re.compile(r"[ :|]*[+:]- (\w+)")
# The steps that run Python, which makes each of its columns anew.
_PYTHON = frozenset({"MapInPandas", "MapInArrow", "PythonMapInArrow"})
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


class RowTransform:
    """The transform of one run."""

    def __init__(self, spark: SparkSession, function: Callable[[DataFrame], DataFrame]) -> None:
        self._spark, self._function = spark, function

    def of(self, changes: DataFrame, segment: Segment) -> DataFrame:
        """Applies the transform; the query fails with a message marked by MARK if a row has another change."""
        from pyspark.sql import functions as f

        self._check_rows(changes.schema)
        rows = transformed(changes, self._function)
        version, kind = f.col(COMMIT_VERSION), f.col(CHANGE_TYPE)
        kinds = _KINDS_OF_A_SNAPSHOT if segment.is_snapshot else _KINDS

        def wrong(name: str) -> str:
            return f"<<the transform changed {name}, which identifies a row's change in {segment}>>"

        return rows.withColumns(
            {
                COMMIT_VERSION: f.when(version.between(segment.first, segment.last), version).otherwise(
                    f.raise_error(f.lit(wrong(COMMIT_VERSION))).cast("long")
                ),
                CHANGE_TYPE: f.when(kind.isin(*kinds), kind).otherwise(f.raise_error(f.lit(wrong(CHANGE_TYPE)))),
            }
        )

    def _check_rows(self, schema: StructType) -> None:
        """Looks at the plan of the transform, of no rows at all."""
        nothing = self._spark.createDataFrame([], schema)
        for name in _UNCHANGED:
            # Not as an alias's metadata: withColumns() of Spark Connect forgets it.
            nothing = nothing.withMetadata(name, {_SAME: name})
        result = transformed(nothing, self._function)
        lacking = [name for name in _UNCHANGED if name not in result.columns]
        if lacking:
            raise ConfigurationError(
                f"the transform returns no column {' and no column '.join(lacking)}, so it is unknown what happened to "
                "a row",
                f"Name {CHANGE_TYPE} and {COMMIT_VERSION} in select(), too, or use withColumns() and drop(); they are "
                "not published",
            )
        with self._all_fields_shown():
            plan = analyzed_plan(result)
            again = analyzed_plan(transformed(nothing, self._function))
        steps = [step[1] for line in plan.splitlines()[1:] if (step := _STEP.match(line)) is not None]
        for step in steps:
            if step in _BY_ROW:
                continue
            raise ConfigurationError(
                f"the transform has a step {step}, so its rows depend on other rows: on the "
                "versions that a run reads together, or on other data at that time. A run after a failure would "
                "publish different rows",
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
                f"Leave out values that change, such as lit(datetime.now()); {COMMIT_TIMESTAMP} is the time of the "
                "commit",
            )
        computed = [name for name in _UNCHANGED if result.schema[name].metadata.get(_SAME) != name]
        if computed and _PYTHON.isdisjoint(steps):
            raise ConfigurationError(
                f"the transform computes the column {computed[0]}, which says what happened to a row",
                f"Leave {CHANGE_TYPE} and {COMMIT_VERSION} unchanged. To delete a key from the topic, delete its row "
                "from the table, or filter it out",
            )

    @contextlib.contextmanager
    def _all_fields_shown(self) -> Generator[None]:
        conf = self._spark.conf
        before = conf.get(_FIELDS_SHOWN, None)
        conf.set(_FIELDS_SHOWN, "100000")
        try:
            yield
        finally:
            if before is None:
                conf.unset(_FIELDS_SHOWN)
            else:
                conf.set(_FIELDS_SHOWN, before)
