"""Which offsets are looked for twice, and how they are counted."""

from __future__ import annotations

import contextlib
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_kafka_flip.checks.table_contents import Duplicates, find_duplicates, topics_with_several_logs
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.table.window_rows import RecordColumns, covering_predicate, offsets_predicate

COLUMNS = RecordColumns("topic", "partition", "offset")


def split(topic, partition, start, stop):
    return KafkaPartitionSplit(TopicPartition(topic, partition), start, stop)


_SPLITS = st.lists(
    st.builds(
        lambda topic, partition, start, span: split(topic, partition, start, start + span),
        st.sampled_from(["a", "b's"]),
        st.integers(0, 2),
        st.integers(0, 30),
        st.integers(1, 10),
    ),
    max_size=10,
)
_ROWS = [(topic, partition, offset) for topic in ("a", "b's") for partition in range(3) for offset in range(41)]


def _matching(predicate):
    with contextlib.closing(sqlite3.connect(":memory:")) as base:
        base.execute("CREATE TABLE t (topic, partition, offset)")
        base.executemany("INSERT INTO t VALUES (?, ?, ?)", _ROWS)
        return set(base.execute(f"SELECT * FROM t WHERE {predicate.replace(chr(92) + chr(39), chr(39) * 2)}"))


@given(_SPLITS)
def test_conditions_hold_for_the_rows_of_the_splits_and_for_no_others(splits):
    rows = {
        (*one.topic_partition, offset) for one in splits for offset in range(one.starting_offset, one.stopping_offset)
    }
    for predicate in (offsets_predicate(splits, COLUMNS), covering_predicate(splits, COLUMNS)):
        assert _matching(predicate or "false") == rows


def test_with_very_many_topic_partitions_each_topics_span_is_checked():
    splits = [split("a", number, number, number + 10) for number in range(300)] + [split("b's", 0, 5, 6)]
    assert covering_predicate(splits, COLUMNS) == (
        "(`topic` = 'a' AND `offset` >= 0 AND `offset` < 309) OR (`topic` = 'b\\'s' AND `offset` >= 5 AND `offset` < 6)"
    )


def test_a_topic_that_has_had_two_ids_or_two_clusters_is_remade():
    def state(topic_id, cluster="c", topic="t"):
        return EnumeratorState({TopicPartition(topic, 0): 1}, cluster, {} if topic_id is None else {topic: topic_id})

    assert topics_with_several_logs([state("1"), state("1"), state(None), state("2", topic="u")]) == ()
    assert topics_with_several_logs([state("1"), state("2"), state("2", topic="u")]) == ("t",)
    assert topics_with_several_logs([state(None), state(None, "d")]) == ("t",)


@pytest.mark.spark
def test_duplicates_are_counted_and_rows_without_an_offset_are_not(spark):
    table = spark.createDataFrame(
        [
            *[("t", 0, 1)] * 3,
            *[("t", 0, 2), ("t", 1, 2)],
            *[("u", 1, 2)] * 2,
            *[("t", 0, None)] * 2,
            (None, None, None),
        ],
        "topic STRING, partition INT, offset BIGINT",
    )
    assert find_duplicates(table, COLUMNS, None) == Duplicates(7, 2, 3, "t-0 offset 1")
    assert find_duplicates(table, COLUMNS, None, ["t"]) == Duplicates(2, 1, 1, "u-1 offset 2")
    one = [split("t", 0, 2, 5), split("t", 1, 0, 3)]
    assert find_duplicates(table, COLUMNS, one) == Duplicates(2, 0, 0, None)
    assert find_duplicates(table, COLUMNS, ()) == Duplicates(0, 0, 0, None)
