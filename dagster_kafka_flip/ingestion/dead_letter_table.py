"""Dead letters: writes undecodable records, raw, to a separate Delta table, each exactly once.

The stream's commit is first, without the rejected records, and names the dead-letter table. One commit of that table
follows with the records, and settles the stream's commits up to this one. For it, the batch is read again exactly as
planned. The stream's table gets no further commit while a batch is pending: a crash in between leaves at most one
pending batch, which the next run settles before planning.
"""

from __future__ import annotations

import functools
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    ConcurrentIngestionError,
    ConfigurationError,
    DeadLetterDecoderError,
    DeadLetterLostError,
    KafkaFlipError,
    WriteFailedError,
)
from dagster_kafka_flip.formats.description import decoder_of, describe_decoder
from dagster_kafka_flip.formats.diagnose import check_rejected
from dagster_kafka_flip.ingestion.batch_rows import dead_letter_rows
from dagster_kafka_flip.ingestion.batch_writer import Batch, BatchWriter
from dagster_kafka_flip.ingestion.dead_letter_settlement import (
    NOT_AGAIN,
    UNREADABLE,
    PendingDeadLetters,
    check_belongs_to,
    check_is_no_older_copy,
    check_nothing_pending,
    furthest,
    is_set_back,
    maybe_landed,
    missing,
    pending_splits,
    set_back,
    settlement,
    write_off,
)
from dagster_kafka_flip.ingestion.observation import observed_metrics
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.source.incident import Tolerance, total
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.document import CommitDocument, DeadLetterRoute, RoutedBatch, TableVersion
from dagster_kafka_flip.table.table_writer import TableWriter

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, Observation, SparkSession

    from dagster_kafka_flip.formats.decode import Decoder
    from dagster_kafka_flip.ingestion.dead_letters import DeadLetters
    from dagster_kafka_flip.ingestion.observation import Observed
    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.api import SplitAssignment, SplitEnumeratorContext
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.anchor import Anchor
    from dagster_kafka_flip.table.commit import Committed


@dataclass(frozen=True)
class _Letters:
    splits: tuple[KafkaPartitionSplit, ...]
    # Of the stream's own table.
    settles: int
    # Whether it is the stream's next batch, and not a repaired range.
    moves_on: bool = True
    select: Callable[[DataFrame], DataFrame] | None = None


class DeadLetterTable:
    """Handles the rejected records of one run."""

    def __init__(
        self,
        spec: RunSpec,
        session: SparkSession,
        context: SplitEnumeratorContext,
        main: DeltaTable,
        letters: DeadLetters,
    ) -> None:
        self.landed: int | None = 0
        self.target = letters.target(spec.target)
        self._spec = spec
        self._session = session
        self._context = context
        self._main = main
        self._letters = letters
        self._table = DeltaTable(session, self.target, context.tolerated)
        self._writer = BatchWriter(spec, context, self.target, self._table)
        self._rows = dead_letter_rows(session, spec)
        self._main_id = ""
        # The expected table ids; empty until a commit of the stream has one.
        self._table_id = ""
        self._is_open = False
        self._settled: int | None = None
        self._unmarked: RoutedBatch | None = None
        self._counted: Observation | None = None
        self._tolerance = Tolerance(context.tolerated)
        self._pending = PendingDeadLetters(spec, context, self.target, self._tolerance)

    def route(self) -> DeadLetterRoute:
        return DeadLetterRoute(
            table=str(self.target),
            stream=self.target.stream,
            decoder={**describe_decoder(self._spec.decoder), **self._rows.rules()},
            table_id=self._table_id,
            settled=self._settled,
        )

    def take_incidents(self) -> tuple[Incident, ...]:
        return self._tolerance.take()

    def settle_pending(self, batch: RoutedBatch) -> None:
        """Writes the pending dead letters of the stream's last commit, if any."""
        if self._is_of(batch.route):
            self._table_id = self._table_id or batch.route.table_id
        else:
            incidents = check_nothing_pending(
                self._session, batch, self._main, self._spec.target, self._context.tolerated, has_other=True
            )
            if incidents is not None:
                self._tolerance.incidents.extend(incidents)
                return
        known_to_owe_nothing = self._unmarked is not None and self._unmarked.version == batch.version
        self._settle(batch, reads=bool(batch.splits) and not known_to_owe_nothing, notes=bool(batch.splits))

    def prepare(self, records: DataFrame | None) -> None:
        """Checks before a commit that rejected records can be written, and are within the limits."""
        if not self._is_open:
            self._look(None)
        letters = self._letters
        if records is not None and (letters.max_records is not None or letters.max_share is not None):
            check_rejected(
                records,
                self._spec.decoder,
                self._spec.log,
                max_records=letters.max_records,
                max_share=letters.max_share,
            )

    def settle(self, batch: RoutedBatch, observed: Observed | None) -> int | None:
        """Writes the rejected records of a batch that was just committed; returns their number, None if unknown."""
        # If the number may not be 0, the batch is read again.
        rejected = None if observed is None else observed.rejected
        if not batch.splits or rejected == 0:
            self._unmarked = batch
            return 0
        self._counted = None
        self._settle(batch, reads=True)
        self._unmarked = None
        again = None if self._counted is None else observed_metrics(self._counted, 10.0).get("rejected")
        # A stage that Spark repeats is counted twice.
        if rejected is not None and again is not None and again < rejected:
            # Another log explains it.
            self._writer.finish(is_needed=True)
            raise DeadLetterLostError(
                f"version {batch.version} of {self._spec.target} is without {counted(rejected, 'rejected record')}, "
                f"but only {again} were rejected when the batch was read again for the dead-letter table "
                f"{self.target}: the others are in neither table, or Spark counted records twice when it repeated a "
                "stage",
                "A format of your own must decide by the record alone. Compaction may also have removed some. Compare "
                "the topic with both tables",
                outcome="Both commits stay",
            )
        return again if rejected is None else rejected

    def confirm(self) -> None:
        self._writer.finish()

    def finish(self) -> bool:
        """Records that nothing is pending, so that later runs need not read the batch; returns whether this failed."""
        batch, self._unmarked = self._unmarked, None
        if batch is None:
            return False
        try:
            self._settle(batch, reads=False)
        except Exception as error:  # noqa: BLE001 - the run's rows are in, whatever is wrong with this note
            self._spec.log.warning(
                "no dead letters are pending for %s, but this could not be recorded there; the next run checks again: "
                "%s",
                self.target,
                error,
            )
            return True
        return False

    def land_missing(
        self,
        version: int,
        attempt: str,
        assignment: SplitAssignment,
        state: EnumeratorState,
        routed: RoutedBatch | None,
        select: Callable[[DataFrame], DataFrame],
    ) -> None:
        """Writes the rejected records of a repaired range, which `select` leaves, that the table does not have."""
        if routed is not None:
            self.settle_pending(routed)
        self.prepare(self._spec.records(self._session, assignment))
        batch = RoutedBatch(version, attempt, self._spec.run_id, assignment.plan.splits, state, self.route())

        def letters(anchor: Anchor) -> _Letters:
            settles = settlement(anchor)
            settled = version if settles is None else settles.version
            return _Letters(batch.splits, settled, moves_on=False, select=select)

        self._land_letters(letters, batch)
        self._writer.finish()

    def _settle(self, batch: RoutedBatch, *, reads: bool, notes: bool = True) -> None:
        """Writes the dead letters of a batch, if any may be pending, and notes that there are none."""

        def letters(anchor: Anchor) -> _Letters | None:
            settles = settlement(anchor)
            moved = anchor.document is not None and anchor.document.reason is not None
            is_settled = settles is not None and settles.version >= batch.version
            # A moved position only applies to dead letters that are pending at that time. A tolerated error is only
            # tolerated once.
            if (is_settled or not notes) and not moved and not anchor.incidents:
                return None
            splits = (
                ()
                if is_settled or not reads
                else self._pending.readable(pending_splits(anchor, batch), batch, moved=moved)
            )
            return _Letters(splits, batch.version)

        # Nothing is added to the stream until they are written. A log may have lost them since it was checked.
        self._land_letters(letters, batch, *UNREADABLE)

    def _land_letters(
        self, letters: Callable[[Anchor], _Letters | None], batch: RoutedBatch, *plans_again: type[KafkaFlipError]
    ) -> None:
        def plan(_: KafkaFlipError | None) -> Batch[tuple[CommitDocument, Committed, ReadPlan | None]] | None:
            # Read again each time: the fence covers this lookup, so that only one of two concurrent runs wins.
            anchor = self._look(batch)
            if (wanted := letters(anchor)) is None:
                return None
            return Batch(
                f"the dead letters of version {batch.version} of {self._spec.target}",
                lambda: functools.partial(self._commit, anchor, batch, wanted, uuid.uuid4().hex),
                lambda: self._spec.records(self._session, self._pending.replay(batch, wanted.splits)),
                wanted.splits,
            )

        done = self._writer.write(plan, (ConcurrentIngestionError, *plans_again))
        if done is not None:
            document, committed, read = done
            if read is not None:
                self._confirm(read, batch, document, committed)

    def _confirm(self, plan: ReadPlan, batch: RoutedBatch, document: CommitDocument, committed: Committed) -> None:
        """Checks that the committed dead letters belong to the batch, which was read again for them."""
        then = (
            "Skip it only if you know that they come from the old log, which can't be read again. 2. "
            f"{write_off(self.target, plan.splits, 'earliest')}"
        )
        what = f"the dead letters of version {batch.version} of {self._spec.target}"
        self._writer.confirm(
            lambda: self._pending.check_same_logs(batch, plan), what, lambda _: then, plan.splits, committed, document
        )

    def _is_of(self, route: DeadLetterRoute) -> bool:
        """Whether a route leads to this table, by the same or another name."""
        if route.stream != self.target.stream:
            return False
        if route.table == str(self.target):
            return True
        return self._table.anchor() is not None and self._table.table_id() == route.table_id

    def _look(self, batch: RoutedBatch | None) -> Anchor:
        """Reads the dead-letter table's state; creates the table if neither it nor a record of it exists."""
        anchor = self._table.anchor()
        if anchor is None:
            self._tolerate_missing(batch, None)
            anchor = self._table.made(self._rows.schema())
        main_id = self._main.table_id()
        if main_id != (self._main_id or main_id):
            # What is settled would count for the other table.
            raise WriteFailedError(
                f"the table {self._spec.target} was dropped and created again during the run", "Run again"
            )
        self._main_id = main_id
        # With a commit of the stream, it is certainly the same table as before.
        if not self._is_open or anchor.document is None:
            self._check_is_known_table(batch)
        check_belongs_to(anchor, self.target, self._main_id, self._spec.target)
        self._tolerance.incidents.extend(anchor.incidents)
        own = self._table_id, self.target.stream
        if batch is not None and (batch.route.table_id, batch.route.stream) == own and is_set_back(anchor, batch):
            error = set_back(self._table, anchor, batch, self.target, self._spec.target)
            incident = self._tolerance.meet(error, NOT_AGAIN)
            anchor = replace(anchor, incidents=(*anchor.incidents, incident))
        settles = settlement(anchor)
        if settles is not None and (batch is None or settles.version > batch.version):
            check_is_no_older_copy(settles, self._main, self.target, self._spec.target)
        self._settled = None if settles is None else settles.version
        self._is_open = True
        return anchor

    def _check_is_known_table(self, batch: RoutedBatch | None) -> None:
        table_id = self._table.table_id()
        if table_id == self._main_id:
            raise ConfigurationError(
                f"the dead-letter table {self.target} is the stream's own table {self._spec.target} under another "
                "name; use a separate table"
            )
        if table_id != self._table_id:
            self._tolerate_missing(batch, table_id)
            self._table.check_schema(self._rows.schema())
            self._table_id = table_id
        elif not self._is_open:
            self._table.check_schema(self._rows.schema())

    def _tolerate_missing(self, batch: RoutedBatch | None, there: str | None) -> None:
        if not self._table_id:
            return
        if batch is None:
            raise WriteFailedError(f"the dead-letter table {self.target} was dropped during the run", "Run again")
        known = replace(batch, route=replace(batch.route, table_id=self._table_id))
        error = missing(known, self.target, self._spec.target, there)
        continuation = f"The run continued with the current table; version {batch.version} is marked as settled in it."
        self._tolerance.meet(error, continuation)
        self._table_id = ""

    def _commit(
        self, anchor: Anchor, batch: RoutedBatch, letters: _Letters, attempt: str
    ) -> tuple[CommitDocument, Committed, ReadPlan | None]:
        """Writes dead letters; a retry is the same attempt. Returns the commit, and what was read for it."""
        rows = self._table.no_rows()
        plan: ReadPlan | None = None
        if letters.splits:
            assignment = self._pending.replay(batch, letters.splits)
            plan = assignment.plan
            state = assignment.plan.state.over(batch.state)
            decoder = self._decoder_of(batch)
            rows, self._counted = self._rows.rejected(assignment, batch, decoder, state, self._main_id)
            if letters.splits != batch.splits:
                # A partial count would look like a full one.
                self._counted = None
            if letters.select is not None:
                rows = letters.select(rows)
            compared = letters.splits if not letters.moves_on else maybe_landed(anchor, state, letters.splits)
            if compared:
                rows = self._rows.missing(rows, self._table.rows(), compared, self._main_id)
        before = settlement(anchor)
        # After a RESTORE of the stream's table, an older commit is the last; later ones are settled too.
        settles = letters.settles if before is None else max(before.version, letters.settles)
        document = CommitDocument(
            stream=self.target.stream,
            attempt=attempt,
            run_id=self._spec.run_id,
            base_version=anchor.table_version,
            anchor_version=anchor.version,
            after=anchor.attempt,
            splits=letters.splits if letters.moves_on else (),
            state=furthest(anchor.state, batch.state) if letters.moves_on else anchor.state or batch.state,
            rows_before=anchor.table_rows,
            settles=TableVersion(str(self._spec.target), self._main_id, settles),
        )
        committed = TableWriter(self._table).commit(rows, document)
        self._settled = settles
        self.landed = total((self.landed, committed.rows))
        if letters.splits:
            self._spec.log.info(
                "wrote %s of version %d of %s in version %d of %s",
                "dead letters" if committed.rows is None else counted(committed.rows, "dead letter"),
                batch.version,
                self._spec.target,
                committed.version,
                self.target,
            )
        return document, committed, plan

    def _decoder_of(self, batch: RoutedBatch) -> Decoder:
        for name, now in self._rows.rules().items():
            # Commits of earlier versions of this package don't have it.
            if (then := batch.route.decoder.get(name, now)) != now:
                raise DeadLetterDecoderError(
                    f"the dead letters of version {batch.version} of {self._spec.target} were rejected with {name} "
                    f"{then}, and this run has {now}: it may read or reject other records",
                    f"Run once with {name} {then}. {write_off(self.target, batch.splits, 'latest')}",
                )
        decoder = decoder_of(batch.route.decoder, self._spec.decoder)
        if decoder is None:
            raise DeadLetterDecoderError(
                f"the dead letters of version {batch.version} of {self._spec.target} were rejected by another decoder "
                "than this run's, and it can't be rebuilt from the description in the commit: "
                f"{dict(batch.route.decoder)}",
                f"Run once with that decoder. {write_off(self.target, batch.splits, 'latest')}",
            )
        return decoder
