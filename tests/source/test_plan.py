"""ReadPlan: lag, and the cutting into batches."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from dagster_kafka_flip.source.plan import ReadPlan
from dagster_kafka_flip.source.split import TopicPartition
from tests.source.plans import make_plan

_ranges = st.dictionaries(
    st.integers(0, 20), st.tuples(st.integers(0, 1000), st.integers(0, 500)).map(lambda r: (r[0], r[0] + r[1]))
)


@given(_ranges, st.integers(1, 600))
def test_batches_tile_the_plan_and_the_last_one_ends_where_the_plan_does(ranges, limit):
    plan = make_plan(ranges)
    position = dict(plan.starting_position)
    rest: ReadPlan | None = plan
    batches = 0
    while rest is not None:
        before = rest
        batch = before.take(limit)
        rest = before.continued_at(batch.state.position)
        batches += 1
        assert 0 <= batch.offset_span <= limit
        assert rest is None or batch.offset_span == limit, "a batch is filled unless it is the last"
        for split in batch.splits:
            assert not split.is_empty
            assert split.starting_offset == position[split.topic_partition], "no gap and no overlap"
            position[split.topic_partition] = split.stopping_offset
        assert len({split.topic_partition for split in batch.splits}) == len(batch.splits)
        assert dict(batch.state.position) == position
        assert (batch.state.cluster_id, batch.state.topic_ids) == ("c", {"t": "id"})
        if rest is not None:
            assert dict(rest.starting_position) == position
            assert rest.state == plan.state
            assert rest.offset_span == before.offset_span - limit
        # In proportion: no topic partition is off its exact share by a whole record.
        for split in batch.splits:
            whole = next(s for s in before.splits if s.topic_partition == split.topic_partition).offset_span
            share = whole * min(limit, before.offset_span) / before.offset_span
            assert abs(split.offset_span - share) < 1
    assert position == dict(plan.state.position)
    assert batches == max(1, -(-plan.offset_span // limit))


def test_a_batch_is_spread_in_proportion_to_what_is_left():
    plan = make_plan({0: (0, 100), 1: (50, 60), 2: (7, 7)})
    batch = plan.take(11)
    rest = plan.continued_at(batch.state.position)
    assert [str(split) for split in batch.splits] == ["t-0 [0, 10)", "t-1 [50, 51)"]
    assert rest is not None
    assert [str(split) for split in rest.splits] == ["t-0 [10, 100)", "t-1 [51, 60)"]
    assert rest.discovered == (), "what was found is told once, with the first batch"
    assert batch.discovered == (TopicPartition("t", 0),)


def test_without_a_limit_the_plan_is_one_batch():
    plan = make_plan({0: (0, 10)})
    assert plan.take(None) == plan.take(10) == plan
    assert plan.continued_at(plan.state.position) is None


def test_lag_is_counted_to_the_end_offset_and_what_is_held_back_beyond_it():
    t0, t1, idle = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 99)
    plan = make_plan({0: (2, 6), 1: (3, 3)})
    plan = replace(
        plan,
        end_offsets={t0: 10, t1: 3, idle: 4},
        high_watermarks={t0: 13, t1: 3, idle: 4},
        state=replace(plan.state, position={t0: 6, t1: 3, idle: 5}),
    )
    assert plan.lag_before == {t0: 8, t1: 0, idle: 0}
    assert plan.lag_after == {t0: 4, t1: 0, idle: 0}
    assert plan.held_back == {t0: 3}
    assert (plan.offset_span, plan.is_empty) == (4, False)
    assert make_plan({1: (3, 3)}).is_empty
