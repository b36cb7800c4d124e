"""WindowedTable: replaces the rows of windows in a Delta table, each time exactly those and never all.

There are two kinds. A *table of windows* has nothing but windows: each row carries its window's key, and the property
of the table says which windows they are. A *repaired* table is fed by an incremental stream; of it only rows are
replaced that the stream has landed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError, TableChangedError, TableError, WindowsChangedError
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.table.delta_table import DeltaTable, ForeignConflictError, TableNotThereError, committed
from dagster_kafka_flip.table.history import Effect, effect_of
from dagster_kafka_flip.table.spark_error import is_fenced_out
from dagster_kafka_flip.table.sql import literal, quoted
from dagster_kafka_flip.table.transaction_log import TransactionLog
from dagster_kafka_flip.table.windows_document import WINDOWS_PROPERTY, WindowsDocument

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.source.split import KafkaPartitionSplit, Position, TopicPartition
    from dagster_kafka_flip.source.tiles import RecordedWindow
    from dagster_kafka_flip.source.window import Window
    from dagster_kafka_flip.table.dead_letter_route import RoutedBatch
    from dagster_kafka_flip.table.delta_table import Committed, Written
    from dagster_kafka_flip.table.target import DeltaTarget


@dataclass(frozen=True)
class WindowsLook:
    """What a plan of windows has to know of the table.

    Attributes:
        base_version: The table's newest version.
        known: Cluster and topics that its rows are of, and how far they were read; None if there are none yet.
        recorded: In offset mode, the windows that were landed before, newest first.
        position: Where the stream stands that feeds the table; None for a table of windows.
        routed: That stream's last batch whose rejected records go to a table of their own; None if there is none.
    """

    base_version: int
    known: EnumeratorState | None
    recorded: tuple[RecordedWindow, ...] = ()
    position: Position | None = None
    routed: RoutedBatch | None = None


class WindowedTable:
    """A table of windows.

    Args:
        spark: The session to read and write with.
        target: The table.
        definition: Says which windows: what the table property holds.
        is_tiled: Whether windows begin where the one before them ended.
        has_topics: Whether commits are of some topics only.
    """

    repairs: str | None = None

    def __init__(
        self, spark: SparkSession, target: DeltaTarget, definition: str, *, is_tiled: bool, has_topics: bool
    ) -> None:
        properties = {**target.properties, WINDOWS_PROPERTY: definition}
        self._target = target.model_copy(update={"properties": properties})
        self._spark = spark
        self._definition = definition
        self._is_tiled = is_tiled
        # What counts is in one commit, unless each of them tells a part of it.
        self._counts_all = is_tiled or has_topics
        self._table = DeltaTable(spark, self._target)

    def look(self) -> WindowsLook | None:
        """What is known of the windows; None if there is no table yet.

        Raises:
            WindowsChangedError: Its windows are others, or it has rows and is no table of windows.
            TableError: There is something else in the table's place.
        """
        try:
            newest, documents = self._documents()
        except TableNotThereError:
            self._table.check_place_is_free()
            return None
        self._check_definition()
        recorded = tuple(window for document in documents for window in document.recorded())
        return WindowsLook(newest, _logs(documents), recorded if self._is_tiled else ())

    def _documents(self) -> tuple[int, list[WindowsDocument]]:
        newest = -1
        documents: list[WindowsDocument] = []
        for commit in self._table.commits():
            newest = max(newest, commit.version)
            document = commit.windows()
            if document is not None:
                documents.append(document)
                if not self._counts_all:
                    break
        return newest, documents

    def _check_definition(self) -> None:
        known = self._table.properties().get(WINDOWS_PROPERTY)
        if known == self._definition:
            return
        if known is not None:
            msg = (
                f"the table {self._target} has other windows: it was made for {known}, and the asset has "
                f"{self._definition}. A row would be in two windows, or in none. Nothing was written. Land in another "
                "table, or change the asset's partitions back"
            )
            raise WindowsChangedError(msg)
        if self._table.count_rows() > 0:
            msg = (
                f"the table {self._target} has rows and is no table of windows: replacing a window could remove rows "
                "that no window brings back. Nothing was written. Land in another table; where an incremental stream "
                "feeds this one, say Windows(repair=True)"
            )
            raise WindowsChangedError(msg)
        self._table.check_takes_windows()
        self._spark.sql(
            f"ALTER TABLE {self._target.identifier} SET TBLPROPERTIES "
            f"({literal(WINDOWS_PROPERTY)} = {literal(self._definition)})"
        )
        # A stream that looked before the property was there may have committed meanwhile.
        self._table.check_takes_windows()

    def create(self, schema: StructType) -> None:
        """Creates the table, empty. Does nothing if somebody else was faster.

        Raises:
            TableError: The table can't be created.
        """
        self._table.create(schema)

    def check_schema(self, schema: StructType) -> tuple[tuple[str, str], ...]:
        """See `DeltaTable.check_schema`."""
        return self._table.check_schema(schema)

    def location(self) -> str:
        """The table's location."""
        return self._table.location()

    def rewrite(self, rows: DataFrame, document: WindowsDocument, predicate: str) -> Committed | None:
        """Replaces the rows that meet a predicate, in one commit together with its document, and makes sure of it.

        Args:
            rows: What comes in their place; each has to meet the predicate, which Delta checks.
            document: The commit's document.
            predicate: Which rows go. Never empty.

        Returns:
            The commit; None where no row came and none went, of which Delta makes no commit.

        Raises:
            ForeignConflictError: Somebody else's change came in between; what counts is not what was planned.
            TableChangedError: A repaired table was restored or replaced meanwhile.
            WriteFailedError: The write failed, and the table's history shows no commit of it.
            CommitUnknownError: History can't be asked.
        """
        from pyspark.sql import functions as f

        if not predicate.strip():
            msg = "a rewrite without a predicate would replace the whole table; this is a defect"
            raise TableError(msg)
        writer = rows.writeTo(self._target.identifier).option("userMetadata", document.to_text())
        if self._is_tiled:
            # Where one window ends the next begins: two that are planned at once must not both be written.
            writer = writer.option("txnAppId", f"{self._target.transaction_id}/windows")
            writer = writer.option("txnVersion", document.base_version)
        if self._target.schema_evolution:
            writer = writer.option("mergeSchema", "true")
        written = self._table.written(
            lambda: writer.overwrite(f.expr(predicate)), document.base_version, document.attempt
        )
        return self._judge(written, document)

    def _judge(self, written: Written, document: WindowsDocument) -> Committed | None:
        for commit in written.since:
            own = commit.windows()
            if own is not None and own.attempt == document.attempt:
                self._check_between(written, document, commit.version)
                return committed(commit, written, None)
        if written.failure is None and not self._is_tiled:
            return None
        if written.failure is None or is_fenced_out(written.failure):
            msg = f"another run landed windows of {self._target} first"
            raise ForeignConflictError(msg) from written.failure
        raise self._table.failed(written.failure) from written.failure

    def _check_between(self, written: Written, document: WindowsDocument, version: int) -> None:
        """What was planned before a newer plan was written must not stay in its place."""
        for commit in written.since:
            other = commit.windows()
            if commit.version < version and other is not None and other.overlaps(document):
                msg = (
                    f"another run ({other.run_id or 'without an id'}) landed some of the same windows of "
                    f"{self._target} while this one was at it (version {commit.version})"
                )
                raise ForeignConflictError(msg)

    def rows_by_window(self, document: WindowsDocument, done: Committed, column: str) -> dict[str, int]:
        """How many rows a commit brought to each of its windows; without those that it brought none.

        Args:
            document: The commit's document.
            done: The commit.
            column: The column with the window's key.
        """
        if len(document.windows) == 1:
            if done.rows is None:
                key = document.windows[0].key
                table = self._spark.read.option("versionAsOf", done.version).table(self._target.identifier)
                return {key: table.where(windows_predicate(document.windows, column)).count()}
            return {document.windows[0].key: done.rows} if done.rows else {}
        if done.rows == 0:
            return {}
        if column in self._target.partition_by:
            log = TransactionLog(self._spark, self.location(), str(self._target))
            return log.added_rows(done.version, column)
        table = self._spark.read.option("versionAsOf", done.version).table(self._target.identifier)
        counted = table.where(windows_predicate(document.windows, column)).groupBy(quoted(column)).count()
        return dict(counted.collect())


class RepairedTable(WindowedTable):
    """A table that a stream feeds.

    Args:
        spark: The session to read and write with.
        target: The table and the stream.
        tolerated: Errors that the look at the stream's position does not raise.
    """

    def __init__(self, spark: SparkSession, target: DeltaTarget, tolerated: Collection[type[KafkaFlipError]]) -> None:
        super().__init__(spark, target, "", is_tiled=False, has_topics=False)
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
        return WindowsLook(anchor.table_version, anchor.state, position=anchor.state.position, routed=anchor.routed)

    @property
    def stream_table(self) -> DeltaTable:
        """The table as its stream sees it."""
        return self._table

    def _check_between(self, written: Written, document: WindowsDocument, version: int) -> None:
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

    def rows_by_window(self, document: WindowsDocument, done: Committed, column: str) -> dict[str, int]:
        """Rows of a repair are not told apart by window."""
        del document, done, column
        return {}


def _logs(documents: Sequence[WindowsDocument]) -> EnumeratorState | None:
    """Cluster and topics that the rows are of, and how far they were read: of each as the newest commit tells it."""
    if not documents:
        return None
    topic_ids: dict[str, str] = {}
    position: dict[TopicPartition, int] = {}
    for document in reversed(documents):
        topic_ids.update(document.state.topic_ids)
        position.update(document.state.position)
    return EnumeratorState(position, documents[0].state.cluster_id, topic_ids)


_MOVES_BACK = frozenset({Effect.RESTORES, Effect.REPLACES, Effect.UNKNOWN})


def windows_predicate(
    windows: Iterable[Window], column: str, topic_column: str = "", topics: Sequence[str] | None = None
) -> str:
    """The rows of some windows in a table of windows.

    Args:
        windows: The windows.
        column: The column with the window's key.
        topic_column: The column with the record's topic.
        topics: The topics; None for all.
    """
    keys = f"{quoted(column)} IN ({', '.join(literal(window.key) for window in windows)})"
    if topics is None:
        return keys
    return f"{keys} AND {quoted(topic_column)} IN ({', '.join(map(literal, topics))})"


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
    # By offsets from UTC, so that no session's time zone counts.
    return f"({time} >= TIMESTAMP {literal(windows[0].start)} AND {time} < TIMESTAMP {literal(windows[-1].stop)})"


def _offsets_predicate(splits: Sequence[KafkaPartitionSplit], columns: Mapping[str, str]) -> str:
    topic, partition, offset = (quoted(columns[name]) for name in ("topic", "partition", "offset"))
    return " OR ".join(
        f"({topic} = {literal(split.topic_partition.topic)} AND {partition} = {split.topic_partition.partition} "
        f"AND {offset} >= {split.starting_offset} AND {offset} < {split.stopping_offset})"
        for split in splits
    )
