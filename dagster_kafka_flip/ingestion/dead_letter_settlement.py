"""Determines a stream's pending dead letters from the commits of both tables.

A batch only counts as settled if the dead-letter table's commits confirm it. A missing or replaced table confirms
nothing.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    ClusterChangedError,
    ConfigurationError,
    DeadLetterLostError,
    DeadLetterTableMissingError,
    EndBeforePositionError,
    KafkaFlipError,
    RetentionOvertookPositionError,
    TableReplacedError,
    TopicNotFoundError,
)
from dagster_kafka_flip.ingestion.keyed_stream import OTHER_OFFSETS
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.source.incident import Incident, tolerate
from dagster_kafka_flip.source.next_step import TOPIC, set_position
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.history import documented
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.api import SplitAssignment, SplitEnumeratorContext
    from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
    from dagster_kafka_flip.source.incident import Tolerance
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.anchor import Anchor
    from dagster_kafka_flip.table.document import RoutedBatch, TableVersion

NOT_AGAIN = "The run continued; the dead letters that the table lost are not written again."


def check_nothing_pending(
    spark: SparkSession,
    batch: RoutedBatch,
    main: DeltaTable,
    main_target: DeltaTarget,
    tolerated: Collection[type[KafkaFlipError]],
    *,
    has_other: bool = False,
) -> tuple[Incident, ...] | None:
    """Returns tolerated errors; None if the former table is another's by now, and the stream `has_other`."""
    if not batch.splits:
        return ()
    # Only reads the table, so other writers do not matter.
    target = DeltaTarget(table=batch.route.table, stream=batch.route.stream, single_writer=True)
    table = DeltaTable(spark, target, tolerated)
    anchor = table.anchor()
    there = None if anchor is None else table.table_id()
    if anchor is None or there != batch.route.table_id:
        continuation = "The run continued; the pending dead letters are not written."
        return (tolerate(missing(batch, target, main_target, there), tolerated, continuation),)
    main_id, settles = main.table_id(), settlement(anchor)
    if has_other and settles is not None and settles.table_id != main_id:
        return None
    check_belongs_to(anchor, target, main_id, main_target)
    incidents = list(anchor.incidents)
    if is_set_back(anchor, batch):
        incidents.append(tolerate(set_back(table, anchor, batch, target, main_target), tolerated, NOT_AGAIN))
    if (settles is not None and settles.version >= batch.version) or not pending_splits(anchor, batch):
        return tuple(incidents)
    raise ConfigurationError(
        f"rejected records of version {batch.version} of {main_target} are still pending for the dead-letter table "
        f"{target} (stream {target.stream!r}), but dead_letter no longer names it",
        f"Run once with dead_letter=DeadLetters(table={batch.route.table!r}, stream={batch.route.stream!r}). "
        + write_off(target, batch.splits, "latest"),
    )


def missing(
    batch: RoutedBatch, target: DeltaTarget, main_target: DeltaTarget, there: str | None
) -> DeadLetterTableMissingError:
    known = batch.route
    found = "does not exist" if there is None else f"is now another table (id {there})"
    return DeadLetterTableMissingError(
        f"the dead-letter table {target} (id {known.table_id}) {found}, so it is unknown whether it has the rejected "
        f"records of version {batch.version} of {main_target}",
        f"If it is unreachable (an unmounted volume, another host, another catalog), make {known.table} reachable "
        "again; if it was moved, set its new location in dead_letter; if it was dropped on purpose, tolerate "
        "DeadLetterTableMissingError in one run",
        outcome="Nothing was written after that version",
    )


def is_set_back(anchor: Anchor, batch: RoutedBatch) -> bool:
    """Whether the dead-letter table has settled less than at the batch's commit, as after a RESTORE."""
    settled, document, settles = batch.route.settled, anchor.document, settlement(anchor)
    if settled is None or (document is not None and document.reason is not None):
        return False
    return settles is None or settles.version < settled


def set_back(
    table: DeltaTable, anchor: Anchor, batch: RoutedBatch, target: DeltaTarget, main_target: DeltaTarget
) -> TableReplacedError:
    settles = settlement(anchor)
    now = "none" if settles is None else f"those up to version {settles.version}"
    # The last one may have been written while the table was restored.
    having = (
        commit.version
        for commit, document in documented(table.history() or (), target.stream)
        if document.settles is not None and document.settles.version == batch.route.settled
    )
    version = next((f" to version {found}, which had them" for found in having), "")
    return TableReplacedError(
        f"the dead-letter table {target} was rolled back: it had the rejected records of {main_target} up to version "
        f"{batch.route.settled}, and now (version {anchor.table_version}) it has {now}",
        f"RESTORE it{version}; the next run continues from there. " + write_off(target, batch.splits, "latest"),
    )


def write_off(target: DeltaTarget, splits: Iterable[KafkaPartitionSplit], to: str) -> str:
    """Advice to continue without pending dead letters, as a sentence."""
    topics = sorted({split.topic_partition.topic for split in splits}) or TOPIC
    return (
        "To continue without them (if the stream reads records again, as after a RESTORE, their dead letters may then "
        f"be there twice): {set_position(str(target), target.stream, topics=topics, to=to)}"
    )


def settlement(anchor: Anchor) -> TableVersion | None:
    """The commit of the stream's table up to which a dead-letter table has all rejected records."""
    return None if anchor.document is None else anchor.document.settles


def check_belongs_to(anchor: Anchor, target: DeltaTarget, main_id: str, main_target: DeltaTarget) -> None:
    document, settles = anchor.document, settlement(anchor)
    if document is None or (settles is None and document.reason is not None):
        return
    if settles is None or settles.table_id != main_id:
        others = "rows" if settles is None else f"dead letters of the table {settles.table} (id {settles.table_id})"
        raise ConfigurationError(
            f"the stream {target.stream!r} of the dead-letter table {target} has {others}, not dead letters of "
            f"{main_target} (id {main_id}); give this one its own stream: DeadLetters(table=..., stream=...)"
        )


def check_is_no_older_copy(
    settles: TableVersion, main: DeltaTable, target: DeltaTarget, main_target: DeltaTarget
) -> None:
    """A RESTORE only adds versions. In an older copy, new batches would count as settled, and lose their letters."""
    newest = next(main.commits()).version
    if newest < settles.version:
        raise ConfigurationError(
            f"the table {main_target} is at version {newest}, but the dead-letter table {target} has its rejected "
            f"records up to version {settles.version}: an older copy of the table has replaced it",
            "Put the newer table back; or continue with the copy and a new stream for its dead letters, "
            "DeadLetters(table=..., stream=...), which leaves out records that the dead-letter table already has",
        )


def pending_splits(anchor: Anchor, batch: RoutedBatch) -> tuple[KafkaPartitionSplit, ...]:
    """A batch's pending splits: all of its splits, except those written off by moving the position."""
    document, moved = anchor.document, anchor.state
    if document is None or document.reason is None or moved is None:
        return batch.splits
    starts = {
        split: max(split.starting_offset, moved.position.get(split.topic_partition, 0))
        for split in batch.splits
        if is_same_log(split.topic_partition, moved, batch.state)
    }
    return tuple(
        replace(split, starting_offset=start) for split, start in starts.items() if start < split.stopping_offset
    )


def maybe_landed(
    anchor: Anchor, now: EnumeratorState, splits: Iterable[KafkaPartitionSplit]
) -> tuple[KafkaPartitionSplit, ...]:
    """Splits that don't begin where the same log is settled: after a RESTORE, or an override, they begin before."""
    document, before = anchor.document, anchor.state
    if anchor.table_rows == 0:
        return ()
    if document is None or document.reason is not None or before is None:
        return tuple(splits)
    return tuple(
        split
        for split in splits
        if (settled := before.position.get(split.topic_partition)) is None
        or split.starting_offset < settled
        or not is_same_log(split.topic_partition, before, now)
    )


def furthest(before: EnumeratorState | None, now: EnumeratorState) -> EnumeratorState:
    """The furthest offsets ever settled: a stream's position may decrease, but its dead letters stay."""
    if before is None:
        return now
    position = {
        tp: max(offset, before.position.get(tp, 0)) if is_same_log(tp, before, now) else offset
        for tp, offset in now.position.items()
    }
    return replace(now, position=position)


_GONE = (TopicNotFoundError, *OTHER_OFFSETS)

UNREADABLE = (RetentionOvertookPositionError, *_GONE)
"""Reasons why pending records can't be read."""


@dataclass
class PendingDeadLetters:
    """Reads batches again."""

    _spec: RunSpec
    _context: SplitEnumeratorContext
    _target: DeltaTarget
    _tolerance: Tolerance

    def readable(
        self, splits: tuple[KafkaPartitionSplit, ...], batch: RoutedBatch, *, moved: bool
    ) -> tuple[KafkaPartitionSplit, ...]:
        """Returns the splits that the logs still have; missing ones are an error unless tolerated, or moved over."""
        if not splits:
            return ()
        try:
            self.replay(batch, splits)
        except UNREADABLE as error:
            if isinstance(error, RetentionOvertookPositionError) and type(error) not in self._context.tolerated:
                raise self._lost(splits, batch, error) from error
            self._spec.log.info("some pending dead letters of %s can't be read; checking which", self._target)
        else:
            return splits
        left = [self._left(split, batch, moved=moved) for split in splits]
        return tuple(split for split in left if not split.is_empty)

    def _left(self, split: KafkaPartitionSplit, batch: RoutedBatch, *, moved: bool) -> KafkaPartitionSplit:
        while not split.is_empty:
            start, stop = split.starting_offset, split.stopping_offset
            try:
                self.replay(batch, (split,))
            except RetentionOvertookPositionError as error:
                begins = error.log_start_offsets[split.topic_partition]
                self._give_up(split, batch, error, f"{split}: the dead letters before offset {begins} are skipped.")
                split = replace(split, starting_offset=min(begins, stop))
            except _GONE as error:
                cuts = error.cut_offsets if isinstance(error, EndBeforePositionError) else {}
                end = max(start, cuts.get(split.topic_partition, start))
                skipped = f"{split}: the dead letters from offset {end} on are skipped."
                if moved:
                    self._spec.log.warning("%s", skipped)
                else:
                    self._give_up(split, batch, error, skipped)
                split = replace(split, stopping_offset=end)
            else:
                break
        return split

    def replay(self, batch: RoutedBatch, splits: tuple[KafkaPartitionSplit, ...]) -> SplitAssignment:
        with contextlib.closing(self._enumerator(batch)) as enumerator:
            return enumerator.replay(splits)

    def check_same_logs(self, batch: RoutedBatch, plan: ReadPlan) -> None:
        with contextlib.closing(self._enumerator(batch)) as enumerator:
            enumerator.check_same_logs(plan.state, plan.end_offsets)

    def _enumerator(self, batch: RoutedBatch) -> KafkaSourceEnumerator:
        return self._spec.source.restore_enumerator(self._context, batch.state)

    def _give_up(
        self, split: KafkaPartitionSplit, batch: RoutedBatch, error: KafkaFlipError, continuation: str
    ) -> None:
        if type(error) not in self._context.tolerated:
            raise self._lost((split,), batch, error) from error
        self._tolerance.meet(error, continuation)

    def _lost(
        self, splits: Sequence[KafkaPartitionSplit], batch: RoutedBatch, error: KafkaFlipError
    ) -> DeadLetterLostError:
        # The readable ones of these topics are still written.
        ways_on = write_off(self._target, splits, "earliest")
        if isinstance(error, TopicNotFoundError):
            ways_on = (
                "If this client may not describe the topic, grant DESCRIBE. If the topic was deleted, its dead "
                "letters are gone too: tolerate TopicNotFoundError in one run to continue without them"
            )
        elif isinstance(error, ClusterChangedError):
            ways_on = f"If this is the wrong cluster, correct bootstrap_servers. {ways_on}"
        return DeadLetterLostError(
            f"dead letters can no longer be read: {error.finding}. They were excluded from version {batch.version} of "
            f"{self._spec.target} and are pending for "
            f"{self._target}",
            ways_on,
            outcome="They were not written, and the stream does not continue",
        )
