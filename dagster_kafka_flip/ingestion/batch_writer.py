"""BatchWriter: the one loop around every write, of streams, windows, dead letters and rebuilt tables.

It also checks right after a commit that the batch was read from the planned logs. Spark reads topics by name: if one is
deleted and recreated meanwhile, it silently reads the new one, and the commit would have rows of either topic with the
planned topic's id.
"""

from __future__ import annotations

import contextlib
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from dagster_kafka_flip.errors import (
    ClusterAccessError,
    ClusterUnreachableError,
    KafkaFlipError,
    LogChangedError,
    SparkSessionError,
    TimestampOutOfRangeError,
    TopicRecreatedError,
    WriteFailedError,
    error_text,
)
from dagster_kafka_flip.formats.diagnose import is_rejection, rejected_records, truncation
from dagster_kafka_flip.formats.learning import has_mark, learns_from
from dagster_kafka_flip.ingestion.keyed_stream import OTHER_OFFSETS
from dagster_kafka_flip.ingestion.observation import log_observed
from dagster_kafka_flip.runtime.spark_jars import jars_advice
from dagster_kafka_flip.settings.names import first_few
from dagster_kafka_flip.source.instants import LAST_SPARK_TIMESTAMP_MS
from dagster_kafka_flip.source.next_step import set_position
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.table.document import CommitDocument
from dagster_kafka_flip.table.interruptible import TRIES, waits_for_another_try
from dagster_kafka_flip.table.spark_error import error_summary, is_sparks_own
from dagster_kafka_flip.table.table_port import ForeignConflictError
from dagster_kafka_flip.table.table_writer import TableWriter
from dagster_kafka_flip.telemetry.log_fields import log_with_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from pyspark.sql import DataFrame

    from dagster_kafka_flip.ingestion.observation import Observed
    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.api import SplitEnumeratorContext
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.commit import Committed
    from dagster_kafka_flip.table.delta_table import DeltaTable
    from dagster_kafka_flip.table.target import DeltaTarget

_T = TypeVar("_T")

MOST_PLANS = 5
"""Maximum number of consecutive plans without a commit."""


@dataclass(frozen=True)
class Batch(Generic[_T]):
    """What a plan has to write, in one commit.

    `what` names it in errors. `begin` begins an attempt, whose id and document are fixed then, and returns what writes
    it. `state` has the logs of the plan; None if what writes looks by itself whether they have the records. A batch
    that `moves_on` is a stream's next one, and not a range that is read again. If it `takes_letters`, its rejected
    records could be sent to a dead-letter table.
    """

    what: str
    begin: Callable[[], Callable[[], _T]]
    records: Callable[[], DataFrame]
    splits: tuple[KafkaPartitionSplit, ...] = ()
    state: EnumeratorState | None = None
    moves_on: bool = True
    takes_letters: bool = True


@dataclass
class BatchWriter:
    """Writes a run's batches to one table.

    With a `table`, a stream's later runs stop after a batch that was read from another log. Windows have none: they are
    rewritten as a whole. `seconds` are those of the last write, from its plan to its commit, with all attempts.
    """

    _spec: RunSpec
    _context: SplitEnumeratorContext
    _target: DeltaTarget
    _table: DeltaTable | None = None
    _unanswered: Callable[[], None] | None = None
    seconds: float = 0.0

    def write(
        self,
        plan: Callable[[KafkaFlipError | None], Batch[_T] | None],
        plans_again: Collection[type[KafkaFlipError]] = (),
    ) -> _T | None:
        """Writes a batch in one commit; returns None if there is nothing to write.

        An error leads to another plan, if the table or the logs have changed; to a new attempt, if records name
        schemas that the run did not know; to the same attempt again, if it is transient; or it ends the run.

        `plan` is called with each error that makes another plan necessary; `plans_again` are such errors, besides
        another writer's change.
        """
        batch, planned = plan(None), time.monotonic()
        attempt: Callable[[], _T] | None = None
        tries = plans = 0
        while batch is not None:
            if attempt is None:
                self._ask_again()
            tries, begun = tries + 1, time.monotonic()
            try:
                if attempt is None:
                    attempt = batch.begin()
                else:
                    self._check_still_in_log(batch)
                done = attempt()
            except (ForeignConflictError, *plans_again) as conflict:
                plans += 1
                self._check_may_plan_again(conflict, plans, batch.what)
                attempt, tries, batch, planned = None, 0, plan(conflict), time.monotonic()
            except Exception as error:
                if learns_from(error, batch.records, self._spec.decoder, self._spec.log):
                    attempt, tries = None, 0
                    continue
                self._name_record(batch, error)
                if attempt is None:
                    raise
                seconds, what = time.monotonic() - begun, f"the write to {self._target}"
                check_reader(error, tries, seconds, self._spec.source, self._context, batch.splits)
                if not waits_for_another_try(self._spec.log, what, tries, error):
                    raise
            else:
                self.seconds = time.monotonic() - planned
                return done
        return None

    def tell(self, committed: Committed | None, observed: Observed, **numbers: int) -> None:
        metrics = self._spec.metrics
        log_with_fields(
            self._spec.log,
            "committed %s of %s",
            "nothing" if committed is None else f"version {committed.version}",
            self._target,
            rows=0 if committed is None else committed.rows,
            bytes_written=0 if committed is None else committed.bytes,
            records=observed.records,
            bytes_read=observed.bytes,
            rejected=observed.rejected,
            **numbers,
            seconds=self.seconds,
        )
        if committed is not None:
            metrics.record("commits", 1)
            metrics.record("records", observed.records)
            metrics.record("record_bytes", observed.bytes)
            metrics.record("rows", committed.rows)
            metrics.record("file_bytes", committed.bytes)
            metrics.record("rejected_records", observed.rejected)
        log_observed(self._spec.log, observed)

    def confirm(
        self,
        ask: Callable[[], None],
        what: str,
        then: Callable[[KafkaFlipError], str],
        splits: Iterable[KafkaPartitionSplit],
        committed: Committed | None,
        document: CommitDocument | None = None,
    ) -> None:
        """Checks the logs of what was read; without an answer, again before the next batch and at the run's end."""

        def check() -> None:
            try:
                ask()
            except OTHER_OFFSETS as error:
                doubtful = self._doubtful(error, what, then(error), splits, committed)
                if self._table is not None and document is not None and committed is not None:
                    self._mark(self._table, document, committed, doubtful)
                raise doubtful from error

        self._unanswered = check
        self._ask_or_warn("retrying")

    def finish(self, *, is_needed: bool = False) -> None:
        """Needs an answer if the next run would tolerate another log: the commit would count as checked."""
        if is_needed:
            self._ask_again()
        else:
            self._ask_or_warn("the next run compares their ids")

    def _ask_again(self) -> None:
        if self._unanswered is not None:
            self._unanswered()
            self._unanswered = None

    def _ask_or_warn(self, then: str) -> None:
        try:
            self._ask_again()
        except LogChangedError:
            raise
        except KafkaFlipError as error:
            self._spec.log.warning("the check that the topics are still the same failed; %s: %s", then, error)

    def _check_still_in_log(self, batch: Batch[_T]) -> None:
        """Before the same attempt again: retention may have deleted its records, and the error has the numbers."""
        if not batch.splits or batch.state is None:
            return
        with contextlib.closing(self._spec.source.restore_enumerator(self._context, batch.state)) as enumerator:
            enumerator.replay(batch.splits)

    def _check_may_plan_again(self, conflict: KafkaFlipError, plans: int, what: str) -> None:
        if plans == MOST_PLANS:
            raise WriteFailedError(
                f"{MOST_PLANS} plans in a row conflicted with other changes to {self._target}, the last one with "
                f"{conflict.finding}",
                "Run again when nothing else writes to the table, or give the runs that change it a pool with the "
                "limit 1",
                outcome=f"Nothing of {what} was written",
            ) from conflict
        self._spec.log.warning("%s or its logs changed meanwhile (%s); planning again", self._target, conflict.finding)

    def _name_record(self, batch: Batch[_T], error: Exception) -> None:
        """Raises the error that names the record which a write failed on, if it failed on one."""
        if isinstance(error, WriteFailedError):
            if is_rejection(error):
                raise rejected_records(
                    batch.records(), self._spec.decoder, dead_letters=batch.takes_letters, nulls=not self._target.key
                ) from None
            if (truncated := truncation(error, str(self._target))) is not None:
                raise truncated from None
        if has_mark(error, _OVERFLOW) and (wild := self._wild_timestamp(batch)) is not None:
            raise wild from error

    def _wild_timestamp(self, batch: Batch[_T]) -> TimestampOutOfRangeError | None:
        """Names the record whose timestamp made a read fail. Only a stream can pass it over."""
        with contextlib.closing(self._spec.source.create_enumerator(self._context)) as enumerator:
            found = enumerator.unreadable_record(batch.splits)
        if found is None:
            return None
        tp, record = found
        way_on = "The window is refused until the topic has lost the record: delete it, or wait for retention"
        if batch.moves_on:
            behind = str(OffsetsInitializer.specific_offsets({tp: record.offset + 1}))
            way_on = (
                "To go on without the record, run once with stop set to its offset, then set the position behind it: "
                f"{set_position(str(self._target), self._target.stream, to=behind)}"
            )
        return TimestampOutOfRangeError(
            f"{tp}: the record at offset {record.offset} has the timestamp {record.timestamp_ms} ms. Spark can't read "
            f"timestamps more than {LAST_SPARK_TIMESTAMP_MS} ms before or after 1970",
            f"Correct the producer: it may write microseconds or nanoseconds instead of milliseconds. {way_on}",
        )

    def _doubtful(
        self,
        error: KafkaFlipError,
        what: str,
        then: str,
        splits: Iterable[KafkaPartitionSplit],
        committed: Committed | None,
    ) -> LogChangedError:
        begin = f"{error.finding}. This happened during the read of {what}"
        if committed is None:
            finding = f"{begin} for {self._target}. No records were found, possibly because they were in the other log"
            return LogChangedError(finding, then, outcome="Nothing was written")
        topics = error.topics if isinstance(error, TopicRecreatedError) else ()
        some = first_few(split for split in splits if not topics or split.topic_partition.topic in topics)
        rows = f"Its rows of {some}" if some else "Its rows"
        stops = "" if self._table is None else ", and all runs of the stream stop until you decide"
        return LogChangedError(
            f"{begin}, which version {committed.version} of {self._target} has. {rows} may come from either log",
            f"1. RESTORE TABLE {self._target.identifier} TO VERSION AS OF {committed.version - 1} removes the rows of "
            f"that commit. {then}",
            outcome=f"The commit stays; nothing more was read{stops}",
        )

    def _mark(
        self, table: DeltaTable, document: CommitDocument, committed: Committed, doubtful: LogChangedError
    ) -> None:
        mark = CommitDocument(
            stream=document.stream,
            run_id=self._spec.run_id,
            base_version=committed.version,
            anchor_version=committed.version,
            after=committed.attempt,
            state=document.state,
            rows_before=committed.table_rows,
            carried=document.routed(committed.version),
            settles=document.settles,
            doubt=(doubtful.finding, doubtful.outcome, doubtful.advice),
            mode=document.mode,
        )
        try:
            TableWriter(table).commit(table.no_rows(), mark)
        except KafkaFlipError as failure:
            self._spec.log.warning("the change of a log could not be recorded: %s", failure)


# What failures of Spark's Kafka reader mean if planning works: ACLs, jars, unreachable brokers, or timestamps.

# After the first failure a broker may have restarted; the next attempt shows this.
_FAILURES = 2
# Maximum duration of an attempt without a connection, in addition to the read timeout, and the number of attempts per
# task. A longer attempt had a connection and read records.
_OTHER_SECONDS = 45.0
_TRIES_OF_A_TASK = 4

# Messages of Kafka's Java client without a connection within its timeout.
_NO_CONNECTION = re.compile(r"\borg\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network)Exception\b")
# Its messages if it could not even start to connect; a retry does not help.
_NO_ADDRESS = re.compile(r"\bNo resolvable bootstrap urls\b|\bDNS resolution failed for url\b")
_NO_READER = re.compile(r"\bFailed to find (?:the )?data source: `?kafka\b")
_REFUSED = re.compile(
    r"\b(Topic|Group)AuthorizationException\)?:? Not authorized to access (?:topics|group): \[?([^\]\n]*)"
)


# Java's message, from Spark 4.2 on below Spark's own (KAFKA_MALFORMED_RECORD_TIMESTAMP). An overflow in a user's
# expression has another one (ARITHMETIC_OVERFLOW).
_OVERFLOW = "java.lang.ArithmeticException: long overflow"


def check_reader(
    error: Exception,
    attempt: int,
    seconds: float,
    source: KafkaSource,
    context: SplitEnumeratorContext,
    splits: Iterable[KafkaPartitionSplit],
) -> None:
    """Raises the cause of a failed write if a retry can't help, after so many attempts, the last of so many seconds."""
    cause = error.__cause__ if isinstance(error, WriteFailedError) else error
    partitions = {split.topic_partition for split in splits}
    if cause is None or not partitions or not is_sparks_own(cause):
        return
    text = error_text(cause)
    if _NO_READER.search(text):
        raise SparkSessionError("Spark can't read Kafka: its jars are missing", jars_advice()) from error
    connection = source.required_connection()
    if (refused := _REFUSED.search(text)) is not None:
        kind, name = ("topic", refused[2]) if refused[1] == "Topic" else ("consumer group", refused[2])
        raise ClusterAccessError(
            f"Kafka at {connection.bootstrap_servers} refuses {connection.user} the right to read the {kind} "
            f"{name} in Spark's reader",
            f"Grant READ on the {kind} {name}, then run again",
        ) from error
    is_unknown = _NO_ADDRESS.search(text) is not None
    if not is_unknown and not (
        _NO_CONNECTION.search(text) is not None
        and attempt >= _FAILURES
        and (attempt >= TRIES or seconds <= _TRIES_OF_A_TASK * (connection.read_timeout + _OTHER_SECONDS))
    ):
        return
    try:
        with contextlib.closing(source.create_enumerator(context)) as enumerator:
            addresses = enumerator.reached_brokers(partitions)
    except KafkaFlipError:
        # This process can't reach them either.
        return
    raise ClusterUnreachableError(
        f"Spark's Kafka reader could not connect to the brokers, or lost the connection, in {attempt} "
        f"{'try' if attempt == 1 else 'tries'}, but this process is connected",
        f"The brokers' advertised.listeners are {', '.join(addresses)} (bootstrap_servers: "
        f"{connection.bootstrap_servers}): Spark's driver and executors must resolve and reach all of them. Check "
        "DNS, routes and firewalls on the machines where Spark runs, or change the advertised listeners, then run "
        f"again. Spark's error: {error_summary(cause)}",
    ) from error
