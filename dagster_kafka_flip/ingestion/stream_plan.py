"""StreamPlanner: reads a stream's position from its table, and plans what to read from there."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import PositionLostError
from dagster_kafka_flip.ingestion.dead_letter_settlement import check_nothing_pending
from dagster_kafka_flip.ingestion.keyed_stream import OTHER_OFFSETS, check_same_offsets, reaching, with_fitting_advice
from dagster_kafka_flip.ingestion.result import UnreportedCommits
from dagster_kafka_flip.settings.names import counted, first_few
from dagster_kafka_flip.source import instants
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.source.incident import total
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.table.history import commits_that_count, documented
from dagster_kafka_flip.telemetry.log_fields import log_with_fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.ingestion.dead_letter_table import DeadLetterTable
    from dagster_kafka_flip.ingestion.run_spec import RunSource, RunSpec
    from dagster_kafka_flip.ingestion.tolerance import Incidents
    from dagster_kafka_flip.source.api import SplitEnumeratorContext
    from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.anchor import Anchor
    from dagster_kafka_flip.table.commit import Commit
    from dagster_kafka_flip.table.delta_table import DeltaTable
    from dagster_kafka_flip.table.known_position import KnownPosition
    from dagster_kafka_flip.table.target import DeltaTarget
    from dagster_kafka_flip.telemetry.repeatedly import Log


@dataclass
class StreamPlan:
    """The stream's position and the plan from it."""

    anchor: Anchor
    source: KafkaSource
    enumerator: KafkaSourceEnumerator
    plan: ReadPlan


@dataclass
class StreamPlanner:
    """Plans one run of one stream."""

    _spec: RunSpec
    _session: SparkSession
    _context: SplitEnumeratorContext
    _table: DeltaTable
    # Gives the schema of the rows, for a new table.
    _schema: Callable[[], StructType]
    _letters: DeadLetterTable | None
    _record: KnownPosition | None
    _reads: RunSource
    _incidents: Incidents
    # The version up to which commits were reported, and that of this run's last commit.
    _reported: int | None
    told: int | None = None
    discovered: set[TopicPartition] = field(default_factory=set["TopicPartition"])
    _started: KafkaSourceEnumerator | None = None

    def close(self) -> None:
        if self._started is not None:
            self._started.close()

    def plan(self, source: KafkaSource) -> StreamPlan:
        """Reads the position and plans from it; creates the table if needed."""
        anchor = self._settled_anchor()
        if anchor is None:
            # Plans before creating the table, so that an unreadable source leaves no table behind.
            enumerator, plan = self._begin_anew(source)
            anchor = self._settled(self._table.made(self._schema()))
            # Another run may have made it and begun meanwhile, and a RESTORE may have undone that.
            if anchor.state is None and anchor.undone_start is None:
                # A run of windows may have created it meanwhile.
                self._table.check_takes_streams()
                return self._checked(StreamPlan(anchor, source, enumerator, plan))
        if anchor.state is None:
            self._table.check_takes_streams()
            start = anchor.undone_start
            enumerator, plan = self._begin_anew(source) if start is None else self._begin_again(source, start)
        else:
            state = reaching(anchor.state, self._spec.target.key) or anchor.state
            enumerator = source.restore_enumerator(self._context, state)
            plan = self._start(enumerator, anchor)
        planned = self._checked(StreamPlan(anchor, source, enumerator, plan))
        overriding = self._reads.overriding
        if overriding is not None and source is overriding and anchor.state is not None:
            check_same_offsets(self._spec.target, self._spec.target.key, anchor.state, planned.plan)
            self._log_override(overriding, anchor.state, planned.plan)
        return planned

    def plan_again(self, planned: StreamPlan, source: KafkaSource) -> StreamPlan:
        """If the position has not changed, the enumerator continues with the splits that it was given back."""
        anchor = self._settled_anchor()
        state = planned.enumerator.snapshot_state()
        before = planned.anchor
        # Of a stream without a position, another run may have begun meanwhile, and a RESTORE may have undone that.
        if (
            anchor is None
            or state is None
            or (anchor.state, anchor.undone_start) != (before.state, before.undone_start)
        ):
            return self.plan(source)
        if anchor.state is None:
            self._table.check_takes_streams()
        enumerator = planned.enumerator
        if planned.source is not source:
            # Planned before the common stop of all tables was set. Its start is already fixed.
            enumerator = self._reads.source.restore_enumerator(self._context, state)
        return self._checked(StreamPlan(anchor, source, enumerator, self._start(enumerator, anchor)))

    def needs_commit(self, planned: StreamPlan) -> bool:
        """Whether a plan needs a commit: it reads records, moves the position, or renews it.

        A plan without splits is also committed in these cases: the table has no position yet (a stream that starts at
        "latest" must not start later next time); Delta will soon remove the commit with the position, because nothing
        has arrived for long; or an error about the table was tolerated (the next run need not tolerate it again).
        """
        anchor = planned.anchor
        if anchor.state is None or anchor.incidents or not planned.plan.changes_nothing(anchor.state):
            return True
        kept_until = self._table.kept_until(anchor)
        if kept_until is None or instants.now() < kept_until:
            return False
        self._spec.log.info(
            "the position's commit is older than half the log's retention of %s (since %s); committing it again",
            self._spec.target,
            kept_until.isoformat(timespec="seconds"),
        )
        return True

    def _begin_anew(self, source: KafkaSource) -> tuple[KafkaSourceEnumerator, ReadPlan]:
        """First plan of a stream without a position; checks that a former stream's records are not skipped."""
        enumerator = source.create_enumerator(self._context)
        plan = self._start(enumerator)
        if self._record is not None:
            if source is not self._reads.overriding:
                check_nothing_is_skipped(self._record.state, plan, source.starting_offsets, self._spec.target)
            self._spec.log.warning(
                "%s holds no position of the stream %r, but the record of its last run had one: the table was dropped "
                "or recreated. A new stream starts at %s",
                self._spec.target,
                self._spec.target.stream,
                source.starting_offsets,
            )
        return enumerator, plan

    def _begin_again(
        self, source: KafkaSource, undone_start: EnumeratorState
    ) -> tuple[KafkaSourceEnumerator, ReadPlan]:
        """First plan of a stream whose commits a RESTORE has undone: from where it began, as what it landed is gone."""
        enumerator = source.restore_enumerator(self._context, undone_start)
        plan = self._start(enumerator)
        self._spec.log.warning(
            "%s was restored to before the first commit of the stream %r: it begins again where that commit began",
            self._spec.target,
            self._spec.target.stream,
        )
        return enumerator, plan

    def _start(self, enumerator: KafkaSourceEnumerator, anchor: Anchor | None = None) -> ReadPlan:
        """Plans, and then asks for the reader schemas that its records may have."""
        if enumerator is not self._started:
            self.close()
            self._started = enumerator
        refused = OTHER_OFFSETS if anchor is not None and self._may_have_another_log(anchor) else ()
        with with_fitting_advice(self._spec.target):
            try:
                plan = enumerator.start(refused)
            except refused as error:
                if anchor is not None and type(error) in self._context.tolerated:
                    self._spec.log.warning(
                        "%s not tolerated: no run reported version %d of %s, which may have records of the other log",
                        type(error).__name__,
                        anchor.version,
                        self._spec.target,
                    )
                raise
        if not plan.is_empty:
            self._spec.decoder.renew()
        return plan

    def _may_have_another_log(self, last: Anchor) -> bool:
        """If the log changed between plan and read, and the run died before it asked: tolerated, records land twice."""
        reported = self._reported
        # After a RESTORE the last commit may be gone.
        if reported is None or last.document is None or last.is_restored or last.document.reason:
            return False
        # Versions start again at 0 if the table was recreated.
        return last.version != self.told and not last.version <= reported <= last.table_version

    def _settled_anchor(self) -> Anchor | None:
        anchor = self._table.anchor()
        return None if anchor is None else self._settled(anchor)

    def _settled(self, anchor: Anchor) -> Anchor:
        if anchor.routed is None:
            return anchor
        if self._letters is not None:
            self._letters.settle_pending(anchor.routed)
            incidents = self._letters.take_incidents()
        else:
            incidents = (
                check_nothing_pending(
                    self._session, anchor.routed, self._table, self._spec.target, self._context.tolerated
                )
                or ()
            )
        # The next commit records that this was tolerated, and the new dead-letter table.
        return replace(anchor, incidents=(*anchor.incidents, *incidents))

    def _checked(self, planned: StreamPlan) -> StreamPlan:
        plan = planned.plan
        self._incidents.add((*planned.anchor.incidents, *plan.incidents))
        if planned.anchor.document is not None and not plan.is_empty:
            self._spec.decoder.recall(planned.anchor.document.schemas)
        self.discovered.update(plan.discovered)
        self._table.check_overlap(planned.anchor, plan)
        log = self._spec.log
        for tp, offsets in sorted(plan.held_back.items()):
            log.info("%s: an open transaction holds back %d offsets", tp, offsets)
        if plan.paused:
            log.info(
                "%d topic partitions are ahead of the slowest by more than the maximum drift; %d of their offsets are "
                "left for a later run",
                len(plan.paused),
                sum(plan.paused.values()),
            )
        if plan.removed:
            log.warning(
                "%s: no longer read, because they no longer exist or the source no longer lists them; their position "
                "is kept",
                first_few(plan.removed),
            )
        log_with_fields(
            log,
            "planned %s of %s",
            counted(len(plan.splits), "split"),
            planned.source,
            offsets=plan.offset_span,
            lag=sum(plan.lag_before.values()),
            topic_partitions=len(plan.end_offsets),
        )
        return planned

    def _log_override(self, source: KafkaSource, state: EnumeratorState, plan: ReadPlan) -> None:
        begun = plan.begun_without(state.position)
        moved = {tp: plan.starting_position[tp] - begun[tp] for tp in plan.end_offsets if tp in begun}
        again = -sum(offsets for offsets in moved.values() if offsets < 0)
        skipped = sum(offsets for offsets in moved.values() if offsets > 0)
        self._spec.log.warning(
            "this run starts at %s instead of the position: it reads up to %d records again and skips up to %d",
            source.starting_offsets,
            again,
            skipped,
        )


def check_nothing_is_skipped(
    recorded: EnumeratorState, plan: ReadPlan, start: OffsetsInitializer, target: DeltaTarget
) -> None:
    """Those records were never written, and nothing would show it. What retention has deleted is not counted."""
    continues_at = {
        # A new topic partition would have been read from the beginning.
        tp: min(max(recorded.position.get(tp, beginning), beginning), plan.end_offsets[tp])
        for tp, beginning in sorted(plan.beginning_offsets.items())
        if tp in plan.end_offsets and is_same_log(tp, recorded, plan.state)
    }
    skipped = {tp: at for tp, at in continues_at.items() if at < plan.starting_position[tp]}
    if not skipped:
        return
    offsets = sum(plan.starting_position[tp] - at for tp, at in skipped.items())
    ranges = first_few(f"{tp} [{at}, {plan.starting_position[tp]})" for tp, at in skipped.items())
    raise PositionLostError(
        f"{target} holds no position of the stream {target.stream!r}, but the record of its last run had one: the "
        f"table was dropped or recreated. A new stream starts at {start} and would skip up to "
        f"{counted(offsets, 'record')} that were never written: {ranges}",
        f"To write them first, run once with start set to {OffsetsInitializer.specific_offsets(continues_at)} (in "
        "Airflow, set the source's starting_offsets to it); to continue without them, run once with start set to "
        f"{start} (in Airflow, set another stream id); or restore the table, or correct its name",
    )


def find_unreported(
    table: DeltaTable, target: DeltaTarget, anchor: Anchor, reported: int, log: Log
) -> UnreportedCommits | None:
    # Versions start again at 0 if the table was recreated.
    reported = reported if reported <= anchor.table_version else -1
    if anchor.state is None or anchor.version <= reported:
        return None
    found = unreported_commits(table.newest_commits(), target.stream, reported)
    if found is not None:
        # The origin is unknown: a copied table, or an asset with another name, looks like a killed run.
        log.warning(
            "no earlier run reported %s of %s (versions %d to %d): the run %s died, the asset was renamed, or "
            "something else writes to the stream. This run reports that%s",
            counted(found.commits, "commit"),
            target,
            found.from_version,
            found.to_version,
            ", ".join(found.runs) or "of an unknown id",
            "".join(f"\ntolerated {incident.error}: {incident.message}" for incident in found.incidents),
        )
    return found


def unreported_commits(commits: Iterable[Commit], stream: str, reported: int) -> UnreportedCommits | None:
    # A run lands the records of a commit that a RESTORE has undone again, and reports them itself.
    fresh = itertools.takewhile(lambda commit: commit.version > reported, commits_that_count(commits))
    # Excludes manual moves, whose result the user has already seen.
    own = [(commit, document) for commit, document in documented(fresh, stream) if document.reason is None]
    if not own:
        return None
    return UnreportedCommits(
        commits=len(own),
        rows=total(commit.rows_written for commit, _ in own),
        from_version=own[-1][0].version,
        to_version=own[0][0].version,
        incidents=tuple(incident for _, document in reversed(own) for incident in document.incidents),
        runs=tuple(dict.fromkeys(document.run_id for _, document in reversed(own) if document.run_id)),
    )
