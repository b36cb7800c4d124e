"""What a stream owes its dead-letter table, judged by what the commits of both tables say.

A batch counts as settled only where the dead-letter table itself says so. A table that is not found, or that another
one has taken the place of, says nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    ConfigurationError,
    DeadLetterTableMissingError,
    KafkaFlipError,
    TableReplacedError,
)
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.source.incident import Incident, incident_of
from dagster_kafka_flip.source.next_step import TOPIC, set_position
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.dead_letter_route import RoutedBatch
    from dagster_kafka_flip.table.history import Anchor
    from dagster_kafka_flip.table.table_version import TableVersion


def check_nothing_owed(
    spark: SparkSession,
    batch: RoutedBatch,
    main: DeltaTable,
    main_target: DeltaTarget,
    tolerated: Collection[type[KafkaFlipError]],
) -> tuple[Incident, ...]:
    """Makes sure that a stream which no longer sends its rejected records to a table owes it none.

    Args:
        spark: The session to read with.
        batch: The stream's last batch whose rejected records went there.
        main: The stream's own table.
        main_target: What it is.
        tolerated: Errors that don't end the run.

    Returns:
        What was tolerated.

    Raises:
        ConfigurationError: It owes some.
        DeadLetterTableMissingError: The table is not there, so that nobody can tell.
        TableReplacedError: The table was set back, and has lost dead letters.
    """
    if not batch.splits:
        return ()
    # Only looked at, and so whether there is another writer does not matter.
    target = DeltaTarget(table=batch.route.table, stream=batch.route.stream, single_writer=True)
    table = DeltaTable(spark, target, tolerated)
    anchor = table.anchor()
    there = None if anchor is None else table.table_id()
    if anchor is None or there != batch.route.table_id:
        went_on = "The run went on; what was owed to the table is not landed."
        return (tolerable(missing(batch, target, main_target, there), tolerated, went_on),)
    check_whose(anchor, target, main.table_id(), main_target)
    incidents = list(anchor.incidents)
    if is_set_back(anchor, batch):
        incidents.append(tolerable(set_back(table, anchor, batch, target, main_target), tolerated, _NOT_AGAIN))
    settles = settlement(anchor)
    if (settles is not None and settles.version >= batch.version) or not owed(anchor, batch):
        return tuple(incidents)
    msg = (
        f"the rejected records of version {batch.version} of {main_target} are still owed to the dead-letter table "
        f"{target} (stream {target.stream!r}), and dead_letter does not name it any longer. Nothing was written. Run "
        f"once with dead_letter=DeadLetters(table={batch.route.table!r}, stream={batch.route.stream!r}). "
        + write_off(target, batch.splits, "latest")
    )
    raise ConfigurationError(msg)


_NOT_AGAIN = "The run went on; the dead letters that the table lost are not landed again."


def tolerable(
    error: KafkaFlipError,
    tolerated: Collection[type[KafkaFlipError]],
    went_on: str,
) -> Incident:
    """Raises an error, unless it is tolerated. How many dead letters are lost by it, nobody can tell.

    Args:
        error: The error.
        tolerated: Errors that don't end the run.
        went_on: How the run goes on, as a sentence.
    """
    if type(error) not in tolerated:
        raise error
    return incident_of(error, went_on, lost_offsets=None)


def missing(
    batch: RoutedBatch, target: DeltaTarget, main_target: DeltaTarget, there: str | None
) -> DeadLetterTableMissingError:
    """The error of a dead-letter table that is not found.

    Args:
        batch: The stream's last batch whose rejected records went there.
        target: The table, by the name that was looked under.
        main_target: The stream's own table.
        there: Delta's id of another table that is found there; None if there is none.
    """
    known = batch.route
    found = "is not there" if there is None else f"is another table now (id {there})"
    msg = (
        f"the dead-letter table {target} (id {known.table_id}) {found}, so nobody can tell whether it has the rejected "
        f"records of version {batch.version} of {main_target}. Nothing was written. If it is out of reach (a volume "
        f"that is not mounted, another host, another catalog), make {known.table} reachable again; if it was moved, "
        "name its new place in dead_letter; if it was dropped on purpose, let one run tolerate "
        "DeadLetterTableMissingError"
    )
    return DeadLetterTableMissingError(msg)


def is_set_back(anchor: Anchor, batch: RoutedBatch) -> bool:
    """Whether the dead-letter table says less than it said when the batch was committed, as after a RESTORE."""
    settled, document, settles = batch.route.settled, anchor.document, settlement(anchor)
    if settled is None or (document is not None and document.reason is not None):
        return False
    return settles is None or settles.version < settled


def set_back(
    table: DeltaTable, anchor: Anchor, batch: RoutedBatch, target: DeltaTarget, main_target: DeltaTarget
) -> TableReplacedError:
    """The error of a dead-letter table that was set back.

    Args:
        table: The dead-letter table.
        anchor: What it says now.
        batch: The stream's last batch whose rejected records go there.
        target: The same table, described.
        main_target: The stream's own table.
    """
    settles = settlement(anchor)
    now = "of no version" if settles is None else f"up to version {settles.version}"
    last = table.last_document(table.history() or ())
    version = "" if last is None else f" to version {last[0].version}, the last one that a run wrote"
    msg = (
        f"the dead-letter table {target} was set back: it has had the rejected records of {main_target} up to version "
        f"{batch.route.settled}, and now (version {anchor.table_version}) it has those {now}. Nothing was written. "
        f"RESTORE it{version}; the next run goes on from there. " + write_off(target, batch.splits, "latest")
    )
    return TableReplacedError(msg)


def write_off(target: DeltaTarget, splits: Iterable[KafkaPartitionSplit], to: str) -> str:
    """How to go on without dead letters that are owed, as a sentence.

    Args:
        target: The dead-letter table and the stream in it.
        splits: What is owed.
        to: Where the dead-letter table's position is set.
    """
    topics = sorted({split.topic_partition.topic for split in splits}) or TOPIC
    return f"To go on without them: {set_position(str(target), target.stream, topics=topics, to=to)}"


def settlement(anchor: Anchor) -> TableVersion | None:
    """The commit of the stream's table up to which a dead-letter table has all rejected records."""
    return None if anchor.document is None else anchor.document.settles


def check_whose(anchor: Anchor, target: DeltaTarget, main_id: str, main_target: DeltaTarget) -> None:
    """Makes sure that a stream of a dead-letter table is of this table.

    Raises:
        ConfigurationError: It is of another one.
    """
    document, settles = anchor.document, settlement(anchor)
    if document is None or (settles is None and document.reason is not None):
        return
    if settles is None or settles.table_id != main_id:
        whose = "no dead letters" if settles is None else f"those of the table {settles.table} (id {settles.table_id})"
        msg = (
            f"the stream {target.stream!r} of the dead-letter table {target} holds {whose}, and not those of "
            f"{main_target} (id {main_id}); give this one a stream of its own: DeadLetters(table=..., stream=...)"
        )
        raise ConfigurationError(msg)


def owed(anchor: Anchor, batch: RoutedBatch) -> tuple[KafkaPartitionSplit, ...]:
    """What a batch owes that is not settled: all it read, but for what an operator has written off since."""
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
    """Those splits of which dead letters may be in the table already.

    They were not landed before only where a split begins at or after the furthest offset that was settled of the same
    log. After a RESTORE of the stream's table, or a run that was told to go back, it begins before that.

    Args:
        anchor: What the dead-letter table says.
        now: Cluster and topics that the splits are of.
        splits: What is about to be landed.
    """
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
    """How far dead letters were ever landed: a stream's position may go back, and its dead letters stay."""
    if before is None:
        return now
    position = {
        tp: max(offset, before.position.get(tp, 0)) if is_same_log(tp, before, now) else offset
        for tp, offset in now.position.items()
    }
    return replace(now, position=position)
