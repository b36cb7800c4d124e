"""LogConfirmation: right after a commit, whether the logs that were read are those that it was planned for.

Spark reads topics by name. Of a topic that was deleted and made again meanwhile it reads the new one, without a word,
and the commit would have rows of either under the ids of the one that was planned.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ClusterChangedError, KafkaFlipError, LogChangedError, TopicRecreatedError
from dagster_kafka_flip.table.document import CommitDocument

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from dagster_kafka_flip.table.delta_table import DeltaTable
    from dagster_kafka_flip.table.written import Committed

    Ask: TypeAlias = Callable[[], None]
    Tell: TypeAlias = Callable[[KafkaFlipError], str]


class LogConfirmation:
    """What one run asks after each of its commits.

    Args:
        log: Where to tell that there was no answer.
        table: Where a commit behind the one in doubt keeps later runs of the stream from going on. None where nothing
            has to: windows are landed again as a whole.
        run_id: Kept in that commit.
    """

    def __init__(
        self, log: logging.Logger | logging.LoggerAdapter[Any], table: DeltaTable | None = None, run_id: str = ""
    ) -> None:
        self._log = log
        self._table = table
        self._run_id = run_id
        self._unanswered: tuple[Ask, Tell, CommitDocument | None, Committed | None] | None = None

    def confirm(
        self, ask: Ask, tell: Tell, document: CommitDocument | None = None, committed: Committed | None = None
    ) -> None:
        """Makes sure that a batch was read from the logs that it was planned for.

        Where nobody answers, the batch is in all the same: it is asked again before more is read, and at the end.

        Args:
            ask: Compares the logs with what was planned, and raises TopicRecreatedError or ClusterChangedError.
            tell: What an operator has to know and do, by what `ask` raised.
            document: The commit's document.
            committed: The commit.

        Raises:
            LogChangedError: It was not, or not all of it.
        """
        try:
            self._ask(ask, tell, document, committed)
        except LogChangedError:
            raise
        except KafkaFlipError as error:
            self._log.warning("whether the topics are still the same could not be asked; asking again: %s", error)
            self._unanswered = ask, tell, document, committed

    def ask_again(self) -> None:
        """Asks about the last commit once more, if nobody answered then; before more is read.

        Raises:
            LogChangedError: Its logs have changed.
            KafkaFlipError: Nobody answers now either.
        """
        if self._unanswered is not None:
            self._ask(*self._unanswered)
            self._unanswered = None

    def finish(self) -> None:
        """The same at a run's end: all is committed, and the next run compares the ids before it reads.

        Raises:
            LogChangedError: The last commit's logs have changed.
        """
        try:
            self.ask_again()
        except LogChangedError:
            raise
        except KafkaFlipError as error:
            self._log.warning(
                "whether the topics are still the same could not be asked; the next run compares their ids: %s", error
            )

    def _ask(self, ask: Ask, tell: Tell, document: CommitDocument | None, committed: Committed | None) -> None:
        try:
            ask()
        except (TopicRecreatedError, ClusterChangedError) as error:
            doubt = tell(error)
            if document is not None and committed is not None:
                self._mark(document, committed, doubt)
            raise LogChangedError(doubt) from error

    def _mark(self, document: CommitDocument, committed: Committed, doubt: str) -> None:
        """Leaves a commit behind the one in doubt: whoever looks where the stream stands is told."""
        if self._table is None:
            return
        mark = CommitDocument(
            stream=document.stream,
            attempt=uuid.uuid4().hex,
            run_id=self._run_id,
            base_version=committed.version,
            anchor_version=committed.version,
            splits=(),
            state=document.state,
            rows_before=committed.table_rows,
            carried=document.routed(committed.version),
            settles=document.settles,
            doubt=doubt,
        )
        try:
            self._table.commit(self._table.no_rows(), mark)
        except KafkaFlipError as failure:
            self._log.warning("that a log changed could not be noted: %s", failure)
