"""Finding a stream's position in its table's history: the walk from the newest commit backwards.

Pure: it is handed commits and answers. The rules are section 6 of docs/architecture.md; the names of operations are
those that Delta's DeltaOperations writes into the log.
"""

from __future__ import annotations

import copy
import enum
import itertools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    ForeignRowsError,
    KafkaFlipError,
    LogChangedError,
    PositionLostError,
    TableChangedError,
    TableReplacedError,
    WindowsChangedError,
)
from dagster_kafka_flip.source.incident import incident_of
from dagster_kafka_flip.source.next_step import TOPIC, set_position
from dagster_kafka_flip.table.document import CommitDocument
from dagster_kafka_flip.table.windows_document import WindowsDocument

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.dead_letter_route import RoutedBatch


@dataclass(frozen=True)
class Commit:
    """One row of `DESCRIBE HISTORY`.

    Attributes:
        version: The table's version that the commit made.
        operation: Delta's name of the operation.
        parameters: The operation's parameters, as Delta prints them.
        metrics: The operation's metrics, as Delta prints them.
        user_metadata: What the writer left there.
        timestamp_ms: When it was made, in milliseconds since the epoch.
        engine: What wrote it, such as `Apache-Spark/4.0.0 Delta-Lake/4.0.0` or `delta-rs:py-1.6.6`.
    """

    version: int
    operation: str
    parameters: Mapping[str, str | None]
    metrics: Mapping[str, str]
    user_metadata: str | None = None
    timestamp_ms: int | None = None
    engine: str | None = None

    def document(self) -> CommitDocument | None:
        """The document of a stream, if this commit wrote one.

        An OPTIMIZE can carry the document of the write it follows; it defines nothing.
        """
        return CommitDocument.from_text(self.user_metadata) if self.operation == "WRITE" else None

    def windows(self) -> WindowsDocument | None:
        """The document of windows, if this commit replaced some."""
        return WindowsDocument.from_text(self.user_metadata) if self.operation == "WRITE" else None

    @property
    def restored_version(self) -> int | None:
        """The version that a RESTORE went back to; None where it names a time, or is none."""
        version = self.parameters.get("version") or ""
        return int(version) if self.operation == "RESTORE" and version.isdigit() else None

    def metric(self, name: str) -> int | None:
        """A metric as a number; None where the writer left it out.

        Other writers than Spark name theirs differently, and `spark.databricks.delta.history.metricsEnabled` switches
        Spark's off.
        """
        text = self.metrics.get(name)
        return int(text) if text and text.isdigit() else None


class Effect(enum.Enum):
    """What an operation that is not the stream's own does to what the stream has written."""

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
        # What delta-rs calls its own.
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
    """What a commit does, judged by its operation and parameters alone."""
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
    if operation == "MERGE":
        return Effect.CHANGES_ROWS
    if operation in _KEEPS_ROWS:
        return Effect.KEEPS_ROWS
    return Effect.REPLACES if operation in _REPLACES else Effect.UNKNOWN


def _effect_of_write(parameters: Mapping[str, str | None]) -> Effect:
    if parameters.get("mode") != "Overwrite":
        return Effect.APPENDS
    by_condition = parameters.get("predicate") not in _NO_PREDICATE or any(
        parameters.get(name) for name in ("replaceOnCond", "replaceUsingCols")
    )
    if by_condition or parameters.get("isDynamicPartitionOverwrite") == "true":
        return Effect.CHANGES_ROWS
    return Effect.REPLACES


@dataclass(frozen=True)
class Anchor:
    """Where a stream stands, and which commit says so.

    Attributes:
        table_version: The newest version of the table when it was looked at.
        version: The version of the commit that defines the position. It is the fence: the next commit of the stream
            carries it as its transaction version.
        state: Where the stream stands; None if it has no commit yet.
        table_rows: Rows of the table at `table_version`; None where history alone does not tell.
        other_streams: Where the other streams stand whose commits were met on the way.
        committed_ms: When the commit that holds the position was made, in milliseconds since the epoch; None if there
            is none. Delta forgets it after the log's retention.
        document: What that commit says; None if there is none.
        routed: The stream's last batch whose rejected records go to a table of their own; None if there is none.
        incidents: What would have ended the walk, and is tolerated.
        transaction_version: The transaction version of the stream's last commit, as far as the position tells it.
        is_recorded: Whether a record tells the position, and no commit in history: it is to be committed anew.
    """

    table_version: int
    version: int
    state: EnumeratorState | None
    table_rows: int | None
    other_streams: Mapping[str, EnumeratorState]
    committed_ms: int | None = None
    document: CommitDocument | None = None
    routed: RoutedBatch | None = None
    incidents: tuple[Incident, ...] = ()
    transaction_version: int | None = None
    is_recorded: bool = False


def check_doubt(anchor: Anchor) -> None:
    """Makes sure that nobody has to decide about the stream's last batch before a run goes on.

    Raises:
        LogChangedError: A log changed while that batch was read.
    """
    if anchor.document is not None and anchor.document.doubt is not None:
        raise LogChangedError(anchor.document.doubt)


HasRows: TypeAlias = "Callable[[], bool]"
"""Tells whether the table has rows now, for where its history does not."""

RestoredVersions: TypeAlias = "Callable[[Commit, Sequence[Commit]], Collection[int]]"
"""Tells of a RESTORE to a timestamp, and all commits before it, the versions that it may have brought back."""


def find_anchor(
    commits: Iterable[Commit],
    stream: str,
    table: str,
    tolerated: Collection[type[KafkaFlipError]] = (),
    *,
    restored: RestoredVersions | None = None,
    expired: Callable[[int, int], Anchor] | None = None,
    has_rows: HasRows | None = None,
) -> Anchor:
    """Walks from the newest commit backwards to the one that defines the stream's position.

    Args:
        commits: The table's commits, newest first, as far back as history goes; only as many are taken as are needed.
        stream: Id of the stream.
        table: The table's name, for messages.
        tolerated: Of ForeignRowsError and TableReplacedError, those that don't end the walk.
        restored: Tells of a RESTORE to a timestamp, and all commits before it, the versions that it may have brought
            back, newest first; the one that it did bring back is among them, unless there are none. Default: none.
        expired: Tells the position where history has lost it without a sign that rows went, from the oldest and the
            newest version that are left. Default: PositionLostError.
        has_rows: Tells whether the table has rows; asked only for a stream without a commit, where history does not
            say how many rows others brought. Default: it counts as if it had.

    Raises:
        ForeignRowsError: The stream has no commit, and the table has rows that no stream wrote, or may have.
        TableReplacedError: The table's content was replaced since the stream's last commit.
        TableChangedError: The table was restored or replaced while the stream's last commit, or a repair, was
            being written.
        WindowsChangedError: It is a table of windows.
        PositionLostError: History ends before the position is found, or holds something unknown.
    """
    return _Walk(stream, table, tolerated, restored, expired, has_rows).run(iter(commits))


class _Walk:
    def __init__(
        self,
        stream: str,
        table: str,
        tolerated: Collection[type[KafkaFlipError]],
        restored: RestoredVersions | None,
        expired: Callable[[int, int], Anchor] | None,
        has_rows: HasRows | None,
    ) -> None:
        self._stream = stream
        self._table = table
        self._tolerated = tolerated
        self._restored = restored
        self._expired = expired
        self._has_rows = has_rows
        self._incidents: list[Incident] = []
        self._newest: int | None = None
        self._oldest = -1
        self._restore: Commit | None = None
        self._visible_up_to: int | None = None
        # Of the wipes since the last commit that counts: the newest, and the version of the oldest.
        self._replaced: Commit | None = None
        self._first_replaced = -1
        self._foreign: Commit | None = None
        # As above, but history does not say whether it brought rows.
        self._maybe_foreign: Commit | None = None
        # Rows that came after the commit that is looked for; None once that can't be told.
        self._rows_since: int | None = 0
        self._other_streams: dict[str, EnumeratorState] = {}
        # Of the repairs since the last commit that counts: the one that was planned first.
        self._repair: tuple[Commit, WindowsDocument] | None = None

    def run(self, commits: Iterator[Commit]) -> Anchor:
        for commit in commits:
            if self._newest is None:
                self._newest = commit.version
            self._oldest = commit.version
            if self._visible_up_to is not None and commit.version > self._visible_up_to:
                continue
            document = commit.document()
            if document is not None and document.stream == self._stream:
                return self._found(commit, document, commits)
            if document is not None:
                self._other_streams.setdefault(document.stream, document.state)
                self._add_rows(commit.metric("numOutputRows"))
                continue
            effect = effect_of(commit)
            self._check_repairs(commit, effect)
            if effect is Effect.CREATES:
                return self._created(commit)
            if (version := commit.restored_version) is not None:
                self._go_on_at(version, commit)
            elif effect is Effect.RESTORES:
                return self._restored_to_a_time(commit, tuple(commits))
            else:
                self._pass_over(commit, effect)
        if self._expired is not None and self._newest is not None and self._restore is None and self._replaced is None:
            return self._expired(self._oldest, self._newest)
        msg = (
            f"the table {self._table} no longer has the history that holds the position of the stream "
            f"{self._stream!r}: its oldest commit is version {self._oldest}, and no commit of the stream is left. "
            "Nothing was read. Delta forgets commits after delta.logRetentionDuration"
        )
        raise PositionLostError(msg)

    def _check_repairs(self, commit: Commit, effect: Effect) -> None:
        """A repair that was planned before the table went back may hold what the stream is going to land again."""
        repair = commit.windows()
        if repair is not None and repair.repairs == self._stream:
            if self._repair is None or repair.base_version < self._repair[1].base_version:
                self._repair = commit, repair
        elif effect in {Effect.RESTORES, Effect.REPLACES} and self._repair is not None:
            written, planned = self._repair
            if planned.base_version < commit.version:
                msg = (
                    f"version {commit.version} of the table {self._table} is a {commit.operation}"
                    f"{_parameters(commit)}, made after a repair was planned (version {planned.base_version}) and "
                    f"before it was written (version {written.version}): the table may hold records that the stream "
                    f"{self._stream!r} would land again. Nothing was read. RESTORE the table to version "
                    f"{written.version - 1}, which the next run then goes on from, and repair it again"
                )
                raise TableChangedError(msg)

    def _pass_over(self, commit: Commit, effect: Effect) -> None:
        if effect is Effect.UNKNOWN:
            msg = (
                f"version {commit.version} of the table {self._table} is a {commit.operation}, which this version of "
                "dagster-kafka-flip does not know; whether the rows before it still stand can't be told, so nothing "
                "was read"
            )
            raise PositionLostError(msg)
        if effect is Effect.REPLACES:
            self._replaced = self._replaced or commit
            self._first_replaced = commit.version
            self._rows_since = None
            return
        if self._replaced is None:
            self._note_foreign(commit)
        if effect is Effect.CHANGES_ROWS:
            self._rows_since = None
        elif effect is Effect.APPENDS:
            self._add_rows(commit.metric("numOutputRows"))

    def _go_on_at(self, version: int, restore: Commit) -> None:
        self._restore = self._restore or restore
        self._visible_up_to = version
        self._rows_since = None

    def _restored_to_a_time(self, restore: Commit, older: Sequence[Commit]) -> Anchor:
        """Goes on at every version that may have been restored; which one it was need not be known if all agree."""
        what = (
            f"version {restore.version} of the table {self._table} is a RESTORE to a timestamp "
            f"({restore.parameters.get('timestamp')})"
        )
        way_out = "Nothing was read. Restore the table once more, TO VERSION AS OF the version you want"
        versions = () if self._restored is None else self._restored(restore, older)
        outcomes = [(version, copy.copy(self).fork(version, restore, older)) for version in versions]
        found = [(version, outcome) for version, outcome in outcomes if isinstance(outcome, Anchor)]
        failures = [outcome for _, outcome in outcomes if isinstance(outcome, KafkaFlipError)]
        if failures and not found:
            raise failures[0]
        if not found:
            msg = f"{what}, which does not say to which version. {way_out}"
            raise PositionLostError(msg)
        (version, anchor), *others = found
        if failures or any(other.state != anchor.state for _, other in others):
            different = [other for other, another in others if another.state != anchor.state]
            msg = (
                f"{what}, and it left the very files of more than one version, among them {version}"
                f"{f' and {different[0]}' if different else ''}, at which the stream {self._stream!r} did not stand at "
                f"the same position. {way_out}"
            )
            raise PositionLostError(msg)
        return anchor

    def fork(self, version: int, restore: Commit, older: Sequence[Commit]) -> Anchor | KafkaFlipError:
        """Where going on at a version leads to; of a copy of the walk, so that what it meets there stays its own."""
        self._incidents = [*self._incidents]
        self._other_streams = {**self._other_streams}
        self._go_on_at(version, restore)
        try:
            return self.run(iter(older))
        except KafkaFlipError as failure:
            return failure

    def _add_rows(self, rows: int | None) -> None:
        self._rows_since = None if self._rows_since is None or rows is None else self._rows_since + rows

    def _note_foreign(self, commit: Commit) -> None:
        """Remembers a commit that brought rows, or may have brought some."""
        repair = commit.windows()
        if repair is not None and repair.repairs is not None:
            # What it replaced are rows of a stream, and it is no stranger's.
            return
        brings = _brings_rows(commit)
        if brings is None:
            self._maybe_foreign = self._maybe_foreign or commit
        elif brings:
            self._foreign = self._foreign or commit

    def _found(self, commit: Commit, document: CommitDocument, older: Iterator[Commit]) -> Anchor:
        if self._replaced is not None:
            msg = (
                f"the table {self._table} was replaced or wiped: version {self._replaced.version} is a "
                f"{self._replaced.operation}{_parameters(self._replaced)}, after version {commit.version}, the last "
                f"commit of the stream {self._stream!r}. Nothing was read, because going on from the position would "
                f"leave out what was wiped. RESTORE the table to version {self._first_replaced - 1}, or land into "
                "another table to read everything again"
            )
            went_on = "The run went on from the position; what was wiped is not landed again."
            # What others wiped is behind the position, and how much that was, history does not tell.
            self._tolerate(TableReplacedError(msg), went_on, lost_offsets=None)
        # Not a commit further: each page of history costs a query, and a table may have thousands.
        between = list(itertools.takewhile(lambda later: later.version > document.base_version, older))
        check_between(between, document, commit.version, self._table)
        for other in between:
            # One that began to land the same at the same time is behind the commit that this walk ends at.
            company = other.document()
            if company is not None and company.stream != self._stream:
                self._other_streams.setdefault(company.stream, company.state)
        table_rows = None
        landed = commit.metric("numOutputRows")
        if None not in (document.rows_before, self._rows_since, landed) and not between:
            table_rows = (document.rows_before or 0) + (self._rows_since or 0) + (landed or 0)
        return self._anchor(commit, document.state, table_rows, document)

    def _created(self, commit: Commit) -> Anchor:
        start = self._replaced or commit
        if self._foreign is None:
            self._note_foreign(start)
        if self._foreign is not None and self._foreign.windows() is not None:
            msg = (
                f"{self._table} is a table of windows (version {self._foreign.version} landed some), and the stream "
                f"{self._stream!r} would land the same records beside them. Nothing was written. Land the stream in "
                "another table"
            )
            raise WindowsChangedError(msg)
        unknown = self._foreign is None and self._maybe_foreign is not None
        if self._foreign is None and self._maybe_foreign is not None and (self._has_rows is None or self._has_rows()):
            self._foreign = self._maybe_foreign
        if self._foreign is None:
            return self._anchor(start, None, 0 if unknown else self._rows_since)
        untold = ", for which history gives no number of rows, and the table has rows" if unknown else ""
        msg = (
            f"the table {self._table} has rows that no stream wrote (version {self._foreign.version}, "
            f"{self._foreign.operation}{untold}), and the stream {self._stream!r} has no position in it. Nothing was "
            "written: reading the topic from its start could double what is there already. Use another table; or, "
            "if it is known up to which offsets these rows go, begin there: "
            f"{set_position(str(self._table), self._stream, topics=TOPIC)}"
        )
        self._tolerate(ForeignRowsError(msg), "The run took the table as it is, and began where the source says.")
        return self._anchor(start, None, None)

    def _tolerate(self, error: KafkaFlipError, went_on: str, *, lost_offsets: int | None = 0) -> None:
        if type(error) not in self._tolerated:
            raise error
        self._incidents.append(incident_of(error, went_on, lost_offsets=lost_offsets))

    def _anchor(
        self,
        commit: Commit,
        state: EnumeratorState | None,
        table_rows: int | None,
        document: CommitDocument | None = None,
    ) -> Anchor:
        return Anchor(
            table_version=commit.version if self._newest is None else self._newest,
            version=(self._restore or commit).version,
            state=state,
            table_rows=table_rows,
            other_streams=self._other_streams,
            committed_ms=None if document is None else commit.timestamp_ms,
            document=document,
            routed=None if document is None else document.routed(commit.version),
            # A RESTORE keeps that of a commit which it undid.
            transaction_version=None if document is None or self._restore is not None else document.anchor_version,
            incidents=tuple(self._incidents),
        )


def with_undone(history: Sequence[Commit], restored: RestoredVersions | None = None) -> Iterator[tuple[Commit, bool]]:
    """Each commit, and whether a later RESTORE took it back.

    Args:
        history: The table's commits, newest first.
        restored: Which versions a RESTORE to a timestamp may have brought back; see `find_anchor`.
    """
    counting = {commit.version for commit in commits_that_count(history, restored or (lambda *_: ()))}
    for commit in history:
        yield commit, commit.version not in counting


def commits_that_count(commits: Iterable[Commit], restored: RestoredVersions) -> Iterator[Commit]:
    """A table's commits without those that a later RESTORE has undone.

    Args:
        commits: The commits, newest first.
        restored: Tells of a RESTORE to a timestamp, and all commits before it, the versions that it may have brought
            back; where it tells none, no commit counts as undone.
    """
    rest = iter(commits)
    visible: int | None = None
    for commit in rest:
        if visible is not None and commit.version > visible:
            continue
        yield commit
        if effect_of(commit) is not Effect.RESTORES:
            continue
        visible = commit.restored_version
        if visible is None:
            older = tuple(rest)
            # All of them hold the same files; the newest has no commit behind it that brought others.
            newest = max(restored(commit, older), default=commit.version)
            yield from commits_that_count((each for each in older if each.version <= newest), restored)


def documented(commits: Iterable[Commit], stream: str | None = None) -> Iterator[tuple[Commit, CommitDocument]]:
    """The commits of streams, each with its document.

    Args:
        commits: Commits of a table.
        stream: Id of the stream whose commits these are; None for those of all.
    """
    for commit in commits:
        document = commit.document()
        if document is not None and stream in {None, document.stream}:
            yield commit, document


def other_streams(commits: Iterable[Commit], stream: str) -> dict[str, EnumeratorState]:
    """Where the other streams of a table stand, by all the commits that history holds.

    Args:
        commits: The table's commits, newest first.
        stream: Id of the stream that is left out.
    """
    found: dict[str, EnumeratorState] = {}
    for _, document in documented(commits):
        if document.stream != stream:
            found.setdefault(document.stream, document.state)
    return found


def check_between(commits: Iterable[Commit], document: CommitDocument, version: int, table: str) -> None:
    """Makes sure that no rows went or were doubled between the look at the position and the commit that rests on it.

    Args:
        commits: The commits between the two.
        document: The document of the commit.
        version: The commit's version.
        table: The table's name, for the message.

    Raises:
        TableChangedError: One of them restored or replaced the table, or is of the same stream.
    """
    for commit in commits:
        if commit.version >= version or commit.version <= document.base_version:
            continue
        own = commit.document()
        if own is not None and own.stream == document.stream:
            # The fence holds as long as Delta keeps transaction versions, which a property of the table can shorten.
            msg = (
                f"versions {commit.version} and {version} of the table {table} are both of the stream "
                f"{document.stream!r}, and the later one was planned at version {document.base_version}, before the "
                "earlier one was there: records may be in the table twice. Delta forgot the transaction version of "
                "the earlier one (delta.setTransactionRetentionDuration). Set that to longer than any run takes, and "
                f"RESTORE the table to version {version - 1}, which the next run then goes on from"
            )
            raise TableChangedError(msg)
        if own is None and effect_of(commit) in {Effect.RESTORES, Effect.REPLACES, Effect.UNKNOWN}:
            msg = (
                f"version {commit.version} of the table {table} is a {commit.operation}{_parameters(commit)}, made "
                f"after the position was read (version {document.base_version}) and before the batch was committed "
                f"(version {version}). Rows may be missing between the two. RESTORE the table to version "
                f"{version - 1} or earlier, which the next run then goes on from"
            )
            raise TableChangedError(msg)


# What counts the rows, or files with rows, that an operation brought; without any of them none is known.
_BROUGHT = {
    "WRITE": ("numOutputRows",),
    "CREATE TABLE AS SELECT": ("numOutputRows",),
    "REPLACE TABLE AS SELECT": ("numOutputRows",),
    "CREATE OR REPLACE TABLE AS SELECT": ("numOutputRows",),
    "STREAMING UPDATE": ("numOutputRows",),
    # Its output rows are also those that it only moved from one file to another.
    "MERGE": ("numTargetRowsInserted",),
    # These two count files only.
    "CLONE": ("sourceNumOfFiles",),
    "CONVERT": ("numConvertedFiles",),
}
# Of Delta's Spark these never bring rows. What other engines call by these names may.
_BRINGS_NONE = frozenset({"CREATE TABLE", "REPLACE TABLE", "CREATE OR REPLACE TABLE", "TRUNCATE", "DELETE"})
_OF_SPARK = "Apache-Spark/"


def _brings_rows(commit: Commit) -> bool | None:
    """Whether this commit put rows into the table; None where history does not tell."""
    operation = commit.operation
    if operation in _KEEPS_ROWS and commit.version > 0:
        return False
    if operation in _BRINGS_NONE and (commit.engine is None or commit.engine.startswith(_OF_SPARK)):
        return False
    counts = [commit.metric(name) for name in _BROUGHT.get(operation, ("numOutputRows",))]
    return None if None in counts else any(counts)


def _parameters(commit: Commit) -> str:
    shown = {
        name: value for name, value in commit.parameters.items() if name in {"mode", "predicate", "version"} and value
    }
    return f" {json.dumps(shown)}" if shown else ""
