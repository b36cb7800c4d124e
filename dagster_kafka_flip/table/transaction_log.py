"""Reads a table's `_delta_log` with Spark's file readers, following Delta's protocol."""

from __future__ import annotations

import functools
import json
import logging
import re
from typing import TYPE_CHECKING, TypeVar

from dagster_kafka_flip.errors import TableError
from dagster_kafka_flip.table.restored import FileChange
from dagster_kafka_flip.table.retries import answered
from dagster_kafka_flip.table.sql import literal
from dagster_kafka_flip.table.store_errors import CHECK_ACCESS, with_advice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_PATTERN_LETTER = re.compile(r"[\\*?{}\[\]]")
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.(parquet|json)")

_TRANSACTIONS = "txn STRUCT<appId: STRING, version: BIGINT>"
_SCHEMA = "metaData STRUCT<schemaString: STRING>"
_GENERATED = "delta.generationExpression"
_FILE = "path: STRING, deletionVector: STRUCT<storageType: STRING, pathOrInlineDv: STRING, offset: INT>"

_FILES = f"add STRUCT<{_FILE}>, remove STRUCT<{_FILE}>"


class TransactionLog:
    """The log of one table."""

    def __init__(self, spark: SparkSession, location: str, table: str) -> None:
        self._spark = spark
        self._folder = f"{location.rstrip('/')}/_delta_log"
        # Spark's readers interpret these characters of a path as patterns.
        self._readable = _PATTERN_LETTER.sub(r"\\\g<0>", self._folder)
        self._table = table

    def transaction_version(self, application: str, newest: int) -> int | None:
        """Returns an application's last transaction version at a table version; None if there is none.

        Reads the last checkpoint and the commits after it. A checkpoint's sidecars only contain files.

        Raises:
            TableError: The log can't be read, or is incomplete.
        """
        return self._trying(
            functools.partial(self._transaction_versions, f"appId = {literal(application)}", newest)
        ).get(application)

    def transaction_versions(self, prefix: str, newest: int) -> dict[str, int]:
        """Returns the last transaction versions of all applications with an id prefix; see `transaction_version`.

        Raises:
            TableError: The log can't be read, or is incomplete.
        """
        condition = f"startswith(appId, {literal(prefix)})"
        return self._trying(functools.partial(self._transaction_versions, condition, newest))

    def generated_columns(self, newest: int) -> frozenset[str]:
        """Returns the columns that Delta computes from others, at a table version.

        Spark does not show which these are.

        Raises:
            TableError: The log can't be read, or is incomplete.
        """
        return self._trying(functools.partial(self._generated_columns, newest))

    def file_changes(self, versions: Iterable[int], writes: Iterable[int]) -> list[FileChange]:
        """Returns the files that commits added and removed.

        Args:
            versions: The versions of the commits.
            writes: Those of them that only add files that they wrote.

        Raises:
            TableError: The log can't be read, or lacks one of the commits.
        """
        paths = [f"{self._readable}/{version:020}.json" for version in versions]
        return self._trying(functools.partial(self._file_changes, paths, frozenset(writes)))

    def _trying(self, read: Callable[[], _T]) -> _T:
        try:
            return answered(_logger, f"reading the log of {self._table}", read)
        except TableError:
            raise
        except Exception as error:
            what = f"the log of the table {self._table} ({self._folder})"
            msg = f"{what} can't be read: {with_advice(error, CHECK_ACCESS)}"
            raise TableError(msg) from error

    def _transaction_versions(self, condition: str, newest: int) -> dict[str, int]:
        found = [
            (int(row["file_name"][:20]), row["appId"], row["version"])
            for rows in self._read(self._files(newest), _TRANSACTIONS)
            for row in rows.selectExpr("_metadata.file_name", "txn.appId", "txn.version").where(condition).collect()
        ]
        return {application: version for _, application, version in sorted(found)}

    def _generated_columns(self, newest: int) -> frozenset[str]:
        found = [
            (int(row["file_name"][:20]), row["schemaString"])
            for rows in self._read(self._files(newest), _SCHEMA)
            for row in rows.where("metaData IS NOT NULL")
            .selectExpr("_metadata.file_name", "metaData.schemaString")
            .collect()
        ]
        _, text = max(found)
        return frozenset(field["name"] for field in json.loads(text)["fields"] if _GENERATED in field["metadata"])

    def _files(self, newest: int) -> list[str]:
        """The last checkpoint up to a version, and the commits after it."""
        commits: dict[int, str] = {}
        checkpoints: dict[tuple[int, int], list[str]] = {}
        for row in self._spark.read.format("binaryFile").load(self._readable).select("path").collect():
            name = row["path"].rpartition("/")[2]
            if (match := _COMMIT.fullmatch(name)) is not None:
                commits[int(match[1])] = name
            elif (match := _CHECKPOINT.fullmatch(name)) is not None and match[3] is None:
                checkpoints[int(match[1]), 1] = [name]
            elif match is not None:
                checkpoints.setdefault((int(match[1]), int(match[3])), []).append(name)
        # A checkpoint may be incomplete if its writer died.
        whole = {version: names for (version, parts), names in checkpoints.items() if len(names) == parts}
        last = max((version for version in whole if version <= newest), default=-1)
        missing = [version for version in range(last + 1, newest + 1) if version not in commits]
        if missing:
            msg = (
                f"the log of the table {self._table} ({self._folder}) is incomplete: it has neither version "
                f"{missing[0]} nor a later checkpoint, up to version {newest}"
            )
            raise TableError(msg)
        return [*whole.get(last, ()), *(commits[version] for version in range(last + 1, newest + 1))]

    def _file_changes(self, paths: list[str], writes: frozenset[int]) -> list[FileChange]:
        rows = (
            self._spark.read.schema(_FILES)
            .option("mode", "FAILFAST")
            .json(paths)
            .where("add.path IS NOT NULL OR remove.path IS NOT NULL")
            .selectExpr("_metadata.file_name", "add.path IS NOT NULL AS is_added", "coalesce(add, remove) AS file")
            .selectExpr(
                "file_name",
                "is_added",
                "concat_ws(' ', file.path, file.deletionVector.storageType, file.deletionVector.pathOrInlineDv, "
                "CAST(file.deletionVector.offset AS STRING)) AS file",
            )
        )
        changes: list[FileChange] = []
        for row in rows.collect():
            version = int(row["file_name"][:20])
            changes.append(FileChange(version, row["file"], row["is_added"], row["is_added"] and version in writes))
        return changes

    def _read(self, names: list[str], schema: str) -> list[DataFrame]:
        reader = self._spark.read.schema(schema).option("mode", "FAILFAST")
        by_format = {
            suffix: [f"{self._readable}/{name}" for name in names if name.endswith(suffix)] for suffix in _READ
        }
        return [
            reader.json(paths) if suffix == ".json" else reader.parquet(*paths)
            for suffix, paths in by_format.items()
            if paths
        ]


_READ = (".json", ".parquet")
