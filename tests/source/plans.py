"""Plans without a cluster, for tests of what is done with them."""

from __future__ import annotations

from dagster_kafka_flip.source.plan import ReadPlan
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState


def make_plan(ranges: dict[int, tuple[int, int]], topic: str = "t") -> ReadPlan:
    """A plan of one topic that reads these ranges to their ends; an idle partition 99 stands at 5."""
    partitions = {TopicPartition(topic, number): span for number, span in ranges.items()}
    idle = {TopicPartition(topic, 99): 5}
    ends = {tp: stop for tp, (_, stop) in partitions.items()} | idle
    return ReadPlan(
        state=EnumeratorState(position=ends, cluster_id="c", topic_ids={topic: "id"}),
        beginning_offsets=dict.fromkeys(ends, 0),
        end_offsets=ends,
        high_watermarks=ends,
        starting_position={tp: start for tp, (start, _) in partitions.items()} | idle,
        discovered=(TopicPartition(topic, 0),),
    )
