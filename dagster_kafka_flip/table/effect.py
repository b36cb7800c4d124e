"""What each of Delta's operations does to the rows of a table. Their names are those of Delta's DeltaOperations."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from dagster_kafka_flip.table.commit import MERGE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.table.commit import Commit


class Effect(enum.Enum):
    """Effect of another writer's operation on the stream's rows."""

    CREATES = "creates"
    APPENDS = "appends"
    KEEPS_ROWS = "keeps rows"
    CHANGES_ROWS = "changes rows"
    REPLACES = "replaces"
    RESTORES = "restores"
    UNKNOWN = "unknown"


_KEEPS_ROWS = frozenset(
    {
        "OPTIMIZE",
        "OPTIMIZE CHECKPOINT",
        "VACUUM START",
        "VACUUM END",
        "REORG",
        "REORG TABLE UPGRADE UNIFORM",
        "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES",
        "ADD COLUMNS",
        "CHANGE COLUMN",
        "CHANGE COLUMNS",
        "RENAME COLUMN",
        "DROP COLUMNS",
        "REPLACE COLUMNS",
        "UPDATE SCHEMA",
        "UPDATE COLUMN METADATA",
        "REMOVE COLUMN MAPPING",
        "SET COLUMN",
        "ADD CONSTRAINT",
        "DROP CONSTRAINT",
        "UPGRADE PROTOCOL",
        "DROP FEATURE",
        "COMPUTE STATS",
        "CLUSTER BY",
        "DOMAIN METADATA CLEANUP",
        "ROW TRACKING BACKFILL",
        "ROW TRACKING UNBACKFILL",
        "Deletion Vector Tombstones",
        "Empty Commit",
        "UPDATE",
        # Names of delta-rs.
        "ADD COLUMN",
        "ADD FEATURE",
        "UPDATE FIELD METADATA",
        "UPDATE TABLE METADATA",
    }
)
_CREATES = frozenset({"CREATE TABLE", "CREATE TABLE AS SELECT"})
_REPLACES = frozenset(
    {
        "REPLACE TABLE",
        "REPLACE TABLE AS SELECT",
        "CREATE OR REPLACE TABLE",
        "CREATE OR REPLACE TABLE AS SELECT",
        "TRUNCATE",
        "CLONE",
        "CONVERT",
    }
)
_NO_PREDICATE = frozenset({None, "", "[]", '["true"]'})


def effect_of(commit: Commit) -> Effect:  # noqa: PLR0911 - one line for each kind of operation
    """Classifies a commit by its operation and parameters."""
    operation, parameters = commit.operation, commit.parameters
    if operation == "RESTORE":
        return Effect.RESTORES
    if commit.version == 0 or operation in _CREATES:
        return Effect.CREATES
    if operation == "WRITE":
        return _effect_of_write(parameters)
    if operation == "STREAMING UPDATE":
        return Effect.APPENDS if parameters.get("outputMode") == "Append" else Effect.REPLACES
    if operation == "DELETE":
        return Effect.REPLACES if parameters.get("predicate") in _NO_PREDICATE else Effect.CHANGES_ROWS
    if operation == MERGE:
        return Effect.CHANGES_ROWS
    if operation in _KEEPS_ROWS:
        return Effect.KEEPS_ROWS
    return Effect.REPLACES if operation in _REPLACES else Effect.UNKNOWN


def _effect_of_write(parameters: Mapping[str, str | None]) -> Effect:
    if parameters.get("mode") != "Overwrite":
        return Effect.APPENDS
    # Not isDynamicPartitionOverwrite: Delta notes what the session or the writer asked for, also where it replaced an
    # unpartitioned table as a whole.
    by_condition = parameters.get("predicate") not in _NO_PREDICATE or any(
        parameters.get(name) for name in ("replaceOnCond", "replaceUsingCols")
    )
    return Effect.CHANGES_ROWS if by_condition else Effect.REPLACES


# Metrics with the rows or files that an operation added; without any of them, the number is unknown.
_BROUGHT = {
    "WRITE": ("numOutputRows",),
    "CREATE TABLE AS SELECT": ("numOutputRows",),
    "REPLACE TABLE AS SELECT": ("numOutputRows",),
    "CREATE OR REPLACE TABLE AS SELECT": ("numOutputRows",),
    "STREAMING UPDATE": ("numOutputRows",),
    # Its output rows include rows that it only moved between files.
    "MERGE": ("numTargetRowsInserted",),
    # These two only count files.
    "CLONE": ("sourceNumOfFiles",),
    "CONVERT": ("numConvertedFiles",),
}
# With Delta's Spark writer these never add rows. Other engines may use the names differently.
_BRINGS_NONE = frozenset({"CREATE TABLE", "REPLACE TABLE", "CREATE OR REPLACE TABLE", "TRUNCATE", "DELETE"})
_OF_SPARK = "Apache-Spark/"


def brings_rows(commit: Commit) -> bool | None:
    """Whether this commit added rows; None if unknown from history."""
    operation = commit.operation
    if operation in _KEEPS_ROWS and commit.version > 0:
        return False
    if operation in _BRINGS_NONE and (commit.engine is None or commit.engine.startswith(_OF_SPARK)):
        return False
    counts = [commit.metric(name) for name in _BROUGHT.get(operation or "", ("numOutputRows",))]
    return None if None in counts else any(counts)
