"""Dead letters: records that can't be decoded are landed, raw, in a Delta table of their own, each exactly once.

The stream's own commit goes first, without the rejected records, and says where they go. They follow in one commit of
the dead-letter table, which says up to which commit of the stream's table nothing is owed any longer. The batch is read
once more for it, exactly as it was planned. Nothing is committed to the stream's table while a batch before owes: so a
crash in between leaves a debt of one batch at most, and the next run settles it before it plans.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.dead_letter_debts import check_nothing_owed, check_whose, furthest, is_behind, owed, settlement
from dagster_kafka_flip.dead_letters import DEAD_LETTER_SCHEMA, RECORD_COLUMNS
from dagster_kafka_flip.errors import (
    ConcurrentIngestionError,
    DeadLetterDecoderError,
    DeadLetterLostError,
    EndBeforePositionError,
    KafkaFlipError,
    RetentionOvertookPositionError,
    TopicNotFoundError,
    WriteFailedError,
)
from dagster_kafka_flip.formats.description import decoder_of, describe_decoder
from dagster_kafka_flip.formats.diagnose import check_rejected
from dagster_kafka_flip.observation import observed_metrics
from dagster_kafka_flip.reader.read import read
from dagster_kafka_flip.table.dead_letter_route import DeadLetterRoute
from dagster_kafka_flip.table.delta_table import DeltaTable, ForeignConflictError
from dagster_kafka_flip.table.document import CommitDocument
from dagster_kafka_flip.table.retries import retries
from dagster_kafka_flip.table.table_version import TableVersion

if TYPE_CHECKING:
    import logging
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, Observation, SparkSession

    from dagster_kafka_flip.dead_letters import DeadLetters
    from dagster_kafka_flip.formats.decode import Decoder
    from dagster_kafka_flip.observation import Observed
    from dagster_kafka_flip.source.api import Source, SplitAssignment, SplitEnumerator, SplitEnumeratorContext
    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.table.dead_letter_route import RoutedBatch
    from dagster_kafka_flip.table.history import Anchor
    from dagster_kafka_flip.table.target import DeltaTarget

# Somebody else's change to the dead-letter table, or another run that settles the same, is looked at again this often.
_MAX_TRIES = 4


class DeadLetterTable:
    """What one run does about the rejected records of its stream.

    Args:
        spark: The session to read and write with.
        letters: The option.
        source: What the stream reads.
        context: What enumerators are told.
        decoder: What rejects records now.
        main: The stream's own table.
        main_target: What it is.
        run_id: Kept in the commits.
        log: Where to tell each step.

    Attributes:
        landed: Dead letters landed so far.
        target: The dead-letter table.
    """

    def __init__(
        self,
        *,
        spark: SparkSession,
        letters: DeadLetters,
        source: Source,
        context: SplitEnumeratorContext,
        decoder: Decoder,
        main: DeltaTable,
        main_target: DeltaTarget,
        run_id: str,
        log: logging.Logger | logging.LoggerAdapter[Any],
    ) -> None:
        self.landed = 0
        self.target = letters.target(main_target)
        self._spark = spark
        self._letters = letters
        self._source = source
        self._context = context
        self._decoder = decoder
        self._main = main
        self._main_target = main_target
        self._run_id = run_id
        self._log = log
        self._table = DeltaTable(spark, self.target)
        self._main_id = ""
        self._is_open = False
        self._unmarked: RoutedBatch | None = None
        self._counted: Observation | None = None

    def route(self) -> DeadLetterRoute:
        """What the stream's next commit says."""
        return DeadLetterRoute(str(self.target), self.target.stream, describe_decoder(self._decoder))

    def settle_debt(self, batch: RoutedBatch) -> None:
        """Lands what the stream's last commit owes, if it owes anything.

        Args:
            batch: The stream's last batch whose rejected records go elsewhere.

        Raises:
            ConfigurationError: They go to another table than this one, and are owed to it.
            DeadLetterLostError: The log no longer holds what is owed.
            DeadLetterDecoderError: It was rejected by a decoder that can't be made again.
        """
        if (batch.route.table, batch.route.stream) != (str(self.target), self.target.stream):
            check_nothing_owed(self._spark, batch, self._main, self._main_target, self._log)
            return
        if batch.splits:
            known_to_owe_nothing = self._unmarked is not None and self._unmarked.version == batch.version
            self._settle(batch, reads=not known_to_owe_nothing)

    def prepare(self, records: DataFrame | None) -> None:
        """Makes sure, before a batch is committed, that its rejected records have a place, and are not too many.

        Args:
            records: The batch's records as they were read; None if it reads nothing.

        Raises:
            TooManyDeadLettersError: They are too many.
            KafkaFlipError: The dead-letter table can't be used.
        """
        if not self._is_open:
            self._look()
        letters = self._letters
        if records is not None and (letters.max_records is not None or letters.max_share is not None):
            check_rejected(records, self._decoder, max_records=letters.max_records, max_share=letters.max_share)

    def settle(self, batch: RoutedBatch, observed: Observed | None) -> int | None:
        """Lands the rejected records of a batch that was just committed.

        Args:
            batch: The batch.
            observed: What was seen of it while it was written; None if it was not counted whole.

        Returns:
            How many records were rejected; None if that is unknown.
        """
        if not batch.splits or (observed is not None and observed.rejected == 0):
            self._unmarked = batch
            return 0
        before = self.landed
        self._counted = None
        self._settle(batch, reads=True)
        self._unmarked = None
        landed = self.landed - before
        if observed is None:
            return None if self._counted is None else observed_metrics(self._counted, 10.0).get("rejected")
        if observed.rejected is not None and landed < observed.rejected:
            self._log.warning(
                "%d records of version %d of %s were rejected, and %d dead letters of it were landed just now: the "
                "others were landed before, or by another run, or are gone by compaction meanwhile",
                observed.rejected,
                batch.version,
                self._main_target,
                landed,
            )
        return observed.rejected

    def finish(self) -> bool:
        """Notes in the dead-letter table that the last batch owes nothing, so that no run reads it again to find out.

        Returns:
            Whether the table does not say so yet; the next run will look.
        """
        batch, self._unmarked = self._unmarked, None
        if batch is None:
            return False
        try:
            self._settle(batch, reads=False)
        except KafkaFlipError as error:
            self._log.warning(
                "nothing is owed to %s, but that could not be noted there; the next run looks again: %s",
                self.target,
                error,
            )
            return True
        return False

    def _settle(self, batch: RoutedBatch, *, reads: bool) -> None:
        for _ in range(_MAX_TRIES):
            # Looked at anew each time: what is fenced is this look, so that of two runs that settle the same one wins.
            anchor = self._look()
            settles = settlement(anchor)
            moved = anchor.document is not None and anchor.document.reason is not None
            is_settled = settles is not None and settles.version >= batch.version
            # A position that an operator set counts for what is owed at that time, and for nothing that comes later.
            if is_settled and not moved:
                return
            splits = () if is_settled or not reads else self._readable(owed(anchor, batch), batch, moved=moved)
            try:
                retries(self._log, f"the write to {self.target}")(self._commit, anchor, batch, splits)
            except (ConcurrentIngestionError, ForeignConflictError) as error:
                self._log.info("%s was changed meanwhile (%s); looking again", self.target, error)
                continue
            return
        msg = (
            f"the dead letters of version {batch.version} of {self._main_target} could not be landed in {self.target}: "
            f"somebody else changed it {_MAX_TRIES} times in a row. Run again when the table is quiet; until then "
            "nothing is added to the stream"
        )
        raise WriteFailedError(msg)

    def _look(self) -> Anchor:
        """Where the dead-letter table stands; makes it if there is none."""
        anchor = self._table.anchor()
        if anchor is None:
            self._table.create(self._spark.createDataFrame([], DEAD_LETTER_SCHEMA).schema)
            anchor = self._table.anchor()
        if anchor is None:
            msg = f"the table {self.target} was made, and is not there; was it dropped meanwhile? Run again"
            raise WriteFailedError(msg)
        if not self._is_open:
            self._table.check_schema(self._spark.createDataFrame([], DEAD_LETTER_SCHEMA).schema)
            self._main_id = self._main.table_id()
        check_whose(anchor, self.target, self._main_id, self._main_target)
        self._is_open = True
        return anchor

    def _readable(
        self, splits: tuple[KafkaPartitionSplit, ...], batch: RoutedBatch, *, moved: bool
    ) -> tuple[KafkaPartitionSplit, ...]:
        """Those of what is owed that the logs still hold; what is gone for good is an error or, if so decided, told."""
        if not splits:
            return ()
        enumerator = self._enumerator(batch)
        try:
            enumerator.replay(splits)
        except RetentionOvertookPositionError as error:
            raise self._lost(splits, batch, error) from None
        except (TopicNotFoundError, EndBeforePositionError):
            self._log.info("some of what is owed to %s can't be read; looking which", self.target)
        else:
            return splits
        there: list[KafkaPartitionSplit] = []
        for split in splits:
            try:
                enumerator.replay((split,))
            except RetentionOvertookPositionError as error:
                raise self._lost((split,), batch, error) from None
            except (TopicNotFoundError, EndBeforePositionError) as error:
                if isinstance(error, EndBeforePositionError) and not moved:
                    raise self._lost(splits, batch, error) from error
                self._log.warning("%s: its dead letters are gone with the records; going on without them", split)
                continue
            there.append(split)
        return tuple(there)

    def _lost(
        self,
        splits: Sequence[KafkaPartitionSplit],
        batch: RoutedBatch,
        error: RetentionOvertookPositionError | EndBeforePositionError,
    ) -> DeadLetterLostError:
        if isinstance(error, RetentionOvertookPositionError):
            begins = error.log_start_offsets
            lost = [split for split in splits if split.starting_offset < begins[split.topic_partition]]
            gone = sum(
                min(split.stopping_offset, begins[split.topic_partition]) - split.starting_offset for split in lost
            )
            first = lost[0]
            others = "" if len(lost) == 1 else f" (and the like on {len(lost) - 1} more topic partitions)"
            what = (
                f"{first.topic_partition}: retention has overtaken dead letters. The rejected records in "
                f"[{first.starting_offset}, {first.stopping_offset}) were not landed yet, and the log begins at "
                f"{begins[first.topic_partition]}{others}: up to {gone} records are gone in all"
            )
            to = "earliest"
        else:
            what = f"dead letters can't be read any longer: {str(error).partition(' Nothing was written')[0]}"
            to = "latest"
        topics = " ".join(f"--topic {topic}" for topic in sorted({split.topic_partition.topic for split in splits}))
        msg = (
            f"{what}. They were left out of version {batch.version} of {self._main_target} and are owed to "
            f"{self.target}. Nothing was written, and nothing is added to the stream. To go on without them: "
            f"dagster-kafka-flip position set --table {self.target} --stream {self.target.stream} --bootstrap-servers "
            f"<host:port> {topics} --to {to} --reason <why>"
        )
        return DeadLetterLostError(msg)

    def _enumerator(self, batch: RoutedBatch) -> SplitEnumerator:
        return self._source.restore_enumerator(self._context, batch.state)

    def _commit(self, anchor: Anchor, batch: RoutedBatch, splits: tuple[KafkaPartitionSplit, ...]) -> None:
        rows = self._table.no_rows()
        if splits:
            assignment = self._enumerator(batch).replay(splits)
            rows = self._rejected(assignment, batch)
            if is_behind(anchor.state, batch.state, splits):
                rows = self._not_yet_there(rows)
        committed = self._table.commit(
            rows,
            CommitDocument(
                stream=self.target.stream,
                attempt=uuid.uuid4().hex,
                run_id=self._run_id,
                base_version=anchor.table_version,
                anchor_version=anchor.version,
                splits=splits,
                state=furthest(anchor.state, batch.state),
                rows_before=anchor.table_rows,
                settles=TableVersion(
                    str(self._main_target),
                    self._main_id,
                    # A RESTORE of the stream's table shows an older commit again; what came after it is settled too.
                    batch.version if (before := settlement(anchor)) is None else max(before.version, batch.version),
                ),
            ),
        )
        self.landed += committed.rows
        if splits:
            self._log.info(
                "landed %d dead letters of version %d of %s in version %d of %s",
                committed.rows,
                batch.version,
                self._main_target,
                committed.version,
                self.target,
            )

    def _rejected(self, assignment: SplitAssignment, batch: RoutedBatch) -> DataFrame:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        decoder = decoder_of(batch.route.decoder, self._decoder)
        if decoder is None:
            msg = (
                f"the dead letters of version {batch.version} of {self._main_target} were rejected by another decoder "
                f"than that of this run, and it can't be made again from what the commit says of it: "
                f"{dict(batch.route.decoder)}. Nothing was written. Run once with that decoder; or go on without them, "
                f"with dagster-kafka-flip position set --table {self.target} --stream {self.target.stream} --to latest"
            )
            raise DeadLetterDecoderError(msg)
        counted = self._counted = Observation()
        staged = decoder.stage(read(self._source, self._spark, assignment))
        fields = [f.col(field).alias(column) for column, field in RECORD_COLUMNS.items()]
        return (
            staged.select(*fields, decoder.problem().alias("error"))
            # Observed also for this: Spark moves no filter past it, and so parses each record once.
            .observe(counted, f.count("error").alias("rejected"))
            .where("error IS NOT NULL")
            .withColumns(
                {
                    "stream": f.lit(self._main_target.stream),
                    "target_table": f.lit(str(self._main_target)),
                    "run_id": f.lit(batch.run_id),
                    "attempt": f.lit(batch.attempt),
                    "landed_at": f.current_timestamp(),
                }
            )
        )

    def _not_yet_there(self, rows: DataFrame) -> DataFrame:
        there = self._spark.table(self.target.identifier).where(
            f"stream = '{self._main_target.stream}'"  # letters, digits, '.', '_' and '-' only
        )
        where = ["target_table", "kafka_topic", "kafka_partition", "kafka_offset"]
        return rows.join(there.select(*where), where, "left_anti")
