"""What a table of windows keeps of the logs that its rows are of, and what of a window may be replaced."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_kafka_flip.errors import DocumentVersionError, StreamOverlapError
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.source.window import Window
from dagster_kafka_flip.table.commit import Commit
from dagster_kafka_flip.table.history import commits_that_count
from dagster_kafka_flip.table.window_rows import TOPIC_PROPERTY, LandedLogs, LandedTopic, Scope, windows_predicate

WINDOW = Window("day", 0, 1000)

topic_partitions = st.sets(st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 4)))


def partitions(*names: str) -> set[TopicPartition]:
    return {TopicPartition(name[:-1], int(name[-1])) for name in names}


def landed(*names: str, stream: str = "main") -> LandedLogs:
    return LandedLogs().landing(EnumeratorState({}, "c1", {"a": "id-a"}), partitions(*names), stream, 0)


@given(
    st.dictionaries(
        st.sampled_from(["a", "b.c", "d-e_f"]),
        st.builds(
            LandedTopic,
            st.sampled_from(["main", "other"]),
            st.frozensets(st.integers(0, 300)),
            st.none() | st.text(max_size=5),
            st.none() | st.integers(0, 2**53),
        ),
    ),
    st.none() | st.text(min_size=1, max_size=5),
)
def test_properties_are_read_back_unchanged(topics, cluster):
    logs = LandedLogs(cluster, topics)
    assert LandedLogs.of({"delta.appendOnly": "false", **logs.properties()}) == logs


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"stream": "main", "partitions": 1}', '{"partitions": []}'])
def test_a_property_that_was_changed_by_hand_is_an_error_and_not_nothing(text):
    with pytest.raises(DocumentVersionError, match=r"the table property \S+\.topic\.t can't be read"):
        LandedLogs.of({f"{TOPIC_PROPERTY}t": text})


def test_ids_that_are_missing_once_are_not_forgotten():
    logs = landed("a0").landing(EnumeratorState({}, None, {}), partitions("a0", "a1"), "main", 9)
    assert (logs.cluster_id, logs.topic_ids) == ("c1", {"a": "id-a"})
    assert logs.partitions() == partitions("a0", "a1")
    assert logs.made_again([WINDOW], ["a"]) is None


@pytest.mark.parametrize("now", [EnumeratorState({}, "c1", {"a": "id-2"}), EnumeratorState({}, "c2", {"a": "id-a"})])
def test_windows_from_before_a_topic_was_recreated_stay_under_suspicion(now):
    logs = landed("a0", "b0").landing(now, partitions("a0"), "main", 500)
    assert "the window day" in str(logs.made_again([WINDOW], ["a"]))
    assert logs.made_again([Window("later", 500, 900)], ["a"]) is None
    # Nor does the next landing take it back.
    again = logs.landing(now, partitions("a0"), "main", 900)
    assert again.topics["a"].made_again_ms == 500
    assert (again.made_again([WINDOW], ["b"]) is None) == (now.cluster_id == "c1")


def test_a_topic_recreated_without_ids_stays_under_suspicion_too():
    now = EnumeratorState({}, "c1", {})
    logs = LandedLogs().landing(now, partitions("a0", "a1"), "main", 0)
    assert logs.landing(now, partitions("a0"), "main", 500).made_again([WINDOW], ["a"]) is None
    again = logs.landing(now, partitions("a0"), "main", 500, made_again=["a"])
    assert "the window day" in str(again.made_again([WINDOW], ["a"]))


def test_another_asset_of_the_same_topic_is_refused_and_one_of_other_topics_is_not():
    logs = landed("a0", stream="first")
    with pytest.raises(
        StreamOverlapError,
        match=r"the stream 'first' writes windows of the topic a to t, and this run has the stream 'second'",
    ):
        logs.check_stream("second", ["a", "b"], "t")
    logs.check_stream("second", ["b"], "t")
    logs.check_stream("first", ["a"], "t")


@given(topic_partitions, topic_partitions, st.none() | st.sets(st.sampled_from("abc"), min_size=1))
def test_never_a_row_of_a_log_that_is_not_read_is_replaced(known, read, topics):
    read = {tp for tp in read if topics is None or tp.topic in topics}
    scope = Scope.of(LandedLogs().landing(EnumeratorState({}), known, "main", 0), read, topics and sorted(topics))

    def is_replaced(tp):
        if scope.topics is None:
            return True
        if tp.topic not in scope.topics:
            return False
        chosen = scope.topics[tp.topic]
        return chosen is None or tp.partition in chosen

    assert not [tp for tp in known - read if is_replaced(tp)]
    assert all(map(is_replaced, read))
    if topics is None:
        assert scope.kept == known - read


@pytest.mark.parametrize(
    ("names", "read", "topics", "expected"),
    [
        (("a0", "b0"), ("a0", "b0"), None, "`w` IN ('day')"),
        (("a0", "b0"), ("a0",), None, "`w` IN ('day') AND `t` IN ('a')"),
        (("a0",), ("a0", "b0"), ["a", "b"], "`w` IN ('day') AND `t` IN ('a', 'b')"),
        (("a0", "a1"), ("a0",), None, "`w` IN ('day') AND ((`t` = 'a' AND `p` IN (0)))"),
        (("a0", "a1"), ("a0", "b0"), None, "`w` IN ('day') AND (`t` IN ('b') OR (`t` = 'a' AND `p` IN (0)))"),
        ((), ("a0",), None, "`w` IN ('day')"),
    ],
)
def test_the_predicate_names_topics_only_where_others_are_to_stay(names, read, topics, expected):
    scope = Scope.of(landed(*names), partitions(*read), topics)
    assert windows_predicate([WINDOW], "w", scope, "t", "p") == expected


def commit(number, operation="WRITE", **parameters):
    return Commit(number, operation, parameters, {})


def counting(*commits):
    return [each.version for each in commits_that_count(iter(commits))]


def test_commits_undone_by_a_restore_do_not_count():
    older = [commit(version) for version in (4, 3, 2, 1, 0)]
    assert counting(*older) == [4, 3, 2, 1, 0]
    assert counting(commit(6), commit(5, "RESTORE", version="2"), *older) == [6, 5, 2, 1, 0]
    # Where it can't be told, everything counts.
    assert counting(commit(5, "RESTORE", timestamp="then"), *older) == [5, 4, 3, 2, 1, 0]
    # The later one counts, and an undone RESTORE does not.
    assert counting(commit(6, "RESTORE", version="4"), commit(5, "RESTORE", version="1"), *older) == [6, 4, 3, 2, 1, 0]
