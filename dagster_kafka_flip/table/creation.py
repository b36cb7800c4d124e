"""Creating a table: whether its place is free, whether the catalog lasts, and the statement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import TableError
from dagster_kafka_flip.table.half_made import is_free
from dagster_kafka_flip.table.layout import check_layout
from dagster_kafka_flip.table.schema import check_can_be_stored, column_ddl
from dagster_kafka_flip.table.spark_error import is_not_there
from dagster_kafka_flip.table.sql import literal, quoted
from dagster_kafka_flip.table.windows_document import STREAMS_PROPERTY, WINDOWS_PROPERTY

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.table.target import DeltaTarget

_SESSION_CATALOG = "spark_catalog"


def create_statement(target: DeltaTarget, schema: StructType) -> str:
    """The statement that creates a table, empty.

    Args:
        target: The table.
        schema: Its columns.

    Raises:
        ConfigurationError: It is to be partitioned or clustered by a column that it doesn't have, or has one that
            Delta can't store.
        TableError: A file is in its place.
    """
    if target.local_path is not None and target.local_path.is_file():
        msg = f"{target} is a file, and a Delta table is a folder; nothing was written. Name another path"
        raise TableError(msg)
    check_layout(str(target), schema.names, partition_by=target.partition_by, cluster_by=target.cluster_by)
    check_can_be_stored(schema, str(target), properties=target.properties, partition_by=target.partition_by)
    clauses = [f"CREATE TABLE {target.identifier} ({column_ddl(schema)}) USING delta"]
    if target.partition_by:
        clauses.append(f"PARTITIONED BY ({', '.join(quoted(name) for name in target.partition_by)})")
    if target.cluster_by:
        clauses.append(f"CLUSTER BY ({', '.join(quoted(name) for name in target.cluster_by)})")
    properties = {**target.properties}
    if WINDOWS_PROPERTY not in properties:
        properties[STREAMS_PROPERTY] = "true"
    pairs = (f"{literal(key)} = {literal(value)}" for key, value in properties.items())
    clauses.append(f"TBLPROPERTIES ({', '.join(pairs)})")
    return " ".join(clauses)


def check_catalog_lasts(spark: SparkSession, target: DeltaTarget) -> None:
    """A table must not be made in a catalog that is gone with the Spark session."""
    if target.is_path:
        return
    parts = target.name_parts
    names_catalog = len(parts) > 2  # noqa: PLR2004 - catalog, schema, table
    catalog = parts[0] if names_catalog else spark.sql("SELECT current_catalog()").collect()[0][0]
    if catalog.lower() != _SESSION_CATALOG:
        return
    plugin = spark.conf.get(f"spark.sql.catalog.{_SESSION_CATALOG}", None)
    kept_in = spark.conf.get("spark.sql.catalogImplementation", "in-memory")
    if kept_in == "in-memory" and (plugin is None or plugin.endswith(".DeltaCatalog")):
        msg = (
            f"the table {target} is not there, and it can't be made: Spark's catalog is in memory "
            "(spark.sql.catalogImplementation=in-memory), so that the next process would not find the table, and "
            "not its position. Nothing was written. Name the table by its path, such as warehouse/flights; or give "
            "the session a catalog that lasts, such as a Hive metastore (spark.sql.catalogImplementation=hive) or "
            "spark.sql.catalog.<name>"
        )
        raise TableError(msg)


def check_place_is_free(spark: SparkSession, target: DeltaTarget) -> None:
    """Makes sure that a table can be made where there is none.

    Raises:
        TableError: There is something else in its place.
    """
    what = None if target.is_path else _what_is_there(spark, target)
    if what is not None:
        msg = (
            f"{target} is {what} and no Delta table, so that no stream can land in it. Nothing was written. "
            "Choose another name; what a stream lands can be shown by a view over its table"
        )
        raise TableError(msg)
    path = target.local_path
    if path is not None and not is_free(path):
        msg = f"{path} is not empty and no Delta table; choose another path, or convert it with CONVERT TO DELTA"
        raise TableError(msg)


def _what_is_there(spark: SparkSession, target: DeltaTarget) -> str | None:
    """What else a catalog has under the table's name; None if nothing."""
    try:
        rows = spark.sql(f"DESCRIBE TABLE EXTENDED {target.identifier}").collect()
    except Exception as error:
        if is_not_there(error):
            return None
        raise
    told = {row["col_name"]: row["data_type"] for row in rows}
    if (told.get("Provider") or "").lower() == "delta":
        return None
    if "Provider" not in told or "VIEW" in (told.get("Type") or ""):
        return "a view"
    return f"a table of the format {told['Provider']}"
