"""The life of an enumerator: batches handed out, handed back, planned again, repeated; and runs that die in between."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from tests.source.log_model import ClusterModel, LogModel

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def _enumerator(cluster, state=None, context=None, **changes):
    source = KafkaSource(topics=("t",), **changes)
    return KafkaSourceEnumerator(source, cluster, context or SplitEnumeratorContext(), state)


def _texts(assignment):
    return [str(split) for split in assignment.plan.splits]


def test_the_narrower_of_two_limits_counts_and_a_batch_is_never_empty():
    assert Limits(max_records_per_batch=7, max_bytes_per_batch=1000).max_offsets(100) == 7
    assert Limits(max_records_per_batch=70, max_bytes_per_batch=1000).max_offsets(100) == 10
    assert Limits(max_bytes_per_batch=1000).max_offsets(1_000_000) == 1
    assert Limits(max_bytes_per_batch=1000).max_offsets(None) == 1
    assert Limits(max_bytes_per_batch=1000).max_offsets(0.0) == 1000, "records without bytes lift no limit"
    assert Limits().max_offsets(100) is None


# --- any sequence -------------------------------------------------------------------------------------------------

_limits = st.builds(
    Limits,
    max_records_per_batch=st.none() | st.integers(1, 7),
    max_bytes_per_batch=st.none() | st.integers(1, 90),
)


@settings(max_examples=150)
@given(
    data=st.data(),
    limits=_limits,
    max_drift=st.none() | st.integers(1, 40).map(lambda drift: timedelta(milliseconds=drift)),
)
def test_whatever_fails_in_between_each_record_is_committed_once(data, limits, max_drift):
    cluster = ClusterModel({T0: LogModel(), T1: LogModel(), T2: LogModel()})
    committed: dict[TopicPartition, list[int]] = {tp: [] for tp in cluster.logs}
    state: EnumeratorState | None = None

    def grow():
        for log in cluster.logs.values():
            log.timestamps += data.draw(st.lists(st.integers(0, 100), max_size=5))

    def start(enumerator):
        before = enumerator.snapshot_state()
        plan = enumerator.start()
        if max_drift is not None:
            _check_alignment(plan, cluster, max_drift)
            if before is not None and before.watermark is not None:
                assert plan.state.watermark >= before.watermark, "the low watermark goes back"

    for _ in range(data.draw(st.integers(1, 4))):
        grow()
        enumerator = _enumerator(cluster, state, max_drift=max_drift)
        start(enumerator)
        while (assignment := enumerator.assign(limits)) is not None:
            fate = data.draw(st.sampled_from(["committed", "committed", "repeated", "planned again", "died"]))
            if fate == "committed":
                for split in assignment.plan.splits:
                    committed[split.topic_partition] += range(split.starting_offset, split.stopping_offset)
                state = enumerator.snapshot_state()
                continue
            if fate == "died":
                break
            enumerator.add_splits_back(assignment.plan)
            if fate == "planned again":
                grow()
                start(enumerator)
            # A batch that fails for ever would go on for ever.
            again = enumerator.assign(limits)
            assert again is not None or assignment.plan.is_empty
            if again is None:
                break
            if fate == "repeated":
                assert again.plan.splits == assignment.plan.splits
            for split in again.plan.splits:
                committed[split.topic_partition] += range(split.starting_offset, split.stopping_offset)
            state = enumerator.snapshot_state()
    position = {} if state is None else state.position
    for tp, offsets in committed.items():
        assert offsets == list(range(position.get(tp, 0)))


def _check_alignment(plan, cluster, max_drift):
    """No busy topic partition is read further than the slowest one's reachable time and the drift."""
    drift = max_drift // timedelta(milliseconds=1)
    reachable = {}
    for tp, log in cluster.logs.items():
        stop, start = plan.state.position[tp] + plan.paused.get(tp, 0), plan.starting_position[tp]
        assert stop == log.high_watermark
        if start < stop:
            reachable[tp] = max(log.timestamps[:stop])
    if not reachable:
        assert plan.splits == ()
        return
    slowest = min(reachable.values())
    for split in plan.splits:
        timestamps = cluster.logs[split.topic_partition].timestamps
        assert max(timestamps[split.starting_offset : split.stopping_offset]) <= slowest + drift
    for tp, offsets in plan.paused.items():
        timestamps = cluster.logs[tp].timestamps
        # A topic partition is as far as the highest timestamp before it. And the slowest is known to a part of the
        # drift only, so that a record may wait that is just within it.
        assert max(timestamps[: plan.state.position[tp] + 1]) > slowest + drift - max(1, drift // 64)
        assert offsets > 0
    assert plan.splits, "there is something to read, and nothing is read"
    assert slowest - max(1, drift // 64) <= plan.state.watermark
