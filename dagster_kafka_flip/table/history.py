"""Finds a stream's position in its table's history, walking from the newest commit backwards.

Pure functions on commits. Section 6 of docs/architecture.md has the rules; operation names are those of Delta's
DeltaOperations.
"""

from __future__ import annotations

import copy
import enum
import json
from dataclasses import dataclass, replace
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
from dagster_kafka_flip.source.incident import tolerate
from dagster_kafka_flip.source.next_step import TOPIC, set_position
from dagster_kafka_flip.table.document import CommitDocument
from dagster_kafka_flip.table.windows_document import WindowsDocument

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import TypeAlias

    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.dead_letter_route import RoutedBatch


_MERGE = "MERGE"

FIRST_PAGE = 10
"""Number of commits that the first look at a history reads."""

WRITES = frozenset({"WRITE", _MERGE})
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
        engine: The writer, such as `Apache-Spark/4.0.0 Delta-Lake/4.0.0` or `delta-rs:py-1.6.6`.
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
        if self.operation != _MERGE:
            return self.metric("numOutputRows")
        return _plus(self.metric("numTargetRowsInserted"), self.metric("numTargetRowsUpdated"))

    @property
    def rows_gained(self) -> int | None:
        """By how many rows the table grew, below 0 if it shrank; None if the writer did not record it.

        Only for a stream's own commit: it adds rows, or is a MERGE.
        """
        if self.operation != _MERGE:
            return self.metric("numOutputRows")
        deleted = self.metric("numTargetRowsDeleted")
        return None if deleted is None else _plus(self.metric("numTargetRowsInserted"), -deleted)

    def metric(self, name: str) -> int | None:
        """A metric as a number; None if the writer did not record it.

        Other writers use other names, and `spark.databricks.delta.history.metricsEnabled` disables Spark's.
        """
        text = self.metrics.get(name)
        return int(text) if text and text.isdigit() else None


def _plus(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


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
    if operation == _MERGE:
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
    """A stream's position and the commit that defines it.

    Attributes:
        table_version: The newest version of the table at the time of the lookup.
        version: Version of the commit that defines the position. It is the fence: the stream's next commit uses it as
            its transaction version.
        state: The stream's state; None if it has no commit yet.
        table_rows: Rows of the table at `table_version`; None if unknown from history.
        other_streams: States of other streams whose commits were found on the way.
        committed_ms: Time of the commit with the position, in milliseconds since the epoch; None if there is none.
            Delta removes it after the log retention.
        document: The document of that commit; None if there is none.
        routed: The stream's last batch with a dead-letter route; None if there is none.
        incidents: Tolerated errors.
        transaction_version: Transaction version of the stream's last commit, if known.
        is_recorded: Whether the position comes from a record instead of history, so it must be committed again.
        undone_start: If a RESTORE undid all commits of the stream, the state in which its first one began; else None.
        attempt: Attempt of the commit with the position; None if there is none, or if it is unknown.
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
    undone_start: EnumeratorState | None = None
    attempt: str | None = None


def check_doubt(anchor: Anchor) -> None:
    """Checks that no open question about the stream's last batch stops the run.

    Raises:
        LogChangedError: A log changed while that batch was read.
    """
    if anchor.document is not None and anchor.document.doubt is not None:
        raise LogChangedError(anchor.document.doubt)


HasRows: TypeAlias = "Callable[[], bool]"
"""Whether the table has rows now, if its history does not show it."""

RestoredVersions: TypeAlias = "Callable[[Commit, Sequence[Commit]], Collection[int]]"
"""Returns the versions that a RESTORE to a timestamp may have restored, given all earlier commits."""


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
        commits: The table's commits, newest first; read lazily.
        stream: Id of the stream.
        table: The table's name, for messages.
        tolerated: Which of ForeignRowsError and TableReplacedError don't stop the walk.
        restored: Returns the versions that a RESTORE to a timestamp may have restored, given all earlier commits,
            newest first; includes the actual one unless empty. Default: empty.
        expired: Returns the position from a record if history no longer has it and shows no deletion, given the oldest
            and the newest version. Default: raises PositionLostError.
        has_rows: Whether the table has rows; only called for a stream without a commit if history has no row counts.
            Default: yes.

    Raises:
        ForeignRowsError: The stream has no commit, and the table has, or may have, rows that no stream wrote.
        TableReplacedError: The table's content was replaced since the stream's last commit.
        TableChangedError: The table was restored or replaced while the stream's last commit, or a repair, was
            being written.
        WindowsChangedError: The table is written in windows.
        PositionLostError: History ends before the position is found, or has an unknown operation.
    """
    return _Walk(stream, table, tolerated, restored, expired, has_rows).run(iter(commits))


@dataclass
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
        # Commits that a RESTORE undid.
        self._undone: list[Commit] = []
        # Deletions of all rows since the last relevant commit: the newest, and the version of the oldest.
        self._replaced: Commit | None = None
        self._first_replaced = -1
        self._foreign: Commit | None = None
        # As above, if history does not show whether it added rows.
        self._maybe_foreign: Commit | None = None
        # Rows added after the searched commit; None once unknown.
        self._rows_since: int | None = 0
        self._other_streams: dict[str, EnumeratorState] = {}
        # The first planned repair since the last relevant commit.
        self._repair: tuple[Commit, WindowsDocument] | None = None

    def run(self, commits: Iterator[Commit]) -> Anchor:
        for commit in commits:
            if self._newest is None:
                self._newest = commit.version
            self._oldest = commit.version
            if self._visible_up_to is not None and commit.version > self._visible_up_to:
                self._undone.append(commit)
                continue
            document = commit.document()
            if document is not None and document.stream == self._stream:
                return self._found(commit, document, commits)
            if document is not None:
                self._other_streams.setdefault(document.stream, document.state)
                self._add_rows(commit.rows_gained)
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
            f"{self._stream!r}: its oldest commit is version {self._oldest}, and it holds no commit of the stream. "
            "Nothing was read. Delta removes commits after delta.logRetentionDuration"
        )
        raise PositionLostError(msg)

    def _check_repairs(self, commit: Commit, effect: Effect) -> None:
        """A repair that was planned before the table was restored may have records that the stream will write again."""
        repair = commit.windows()
        if repair is not None and repair.repairs == self._stream:
            if self._repair is None or repair.base_version < self._repair[1].base_version:
                self._repair = commit, repair
        elif effect in {Effect.RESTORES, Effect.REPLACES} and self._repair is not None:
            written, planned = self._repair
            if planned.base_version < commit.version:
                msg = (
                    f"version {commit.version} of the table {self._table} is a "
                    f"{commit.operation}{_parameters(commit)} between the planning of a repair (version "
                    f"{planned.base_version}) and its commit (version {written.version}): the table may hold records "
                    f"that the stream {self._stream!r} would write again. Nothing was read. RESTORE the table to "
                    f"version {written.version - 1}, from which the next run continues, and repair it again"
                )
                raise TableChangedError(msg)

    def _pass_over(self, commit: Commit, effect: Effect) -> None:
        if effect is Effect.UNKNOWN:
            msg = (
                f"version {commit.version} of the table {self._table} is a {commit.operation}, which this version of "
                "dagster-kafka-flip does not know. It may have removed earlier rows, so nothing was read"
                if commit.operation
                else f"version {commit.version} of the table {self._table} does not tell what it did: its file in "
                "_delta_log is empty, as after a power failure, or its writer left that out. It may have removed "
                "earlier rows, or lack some, so nothing was read. Put the file back from a backup. Or RESTORE the "
                f"table to version {commit.version - 1}, from which the next run continues"
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
        """Continues at every version that may have been restored; the exact one does not matter if all agree."""
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
            msg = f"{what}, and history does not record to which version. {way_out}"
            raise PositionLostError(msg)
        (version, anchor), *others = found
        if failures or any(other.state != anchor.state for _, other in others):
            different = [other for other, another in others if another.state != anchor.state]
            msg = (
                f"{what}, and its files match more than one version, including "
                f"{version}{f' and {different[0]}' if different else ''}, in which the stream {self._stream!r} had "
                f"different positions. {way_out}"
            )
            raise PositionLostError(msg)
        return anchor

    def fork(self, version: int, restore: Commit, older: Sequence[Commit]) -> Anchor | KafkaFlipError:
        """Result of continuing at a version, on a copy of the walk."""
        self._incidents = [*self._incidents]
        self._undone = [*self._undone]
        self._other_streams = {**self._other_streams}
        self._go_on_at(version, restore)
        try:
            return self.run(iter(older))
        except KafkaFlipError as failure:
            return failure

    def _add_rows(self, rows: int | None) -> None:
        self._rows_since = None if self._rows_since is None or rows is None else self._rows_since + rows

    def _note_foreign(self, commit: Commit) -> None:
        """Records a commit that added rows, or may have."""
        repair = commit.windows()
        if repair is not None and repair.repairs is not None:
            # It replaced rows of a stream, so they are not foreign.
            return
        brings = _brings_rows(commit)
        if brings is None:
            self._maybe_foreign = self._maybe_foreign or commit
        elif brings:
            self._foreign = self._foreign or commit

    def _found(self, commit: Commit, document: CommitDocument, older: Iterator[Commit]) -> Anchor:
        if self._replaced is not None:
            msg = (
                f"the table {self._table} was replaced or its rows were deleted: version {self._replaced.version} is "
                f"a {self._replaced.operation}{_parameters(self._replaced)}, after version {commit.version}, the last "
                f"commit of the stream {self._stream!r}. Nothing was read, because continuing from the position would "
                f"not restore the deleted rows. RESTORE the table to version {self._first_replaced - 1}, or use "
                "another table to read everything again"
            )
            went_on = "The run continued from the position; the deleted rows are not written again."
            # Rows deleted by others are before the position; history does not show how many.
            self._incidents.append(tolerate(TableReplacedError(msg), self._tolerated, went_on))
        # Stops here: each page of history costs a query, and a table may have thousands of commits. An anchor on the
        # page that was read costs none.
        newest = commit.version if self._newest is None else self._newest
        is_read = newest - document.anchor_version < page_with(newest - commit.version)
        last = min(document.base_version, document.anchor_version) if is_read else document.base_version
        earlier = list(back_to(last, older))
        check_between(earlier, document, commit.version, self._table)
        between = [later for later in earlier if later.version > document.base_version]
        for other in between:
            # A concurrent stream's commit may be before the commit that ends this walk.
            company = other.document()
            if company is not None and company.stream != self._stream:
                self._other_streams.setdefault(company.stream, company.state)
        table_rows = None
        landed = commit.rows_gained
        if None not in (document.rows_before, self._rows_since, landed) and not between:
            table_rows = (document.rows_before or 0) + (self._rows_since or 0) + (landed or 0)
        return self._anchor(commit, document.state, table_rows, document)

    def _created(self, commit: Commit) -> Anchor:
        start = self._replaced or commit
        if self._foreign is None:
            self._note_foreign(start)
        if self._foreign is not None and self._foreign.windows() is not None:
            msg = (
                f"{self._table} is written in windows (version {self._foreign.version} wrote some), and the stream "
                f"{self._stream!r} would duplicate their records. Nothing was written. Use another table for the stream"
            )
            raise WindowsChangedError(msg)
        unknown = self._foreign is None and self._maybe_foreign is not None
        if self._foreign is None and self._maybe_foreign is not None and (self._has_rows is None or self._has_rows()):
            self._foreign = self._maybe_foreign
        if self._foreign is None:
            return self._anchor(start, None, 0 if unknown else self._rows_since)
        caveat = ", whose row count is not in the history; the table has rows" if unknown else ""
        msg = (
            f"the table {self._table} has rows that no stream wrote (version {self._foreign.version}, "
            f"{self._foreign.operation}{caveat}), and the stream {self._stream!r} has no position in it. Nothing was "
            "written: reading the topic from the beginning could duplicate these rows. Use another table; or, if you "
            "know the last offsets of these rows, set the position: "
            f"{set_position(str(self._table), self._stream, topics=TOPIC)}"
        )
        went_on = "The run accepted the existing rows and began at starting_offsets."
        self._incidents.append(tolerate(ForeignRowsError(msg), self._tolerated, went_on, lost_offsets=0))
        return self._anchor(start, None, None)

    def _undone_start(self) -> EnumeratorState | None:
        version, first = next(
            ((commit.version, document) for commit, document in documented(reversed(self._undone), self._stream)),
            (None, None),
        )
        # A batch that was planned in an earlier table of this name begins behind what that table had.
        if version is None or first is None or version <= first.base_version or first.after is not None:
            return None
        starts = {split.topic_partition: split.starting_offset for split in first.splits}
        return replace(first.state, position={**first.state.position, **starts}, watermark=None)

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
            # A RESTORE keeps the transaction version of a commit that it undid.
            transaction_version=None if document is None or self._restore is not None else document.anchor_version,
            incidents=tuple(self._incidents),
            undone_start=self._undone_start() if document is None else None,
            attempt=None if document is None else document.attempt,
        )


def with_undone(history: Sequence[Commit], restored: RestoredVersions | None = None) -> Iterator[tuple[Commit, bool]]:
    """Yields each commit, and whether a later RESTORE undid it.

    Args:
        history: The table's commits, newest first.
        restored: Returns the versions that a RESTORE to a timestamp may have restored; see `find_anchor`.
    """
    counting = {commit.version for commit in commits_that_count(history, restored or (lambda *_: ()))}
    for commit in history:
        yield commit, commit.version not in counting


def commits_that_count(commits: Iterable[Commit], restored: RestoredVersions) -> Iterator[Commit]:
    """Yields a table's commits without those that a later RESTORE has undone.

    Args:
        commits: The commits, newest first.
        restored: Returns the versions that a RESTORE to a timestamp may have restored, given all earlier commits; if
            empty, no commit counts as undone.
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
            # All have the same files; no commit before the newest added others.
            newest = max(restored(commit, older), default=commit.version)
            yield from commits_that_count((each for each in older if each.version <= newest), restored)


def documented(commits: Iterable[Commit], stream: str | None = None) -> Iterator[tuple[Commit, CommitDocument]]:
    """Yields the commits of streams, each with its document.

    Args:
        commits: Commits of a table.
        stream: Id of the stream; None for all streams.
    """
    for commit in commits:
        document = commit.document()
        if document is not None and stream in {None, document.stream}:
            yield commit, document


def other_streams(commits: Iterable[Commit], stream: str) -> dict[str, EnumeratorState]:
    """States of the other streams of a table, from all commits in the history.

    Args:
        commits: The table's commits, newest first.
        stream: Id of the excluded stream.
    """
    found: dict[str, EnumeratorState] = {}
    for _, document in documented(commits):
        if document.stream != stream:
            found.setdefault(document.stream, document.state)
    return found


def page_with(number: int) -> int:
    """Size of the first page of history that has more than so many commits: each is ten times larger than the last."""
    size = FIRST_PAGE
    while size <= number:
        size *= 10
    return size


def back_to(version: int, commits: Iterable[Commit]) -> Iterator[Commit]:
    """Yields commits down to the first one that is not newer than a version, and reads no more."""
    for commit in commits:
        yield commit
        if commit.version <= version:
            return


def _is_anchor(commit: Commit, document: CommitDocument) -> bool:
    """Whether a commit of the anchor's version is the anchor, and not one of a later table of this name."""
    if document.after is None or effect_of(commit) is Effect.RESTORES:
        return True
    own = commit.document()
    return own is not None and own.attempt == document.after


def check_between(commits: Iterable[Commit], document: CommitDocument, version: int, table: str) -> None:
    """Checks that no rows were deleted or duplicated between the reading of the position and the commit.

    Args:
        commits: The commits between the two, and those from the anchor on, as far as they are known.
        document: The document of the commit.
        version: The commit's version.
        table: The table's name, for the message.

    Raises:
        TableChangedError: One of them restored or replaced the table, or belongs to the same stream. Or the table is a
            later one than that in which the position was read.
    """
    if version <= document.base_version:
        msg = (
            f"version {version} of the table {table} is a batch of the stream {document.stream!r} that was planned at "
            f"version {document.base_version}: the table was dropped and created again in between, so it lacks what "
            "the stream wrote before this batch. Drop it, and the next run creates it and begins at starting_offsets; "
            "or use another table"
        )
        raise TableChangedError(msg)
    for commit in commits:
        if commit.version == document.anchor_version and not _is_anchor(commit, document):
            msg = (
                f"version {version} of the table {table} is a batch of the stream {document.stream!r} that continues "
                f"from the batch in version {commit.version}, but version {commit.version} is another commit "
                f"({commit.operation}): the table was dropped and created again, or another one was put in its place, "
                f"so it lacks what the stream wrote before this batch. RESTORE it to version {version - 1}, which "
                "removes this batch; or use another table"
            )
            raise TableChangedError(msg)
        if commit.version >= version or commit.version <= document.base_version:
            continue
        own = commit.document()
        if own is not None and own.stream == document.stream:
            # The fence works while Delta keeps transaction versions; a table property can shorten this time.
            msg = (
                f"versions {commit.version} and {version} of the table {table} both belong to the stream "
                f"{document.stream!r}, and the later one was planned at version {document.base_version}, before the "
                "earlier one was committed: the table may hold duplicates. Delta removed the transaction version of "
                "the earlier one (delta.setTransactionRetentionDuration). Set this property to longer than any run "
                f"takes, and RESTORE the table to version {version - 1}, from which the next run continues"
            )
            raise TableChangedError(msg)
        if own is None and effect_of(commit) in {Effect.RESTORES, Effect.REPLACES, Effect.UNKNOWN}:
            msg = (
                f"version {commit.version} of the table {table} is a {commit.operation}{_parameters(commit)} between "
                f"the reading of the position (version {document.base_version}) and the commit of the batch (version "
                f"{version}). Rows in between may be missing. RESTORE the table to version {version - 1} or earlier, "
                "from which the next run continues"
            )
            raise TableChangedError(msg)


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


def _brings_rows(commit: Commit) -> bool | None:
    """Whether this commit added rows; None if unknown from history."""
    operation = commit.operation
    if operation in _KEEPS_ROWS and commit.version > 0:
        return False
    if operation in _BRINGS_NONE and (commit.engine is None or commit.engine.startswith(_OF_SPARK)):
        return False
    counts = [commit.metric(name) for name in _BROUGHT.get(operation or "", ("numOutputRows",))]
    return None if None in counts else any(counts)


def _parameters(commit: Commit) -> str:
    shown = {
        name: value for name, value in commit.parameters.items() if name in {"mode", "predicate", "version"} and value
    }
    return f" {json.dumps(shown)}" if shown else ""
