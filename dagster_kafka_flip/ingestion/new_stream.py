"""Detects a stream that starts again although it had a position: its table was dropped or recreated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import PositionLostError
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.source.identity import is_same_log
from dagster_kafka_flip.source.offsets import OffsetsInitializer

if TYPE_CHECKING:
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.target import DeltaTarget

_SHOWN = 3


def check_nothing_is_skipped(
    recorded: EnumeratorState, plan: ReadPlan, start: OffsetsInitializer, target: DeltaTarget
) -> None:
    """Rejects a new stream that would skip records after the old stream's position.

    These records were never written, and nothing would show that they are missing. Records deleted by retention are not
    counted.

    Args:
        recorded: The stream's state in the record of its last run.
        plan: The new stream's first plan.
        start: The source's starting offsets.
        target: The table without a position.

    Raises:
        PositionLostError: The new stream would skip records.
    """
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
    ranges = ", ".join(f"{tp} [{at}, {plan.starting_position[tp]})" for tp, at in list(skipped.items())[:_SHOWN])
    more = f" and {counted(len(skipped) - _SHOWN, 'more topic partition')}" if len(skipped) > _SHOWN else ""
    msg = (
        f"{target} holds no position of the stream {target.stream!r}, but the record of its last run had one: the "
        f"table was dropped or recreated. A new stream starts at {start} and would skip up to "
        f"{counted(offsets, 'record')} that were never written: {ranges}{more}. Nothing was written. To write them "
        f"first, run once with start set to {OffsetsInitializer.specific_offsets(continues_at)}; to continue without "
        f"them, run once with start set to {start}; or restore the table, or correct its name"
    )
    raise PositionLostError(msg)
