"""Checks what a table keeps for good: partition and clustering columns, mode and key."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError, SchemaMismatchError, TableModeError
from dagster_kafka_flip.runtime.remote import unskippable
from dagster_kafka_flip.runtime.spark_functions import f
from dagster_kafka_flip.settings.names import meant_by
from dagster_kafka_flip.table.change_errors import CHANGED_PARTITION, place, unless
from dagster_kafka_flip.table.mode import Append, kind_of, mode_of, same_mode, written
from dagster_kafka_flip.table.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.table.mode import Mode
    from dagster_kafka_flip.table.target import DeltaTarget

# Where Spark keeps the type of a column with a CHAR or VARCHAR, which it reads as STRING.
_DECLARED_TYPE = "__CHAR_VARCHAR_TYPE_STRING"
_CHAR = re.compile(r"\bchar\(")
# As KafkaColumns names them by default.
_PLACE = ("kafka_topic", "kafka_partition", "kafka_offset")

NULL_AS_PARTITION = ("", "__HIVE_DEFAULT_PARTITION__")
"""Texts that Delta stores as null, as values of a partition column."""


def check_layout(
    table: str, columns: Collection[str], *, partition_by: Sequence[str], cluster_by: Sequence[str]
) -> None:
    # Spark and Delta compare column names case-insensitively.
    there = {name.lower() for name in columns}
    for option, names in (("partition_by", partition_by), ("cluster_by", cluster_by)):
        for name in names:
            # A field of a STRUCT can be a clustering column.
            known = name.lower() in there or (option == "cluster_by" and name.partition(".")[0].lower() in there)
            if not known:
                near = meant_by(name, columns)
                raise ConfigurationError(
                    f"{option}: the rows of {table} have no column {name!r}; "
                    + (f"did you mean {near[0]}?" if near else f"columns: {', '.join(columns)}")
                )
    if partition_by and len(partition_by) == len(there):
        raise ConfigurationError(
            f"partition_by: the rows of {table} have only the columns {', '.join(columns)}, and Delta needs at least "
            "one column that is not a partition column"
        )


# Delta stores the values of partition columns as text. It replaces what is not UTF-8, and takes the clock of Spark's
# session for that of each JVM, executors included, whose time zones nobody knows.
CHANGED_IN_PARTITIONS = {"binary": "bytes", "timestamp": "times"}
INSTEAD = "a DATE or a STRING, such as to_date() or hex() make in the transform"


def check_partition_types(table: str, columns: StructType, partition_columns: Callable[[], Collection[str]]) -> None:
    """Refuses a table in whose partition columns Delta would change values, also those that it writes again."""
    changed = [field for field in columns.fields if field.dataType.typeName() in CHANGED_IN_PARTITIONS]
    partitions = {name.lower() for name in partition_columns()} if changed else set[str]()
    for field in changed:
        if field.name.lower() in partitions:
            kind = field.dataType.typeName()
            raise SchemaMismatchError(
                f"the table {table} is partitioned by the {kind.upper()} {field.name}, and Delta would change its "
                f"{CHANGED_IN_PARTITIONS[kind]}",
                f"Use a table that is partitioned by {INSTEAD}",
            )


def partition_texts(
    names: Sequence[str], table: StructType, partition_columns: Callable[[], Collection[str]]
) -> list[str]:
    """The columns of a batch that are texts by which a table is partitioned."""
    texts = {field.name.lower() for field in table.fields if field.dataType.typeName() == "string"}
    texts &= {name.lower() for name in partition_columns()} if texts else set[str]()
    return [name for name in names if name.lower() in texts]


def changed_in_partitions(text: Column) -> Column:
    """Whether Delta would store another value of a partition column: null, or U+FFFD for bytes that are not UTF-8."""
    return text.isin(*NULL_AS_PARTITION) | ~f.is_valid_utf8(text)


def without_changed_texts(
    rows: DataFrame, table: StructType, partition_columns: Callable[[], Collection[str]]
) -> DataFrame:
    """Their query fails on a row with a text of which Delta would store another value."""
    for name in partition_texts(rows.columns, table, partition_columns):
        where = place(*_PLACE) if {*_PLACE}.issubset(rows.columns) else f.lit("a record")
        rows = unskippable(rows, unless(changed_in_partitions(f.col(quoted(name))), CHANGED_PARTITION, where))
    return rows


def check_not_padded(table: str, batch: StructType, columns: StructType) -> None:
    written = {field.name.lower() for field in batch.fields}
    for field in columns.fields:
        declared = str((field.metadata or {}).get(_DECLARED_TYPE, ""))
        if field.name.lower() in written and _CHAR.search(declared):
            raise SchemaMismatchError(
                f"the column {field.name} of the table {table} is {declared}, whose values Spark pads with spaces",
                "Use a table with STRING instead of CHAR; the first run creates one",
            )


KEY_PROPERTY = "dagster-kafka-flip.key"
"""Table property of a table that was created for rows with a key: the key."""

_KIND_PROPERTY = "dagster-kafka-flip.mode"


def mode_properties(mode: Mode) -> dict[str, str]:
    if isinstance(mode, Append):
        return {}
    kind = kind_of(mode)
    return {KEY_PROPERTY: json.dumps(list(mode.key)), **({_KIND_PROPERTY: json.dumps(kind)} if kind else {})}


def created_for(properties: Mapping[str, str]) -> Mode:
    names = _parsed(properties.get(KEY_PROPERTY, "[]"))
    kind = _parsed(properties.get(_KIND_PROPERTY, "{}"))
    key = tuple(map(str, names)) if isinstance(names, list) else (properties[KEY_PROPERTY],)
    return mode_of(key, kind if isinstance(kind, dict) else {})


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def check_mode(target: DeltaTarget, mode: Mode, where: str) -> None:
    if same_mode(mode, target.mode):
        return
    raise TableModeError(
        f"the table {target} is written with {written(mode)} ({where}), but the stream {target.stream!r} has "
        f"{written(target.mode)}",
        "Set this mode back, or use another table: its first run reads everything that the topic holds",
    )
