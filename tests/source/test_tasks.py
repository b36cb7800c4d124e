"""Which task reads what: all of it, evenly, and by no more tasks than are worth it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dagster_kafka_flip.source.plan import MAX_RECORDS_PER_TASK, MAX_SPLITS_PER_TASK, MIN_RECORDS_PER_TASK, plan_tasks
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition


def _splits(*spans, first=7):
    return tuple(
        KafkaPartitionSplit(TopicPartition("t", number), first, first + span) for number, span in enumerate(spans)
    )


def _spans(tasks):
    return [sum(split.offset_span for split in task) for task in tasks]


@given(st.lists(st.integers(1, 10_000_000), max_size=60), st.integers(1, 64))
def test_the_tasks_tile_the_splits(spans, parallelism):
    splits = _splits(*spans)
    plan = plan_tasks(splits, parallelism)
    parts = sorted(part for task in plan.tasks for part in task)
    joined: list[KafkaPartitionSplit] = []
    for part in parts:
        assert part.offset_span > 0
        if joined and joined[-1].topic_partition == part.topic_partition:
            assert joined[-1].stopping_offset == part.starting_offset
            joined[-1] = KafkaPartitionSplit(part.topic_partition, joined[-1].starting_offset, part.stopping_offset)
        else:
            joined.append(part)
    assert tuple(joined) == splits
    # No task has more to do than one of a divided split, but for the odd one among many thin ones.
    assert all(
        span <= max(plan.records_per_task, MIN_RECORDS_PER_TASK) for span in _spans(plan.tasks[: len(plan.divided)])
    )
    assert len(plan.tasks) <= len(splits) + sum(spans) // MIN_RECORDS_PER_TASK + parallelism


def test_one_topic_partition_with_nearly_all_records_keeps_every_core_busy():
    plan = plan_tasks(_splits(9_000_000, 300_000, 300_000, 400_000), 4)
    assert [task[0].topic_partition.partition for task in plan.tasks] == [0] * 5 + [1, 2, 3]
    fat = [task for task in plan.tasks if task[0].topic_partition.partition == 0]
    assert set(_spans(fat)) == {1_800_000}


def test_thousands_of_thin_topic_partitions_are_read_by_few_tasks():
    plan = plan_tasks(_splits(*[10] * 800), 8)
    assert plan.divided == ()
    assert len(plan.tasks) == 8
    assert set(_spans(plan.tasks)) == {1000}


def test_no_task_opens_so_many_consumers_that_they_fill_the_heap():
    plan = plan_tasks(_splits(*[10] * 5000), 8)
    assert [len(task) for task in plan.tasks] == [MAX_SPLITS_PER_TASK] * 50


def test_thin_ones_are_as_many_tasks_as_their_records_are_worth():
    plan = plan_tasks(_splits(*[5000] * 200), 2)
    assert _spans(plan.tasks) == [500_000] * 2


def test_a_handful_of_records_is_not_torn_apart():
    assert [len(task) for task in plan_tasks(_splits(3), 8).tasks] == [1]
    assert [len(task) for task in plan_tasks(_splits(3, 4), 8).tasks] == [1, 1]
    assert plan_tasks((), 8).tasks == ()


def test_a_single_core_reads_in_tasks_that_are_not_too_large_to_repeat():
    plan = plan_tasks(_splits(50_000_000), 1)
    assert max(_spans(plan.tasks)) <= MAX_RECORDS_PER_TASK
