"""Whether a table can be laid out as it is asked for: by columns that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings import meant_by

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

# Delta refuses more.
_MOST_CLUSTERING_COLUMNS = 4


def check_layout(
    table: str, columns: Collection[str], *, partition_by: Sequence[str], cluster_by: Sequence[str]
) -> None:
    """Makes sure that a table has the columns that it is partitioned or clustered by.

    Args:
        table: What messages call the table.
        columns: The columns of its rows.
        partition_by: Columns that it is partitioned by when it is created.
        cluster_by: Columns that it is clustered by when it is created.

    Raises:
        ConfigurationError: A column is missing, or the rows have no other columns than those of partition_by.
    """
    check_layout_names("partition_by", partition_by)
    check_layout_names("cluster_by", cluster_by)
    # Spark and Delta tell columns apart without regard to case.
    there = {name.lower() for name in columns}
    for option, names in (("partition_by", partition_by), ("cluster_by", cluster_by)):
        for name in names:
            # A part of a STRUCT can be clustered by.
            known = name.lower() in there or (option == "cluster_by" and name.partition(".")[0].lower() in there)
            if not known:
                near = meant_by(name, columns)
                msg = f"{option}: the rows for {table} have no column {name!r}; " + (
                    f"did you mean {near[0]}?" if near else f"they have {', '.join(columns)}"
                )
                raise ConfigurationError(msg)
    if partition_by and len(partition_by) == len(there):
        msg = (
            f"partition_by: the rows for {table} have no other columns than {', '.join(columns)}, and Delta needs one "
            "that the table is not partitioned by"
        )
        raise ConfigurationError(msg)


def check_layout_names(option: str, names: Sequence[str]) -> None:
    """Checks what can be told without knowing the table's columns.

    Raises:
        ConfigurationError: A name is empty or there twice, or there are more than Delta takes.
    """
    if not all(name.strip() for name in names):
        msg = f"{option}: a column's name is empty"
        raise ConfigurationError(msg)
    twice = sorted({name for name in names if [each.lower() for each in names].count(name.lower()) > 1})
    if twice:
        msg = f"{option}: the column {twice[0]!r} is named twice"
        raise ConfigurationError(msg)
    if option == "cluster_by" and len(names) > _MOST_CLUSTERING_COLUMNS:
        msg = f"cluster_by: {len(names)} columns; Delta clusters by {_MOST_CLUSTERING_COLUMNS} at most"
        raise ConfigurationError(msg)
