"""WindowedTable: replaces the rows of windows in a Delta table, exactly those and never all.

There are two kinds. A *table of windows* has only windows: each row has its window's key, and a table property has the
window definition. In a *repaired* table, which an incremental stream writes to, only rows of the stream are replaced.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError, TableChangedError, TableError, WindowsChangedError, outcome
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.table.commit import Effect, committed, effect_of
from dagster_kafka_flip.table.delta_log import TableNotThereError
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.document import WINDOWS_PROPERTY, WindowsDocument
from dagster_kafka_flip.table.history import (
    FIRST_PAGE,
    check_restore,
    commits_that_count,
    moves,
    restorable,
    takes_back,
)
from dagster_kafka_flip.table.layout import check_mode
from dagster_kafka_flip.table.spark_error import error_summary, is_outside_of_predicate
from dagster_kafka_flip.table.sql import quoted
from dagster_kafka_flip.table.table_port import ForeignConflictError, set_properties
from dagster_kafka_flip.table.table_writer import TableWriter, is_committed
from dagster_kafka_flip.table.window_rows import EarlierRows, LandedLogs, earlier_rows, windows_predicate

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.split import Position, TopicPartition
    from dagster_kafka_flip.source.window import Window
    from dagster_kafka_flip.table.commit import Commit, Committed, Written
    from dagster_kafka_flip.table.document import RoutedBatch
    from dagster_kafka_flip.table.target import DeltaTarget

_logger = logging.getLogger(__name__)

_UNDONE = "RESTORE also undoes the windows and repairs of later versions (see DESCRIBE HISTORY): write them again"


@dataclass(frozen=True)
class WindowsState:
    """State of a table that a plan of windows goes out from.

    `known` are the logs and the read offsets of its rows, `position` is that of the stream that a repaired table has,
    and `earlier` are the end offsets of its rows of an earlier topic. `foreign` are the versions with others' rows
    since the last windows, which ended at `until_ms`; `windows` are those of the newest commits.
    """

    base_version: int
    known: EnumeratorState | None
    position: Position | None = None
    routed: RoutedBatch | None = None
    landed: LandedLogs = field(default_factory=LandedLogs)
    until_ms: int | None = None
    foreign: tuple[int, ...] = ()
    earlier: Mapping[TopicPartition, EarlierRows] = field(default_factory=dict["TopicPartition", "EarlierRows"])
    incidents: tuple[Incident, ...] = ()
    schemas: Mapping[str, Sequence[str]] = field(default_factory=dict[str, "Sequence[str]"])
    windows: frozenset[Window] = frozenset()


@dataclass
class _Walked:
    newest: int = -1
    # The last commit of windows.
    last: WindowsDocument | None = None
    # The oldest stream commit that was found, and its stream.
    stream: tuple[int, str] | None = None
    foreign: list[int] = field(default_factory=list[int])
    windows: set[Window] = field(default_factory=set["Window"])


class WindowedTable:
    """A table of windows; `repairs` is the stream that writes to it, None if it has only windows."""

    repairs: str | None = None

    def __init__(self, spark: SparkSession, target: DeltaTarget, definition: str) -> None:
        properties = {**target.properties, WINDOWS_PROPERTY: definition}
        self._spark = spark
        self._definition = definition
        self.delta = DeltaTable(spark, target.model_copy(update={"properties": properties}))
        self._target = self.delta.target

    def state(self) -> WindowsState | None:
        """Reads the table's windows; None if there is no table yet."""
        try:
            walked = self._walk()
        except TableNotThereError:
            self.delta.port.check_place_is_free()
            return None
        properties = self.delta.properties()
        self._check_definition(properties, walked)
        landed = LandedLogs.of(properties)
        last = walked.last
        state = EnumeratorState({}) if last is None else last.state
        known = replace(state, cluster_id=landed.cluster_id, topic_ids=landed.topic_ids)
        return WindowsState(
            base_version=walked.newest,
            known=known if landed.topics or last is not None else None,
            landed=landed,
            until_ms=None if last is None else last.until_ms,
            foreign=tuple(walked.foreign),
            schemas={} if last is None else last.schemas,
            windows=frozenset(walked.windows),
        )

    def _walk(self) -> _Walked:
        walked = _Walked()
        for commit in commits_that_count(self.delta.commits()):
            walked.newest = max(walked.newest, commit.version)
            stream, document, effect = commit.document(), commit.windows(), effect_of(commit)
            if document is not None:
                walked.windows.update(document.windows)
            if walked.last is not None:
                # It has the full state. The commits before a RESTORE are only known from the whole history.
                if effect is Effect.RESTORES:
                    break
            elif document is not None:
                walked.last = document
            elif stream is not None:
                walked.stream = commit.version, stream.stream
            elif effect is Effect.APPENDS:
                walked.foreign.append(commit.version)
            else:
                check_restore(commit, str(self._target))
            # The other commits of the page that was read may show a window with another key. More are not worth a read.
            if walked.last is not None and walked.newest - commit.version >= FIRST_PAGE - 1:
                break
        return walked

    def _check_definition(self, properties: Mapping[str, str], walked: _Walked) -> None:
        known = properties.get(WINDOWS_PROPERTY)
        self._check_are_ours(known)
        if known is None and self.delta.count_rows() > 0:
            raise WindowsChangedError(
                f"the table {self._target} has rows and is not written in windows: replacing a window could remove "
                "rows that no window restores",
                "Use another table; if an incremental stream writes to this one, set Windows(repair=True)",
            )
        if walked.stream is not None:
            raise self._fed_by_a_stream(*walked.stream, has_windows=known is not None)
        if known is None:
            properties = {WINDOWS_PROPERTY: self._definition}
            set_properties(self.delta.port, self.delta.location(), properties, self._check_may_be_ours)
            # A stream that checked before the property was set may have committed meanwhile.
            self.delta.check_takes_windows()

    def _check_are_ours(self, known: str | None) -> None:
        if known not in {None, self._definition}:
            raise WindowsChangedError(
                f"the table {self._target} has other windows: it was created for {known!r}, but this run "
                f"has {self._definition!r}. A row would be in two windows, or in none",
                "Use another table, or change the windows back",
            )

    def _check_may_be_ours(self, properties: Mapping[str, str]) -> None:
        self._check_are_ours(properties.get(WINDOWS_PROPERTY))
        self.delta.check_takes_windows()

    def _fed_by_a_stream(self, version: int, stream: str, *, has_windows: bool) -> WindowsChangedError:
        if not has_windows:
            return WindowsChangedError(
                f"the stream {stream!r} writes to the table {self._target} (version {version}): windows would "
                "duplicate its records",
                "Use another table for the windows; to replace a time range of this one, if its rows have no key, set "
                "Windows(repair=True)",
            )
        return WindowsChangedError(
            f"the stream {stream!r} has committed version {version} to {self._target}, which is written in windows: "
            "records that both read are duplicates",
            f"RESTORE the table to version {version - 1}, and use another table for the stream. Then write the windows "
            f"again. {_UNDONE}",
        )

    def create(self, schema: StructType, landed: LandedLogs) -> None:
        properties = {**self._target.properties, **landed.properties()}
        DeltaTable(self._spark, self._target.model_copy(update={"properties": properties})).create(schema)

    def keep(self, landed: LandedLogs, before: WindowsState) -> None:
        """Records the logs of the rows before writing them."""
        known = before.landed.properties()
        changed = {key: value for key, value in landed.properties().items() if known.get(key) != value}

        def check_unchanged(properties: Mapping[str, str]) -> None:
            # Delta sees only what others change while the statement runs.
            now = LandedLogs.of(properties).properties()
            for key, value in changed.items():
                # A repeat of the same attempt finds its own.
                if now.get(key) not in {known.get(key), value}:
                    raise ForeignConflictError(f"another run changed the table property {key}")

        if changed:
            set_properties(self.delta.port, self.delta.location(), changed, check_unchanged)

    def has_columns(self, names: Iterable[str]) -> bool:
        types = self.types()
        return all(name.lower() in types for name in names)

    def types(self) -> dict[str, str]:
        return {field.name.lower(): field.dataType.typeName() for field in self.delta.schema()}

    def rewrite(
        self, rows: DataFrame, document: WindowsDocument, predicate: str, read: Collection[TopicPartition]
    ) -> Committed | None:
        """`read` are the rows' topic partitions. None if no rows changed, because Delta then creates no commit."""
        if not predicate.strip():
            raise TableError("a rewrite without a predicate would replace the whole table; this is a bug")
        rows, options = self.delta.storable(rows), {"userMetadata": document.to_text()}
        written = TableWriter(self.delta).written(
            lambda: self.delta.port.replace(rows, predicate, options),
            document,
            lambda since: self._check_unchanged(since, document),
        )
        return self._judge(written, document, predicate, read)

    def _check_unchanged(self, since: Sequence[Commit], document: WindowsDocument) -> None:
        """Refuses to write an outdated plan over a newer one, or over what the plan does not know."""
        for commit in since:
            stream, other = commit.document(), commit.windows()
            if stream is not None:
                raise self._fed_by_a_stream(commit.version, stream.stream, has_windows=True)
            is_newer = other is not None and other.attempt != document.attempt and other.overlaps(document)
            if is_newer or takes_back(commit):
                raise ForeignConflictError(commit.named)

    def _judge(
        self, written: Written, document: WindowsDocument, predicate: str, read: Collection[TopicPartition]
    ) -> Committed | None:
        for commit in written.since:
            own = commit.windows()
            if own is not None and own.attempt == document.attempt:
                with outcome(is_committed(commit.version)):
                    self._check_between(written, document, commit.version, read)
                return committed(commit, written, None)
        if written.failure is None:
            return None
        if is_outside_of_predicate(written.failure):
            raise ConfigurationError(
                f"the transform returns rows outside the windows and topics that the run replaces in {self._target} "
                f"({predicate})",
                "Keep the columns of window, topic, partition and offset unchanged, also in aggregated rows; put "
                "changed values into other columns",
            ) from written.failure
        raise TableWriter(self.delta).without_commit(written.failure, document) from written.failure

    def _check_between(
        self, written: Written, document: WindowsDocument, version: int, read: Collection[TopicPartition]
    ) -> None:
        """Rejects an outdated plan that was written after a newer one."""
        between = [commit for commit in reversed(written.since) if commit.version < version]
        for commit in between if document.topics is None else ():
            other = commit.windows()
            if other is None or not other.overlaps(document):
                continue
            removed = sorted({split.topic_partition for split in other.splits}.difference(read))
            if removed:
                raise TableChangedError(
                    f"another run ({other.run_id or 'without an id'}) wrote rows of {removed[0]} to the same windows "
                    f"of {self._target} (version {commit.version}) for the first time during this run, and version "
                    f"{version} removed them",
                    f"RESTORE the table to version {version - 1}, and run this again: it then keeps them. {_UNDONE}",
                )
        self._check_unchanged(between, document)

    def rows_by_window(
        self,
        windows: Sequence[Window],
        done: Committed | None,
        column: str,
        topic_column: str | None = None,
        *,
        is_whole: bool,
    ) -> dict[tuple[str, str | None], int] | None:
        """Rows of windows that were just written, by key, and by topic or None; None if unknown."""
        if is_whole and topic_column is None:
            if done is None:
                return {}
            if len(windows) == 1 and done.rows:
                return {(windows[0].key, None): done.rows}
        try:
            rows = self.delta.rows(None if done is None else done.version).where(windows_predicate(windows, column))
            names = [quoted(name) for name in (column, topic_column) if name is not None]
            counted = rows.groupBy(*names).count().collect()
        except Exception as error:  # noqa: BLE001 - the rows are in the table, whatever goes wrong from here on
            _logger.warning("the row count of the windows in %s is unknown: %s", self._target, error_summary(error))
            return None
        return {(row[0], None if topic_column is None else row[1]): row[-1] for row in counted}


class RepairedTable(WindowedTable):
    """A table that a stream writes to."""

    def __init__(self, spark: SparkSession, target: DeltaTarget, tolerated: Collection[type[KafkaFlipError]]) -> None:
        super().__init__(spark, target, "")
        self.repairs = target.stream
        self.delta = DeltaTable(spark, target, tolerated)

    def state(self) -> WindowsState:
        anchor = self.delta.anchor()
        if anchor is None or anchor.state is None:
            there = "there is no table" if anchor is None else "no run of the stream has written to it"
            raise ConfigurationError(
                f"the stream {self._target.stream!r} has no position in {self._target} ({there}), so there is nothing "
                "to repair",
                "First run the stream that writes to the table, or correct its id",
            )
        if anchor.document is not None:
            check_mode(self._target, anchor.document.mode, f"version {anchor.version}")
        earlier = earlier_rows(commits_that_count(self.delta.commits()), anchor.state)
        return WindowsState(
            anchor.table_version,
            anchor.state,
            position=anchor.state.position,
            earlier=earlier,
            routed=anchor.routed,
            incidents=anchor.incidents,
            schemas={} if anchor.document is None else anchor.document.schemas,
        )

    def _check_unchanged(self, since: Sequence[Commit], document: WindowsDocument) -> None:
        """Refuses to write records that the stream may write again."""
        del document
        for commit in since:
            if takes_back(commit) or moves(commit, self._target.stream):
                raise ForeignConflictError(commit.named)

    def _check_between(
        self, written: Written, document: WindowsDocument, version: int, read: Collection[TopicPartition]
    ) -> None:
        del read
        for commit in written.since:
            if commit.version < version and (takes_back(commit) or moves(commit, self._target.stream)):
                raise TableChangedError(
                    f"version {commit.version} of the table {self._target} is a {commit.operation} between the reading "
                    f"of the stream's position (version {document.base_version}) and the commit of the windows "
                    f"(version {version}): the stream's position may be before their records, which it would write "
                    "again",
                    f"RESTORE the table to version {restorable(commit, version)}, and repair it again. {_UNDONE}",
                )
