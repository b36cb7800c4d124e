"""PendingDeadLetters: reads a batch again for its rejected records, as far as the logs still have them."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    ClusterChangedError,
    DeadLetterLostError,
    EndBeforePositionError,
    KafkaFlipError,
    RetentionOvertookPositionError,
    TopicNotFoundError,
    TopicRecreatedError,
)
from dagster_kafka_flip.ingestion.dead_letter_settlement import write_off
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.source.incident import found

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.api import Source, SplitAssignment, SplitEnumerator, SplitEnumeratorContext
    from dagster_kafka_flip.source.incident import Tolerance
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.table.document import RoutedBatch
    from dagster_kafka_flip.table.target import DeltaTarget

_GONE = (TopicNotFoundError, TopicRecreatedError, ClusterChangedError, EndBeforePositionError)

UNREADABLE = (RetentionOvertookPositionError, *_GONE)
"""Reasons why pending records can't be read."""


class PendingDeadLetters:
    """Reads batches again.

    Args:
        spec: The run.
        context: Context of the run.
        target: The dead-letter table.
        tolerance: Collects tolerated errors.
    """

    def __init__(
        self, spec: RunSpec[Source], context: SplitEnumeratorContext, target: DeltaTarget, tolerance: Tolerance
    ) -> None:
        self._tolerance = tolerance
        self._spec = spec
        self._context = context
        self._target = target

    def readable(
        self, splits: tuple[KafkaPartitionSplit, ...], batch: RoutedBatch, *, moved: bool
    ) -> tuple[KafkaPartitionSplit, ...]:
        """Returns the pending splits that the logs still have; missing ones are an error, unless tolerated.

        Args:
            splits: The pending splits.
            batch: Their batch.
            moved: Whether the dead letters' position was moved: missing ones are then left out without an error.

        Raises:
            DeadLetterLostError: The log no longer has them.
        """
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
        there: list[KafkaPartitionSplit] = []
        for split in splits:
            try:
                self.replay(batch, (split,))
            except RetentionOvertookPositionError as error:
                begins = error.log_start_offsets[split.topic_partition]
                self._give_up(split, batch, error, f"{split}: the dead letters before offset {begins} are skipped.")
                if begins < split.stopping_offset:
                    there.append(replace(split, starting_offset=begins))
                continue
            except _GONE as error:
                if moved:
                    self._spec.log.warning(
                        "%s: the log no longer holds its dead letters; continuing without them", split
                    )
                else:
                    self._give_up(split, batch, error, f"{split}: its dead letters are skipped.")
                continue
            there.append(split)
        return tuple(there)

    def replay(self, batch: RoutedBatch, splits: tuple[KafkaPartitionSplit, ...]) -> SplitAssignment:
        """Assigns splits of a batch as they were planned."""
        with contextlib.closing(self._enumerator(batch)) as enumerator:
            return enumerator.replay(splits)

    def check_same_logs(self, batch: RoutedBatch, plan: ReadPlan) -> None:
        """Checks that the logs are still those of the plan; see `SplitEnumerator.check_same_logs`.

        Args:
            batch: The batch of the dead letters.
            plan: What was read for them.
        """
        with contextlib.closing(self._enumerator(batch)) as enumerator:
            enumerator.check_same_logs(plan)

    def _enumerator(self, batch: RoutedBatch) -> SplitEnumerator:
        return self._spec.source.restore_enumerator(self._context, batch.state)

    def _give_up(
        self, split: KafkaPartitionSplit, batch: RoutedBatch, error: KafkaFlipError, continuation: str
    ) -> None:
        """Continues without dead letters that can no longer be read, if this is tolerated."""
        if type(error) not in self._context.tolerated:
            raise self._lost((split,), batch, error) from error
        self._tolerance.meet(error, continuation)

    def _lost(
        self, splits: Sequence[KafkaPartitionSplit], batch: RoutedBatch, error: KafkaFlipError
    ) -> DeadLetterLostError:
        # The readable ones of these topics are still written.
        ways_on = write_off(self._target, splits, "earliest")
        if isinstance(error, RetentionOvertookPositionError):
            begins = error.log_start_offsets
            lost = [split for split in splits if split.topic_partition in begins]
            gone = sum(
                min(split.stopping_offset, begins[split.topic_partition]) - split.starting_offset for split in lost
            )
            first = lost[0]
            others = "" if len(lost) == 1 else f" (also affects {counted(len(lost) - 1, 'more topic partition')})"
            what = (
                f"{first.topic_partition}: retention has overtaken dead letters. The rejected records in "
                f"[{first.starting_offset}, {first.stopping_offset}) were not written yet, but the log begins at "
                f"{begins[first.topic_partition]}{others}: up to {counted(gone, 'record')} in total"
            )
        else:
            what = f"dead letters can no longer be read: {found(error).rstrip('.')}"
        if isinstance(error, TopicNotFoundError):
            ways_on = (
                "If this client may not describe the topic, grant DESCRIBE. If the topic was deleted, its dead "
                "letters are gone too: tolerate TopicNotFoundError in one run to continue without them"
            )
        elif isinstance(error, ClusterChangedError):
            ways_on = f"If this is the wrong cluster, correct bootstrap_servers. {ways_on}"
        msg = (
            f"{what}. They were excluded from version {batch.version} of {self._spec.target} and are pending for "
            f"{self._target}. Nothing was written, and the stream does not continue. {ways_on}"
        )
        return DeadLetterLostError(msg)
