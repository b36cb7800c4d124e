"""Dead letters: records that can't be decoded are landed, raw, in a Delta table of their own, each exactly once.

The stream's own commit goes first, without the rejected records, and says where they go. They follow in one commit of
the dead-letter table, which says up to which commit of the stream's table nothing is owed any longer. The batch is read
once more for it, exactly as it was planned. Nothing is committed to the stream's table while a batch before owes: so a
crash in between leaves a debt of one batch at most, and the next run settles it before it plans.
"""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dagster_kafka_flip.errors import (
    ConcurrentIngestionError,
    ConfigurationError,
    DeadLetterDecoderError,
    DeadLetterLostError,
    EndBeforePositionError,
    KafkaFlipError,
    RetentionOvertookPositionError,
    TopicNotFoundError,
    WriteFailedError,
)
from dagster_kafka_flip.facts import total
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.description import decoder_of, describe_decoder
from dagster_kafka_flip.formats.diagnose import check_rejected
from dagster_kafka_flip.observation import observed_metrics
from dagster_kafka_flip.reader.read import read
from dagster_kafka_flip.settings import Settings
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.table.dead_letter_route import DeadLetterRoute
from dagster_kafka_flip.table.delta_table import DeltaTable, ForeignConflictError
from dagster_kafka_flip.table.document import CommitDocument
from dagster_kafka_flip.table.retries import retries
from dagster_kafka_flip.table.table_version import TableVersion
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    import logging
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, Observation, SparkSession

    from dagster_kafka_flip.formats.format import Format
    from dagster_kafka_flip.observation import Observed
    from dagster_kafka_flip.reader.columns import KafkaColumns
    from dagster_kafka_flip.source.api import Source, SplitAssignment, SplitEnumerator, SplitEnumeratorContext
    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.dead_letter_route import RoutedBatch
    from dagster_kafka_flip.table.history import Anchor

# Somebody else's change to the dead-letter table, or another run that settles the same, is looked at again this often.
_MAX_TRIES = 4

# Columns of the dead-letter table, and of which of the record's own fields (RECORD_SCHEMA) each is made.
_RECORD_COLUMNS = {
    "kafka_topic": "topic",
    "kafka_partition": "partition",
    "kafka_offset": "offset",
    "kafka_timestamp": "timestamp",
    "kafka_timestamp_type": "timestampType",
    "kafka_headers": "headers",
    "kafka_key": "key",
    "kafka_value": "value",
}
_SCHEMA = (
    "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, kafka_timestamp TIMESTAMP, "
    "kafka_timestamp_type INT, kafka_headers ARRAY<STRUCT<key: STRING, value: BINARY>>, kafka_key BINARY, "
    "kafka_value BINARY, error STRING, stream STRING, target_table STRING, run_id STRING, attempt STRING, "
    "landed_at TIMESTAMP"
)


class DeadLetters(Settings):
    """Where records go that can't be decoded, and how many of them are too many.

    Attributes:
        table: Path or catalog name of the dead-letter table. Several streams may share it.
        stream: Id of the stream in it. Default: that of the stream's own table with `-dead-letters` behind it.
        max_records: Most rejected records of a batch; a batch with more stops the run. Default: no limit.
        max_share: Largest part of a batch's records that may be rejected, such as 0.01. Default: no limit.
        single_writer: See DeltaTarget.

    With a limit, each batch's records are decoded once more, before its commit, to count.
    """

    table: str = Field(min_length=1)
    stream: str | None = None
    max_records: int | None = Field(default=None, ge=0)
    max_share: float | None = Field(default=None, ge=0, le=1)
    single_writer: bool = False

    def target(self, main: DeltaTarget) -> DeltaTarget:
        """The dead-letter table, as the target of a stream of its own.

        Args:
            main: The stream's own table.
        """
        stream = f"{main.stream}-dead-letters" if self.stream is None else self.stream
        return DeltaTarget(table=self.table, stream=stream, single_writer=self.single_writer)


def dead_letters_of(
    dead_letter: DeadLetters | str | None,
    target: DeltaTarget,
    key_format: Format | None,
    value_format: Format | None,
) -> DeadLetters | None:
    """The option in its full form.

    Args:
        dead_letter: What the user gave; a text is the table.
        target: The stream's own table.
        key_format: How keys are read.
        value_format: How values are read.

    Raises:
        ConfigurationError: It contradicts the rest.
    """
    if dead_letter is None:
        return None
    letters = DeadLetters(table=dead_letter) if isinstance(dead_letter, str) else dead_letter
    if letters.target(target).identity == target.identity:
        msg = f"the dead-letter table is the stream's own table {target}; give it a table of its own"
        raise ConfigurationError(msg)
    for what, one in (("key", key_format), ("value", value_format)):
        if one is not None and one.on_error != "fail":
            msg = (
                f"on_error={one.on_error!r} of the {what} format keeps rejected records in the stream's own table, and "
                f"dead_letter sends them to {letters.table}; choose one of the two"
            )
            raise ConfigurationError(msg)
    return letters


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
        self.landed: int | None = 0
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
        if observed is None:
            return None if self._counted is None else observed_metrics(self._counted, 10.0).get("rejected")
        landed = None if self.landed is None or before is None else self.landed - before
        if observed.rejected is not None and landed is not None and landed < observed.rejected:
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
            settles = _settlement(anchor)
            moved = anchor.document is not None and anchor.document.reason is not None
            is_settled = settles is not None and settles.version >= batch.version
            # A position that an operator set counts for what is owed at that time, and for nothing that comes later.
            if is_settled and not moved:
                return
            splits = () if is_settled or not reads else self._readable(_owed(anchor, batch), batch, moved=moved)
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
            self._table.create(self._spark.createDataFrame([], _SCHEMA).schema)
            anchor = self._table.anchor()
        if anchor is None:
            msg = f"the table {self.target} was made, and is not there; was it dropped meanwhile? Run again"
            raise WriteFailedError(msg)
        if not self._is_open:
            self._table.check_schema(self._spark.createDataFrame([], _SCHEMA).schema)
            self._main_id = self._main.table_id()
        _check_whose(anchor, self.target, self._main_id, self._main_target)
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
            if _is_behind(anchor.state, batch.state, splits):
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
                state=_furthest(anchor.state, batch.state),
                rows_before=anchor.table_rows,
                settles=TableVersion(
                    str(self._main_target),
                    self._main_id,
                    # A RESTORE of the stream's table shows an older commit again; what came after it is settled too.
                    batch.version if (before := _settlement(anchor)) is None else max(before.version, batch.version),
                ),
            ),
        )
        self.landed = total((self.landed, committed.rows))
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
        fields = [f.col(field).alias(column) for column, field in _RECORD_COLUMNS.items()]
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
    _check_whose(anchor, target, main.table_id(), main_target)
    settles = _settlement(anchor)
    if (settles is not None and settles.version >= batch.version) or not _owed(anchor, batch):
        return
    msg = (
        f"the rejected records of version {batch.version} of {main_target} are still owed to the dead-letter table "
        f"{target} (stream {target.stream!r}), and dead_letter does not name it any longer. Nothing was written. Run "
        f"once with dead_letter=DeadLetters(table={batch.route.table!r}, stream={batch.route.stream!r}); or go on "
        f"without them, with dagster-kafka-flip position set --table {target} --stream {target.stream} --to latest"
    )
    raise ConfigurationError(msg)


def decode_dead_letters(
    dead_letters: DataFrame,
    *,
    key_format: Format | None = None,
    value_format: Format | None = None,
    columns: KafkaColumns | None = None,
) -> DataFrame:
    """Decodes rows of a dead-letter table anew, such as with a corrected format.

    Args:
        dead_letters: Rows of a dead-letter table, with all of its record's columns.
        key_format: How to read keys. Default: RawFormat.
        value_format: How to read values. Default: RawFormat.
        columns: Which of the record's own fields are kept. Default: all but the value.

    Returns:
        What the stream's transform would have been given. Fails, when it runs, on a record that still can't be
        decoded, unless its format has `on_error="null"`.
    """
    decoder = Decoder.of(key_format, value_format, columns)
    records = dead_letters.select(*(dead_letters[column].alias(field) for column, field in _RECORD_COLUMNS.items()))
    return decoder.finish(decoder.stage(records))


def _settlement(anchor: Anchor) -> TableVersion | None:
    return None if anchor.document is None else anchor.document.settles


def _check_whose(anchor: Anchor, target: DeltaTarget, main_id: str, main_target: DeltaTarget) -> None:
    document, settles = anchor.document, _settlement(anchor)
    if document is None or (settles is None and document.reason is not None):
        return
    if settles is None or settles.table_id != main_id:
        whose = "no dead letters" if settles is None else f"those of the table {settles.table} (id {settles.table_id})"
        msg = (
            f"the stream {target.stream!r} of the dead-letter table {target} holds {whose}, and not those of "
            f"{main_target} (id {main_id}); give this one a stream of its own: DeadLetters(table=..., stream=...)"
        )
        raise ConfigurationError(msg)


def _owed(anchor: Anchor, batch: RoutedBatch) -> tuple[KafkaPartitionSplit, ...]:
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


def _is_behind(before: EnumeratorState | None, now: EnumeratorState, splits: Sequence[KafkaPartitionSplit]) -> bool:
    """Whether some of these offsets may have been landed before: after a RESTORE, or a run that was told to go back."""
    return before is not None and any(
        split.starting_offset < before.position.get(split.topic_partition, 0)
        and is_same_log(split.topic_partition, before, now)
        for split in splits
    )


def _furthest(before: EnumeratorState | None, now: EnumeratorState) -> EnumeratorState:
    """How far dead letters were ever landed: a stream's position may go back, and its dead letters stay."""
    if before is None:
        return now
    position = {
        tp: max(offset, before.position.get(tp, 0)) if is_same_log(tp, before, now) else offset
        for tp, offset in now.position.items()
    }
    return replace(now, position=position)
