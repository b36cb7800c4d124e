"""Finds out without Spark whether a run has nothing to do: from a copy of the position and from the brokers."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ClusterUnreachableError, KafkaFlipError
from dagster_kafka_flip.ingestion.stopwatch import Clock
from dagster_kafka_flip.source import wall_clock
from dagster_kafka_flip.telemetry.log_fields import log_with_fields

if TYPE_CHECKING:
    from dagster_kafka_flip.ingestion.result import KnownPosition
    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.api import Source, SplitEnumeratorContext
    from dagster_kafka_flip.source.plan import ReadPlan


def plan_without_spark(
    spec: RunSpec[Source],
    source: Source,
    context: SplitEnumeratorContext,
    known: KnownPosition,
    verify_after: timedelta,
) -> tuple[ReadPlan, float] | None:
    """Plans from a copy of the position.

    Returns:
        The plan and the seconds that it took; None if the copy is not to be trusted.

    Raises:
        ClusterUnreachableError: No broker answered.
    """
    if known.dead_letters_pending or not known.is_of(spec.target) or not _is_fresh(spec, known, verify_after):
        return None
    clock = Clock()
    try:
        with contextlib.closing(source.restore_enumerator(context, known.state)) as enumerator:
            return enumerator.start(), clock.lap()
    except ClusterUnreachableError:
        raise
    except KafkaFlipError as error:
        # The copy may be outdated. The table decides, and raises the same error if it agrees.
        spec.log.info("the last known position does not match the log (%s); reading the table", type(error).__name__)
        return None


def _is_fresh(spec: RunSpec[Source], known: KnownPosition, verify_after: timedelta) -> bool:
    """Whether a recorded position is recent enough to be trusted."""
    now = wall_clock.now()
    age = now - known.verified_at
    if age < timedelta(0):
        # A clock was wrong. Otherwise the record would be trusted as long as that clock was ahead.
        spec.log.warning(
            "the recorded position was verified in the future, at %s; this machine's clock says %s; reading the table",
            known.verified_at.isoformat(timespec="seconds"),
            now.isoformat(timespec="seconds"),
        )
        return False
    return age < verify_after and (known.kept_until is None or now < known.kept_until)


def idle_position(spec: RunSpec[Source], source: Source, known: KnownPosition, plan: ReadPlan) -> KnownPosition | None:
    """Returns the position of a run that has nothing to do; None if it has, or if the table's log contradicts the copy.

    If the log can't be read without Spark, the table's number of rows is unknown.
    """
    if not plan.changes_nothing(known.state):
        return None
    # The plan has compared the leaders' epochs, so that the next run need not.
    state = replace(known.state, leader_epochs=plan.state.leader_epochs)
    confirmed = replace(known, state=state, table_rows=None)
    if known.log is not None and known.anchor_version is not None:
        seen = known.seen_in_log()
        if seen is None:
            spec.log.info("the log of %s does not confirm the recorded position; reading the table", spec.target)
            return None
        version, rows = seen
        confirmed = replace(confirmed, table_version=version, table_rows=rows)
    log_with_fields(spec.log, "nothing new on %s, not starting Spark", source, topic_partitions=len(plan.end_offsets))
    return confirmed
