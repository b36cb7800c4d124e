"""WindowedTable: replaces the rows of windows in a Delta table, each time exactly those and never all.

There are two kinds. A *table of windows* has nothing but windows: each row carries its window's key, and the property
of the table says which windows they are. A *repaired* table is fed by an incremental stream; of it only rows are
replaced that the stream has landed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    ConfigurationError,
    PositionLostError,
    TableChangedError,
    TableError,
    WindowsChangedError,
)
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.source.instants import instant, utc_time
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.source.unreadable import LATEST_MS
from dagster_kafka_flip.table.delta_table import DeltaTable, ForeignConflictError
from dagster_kafka_flip.table.history import Effect, commits_that_count, effect_of
from dagster_kafka_flip.table.history_pages import TableNotThereError
from dagster_kafka_flip.table.landed_logs import LandedLogs
from dagster_kafka_flip.table.spark_error import is_fenced_out, is_outside_of_predicate, telling_line
from dagster_kafka_flip.table.sql import literal, quoted
from dagster_kafka_flip.table.transaction_log import TransactionLog
from dagster_kafka_flip.table.windows_document import WINDOWS_PROPERTY, WindowsDocument
from dagster_kafka_flip.table.written import committed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.split import KafkaPartitionSplit, Position, TopicPartition
    from dagster_kafka_flip.source.tiles import RecordedWindow
    from dagster_kafka_flip.source.window import Window
    from dagster_kafka_flip.table.dead_letter_route import RoutedBatch
    from dagster_kafka_flip.table.history import Commit
    from dagster_kafka_flip.table.landed_logs import Scope
    from dagster_kafka_flip.table.target import DeltaTarget
    from dagster_kafka_flip.table.written import Committed, Written

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class WindowsLook:
    """What a plan of windows has to know of the table.

    Attributes:
        base_version: The table's newest version.
        known: Cluster and topics that its rows are of, and how far they were read; None if there are none yet.
        recorded: In offset mode, the windows that were landed before, newest first.
        position: Where the stream stands that feeds the table; None for a table of windows.
        routed: That stream's last batch whose rejected records go to a table of their own; None if there is none.
        landed: The logs that a table of windows has rows of.
        until_ms: End of the last window that was landed before; None if that isn't known.
        fence: Version of the commit that says where the last windows end, or that took the table back to it. Of two
            plans that rest on the same one, only one may be written.
        foreign: Versions since the last landing that brought rows and are not of windows.
        earlier: In a repaired table, up to which offsets it has rows of an earlier topic of the same name.
        incidents: What the look met that is tolerated.
    """

    base_version: int
    known: EnumeratorState | None
    recorded: tuple[RecordedWindow, ...] = ()
    position: Position | None = None
    routed: RoutedBatch | None = None
    landed: LandedLogs = field(default_factory=LandedLogs)
    until_ms: int | None = None
    fence: int = 0
    foreign: tuple[int, ...] = ()
    earlier: Mapping[TopicPartition, EarlierRows] = field(default_factory=dict["TopicPartition", "EarlierRows"])
    incidents: tuple[Incident, ...] = ()


@dataclass(frozen=True)
class EarlierRows:
    """Rows of an earlier topic, or of another cluster's, in the table of a stream.

    Attributes:
        stop: They have offsets below this one.
        version: The commit that tells.
        stream: The stream that landed them.
        logs: Cluster and topics that they are of.
    """

    stop: int
    version: int
    stream: str
    logs: EnumeratorState


@dataclass(frozen=True)
class Replacement:
    """What a commit of windows replaces.

    Attributes:
        predicate: The rows that go; never empty.
        read: The topic partitions that were read.
        fence: See `WindowsLook`.
    """

    predicate: str
    read: frozenset[TopicPartition]
    fence: int


@dataclass
class _Walked:
    newest: int = -1
    oldest: int = -1
    restore: int | None = None
    documents: list[tuple[int, WindowsDocument]] = field(default_factory=list[tuple[int, "WindowsDocument"]])
    # The oldest commit of a stream that was met, and the stream.
    stream: tuple[int, str] | None = None
    foreign: list[int] = field(default_factory=list[int])

    @property
    def fence(self) -> int:
        last = self.documents[0][0] if self.documents else self.oldest
        return max(last, self.restore or 0, 0)


class WindowedTable:
    """A table of windows.

    Args:
        spark: The session to read and write with.
        target: The table.
        definition: Says which windows: what the table property holds.
        is_tiled: Whether windows begin where the one before them ended.
    """

    repairs: str | None = None

    def __init__(self, spark: SparkSession, target: DeltaTarget, definition: str, *, is_tiled: bool) -> None:
        properties = {**target.properties, WINDOWS_PROPERTY: definition}
        self._target = target.model_copy(update={"properties": properties})
        self._spark = spark
        self._definition = definition
        self._is_tiled = is_tiled
        self._table = DeltaTable(spark, self._target)

    def look(self) -> WindowsLook | None:
        """What is known of the windows; None if there is no table yet.

        Raises:
            WindowsChangedError: Its windows are others, it has rows and is no table of windows, or a stream feeds it.
            PositionLostError: In offset mode, a RESTORE does not tell to which version it went.
            TableError: There is something else in the table's place.
        """
        try:
            walked = self._walk()
        except TableNotThereError:
            self._table.check_place_is_free()
            return None
        properties = self._table.properties()
        self._check_definition(properties.get(WINDOWS_PROPERTY), walked)
        landed = LandedLogs.of(properties)
        last = walked.documents[0][1] if walked.documents else None
        recorded = (window for _, document in walked.documents for window in document.recorded())
        known = EnumeratorState({} if last is None else last.state.position, landed.cluster_id, landed.topic_ids)
        return WindowsLook(
            base_version=walked.newest,
            known=known if landed.topics or last is not None else None,
            recorded=tuple(recorded) if self._is_tiled else (),
            landed=landed,
            until_ms=None if last is None else last.until_ms,
            fence=walked.fence,
            foreign=tuple(walked.foreign),
        )

    def _walk(self) -> _Walked:
        walked = _Walked()
        for commit in commits_that_count(self._table.commits(), self._restored_versions):
            walked.newest = max(walked.newest, commit.version)
            walked.oldest = commit.version
            stream, document, effect = commit.document(), commit.windows(), effect_of(commit)
            if document is not None:
                walked.documents.append((commit.version, document))
                # Each commit tells all that counts; but for offset windows, whose bounds are in the commit of each.
                if not self._is_tiled:
                    break
            elif stream is not None:
                walked.stream = commit.version, stream.stream
            elif effect is Effect.RESTORES and walked.restore is None:
                walked.restore = commit.version
            elif effect is Effect.APPENDS and not walked.documents:
                walked.foreign.append(commit.version)
        return walked

    def _restored_versions(self, restore: Commit, older: Sequence[Commit]) -> Sequence[int]:
        versions = self._table.restored_versions(restore, older)
        if versions or not self._is_tiled:
            return versions
        msg = (
            f"version {restore.version} of the table {self._target} is a RESTORE to a timestamp "
            f"({restore.parameters.get('timestamp')}), which does not say to which version: where the windows end that "
            "the table has now can't be told. Nothing was written. Restore the table once more, TO VERSION AS OF the "
            "version you want"
        )
        raise PositionLostError(msg)

    def _check_definition(self, known: str | None, walked: _Walked) -> None:
        if known is not None and known != self._definition:
            msg = (
                f"the table {self._target} has other windows: it was made for {known}, and the asset has "
                f"{self._definition}. A row would be in two windows, or in none. Nothing was written. Land in another "
                "table, or change the asset's partitions back"
            )
            raise WindowsChangedError(msg)
        if known is None and self._table.count_rows() > 0:
            msg = (
                f"the table {self._target} has rows and is no table of windows: replacing a window could remove rows "
                "that no window brings back. Nothing was written. Land in another table; where an incremental stream "
                "feeds this one, say Windows(repair=True)"
            )
            raise WindowsChangedError(msg)
        if walked.stream is not None:
            raise self._fed_by_a_stream(*walked.stream, has_windows=known is not None)
        if known is None:
            self._table.check_takes_windows()
            self._table.set_properties({WINDOWS_PROPERTY: self._definition})
            # A stream that looked before the property was there may have committed meanwhile.
            self._table.check_takes_windows()

    def _fed_by_a_stream(self, version: int, stream: str, *, has_windows: bool) -> WindowsChangedError:
        if not has_windows:
            return WindowsChangedError(
                f"the stream {stream!r} feeds the table {self._target} (version {version}): windows would land the "
                "same records beside it. Nothing was written. Land the windows in another table; to read a range of "
                "time of this one again, say Windows(repair=True)"
            )
        return WindowsChangedError(
            f"the stream {stream!r} has committed version {version} to {self._target}, which is a table of windows: "
            f"records that both read are there twice. RESTORE the table to version {version - 1}, and land the "
            "stream in another table. Then land the windows again"
        )

    def create(self, schema: StructType, landed: LandedLogs) -> None:
        """Creates the table, empty. Does nothing if somebody else was faster.

        Args:
            schema: Its columns.
            landed: The logs that it is going to have rows of.

        Raises:
            TableError: The table can't be created.
        """
        properties = {**self._target.properties, **landed.properties()}
        DeltaTable(self._spark, self._target.model_copy(update={"properties": properties})).create(schema)

    def keep(self, landed: LandedLogs, look: WindowsLook) -> None:
        """Notes which logs the table is about to have rows of, before it has any.

        Args:
            landed: Those logs.
            look: What is known of the table.

        Raises:
            ForeignConflictError: Somebody else changed the table at the same time; nothing was noted.
            TableError: It can't be noted.
        """
        known = look.landed.properties()
        if changed := {key: value for key, value in landed.properties().items() if known.get(key) != value}:
            self._table.set_properties(changed)

    def check_schema(self, schema: StructType) -> tuple[tuple[str, str], ...]:
        """See `DeltaTable.check_schema`."""
        return self._table.check_schema(schema)

    def location(self) -> str:
        """The table's location."""
        return self._table.location()

    def has_columns(self, names: Iterable[str]) -> bool:
        """Whether the table has some columns."""
        columns = {name.lower() for name in self._spark.table(self._target.identifier).columns}
        return all(name.lower() in columns for name in names)

    def has_rows(self, predicate: str) -> bool:
        """Whether any row meets a predicate."""
        return bool(self._spark.table(self._target.identifier).where(predicate).limit(1).collect())

    def rewrite(self, rows: DataFrame, document: WindowsDocument, replacement: Replacement) -> Committed | None:
        """Replaces the rows that meet a predicate, in one commit together with its document, and makes sure of it.

        Args:
            rows: What comes in their place; each has to meet the predicate, which Delta checks.
            document: The commit's document.
            replacement: What is replaced.

        Returns:
            The commit; None where no row came and none went, of which Delta makes no commit.

        Raises:
            ForeignConflictError: Somebody else's change came in between; what counts is not what was planned.
            TableChangedError: The table was restored or replaced meanwhile, or another run's rows were removed.
            WindowsChangedError: A stream committed meanwhile.
            ConfigurationError: Rows don't meet the predicate.
            WriteFailedError: The write failed, and the table's history shows no commit of it.
            CommitUnknownError: History can't be asked.
        """
        from pyspark.sql import functions as f

        if not replacement.predicate.strip():
            msg = "a rewrite without a predicate would replace the whole table; this is a defect"
            raise TableError(msg)
        writer = rows.writeTo(self._target.identifier).option("userMetadata", document.to_text())
        if self._is_tiled:
            # Where one window ends the next begins: two that are planned at once must not both be written.
            writer = writer.option("txnAppId", f"{self._target.transaction_id}/windows")
            writer = writer.option("txnVersion", replacement.fence)
        if self._target.schema_evolution:
            writer = writer.option("mergeSchema", "true")
        written = self._table.written(
            lambda: writer.overwrite(f.expr(replacement.predicate)), document.base_version, document.attempt
        )
        return self._judge(written, document, replacement)

    def _judge(self, written: Written, document: WindowsDocument, replacement: Replacement) -> Committed | None:
        for commit in written.since:
            own = commit.windows()
            if own is not None and own.attempt == document.attempt:
                self._check_between(written, document, commit.version, replacement)
                return committed(commit, written, None)
        if written.failure is None and not self._is_tiled:
            return None
        if written.failure is None or is_fenced_out(written.failure):
            msg = f"another run landed windows of {self._target} first"
            raise ForeignConflictError(msg) from written.failure
        if is_outside_of_predicate(written.failure):
            msg = (
                f"the transform gives rows that are not of the windows and topics that are replaced in {self._target} "
                f"({replacement.predicate}). Nothing was written. Leave the column of the window and those of topic, "
                "partition and offset as they are, also in rows that are aggregated; a changed value can go into a "
                "column of its own"
            )
            raise ConfigurationError(msg) from written.failure
        raise self._table.failed(written.failure) from written.failure

    def _check_between(
        self, written: Written, document: WindowsDocument, version: int, replacement: Replacement
    ) -> None:
        """What was planned before a newer plan was written must not stay in its place."""
        for commit in reversed([commit for commit in written.since if commit.version < version]):
            stream, other = commit.document(), commit.windows()
            if stream is not None:
                raise self._fed_by_a_stream(commit.version, stream.stream, has_windows=True)
            if self._is_tiled and effect_of(commit) is Effect.RESTORES:
                msg = (
                    f"version {commit.version} of the table {self._target} is a RESTORE, made after the windows were "
                    f"planned (version {document.base_version}) and before they were written (version {version}): they "
                    "may begin elsewhere than the table's other windows end. RESTORE the table to version "
                    f"{version - 1}, and land the windows again"
                )
                raise TableChangedError(msg)
            if other is None or not other.overlaps(document):
                continue
            removed = sorted({split.topic_partition for split in other.splits} - replacement.read)
            if document.topics is None and removed:
                msg = (
                    f"another run ({other.run_id or 'without an id'}) landed rows of {removed[0]} in the same windows "
                    f"of {self._target} (version {commit.version}) while this one was at it, for the first time, and "
                    f"version {version} has removed them. RESTORE the table to version {version - 1}, and run this "
                    "again: it leaves them alone then"
                )
                raise TableChangedError(msg)
            msg = (
                f"another run ({other.run_id or 'without an id'}) landed some of the same windows of "
                f"{self._target} while this one was at it (version {commit.version})"
            )
            raise ForeignConflictError(msg)

    def rows_by_window(
        self,
        windows: Sequence[Window],
        done: Committed | None,
        column: str,
        topic_column: str | None = None,
        *,
        is_whole: bool,
    ) -> dict[tuple[str, str | None], int] | None:
        """How many rows the table has of some windows, which were just landed; without those that have none.

        Args:
            windows: The windows.
            done: The commit that landed them; None if there was nothing to write.
            column: The column with the window's key.
            topic_column: To count by topic as well, the column with the topic.
            is_whole: Whether all rows of the windows were replaced.

        Returns:
            Rows by the window's key, and by topic or None. None if they can't be told.
        """
        if is_whole and topic_column is None:
            if done is None:
                return {}
            if len(windows) == 1 and done.rows:
                return {(windows[0].key, None): done.rows}
        try:
            if is_whole and topic_column is None and done is not None:
                found = self._added_rows(windows, done, column)
                if found is not None:
                    return found
            return self._counted_rows(windows, done, column, topic_column)
        except Exception as error:  # noqa: BLE001 - the rows are in the table, whatever goes wrong from here on
            _logger.warning("how many rows the windows have in %s can't be told: %s", self._target, telling_line(error))
            return None

    def _added_rows(
        self, windows: Sequence[Window], done: Committed, column: str
    ) -> dict[tuple[str, str | None], int] | None:
        """Told by the files of the commit, where they hold these windows' rows and nothing else."""
        layout = {name.lower() for name in self._target.partition_by}
        if column.lower() not in layout:
            return None
        log = TransactionLog(self._spark, self.location(), str(self._target))
        found = log.added_rows(done.version, column)
        # The table may be laid out otherwise than the asset says, or have other names for its columns in the log.
        keys = {window.key for window in windows}
        if not set(found) <= keys or None in found.values() or sum(found.values()) != done.rows:
            return None
        return {(key, None): count for key, count in found.items()}

    def _counted_rows(
        self, windows: Sequence[Window], done: Committed | None, column: str, topic_column: str | None
    ) -> dict[tuple[str, str | None], int]:
        reader = self._spark.read if done is None else self._spark.read.option("versionAsOf", done.version)
        table = reader.table(self._target.identifier).where(windows_predicate(windows, column))
        names = [quoted(column)] if topic_column is None else [quoted(column), quoted(topic_column)]
        counted = table.groupBy(*names).count().collect()
        return {(row[0], None if topic_column is None else row[1]): row[-1] for row in counted}


class RepairedTable(WindowedTable):
    """A table that a stream feeds.

    Args:
        spark: The session to read and write with.
        target: The table and the stream.
        tolerated: Errors that the look at the stream's position does not raise.
    """

    def __init__(self, spark: SparkSession, target: DeltaTarget, tolerated: Collection[type[KafkaFlipError]]) -> None:
        super().__init__(spark, target, "", is_tiled=False)
        self.repairs = target.stream
        self._table = DeltaTable(spark, target, tolerated)

    def look(self) -> WindowsLook:
        """Where the stream stands.

        Raises:
            ConfigurationError: There is no stream in the table that has a position.
            KafkaFlipError: The position can't be told; see `find_anchor`.
        """
        anchor = self._table.anchor()
        if anchor is None or anchor.state is None:
            there = "there is no table" if anchor is None else "no run of the stream has landed anything"
            msg = (
                f"the stream {self._target.stream!r} has no position in {self._target} ({there}), so that there is "
                "nothing to repair. Materialize the asset that feeds the table first, or correct the stream's id"
            )
            raise ConfigurationError(msg)
        earlier = earlier_rows(commits_that_count(self._table.commits(), self._table.restored_versions), anchor.state)
        return WindowsLook(
            anchor.table_version,
            anchor.state,
            position=anchor.state.position,
            earlier=earlier,
            routed=anchor.routed,
            incidents=anchor.incidents,
        )

    @property
    def stream_table(self) -> DeltaTable:
        """The table as its stream sees it."""
        return self._table

    def _check_between(
        self, written: Written, document: WindowsDocument, version: int, replacement: Replacement
    ) -> None:
        del replacement
        for commit in written.since:
            effect = effect_of(commit)
            if commit.version < version and commit.document() is None and effect in _MOVES_BACK:
                msg = (
                    f"version {commit.version} of the table {self._target} is a {commit.operation}, made after the "
                    f"stream's position was read (version {document.base_version}) and before the windows were "
                    f"written (version {version}): the stream may stand before what they hold, and would land it "
                    f"again. RESTORE the table to version {version - 1}, and repair it again"
                )
                raise TableChangedError(msg)


def earlier_rows(commits: Iterable[Commit], now: EnumeratorState) -> dict[TopicPartition, EarlierRows]:
    """Up to which offsets a table has rows of other logs under the names of those that its stream reads now.

    Args:
        commits: The commits that count, newest first.
        now: Where the stream stands, and of which cluster and topics.
    """
    found: dict[TopicPartition, EarlierRows] = {}
    for commit in commits:
        if effect_of(commit) is Effect.REPLACES:
            # Of what was there before, nothing is left.
            break
        document = commit.document()
        if document is None:
            continue
        for split in document.splits:
            tp, stop = split.topic_partition, split.stopping_offset
            is_earlier = tp in now.position and not is_same_log(tp, document.state, now)
            if is_earlier and (tp not in found or found[tp].stop < stop):
                found[tp] = EarlierRows(stop, commit.version, document.stream, document.state)
    return found


_MOVES_BACK = frozenset({Effect.RESTORES, Effect.REPLACES, Effect.UNKNOWN})


def windows_predicate(
    windows: Iterable[Window],
    column: str,
    scope: Scope | None = None,
    topic_column: str = "",
    partition_column: str = "",
) -> str:
    """The rows of some windows in a table of windows.

    Args:
        windows: The windows.
        column: The column with the window's key.
        scope: Which of their rows; None for all.
        topic_column: The column with the record's topic.
        partition_column: The column with its topic partition.
    """
    keys = f"{quoted(column)} IN ({', '.join(literal(window.key) for window in windows)})"
    if scope is None or scope.topics is None:
        return keys
    topic = quoted(topic_column)
    if not scope.needs_partitions:
        return f"{keys} AND {topic} IN ({', '.join(map(literal, scope.topics))})"
    whole = [name for name, partitions in scope.topics.items() if partitions is None]
    logs = [f"{topic} IN ({', '.join(map(literal, whole))})"] if whole else []
    logs += [
        f"({topic} = {literal(name)} AND {quoted(partition_column)} IN ({', '.join(map(str, sorted(partitions)))}))"
        for name, partitions in scope.topics.items()
        if partitions is not None
    ]
    return f"{keys} AND ({' OR '.join(logs)})"


def repair_predicate(
    windows: Sequence[Window], splits: Sequence[KafkaPartitionSplit], columns: Mapping[str, str]
) -> str:
    """The rows that a repair replaces: of these windows, and of exactly the offsets that it reads.

    Args:
        windows: In order of time, without gaps between them.
        splits: What is read; at least one.
        columns: The table's columns by what they hold: `topic`, `partition`, `offset` and `time`.
    """
    return f"{time_predicate(windows, columns['time'])} AND ({_offsets_predicate(splits, columns)})"


def kept_predicate(windows: Sequence[Window], splits: Sequence[KafkaPartitionSplit], columns: Mapping[str, str]) -> str:
    """The rows of the offsets that a repair reads which it keeps: those of other times, and those without one.

    Args:
        windows: In order of time, without gaps between them.
        splits: What is read; at least one.
        columns: As for `repair_predicate`.
    """
    within = time_predicate(windows, columns["time"])
    return f"NOT coalesce({within}, false) AND ({_offsets_predicate(splits, columns)})"


def time_predicate(windows: Sequence[Window], column: str) -> str:
    """Whether a time is within some windows.

    Args:
        windows: In order of time, without gaps between them.
        column: The column with the time.
    """
    time = quoted(column)
    start, stop = windows[0].start_ms, windows[-1].stop_ms
    # No column holds a time beyond the latest that Spark can.
    after_start = f"{time} >= {_timestamp(start)}" if start <= LATEST_MS else "false"
    before_stop = f"{time} < {_timestamp(stop)}" if stop <= LATEST_MS else f"{time} IS NOT NULL"
    return f"({after_start} AND {before_stop})"


def _timestamp(milliseconds: int) -> str:
    if utc_time(milliseconds) is None:
        # A text has years of four digits.
        return f"timestamp_millis({milliseconds})"
    # By the offset from UTC, so that no session's time zone counts.
    return f"TIMESTAMP {literal(instant(milliseconds))}"


def _offsets_predicate(splits: Sequence[KafkaPartitionSplit], columns: Mapping[str, str]) -> str:
    topic, partition, offset = (quoted(columns[name]) for name in ("topic", "partition", "offset"))
    return " OR ".join(
        f"({topic} = {literal(split.topic_partition.topic)} AND {partition} = {split.topic_partition.partition} "
        f"AND {offset} >= {split.starting_offset} AND {offset} < {split.stopping_offset})"
        for split in splits
    )
