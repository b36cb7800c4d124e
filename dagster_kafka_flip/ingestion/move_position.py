"""Moves a stream's position manually, with an empty commit that has the reason.

The next run finds the commit in the table's history. It uses the stream's transaction version, which fences out runs
that were planned before. It also resolves runs that stop because the position is no longer valid: after a replaced
table or a recreated topic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    ClusterChangedError,
    ForeignRowsError,
    PositionLostError,
    TableChangedError,
    TableError,
    TableReplacedError,
    TopicRecreatedError,
    WriteFailedError,
    outcome,
)
from dagster_kafka_flip.ingestion.keyed_stream import check_same_offsets, reaching
from dagster_kafka_flip.settings.names import first_few
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.identity import taken_up
from dagster_kafka_flip.source.next_step import set_position
from dagster_kafka_flip.source.offsets import OffsetsKind
from dagster_kafka_flip.table.anchor import find_anchor
from dagster_kafka_flip.table.commit import Effect, effect_of
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.document import CommitDocument
from dagster_kafka_flip.table.history import back_to, check_shared, other_streams
from dagster_kafka_flip.table.layout import created_for
from dagster_kafka_flip.table.mode import key_of
from dagster_kafka_flip.table.table_port import ForeignConflictError
from dagster_kafka_flip.table.table_writer import TableWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.offsets import OffsetsInitializer
    from dagster_kafka_flip.source.split import Position, TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.commit import Committed
    from dagster_kafka_flip.table.target import DeltaTarget


@dataclass(frozen=True)
class Move:
    """A new position that is not committed yet.

    `before` is the stream's state, if known; `unread` is where records begin that it has not read, None if unknown;
    `problem` is why no run can continue there. The document has no reason yet.
    """

    before: EnumeratorState | None
    unread: Position | None
    problem: KafkaFlipError | None
    document: CommitDocument
    given_up: tuple[TopicPartition, ...] = ()

    @property
    def after(self) -> EnumeratorState:
        return self.document.state

    @property
    def read_again(self) -> Position:
        """Number of offsets of each topic partition that will be read again."""
        return {tp: old - new for tp, old, new in self._moved() if new < old}

    @property
    def skipped(self) -> Position:
        """Number of offsets of each topic partition that will be skipped."""
        return {tp: new - old for tp, old, new in self._moved() if new > old}

    def _moved(self) -> list[tuple[TopicPartition, int, int]]:
        unread = self.unread or {}
        return [(tp, unread[tp], new) for tp, new in sorted(self.after.position.items()) if tp in unread]


@outcome("Nothing was changed")
def plan_move(
    source: KafkaSource,
    target: DeltaTarget,
    spark: SparkSession,
    to: OffsetsInitializer | None,
    *,
    give_up: bool = False,
) -> Move:
    """Plans a move without changing anything.

    Without `to`, the position stays. Specific offsets only move the listed topic partitions. With `give_up`, the stream
    gives up topic partitions that the source no longer reads, so that another stream of the table can read them.
    """
    table = DeltaTable(spark, target)
    history = table.history()
    if history is None:
        msg = f"the Delta table {target} does not exist yet, so no position can be set; a first run creates it"
        raise TableError(msg)
    problem: KafkaFlipError | None = None
    newest = history[0].version
    last = table.last_document(history)
    own = None if last is None else last[1]
    mode = created_for(table.properties()) if own is None else own.mode
    fence, before = newest, None if own is None else own.state
    try:
        anchor = find_anchor(history, target.stream, str(target))
    except (TableReplacedError, PositionLostError, ForeignRowsError, TableChangedError) as error:
        # The newest version is above the anchor of any running ingestion.
        problem = error
        if last is not None and any(effect_of(each) is Effect.RESTORES for each in back_to(last[0].version, history)):
            _check_names_all(last[1], target, to)
            # What it settled is pending again.
            before = own = None
    else:
        # Not of a commit that a RESTORE has undone.
        fence, before, own = anchor.version, anchor.state, anchor.document
    moved = source if to is None else source.with_overrides(starting_offsets=to)
    before = reaching(before, key_of(mode))
    is_same_cluster = True
    try:
        plan = moved.plan_once(SplitEnumeratorContext(), before)
    except TopicRecreatedError as error:
        # Drops offsets of a recreated topic, which are meaningless in the new one, and keeps other topics.
        problem = problem or error
        plan = moved.plan_once(SplitEnumeratorContext(tolerated=frozenset({TopicRecreatedError})), before)
    except ClusterChangedError as error:
        if to is None or to.kind is OffsetsKind.SPECIFIC:
            raise
        # Another cluster: drops all old offsets, which are meaningless there.
        problem = problem or error
        plan = moved.plan_once(SplitEnumeratorContext())
        is_same_cluster = False
    # Of a table with a key it shows later how far the rows reach, and no other stream can take it.
    given_up = plan.removed if give_up and not key_of(mode) else ()
    position = {tp: offset for tp, offset in plan.starting_position.items() if tp not in given_up}
    topics = {tp.topic for tp in position}
    ids = {topic: id_ for topic, id_ in plan.state.topic_ids.items() if topic in topics}
    # Rows that a RESTORE has left may be from up to where the stream was.
    rests_on = before or reaching(None if last is None else last[1].state, key_of(mode))
    after = replace(
        plan.state,
        position=position,
        topic_ids=ids,
        watermark=None,
        reached={} if rests_on is None else rests_on.reached,
    )
    check_same_offsets(target, key_of(mode), rests_on, plan)
    check_shared(table.target, other_streams(history, target.stream), taken_up(before, after), after)
    unread: Position | None = None
    if before is not None and is_same_cluster:
        unread = plan.begun_without(before.position)
    elif before is not None or problem is None:
        unread = plan.beginning_offsets
    document = CommitDocument(
        stream=target.stream,
        base_version=newest,
        anchor_version=fence,
        state=after,
        overrides_start=True,
        carried=None if last is None else last[1].routed(last[0].version),
        settles=None if own is None else own.settles,
        mode=mode,
    )
    return Move(before, unread, problem, document, given_up)


def _check_names_all(undone: CommitDocument, target: DeltaTarget, to: OffsetsInitializer | None) -> None:
    """Refuses to keep any position of a commit that a RESTORE may have undone."""
    named = () if to is None else undone.state.position if to.kind is not OffsetsKind.SPECIFIC else to.offsets or {}
    if kept := sorted(undone.state.position.keys() - named):
        raise PositionLostError(
            f"the table {target} was restored since the last commit of the stream {target.stream!r} that its history "
            f"has, so the position of {first_few(kept)} is unknown",
            "Check the table's last offsets, and name all topic partitions: "
            f"{set_position(str(target), target.stream)}",
        )


@outcome("Nothing was changed")
def commit_move(move: Move, target: DeltaTarget, spark: SparkSession, reason: str) -> Committed:
    """Commits a new position, without rows, unless the stream or the table was changed since it was planned."""
    table = DeltaTable(spark, target)
    document = replace(move.document, rows_before=table.count_rows(), reason=reason)
    try:
        return TableWriter(table).commit(table.no_rows(), document, taken_up(move.before, move.after))
    except ForeignConflictError as conflict:
        raise WriteFailedError(
            f"{target} changed while its position was to be moved ({conflict})", "Run it again"
        ) from conflict
