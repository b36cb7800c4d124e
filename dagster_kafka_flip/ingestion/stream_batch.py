"""The bounded read of a stream's batches: reads, decodes and transforms records, and counts them."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.ingestion.keyed_stream import (
    carried,
    change_columns,
    change_rows,
    check_keeps_unavailable,
    with_tombstones,
)
from dagster_kafka_flip.ingestion.observation import BatchObservation, WholeBatch
from dagster_kafka_flip.ingestion.progress import ReadProgress, read_watched
from dagster_kafka_flip.reader.kafka_reader import no_records
from dagster_kafka_flip.runtime.session import dead_spark_as_error
from dagster_kafka_flip.table.changes import Changes
from dagster_kafka_flip.table.interruptible import write_tag
from dagster_kafka_flip.table.mode import Append
from dagster_kafka_flip.table.transform import transformed

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.api import SplitAssignment


class RunRows:
    """What one run reads, of streams and windows alike."""

    def __init__(self, session: SparkSession, spec: RunSpec) -> None:
        self._session = session
        self._spec = spec

    def records(self, assignment: SplitAssignment) -> DataFrame:
        """The records of a batch, as they are read."""
        return self._spec.records(self._session, assignment)

    def watched(self, attempt: str, progress: ReadProgress) -> AbstractContextManager[None]:
        """Logs how far the write of an attempt has read."""
        return read_watched(self._session, write_tag(attempt), progress, self._spec.log)


class BatchRows(RunRows):
    """The bounded read of a stream's batches, up to the rows."""

    def __init__(self, session: SparkSession, spec: RunSpec, *, leave_out_rejected: bool) -> None:
        super().__init__(session, spec)
        self._key = spec.target.key
        self._leave_out_rejected = leave_out_rejected

    def schema(self) -> StructType:
        """The columns of the rows, without reading anything."""
        rows = self._taken(self._decoded(no_records(self._session)))
        return (rows.landed if isinstance(rows, Changes) else rows).schema

    def rows(self, assignment: SplitAssignment) -> tuple[DataFrame | Changes, BatchObservation]:
        """The rows of a batch, and what observes the write of them."""
        # A new one each time: an observation reports the first run of a DataFrame, which may have failed.
        splits = assignment.plan.splits
        watch = BatchObservation(splits, WholeBatch(splits))
        with dead_spark_as_error():
            rows = self._decoded(self.records(assignment), watch)
            if self._spec.transform is not None and not assignment.plan.is_empty:
                watch.whole.transformed(rows)
        return self._taken(rows), watch

    def _decoded(self, records: DataFrame, watch: BatchObservation | None = None) -> DataFrame:
        decoder = self._spec.decoder
        keyed = bool(self._key)
        carry = carried(decoder) if keyed else ()
        if keyed:
            records = with_tombstones(records)
        staged = decoder.stage(records) if watch is None else watch.stage(records, decoder, carry, keyed=keyed)
        if keyed:
            rows = change_rows(staged, decoder, self._key, leave_out_rejected=self._leave_out_rejected)
        else:
            rows = decoder.finish(staged, leave_out_rejected=self._leave_out_rejected)
        result = transformed(rows, self._spec.transform)
        if self._key:
            check_keeps_unavailable(rows, result, change_columns(decoder.columns))
        return result

    def _taken(self, rows: DataFrame) -> DataFrame | Changes:
        """The rows as the table takes them."""
        mode = self._spec.target.mode
        if isinstance(mode, Append):
            return rows
        changes = Changes(rows, mode, change_columns(self._spec.decoder.columns), mode.key)
        changes.check(str(self._spec.target))
        return changes


@functools.singledispatch
def batch_rows(session: Any, spec: RunSpec, *, leave_out_rejected: bool) -> BatchRows:
    """Returns the reads of a run in a session."""
    return BatchRows(session, spec, leave_out_rejected=leave_out_rejected)
