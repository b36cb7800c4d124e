"""A stream that begins anew although it had a position: its table was dropped, or made anew by somebody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import PositionLostError
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
    """Refuses a new stream that would begin behind where the old one had to go on.

    What lies in between was never landed, and nothing would tell that it is missing. What retention has deleted
    meanwhile is gone either way.

    Args:
        recorded: Where the stream stood, by the record of its last run.
        plan: The new stream's first plan.
        start: Where the source begins.
        target: The table that holds no position.

    Raises:
        PositionLostError: It does begin behind that.
    """
    went_on = {
        # A topic partition that has come since would have been read from its beginning.
        tp: min(max(recorded.position.get(tp, beginning), beginning), plan.end_offsets[tp])
        for tp, beginning in sorted(plan.beginning_offsets.items())
        if tp in plan.end_offsets and is_same_log(tp, recorded, plan.state)
    }
    skipped = {tp: at for tp, at in went_on.items() if at < plan.starting_position[tp]}
    if not skipped:
        return
    offsets = sum(plan.starting_position[tp] - at for tp, at in skipped.items())
    ranges = ", ".join(f"{tp} [{at}, {plan.starting_position[tp]})" for tp, at in list(skipped.items())[:_SHOWN])
    more = f" and {len(skipped) - _SHOWN} more topic partitions" if len(skipped) > _SHOWN else ""
    msg = (
        f"{target} holds no position of the stream {target.stream!r}, and by the record of its last run it had one: "
        f"the table was dropped, or made anew. A new stream starts at {start}, and would leave out up to {offsets} "
        f"records that were never landed: {ranges}{more}. Nothing was written. To land them first, run once with start "
        f"set to {OffsetsInitializer.specific_offsets(went_on)}; to go on without them, run once with start set to "
        f"{start}; or bring the table back, or correct its name"
    )
    raise PositionLostError(msg)
