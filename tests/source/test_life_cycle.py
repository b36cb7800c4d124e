"""The life of an enumerator: batches handed out, handed back, planned again, repeated; and runs that die in between."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_kafka_flip.errors import ConfigurationError, TopicNotFoundError
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from tests.source.log_model import ClusterModel, LogModel

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
ALL = Limits()


def _log(records, beginning=0):
    return LogModel([1000 * (number + 1) for number in range(records)], beginning)


def _enumerator(cluster, state=None, context=None, **changes):
    source = KafkaSource(topics=("t",), **changes)
    return KafkaSourceEnumerator(source, cluster, context or SplitEnumeratorContext(), state)


def _texts(assignment):
    return [str(split) for split in assignment.plan.splits]


def test_after_another_start_it_is_planned_with_what_has_arrived_since():
    cluster = ClusterModel({T0: _log(6)})
    enumerator = _enumerator(cluster, starting_offsets=OffsetsInitializer.latest())
    enumerator.start()
    cluster.logs[T0] = _log(9)
    first = enumerator.assign(ALL)
    assert first is not None
    enumerator.add_splits_back(first.plan)
    enumerator.start()
    again = enumerator.assign(ALL)
    assert again is not None
    assert _texts(again) == ["t-0 [6, 9)"], "a stream that begins at the end does not begin later the second time"


def test_a_run_that_overrides_the_position_continues_from_its_own_start_when_planned_again():
    cluster = ClusterModel({T0: _log(6)})
    source = KafkaSource(topics=("t",)).with_overrides(starting_offsets=OffsetsInitializer.specific_offsets({T0: 2}))
    state = EnumeratorState({T0: 5}, "cluster", {"t": "topic-id"})
    enumerator = KafkaSourceEnumerator(source, cluster, SplitEnumeratorContext(), state)
    enumerator.start()
    first = enumerator.assign(Limits(max_records_per_batch=1))
    assert first is not None
    cluster.logs[T0] = _log(7)
    enumerator.start()
    rest = enumerator.assign(ALL)
    assert rest is not None
    assert _texts(rest) == ["t-0 [3, 7)"], "the first batch is kept, and not read again"


@pytest.mark.parametrize(
    ("splits", "error", "message"),
    [
        ([KafkaPartitionSplit(T2, 0, 1)], TopicNotFoundError, "t-2 does not exist: the topic t has"),
        (
            [KafkaPartitionSplit(T0, 2, 3), KafkaPartitionSplit(T0, 3, 4)],
            ConfigurationError,
            "one batch can't repeat two splits of the same topic partition",
        ),
    ],
)
def test_a_replay_of_what_the_log_does_not_hold_is_refused(splits, error, message):
    enumerator = _enumerator(ClusterModel({T0: _log(6, beginning=2)}))
    with pytest.raises(error) as refused:
        enumerator.replay(splits)
    assert str(refused.value).startswith(message)


# --- limits -------------------------------------------------------------------------------------------------------


def test_a_limit_in_bytes_uses_known_record_sizes():
    context = SplitEnumeratorContext(record_bytes=100)
    enumerator = _enumerator(ClusterModel({T0: _log(60)}), context=context)
    enumerator.start()
    batch = enumerator.assign(Limits(max_bytes_per_batch=1000))
    assert batch is not None
    assert _texts(batch) == ["t-0 [0, 10)"]


def test_without_a_known_record_size_a_limit_in_bytes_takes_records_to_be_large():
    context = SplitEnumeratorContext()
    enumerator = _enumerator(ClusterModel({T0: _log(60)}), context=context)
    enumerator.start()
    first = enumerator.assign(Limits(max_bytes_per_batch=3 * 1024 * 1024))
    context.record_bytes = 100 * 1024
    second = enumerator.assign(Limits(max_bytes_per_batch=3 * 1024 * 1024))
    assert (first and _texts(first), second and _texts(second)) == (["t-0 [0, 3)"], ["t-0 [3, 33)"])


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
