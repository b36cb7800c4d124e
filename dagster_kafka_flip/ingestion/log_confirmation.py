"""LogConfirmation: checks right after a commit that the batch was read from the planned logs.

Spark reads topics by name. If a topic is deleted and recreated meanwhile, it silently reads the new one, and the commit
would have rows of either topic with the planned topic's id.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    ClusterChangedError,
    EndBeforePositionError,
    KafkaFlipError,
    LogChangedError,
    TopicRecreatedError,
)
from dagster_kafka_flip.settings.names import first_few
from dagster_kafka_flip.source.next_step import set_position
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.table.document import CommitDocument
from dagster_kafka_flip.table.table_writer import TableWriter

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from dagster_kafka_flip.table.commit import Committed
    from dagster_kafka_flip.table.delta_table import DeltaTable
    from dagster_kafka_flip.table.target import DeltaTarget

    Ask: TypeAlias = Callable[[], None]
    Doubt: TypeAlias = Callable[[KafkaFlipError], LogChangedError]


class LogConfirmation:
    """The check after each commit of one run.

    Args:
        log: The log for failed checks.
        table: Table that gets another commit to stop later runs of the stream after a failed check. None for windows,
            which are rewritten as a whole.
        run_id: Run id for that commit.
    """

    def __init__(
        self, log: logging.Logger | logging.LoggerAdapter[Any], table: DeltaTable | None = None, run_id: str = ""
    ) -> None:
        self._log = log
        self._table = table
        self._run_id = run_id
        self._unanswered: tuple[Ask, Doubt, CommitDocument | None, Committed | None] | None = None

    def confirm(
        self,
        ask: Ask,
        doubt: Doubt,
        document: CommitDocument | None = None,
        committed: Committed | None = None,
    ) -> None:
        """Checks that a batch was read from the planned logs.

        Without an answer, the batch stays committed; the check is repeated before the next read and at the end of the
        run.

        Args:
            ask: Compares the logs with what was planned, and raises TopicRecreatedError, ClusterChangedError or
                EndBeforePositionError.
            doubt: Returns the error for the user, from the one that `ask` raised.
            document: The commit's document.
            committed: The commit.
        """
        try:
            self._ask(ask, doubt, document, committed)
        except LogChangedError:
            raise
        except KafkaFlipError as error:
            self._log.warning("the check that the topics are still the same failed; retrying: %s", error)
            self._unanswered = ask, doubt, document, committed

    def ask_again(self) -> None:
        """Repeats the last commit's check if it got no answer; called before the next read."""
        if self._unanswered is not None:
            self._ask(*self._unanswered)
            self._unanswered = None

    def finish(self, *, is_needed: bool = False) -> None:
        """Repeats the check at the end of a run: all is committed; the next run compares the ids before it reads.

        Args:
            is_needed: Whether it needs an answer, because the next run would tolerate another log.
        """
        try:
            self.ask_again()
        except LogChangedError:
            raise
        except KafkaFlipError as error:
            if is_needed:
                # Reported as a run that ended well, the commit would count as checked.
                raise
            self._log.warning(
                "the check that the topics are still the same failed; the next run compares their ids: %s", error
            )

    def _ask(self, ask: Ask, doubt: Doubt, document: CommitDocument | None, committed: Committed | None) -> None:
        try:
            ask()
        except (TopicRecreatedError, ClusterChangedError, EndBeforePositionError) as error:
            doubtful = doubt(error)
            if document is not None and committed is not None:
                self._mark(document, committed, (doubtful.finding, doubtful.outcome, doubtful.advice))
            raise doubtful from error

    def _mark(self, document: CommitDocument, committed: Committed, doubt: tuple[str, str, str]) -> None:
        """Adds a commit that stops later runs of the stream."""
        if self._table is None:
            return
        mark = CommitDocument(
            stream=document.stream,
            attempt=uuid.uuid4().hex,
            run_id=self._run_id,
            base_version=committed.version,
            anchor_version=committed.version,
            after=committed.attempt,
            splits=(),
            state=document.state,
            rows_before=committed.table_rows,
            carried=document.routed(committed.version),
            settles=document.settles,
            doubt=doubt,
            mode=document.mode,
        )
        try:
            TableWriter(self._table).commit(self._table.no_rows(), mark)
        except KafkaFlipError as failure:
            self._log.warning("the change of a log could not be recorded: %s", failure)


def doubtful_commit(
    error: KafkaFlipError, document: CommitDocument, committed: Committed, target: DeltaTarget
) -> LogChangedError:
    """Creates the error about a commit whose rows may come from two logs."""
    recreated = isinstance(error, TopicRecreatedError)
    topics = error.topics if isinstance(error, TopicRecreatedError) else ()
    splits = [split for split in document.splits if not recreated or split.topic_partition.topic in topics]
    start = (
        str(OffsetsInitializer.specific_offsets({TopicPartition(topic, 0): 0 for topic in topics}))
        if recreated
        else "earliest"
    )
    then = (
        "Copy them first if you need what the log has lost. 2. Run again: it continues from there"
        if isinstance(error, EndBeforePositionError)
        else "Skip it only if you know that they come from the old log, which can't be read again. 2. Make the next "
        f"run read the new log from the beginning: {set_position(str(target), target.stream, to=start)}"
    )
    return LogChangedError(
        f"{error.finding}. This happened while version {committed.version} of {target} was read and written. Its rows "
        f"of {first_few(splits)} may come from either log",
        f"1. RESTORE TABLE {target.identifier} TO VERSION AS OF {committed.version - 1} removes the rows of that "
        f"commit. {then}",
        outcome="The commit stays; nothing more was read, and all runs of the stream stop until you decide",
    )
