"""RowsToReplace: which rows of a table a run of windows replaces, and what speaks against it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    ConfigurationError,
    KafkaFlipError,
    TopicRecreatedError,
    WindowBeyondRetentionError,
    WindowsChangedError,
)
from dagster_kafka_flip.ingestion.keyed_stream import OTHER_OFFSETS
from dagster_kafka_flip.ingestion.tolerance import log_tolerated
from dagster_kafka_flip.reader.window_filter import LOG_FIELDS
from dagster_kafka_flip.runtime.spark_functions import f
from dagster_kafka_flip.settings.names import counted, first_of
from dagster_kafka_flip.source.incident import tolerate
from dagster_kafka_flip.table.change_errors import OTHER_TIME, place, unless
from dagster_kafka_flip.table.sql import literal, quoted
from dagster_kafka_flip.table.window_rows import (
    TOPIC_PROPERTY,
    Scope,
    records_predicate,
    time_predicate,
    windows_predicate,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

    from dagster_kafka_flip.ingestion.batch_rows import RunRows
    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.api import SplitAssignment, SplitEnumeratorContext
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.window import WindowPlan, Windows
    from dagster_kafka_flip.table.windowed_table import WindowedTable, WindowsState

_MAY_LOSE = {error.__name__ for error in (*OTHER_OFFSETS, WindowBeyondRetentionError)}

_BEFORE = "_dagster_kafka_flip_before_"
_ALL_INSIDE, _SOME_INSIDE = f"{_BEFORE}all", f"{_BEFORE}some"

# Types that Delta compares with a timestamp where it replaces rows.
_TIMES = frozenset({"timestamp", "timestamp_ntz"})


@dataclass(frozen=True)
class ReplacedRows:
    """Which rows are replaced: of a table of windows by a scope; and as a predicate, empty for none."""

    scope: Scope | None
    predicate: str


@dataclass
class RowsToReplace:
    """Finds which rows the windows of one run replace."""

    _spec: RunSpec
    _context: SplitEnumeratorContext
    _table: WindowedTable
    _rules: Windows
    _topics: tuple[str, ...] | None

    def __post_init__(self) -> None:
        self._target, self._names = self._spec.target, self._spec.decoder.columns

    def of(self, before: WindowsState, plan: WindowPlan) -> tuple[ReplacedRows, WindowPlan]:
        """Returns which rows are replaced, and the plan with the errors that are tolerated."""
        errors: list[tuple[KafkaFlipError, str]] = []
        if self._rules.repair:
            scoped = ReplacedRows(None, self._repair_predicate(plan) if plan.splits else "")
            if (error := self._earlier_topic(before, plan)) is not None:
                errors.append((error, "The run replaced the rows of both topics with the log's current records."))
        else:
            scoped = self._windows_scope(before, plan)
            windows = [planned.window for planned in plan.windows]
            if (error := before.landed.made_again(windows, {tp.topic for tp in plan.stops})) is not None:
                errors.append((error, "The run replaced these rows with the log's current records."))
        if (error := self._compacted(plan, scoped)) is not None:
            errors.append((error, "The run wrote the remaining records."))
        met = tuple(tolerate(error, self._context.tolerated, continuation) for error, continuation in errors)
        return scoped, replace(plan, incidents=(*before.incidents, *plan.incidents, *met))

    def _windows_scope(self, before: WindowsState, plan: WindowPlan) -> ReplacedRows:
        before.landed.check_stream(self._target.stream, {tp.topic for tp in plan.stops}, str(self._target))
        scope = Scope.of(before.landed, plan.stops, self._topics)
        needed = self.needed_columns(scope)
        if not self._table.has_columns(needed):
            raise self._missing_columns(scope, needed)
        windows = [planned.window for planned in plan.windows]
        if scope.kept:
            self._spec.log.warning(
                "%s has windows of %s, which this run does not read: their rows are unchanged",
                self._target,
                first_of(sorted(scope.kept)),
            )
        topic, partition = self._names.name("topic"), self._names.name("partition")
        predicate = windows_predicate(windows, self._rules.column, scope, topic, partition)
        return ReplacedRows(scope, predicate)

    def needed_columns(self, scope: Scope) -> list[str]:
        if scope.topics is None:
            return []
        return [self._names.name("topic"), *([self._names.name("partition")] if scope.needs_partitions else [])]

    def _missing_columns(self, scope: Scope, needed: list[str]) -> KafkaFlipError:
        if not scope.kept:
            return ConfigurationError(
                f"the table {self._target} has no column {' and '.join(needed)}, which is needed to find a topic's "
                "rows",
                "Use another table, with a transform that keeps the column",
            )
        properties = ", ".join(literal(f"{TOPIC_PROPERTY}{topic}") for topic in sorted({tp.topic for tp in scope.kept}))
        return WindowsChangedError(
            f"the table {self._target} has windows of {first_of(sorted(scope.kept))}, which this run does not read, "
            f"and no column {' and '.join(needed)} to distinguish their rows: replacing a window would remove rows "
            "that this run does not write again",
            "Add them to the source; or use another table and keep the column there; or, if these rows may be removed: "
            f"ALTER TABLE {self._target.identifier} UNSET TBLPROPERTIES ({properties})",
        )

    def _earlier_topic(self, before: WindowsState, plan: WindowPlan) -> KafkaFlipError | None:
        for split in plan.splits:
            tp = split.topic_partition
            earlier = before.earlier.get(tp)
            if earlier is not None and split.starting_offset < earlier.stop:
                topic_id = earlier.logs.topic_ids.get(tp.topic, "unknown")
                return TopicRecreatedError(
                    f"{tp}: the table {self._target} also has, or may have, rows of an earlier topic of this name "
                    f"(version {earlier.version}, stream {earlier.stream!r}, offsets below {earlier.stop}; topic id "
                    f"{topic_id}, cluster {earlier.logs.cluster_id or 'unknown'}). The range to replace has the "
                    f"offsets {split.starting_offset} to {split.stopping_offset}, and rows of the two topics with the "
                    "same offset can't be distinguished: those of the earlier one would be lost",
                    f"Choose a later range, which begins at the time of the record at offset {earlier.stop} or later; "
                    "to replace the rows of both, tolerate TopicRecreatedError",
                )
        return None

    def _compacted(self, plan: WindowPlan, scoped: ReplacedRows) -> KafkaFlipError | None:
        read = {tp.topic for tp in plan.stops}
        unknown = plan.maybe_compacted & read
        topics = sorted(plan.compacted & read) or sorted(unknown)
        if not topics or not scoped.predicate:
            return None
        name = self._names.name("topic")
        predicate = scoped.predicate
        if self._table.has_columns([name]):
            predicate = f"{predicate} AND {quoted(name)} IN ({', '.join(map(literal, topics))})"
        if self._table.delta.rows().where(predicate).isEmpty():
            return None
        first, last = plan.windows[0].window, plan.windows[-1].window
        what, grant = f"the topic {topics[0]} is compacted (cleanup.policy)", ""
        if topics[0] in unknown:
            what = f"this client can't read whether the topic {topics[0]} is compacted (cleanup.policy)"
            grant = f"Grant DESCRIBE_CONFIGS on the topic {topics[0]} and run again. "
        return WindowBeyondRetentionError(
            f"{what}, and the table {self._target} has rows of the windows from {first.start} to {last.stop}: "
            "compaction may have removed their records from the log",
            f"{grant}Choose windows that the table does not have yet; to replace these rows with the remaining "
            "records, tolerate WindowBeyondRetentionError",
        )

    def lost(
        self, plan: WindowPlan, scoped: ReplacedRows, read: RunRows, assignment: SplitAssignment
    ) -> tuple[Incident, ...]:
        """The loss, if it is tolerated, of records that the table has rows of."""
        named = {field: self._names.name(field) for field in LOG_FIELDS if field in self._names.fields}
        # Tolerated: these rows are of another log, or their records are known to be gone.
        if (
            _MAY_LOSE & {incident.error for incident in plan.incidents}
            or len(named) < len(LOG_FIELDS)
            or not self._table.has_columns(list(named.values()))
            or (rows := self._table.delta.rows().where(scoped.predicate)).isEmpty()
        ):
            return ()
        number, first = read.missing(rows, named, assignment, plan, self._rules)
        if not number:
            return ()
        begin, end = plan.windows[0].window, plan.windows[-1].window
        error = WindowBeyondRetentionError(
            f"the table {self._target} would lose {counted(number, 'record')} (first {first[0]}-{first[1]} offset "
            f"{first[2]}) of the windows from {begin.start} to {end.stop}: they are no longer in the log, as after "
            "compaction, or the run leaves them out, as with a smaller max_lateness",
            "Choose other windows, or change that back; to replace these rows with the remaining records, tolerate "
            "WindowBeyondRetentionError",
        )
        incident = tolerate(error, self._context.tolerated, "The run wrote the remaining records.", lost_offsets=number)
        log_tolerated(self._spec.log, incident)
        return (incident,)

    def repaired(self, rows: DataFrame, plan: WindowPlan, predicate: str) -> DataFrame:
        """The rows of a repair. Their query fails on one with another time than before: it would be lost or doubled."""
        columns = self.repaired_columns()
        is_the_records = self._spec.transform is None and columns["time"] == self._names.name("timestamp")
        # Tolerated: as in `lost`.
        if is_the_records or _MAY_LOSE & {incident.error for incident in plan.incidents}:
            return rows.where(predicate)
        is_inside = f.coalesce(f.expr(predicate), f.lit(False))
        named = {_BEFORE + field: columns[field] for field in LOG_FIELDS}
        there = (
            self._table.delta.rows()
            .where(records_predicate(plan.splits, columns))
            .groupBy(*(f.col(quoted(name)).alias(before) for before, name in named.items()))
            .agg(f.every(is_inside).alias(_ALL_INSIDE), f.some(is_inside).alias(_SOME_INSIDE))
        )
        moves = f.when(is_inside, ~f.col(_SOME_INSIDE)).otherwise(f.col(_ALL_INSIDE))
        return (
            rows.join(there, [rows[quoted(name)] == there[before] for before, name in named.items()], "left")
            .where(unless(moves, OTHER_TIME, place(*named.values()), is_inside))
            .drop(*there.columns)
        )

    def _repair_predicate(self, plan: WindowPlan) -> str:
        columns = self.repaired_columns()
        self._check_columns(columns)
        windows = [planned.window for planned in plan.windows]
        self._table.delta.port.check_bounds((windows[0].start_ms, windows[-1].stop_ms))
        within = time_predicate(windows, columns["time"])
        return f"{within} AND ({records_predicate(plan.splits, columns)})"

    def _check_columns(self, columns: Mapping[str, str]) -> None:
        types, time = self._table.types(), columns["time"]
        missing = [name for name in columns.values() if name.lower() not in types]
        if missing:
            raise ConfigurationError(
                f"the table {self._target} has no column {' and '.join(missing)}, which is needed to find the rows to "
                "replace",
                "Set time_column to the table's column with the record's timestamp"
                if missing == [time]
                else "A repair needs the columns of the record's topic, partition, offset and timestamp: use another "
                "table, and keep them there",
            )
        if types[time.lower()] not in _TIMES:
            raise ConfigurationError(
                f"the column {time} of the table {self._target} has the type {types[time.lower()]}, and the rows to "
                "replace are found by time",
                "Set time_column to the table's column with the record's timestamp",
            )

    def repaired_columns(self) -> dict[str, str]:
        time = self._rules.time_column or self._rules.event_time or self._names.name("timestamp")
        return {**{field: self._names.name(field) for field in LOG_FIELDS}, "time": time}
