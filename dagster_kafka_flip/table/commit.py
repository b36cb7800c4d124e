"""Commit: one commit of a table, as Delta's history tells it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_kafka_flip.table.document import CommitDocument
from dagster_kafka_flip.table.windows_document import WindowsDocument

if TYPE_CHECKING:
    from collections.abc import Mapping

MERGE = "MERGE"
"""Delta's name of the operation."""

WRITES = frozenset({"WRITE", MERGE})
"""The operations of a stream's own commits."""


@dataclass(frozen=True)
class Commit:
    """One row of `DESCRIBE HISTORY`.

    Attributes:
        version: The table's version that the commit created.
        operation: Delta's name of the operation; None if the commit has no such information.
        parameters: The operation's parameters, as Delta prints them.
        metrics: The operation's metrics, as Delta prints them.
        user_metadata: The commit's `userMetadata`.
        timestamp_ms: Commit time in milliseconds since the epoch.
        engine: The writer, such as `Apache-Spark/4.2.0 Delta-Lake/4.4.0` or `delta-rs:py-1.6.6`.
    """

    version: int
    operation: str | None
    parameters: Mapping[str, str | None]
    metrics: Mapping[str, str]
    user_metadata: str | None = None
    timestamp_ms: int | None = None
    engine: str | None = None

    def document(self) -> CommitDocument | None:
        """The stream's document, if this commit has one.

        An OPTIMIZE can repeat the document of the preceding write; it is ignored.
        """
        return CommitDocument.from_text(self.user_metadata) if self.operation in WRITES else None

    def windows(self) -> WindowsDocument | None:
        """The document of windows, if this commit replaced some."""
        return WindowsDocument.from_text(self.user_metadata) if self.operation == "WRITE" else None

    @property
    def restored_version(self) -> int | None:
        """The version that a RESTORE restored; None if it has a timestamp, or is not a RESTORE."""
        version = self.parameters.get("version") or ""
        return int(version) if self.operation == "RESTORE" and version.isdigit() else None

    @property
    def rows_written(self) -> int | None:
        """Rows that the commit added or, by a MERGE, also updated; None if the writer did not record it."""
        if self.operation != MERGE:
            return self.metric("numOutputRows")
        return _plus(self.metric("numTargetRowsInserted"), self.metric("numTargetRowsUpdated"))

    @property
    def rows_gained(self) -> int | None:
        """By how many rows the table grew, below 0 if it shrank; None if the writer did not record it.

        Only for a stream's own commit: it adds rows, or is a MERGE.
        """
        if self.operation != MERGE:
            return self.metric("numOutputRows")
        deleted = self.metric("numTargetRowsDeleted")
        return None if deleted is None else _plus(self.metric("numTargetRowsInserted"), -deleted)

    @property
    def shown_parameters(self) -> str:
        """The parameters that say which rows the operation concerned, with a space before them; empty without any."""
        shown = {
            name: value for name, value in self.parameters.items() if name in {"mode", "predicate", "version"} and value
        }
        return f" {json.dumps(shown)}" if shown else ""

    @property
    def properties_set(self) -> dict[str, str]:
        """The table properties that an ALTER TABLE set; empty for other commits."""
        return json.loads((self.operation == "SET TBLPROPERTIES" and self.parameters.get("properties")) or "{}")

    @property
    def named(self) -> str:
        """The version, with what it did."""
        return f"version {self.version} ({self.operation or 'an operation without a name'}{self.shown_parameters})"

    def metric(self, name: str) -> int | None:
        """A metric as a number; None if the writer did not record it.

        Other writers use other names, and `spark.databricks.delta.history.metricsEnabled` disables Spark's.
        """
        text = self.metrics.get(name)
        return int(text) if text and text.isdigit() else None


def _plus(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
