"""What a stream owes its dead-letter table, judged by what the commits of both tables say."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    import logging
    from collections.abc import Sequence

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
    log: logging.Logger | logging.LoggerAdapter[Any],
) -> None:
    """Makes sure that a stream which no longer sends its rejected records to a table owes it none.

    Args:
        spark: The session to read with.
        batch: The stream's last batch whose rejected records went there.
        main: The stream's own table.
        main_target: What it is.
        log: Where to tell if that table is gone.

    Raises:
        ConfigurationError: It owes some.
    """
    if not batch.splits:
        return
    # Only looked at, and so whether there is another writer does not matter.
    target = DeltaTarget(table=batch.route.table, stream=batch.route.stream, single_writer=True)
    anchor = DeltaTable(spark, target).anchor()
    if anchor is None:
        log.warning("the dead-letter table %s is gone, and what was owed to it is forgotten", target)
        return
    check_whose(anchor, target, main.table_id(), main_target)
    settles = settlement(anchor)
    if (settles is not None and settles.version >= batch.version) or not owed(anchor, batch):
        return
    msg = (
        f"the rejected records of version {batch.version} of {main_target} are still owed to the dead-letter table "
        f"{target} (stream {target.stream!r}), and dead_letter does not name it any longer. Nothing was written. Run "
        f"once with dead_letter=DeadLetters(table={batch.route.table!r}, stream={batch.route.stream!r}); or go on "
        f"without them, with dagster-kafka-flip position set --table {target} --stream {target.stream} --to latest"
    )
    raise ConfigurationError(msg)


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


def is_behind(before: EnumeratorState | None, now: EnumeratorState, splits: Sequence[KafkaPartitionSplit]) -> bool:
    """Whether some of these offsets may have been landed before: after a RESTORE, or a run that was told to go back."""
    return before is not None and any(
        split.starting_offset < before.position.get(split.topic_partition, 0)
        and is_same_log(split.topic_partition, before, now)
        for split in splits
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
