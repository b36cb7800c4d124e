"""Finds a stream's position in its table's history, walking from the newest commit backwards.

Pure functions on commits. "The position" in docs/architecture.md has the rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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
from dagster_kafka_flip.source import instants
from dagster_kafka_flip.source.incident import tolerate
from dagster_kafka_flip.source.next_step import TOPIC, set_position
from dagster_kafka_flip.table.commit import Effect, brings_rows, effect_of
from dagster_kafka_flip.table.history import check_between, check_restore, documented, moves, page_with

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.commit import Commit, Committed
    from dagster_kafka_flip.table.document import CommitDocument, RoutedBatch, WindowsDocument


@dataclass(frozen=True)
class Anchor:
    """A stream's position and the commit that defines it.

    `version` is the fence: the next commit's transaction version. `table_version` and `table_rows` are those of the
    look-up, and the other streams are those that it met. `routed` is the last batch with a dead-letter route.
    `is_restored`: a RESTORE came after the document's commit. `undone_start` is the state in which the stream's first
    commit began, if a RESTORE has undone all of them.
    """

    table_version: int
    version: int
    state: EnumeratorState | None
    table_rows: int | None
    other_streams: Mapping[str, CommitDocument]
    committed_ms: int | None = None
    document: CommitDocument | None = None
    routed: RoutedBatch | None = None
    incidents: tuple[Incident, ...] = ()
    is_restored: bool = False
    undone_start: EnumeratorState | None = None
    attempt: str | None = None

    def followed_by(self, committed: Committed, state: EnumeratorState) -> Anchor:
        return Anchor(
            table_version=committed.version,
            version=committed.version,
            state=state,
            table_rows=committed.table_rows,
            other_streams=self.other_streams,
            committed_ms=instants.now_ms(),
            attempt=committed.attempt,
        )


def check_doubt(anchor: Anchor) -> None:
    """Checks that no open question about the stream's last batch stops the run."""
    if anchor.document is not None and anchor.document.doubt is not None:
        finding, outcome, advice = anchor.document.doubt
        raise LogChangedError(finding, advice, outcome=outcome)


def find_anchor(
    commits: Iterable[Commit],
    stream: str,
    table: str,
    tolerated: Collection[type[KafkaFlipError]] = (),
    has_rows: Callable[[], bool] | None = None,
) -> Anchor:
    """Walks from the newest commit backwards to the one that defines the stream's position.

    `has_rows` is asked for a stream without a commit if history has no row counts.
    """
    return _Walk(stream, table, tolerated, has_rows).run(iter(commits))


@dataclass
class _Walk:
    _stream: str
    _table: str
    _tolerated: Collection[type[KafkaFlipError]]
    _has_rows: Callable[[], bool] | None
    _incidents: list[Incident] = field(default_factory=list["Incident"])
    _newest: int | None = None
    _oldest: int = -1
    _restore: Commit | None = None
    _visible_up_to: int | None = None
    # Commits that a RESTORE undid.
    _undone: list[Commit] = field(default_factory=list["Commit"])
    # Deletions of all rows since the last relevant commit: the newest, and the version of the oldest.
    _replaced: Commit | None = None
    _first_replaced: int = -1
    _foreign: Commit | None = None
    # As above, if history does not show whether it added rows.
    _maybe_foreign: Commit | None = None
    # Rows added after the searched commit; None once unknown.
    _rows_since: int | None = 0
    _other_streams: dict[str, CommitDocument] = field(default_factory=dict[str, "CommitDocument"])
    # The first planned repair since the last relevant commit.
    _repair: tuple[Commit, WindowsDocument] | None = None

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
                self._other_streams.setdefault(document.stream, document)
                self._add_rows(commit.rows_gained)
                continue
            effect = effect_of(commit)
            self._check_repairs(commit)
            if effect is Effect.CREATES:
                return self._created(commit)
            if (version := commit.restored_version) is not None:
                self._go_on_at(version, commit)
            else:
                check_restore(commit, self._table)
                self._pass_over(commit, effect)
        raise PositionLostError(
            f"the table {self._table} no longer has the history that holds the position of the stream "
            f"{self._stream!r}: its oldest commit is version {self._oldest}, and it holds no commit of the stream",
            "Delta removes commits after delta.logRetentionDuration. Check the table's last offsets, and set the "
            f"position: {set_position(self._table, self._stream, topics=TOPIC)}",
        )

    def _check_repairs(self, commit: Commit) -> None:
        """A repair that was planned before the position went back may have records that the stream will write again."""
        repair = commit.windows()
        if repair is not None and repair.repairs == self._stream:
            if self._repair is None or repair.base_version < self._repair[1].base_version:
                self._repair = commit, repair
        elif self._repair is not None and (
            effect_of(commit) in {Effect.RESTORES, Effect.REPLACES} or moves(commit, self._stream)
        ):
            written, planned = self._repair
            if planned.base_version < commit.version:
                raise TableChangedError(
                    f"version {commit.version} of the table {self._table} is a "
                    f"{commit.operation}{commit.shown_parameters} between the planning of a repair (version "
                    f"{planned.base_version}) and its commit (version {written.version}): the table may hold records "
                    f"that the stream {self._stream!r} would write again",
                    f"RESTORE the table to version {written.version - 1}, from which the next run continues, and "
                    "repair it again, with the ranges of all later repairs",
                )

    def _pass_over(self, commit: Commit, effect: Effect) -> None:
        if effect is Effect.UNKNOWN:
            begin = f"version {commit.version} of the table {self._table}"
            finding = (
                f"{begin} does not tell what it did: its file in _delta_log is empty, as after a power failure, or its "
                "writer left that out. It may have removed earlier rows, or lack some, so nothing was read"
            )
            way_on = "Put the file back from a backup"
            if commit.operation:
                finding = (
                    f"{begin} is a {commit.operation}, which this version of dagster-kafka-flip does not know. It may "
                    "have removed earlier rows, so nothing was read"
                )
                way_on = (
                    "Upgrade dagster-kafka-flip. Or, if it removed no rows, set the position to where the stream's "
                    f"last commit ended: {set_position(self._table, self._stream, topics=TOPIC)}"
                )
            way_on += f". Or RESTORE the table to version {commit.version - 1}, from which the next run continues"
            raise PositionLostError(finding, way_on)
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

    def _add_rows(self, rows: int | None) -> None:
        self._rows_since = None if self._rows_since is None or rows is None else self._rows_since + rows

    def _note_foreign(self, commit: Commit) -> None:
        repair = commit.windows()
        if repair is not None and repair.repairs is not None:
            # It replaced rows of a stream, so they are not foreign.
            return
        brings = brings_rows(commit)
        if brings is None:
            self._maybe_foreign = self._maybe_foreign or commit
        elif brings:
            self._foreign = self._foreign or commit

    def _found(self, commit: Commit, document: CommitDocument, older: Iterator[Commit]) -> Anchor:
        if self._replaced is not None:
            error = TableReplacedError(
                f"the table {self._table} was replaced or its rows were deleted: version {self._replaced.version} is "
                f"a {self._replaced.operation}{self._replaced.shown_parameters}, after version {commit.version}, the "
                f"last commit of the stream {self._stream!r}",
                f"Continuing from the position would not restore the deleted rows. RESTORE the table to version "
                f"{self._first_replaced - 1}, or use another table to read everything again",
            )
            went_on = "The run continued from the position; the deleted rows are not written again."
            # Rows deleted by others are before the position; history does not show how many.
            self._incidents.append(tolerate(error, self._tolerated, went_on))
        self._check_repairs(commit)
        # Stops here: each page of history costs a query, and a table may have thousands of commits. An anchor on the
        # page that was read costs none.
        newest = commit.version if self._newest is None else self._newest
        is_read = newest - document.anchor_version < page_with(newest - commit.version)
        last = min(document.base_version, document.anchor_version) if is_read else document.base_version
        earlier: list[Commit] = []
        for each in older:
            earlier.append(each)
            # A repair that the batch's plan did not see may be of before a RESTORE that is behind the batch.
            if each.version > document.base_version or each.windows() is None:
                self._check_repairs(each)
            if each.version <= (last if self._repair is None else min(last, self._repair[1].base_version)):
                break
        check_between(earlier, document, commit, self._table)
        table_rows = None
        landed = commit.rows_gained
        is_next = all(each.version <= document.base_version for each in earlier)
        if None not in (document.rows_before, self._rows_since, landed) and is_next:
            table_rows = (document.rows_before or 0) + (self._rows_since or 0) + (landed or 0)
        return self._anchor(commit, document.state, table_rows, document)

    def _created(self, commit: Commit) -> Anchor:
        start = self._replaced or commit
        if self._foreign is None:
            self._note_foreign(start)
        if self._foreign is not None and self._foreign.windows() is not None:
            raise WindowsChangedError(
                f"{self._table} is written in windows (version {self._foreign.version} wrote some), and the stream "
                f"{self._stream!r} would duplicate their records",
                "Use another table for the stream",
            )
        unknown = self._foreign is None and self._maybe_foreign is not None
        if self._foreign is None and self._maybe_foreign is not None and (self._has_rows is None or self._has_rows()):
            self._foreign = self._maybe_foreign
        if self._foreign is None:
            return self._anchor(start, None, 0 if unknown else self._rows_since)
        caveat = ", whose row count is not in the history; the table has rows" if unknown else ""
        error = ForeignRowsError(
            f"the table {self._table} has rows that no stream wrote (version {self._foreign.version}, "
            f"{self._foreign.operation}{caveat}), and the stream {self._stream!r} has no position in it",
            "Reading the topic from the beginning could duplicate these rows. Use another table; or, if you know the "
            f"last offsets of these rows, set the position: {set_position(self._table, self._stream, topics=TOPIC)}",
        )
        went_on = "The run accepted the existing rows and began at starting_offsets."
        self._incidents.append(tolerate(error, self._tolerated, went_on, lost_offsets=0))
        return self._anchor(start, None, None)

    def _undone_start(self) -> EnumeratorState | None:
        commit, first = next(documented(reversed(self._undone), self._stream), (None, None))
        # A batch that was planned in an earlier table of this name begins behind what that table had.
        if commit is None or first is None or commit.version <= first.base_version or first.after is not None:
            return None
        if effect_of(commit) is Effect.REPLACES:
            # A rebuild has read all before its position, and does not tell where that began.
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
            is_restored=self._restore is not None,
            incidents=tuple(self._incidents),
            undone_start=self._undone_start() if document is None else None,
            attempt=None if document is None else document.attempt,
        )
