"""The enumerator against a model of a log: what it plans over many runs, and each of its refusals."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_kafka_flip.errors import (
    ClusterChangedError,
    ConfigurationError,
    EndBeforePositionError,
    OffsetNotFoundError,
    OffsetOutOfRangeError,
    RetentionOvertookPositionError,
    TopicNotFoundError,
    TopicRecreatedError,
)
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from tests.faults.following import AFTER_A_KILL
from tests.source.log_model import ClusterModel, LogModel

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def _source(**changes):
    builder = KafkaSource.builder().set_topics("t").set_group_id("g")
    return builder.build().model_copy(update=changes)


def _enumerator(cluster, state=None, *, override=None, parallelism=1, **changes):
    source = _source(**changes)
    if override is not None:
        source = source.with_overrides(starting_offsets=override)
    return KafkaSourceEnumerator(source, cluster, SplitEnumeratorContext(parallelism), state)


def _plan(cluster, state=None, **changes):
    return _enumerator(cluster, state, **changes).start()


def _log(records, beginning=0, open_from=None):
    return LogModel([1000 * (number + 1) for number in range(records)], beginning, open_from)


@pytest.mark.parametrize(
    ("changes", "requests"),
    [
        ({}, 5),
        ({"isolation_level": "read_uncommitted"}, 4),
        (
            {
                "starting_offsets": OffsetsInitializer.timestamp(5),
                "stopping_offsets": OffsetsInitializer.timestamp(9000),
            },
            # One more for each of the two, which reads whether a record is at what was found.
            9,
        ),
        ({"starting_offsets": OffsetsInitializer.committed_offsets("earliest")}, 6),
    ],
    ids=["earliest to latest", "uncommitted", "timestamps", "committed"],
)
def test_the_number_of_requests_does_not_grow_with_the_number_of_topic_partitions(changes, requests):
    for partitions in (1, 500):
        cluster = ClusterModel({TopicPartition("t", number): _log(10) for number in range(partitions)})
        plan = _plan(cluster, **changes)
        assert len(plan.splits) == partitions
        assert cluster.requests == requests
        cluster.requests = 0
        assert _plan(cluster, plan.state, **changes).is_empty
        assert cluster.requests <= requests


def test_a_partition_that_vanished_is_reported_and_keeps_its_position():
    state = EnumeratorState({T0: 2, T2: 9}, "cluster", {"t": "topic-id", "gone": "other-id"})
    plan = _plan(ClusterModel({T0: _log(3)}), state)
    assert plan.removed == (T2,)
    assert dict(plan.state.position) == {T0: 3, T2: 9}
    assert dict(plan.state.topic_ids) == {"t": "topic-id", "gone": "other-id"}
    assert plan.lag_after == {T0: 0}


@pytest.mark.parametrize("reported", ["now", "then", "never"])
def test_without_ids_a_topic_with_fewer_partitions_counts_as_recreated(reported):
    cluster = ClusterModel({T0: _log(3), T1: _log(2)}, topic_id="topic-id" if reported == "now" else None)
    state = EnumeratorState({T0: 3, T1: 2, T2: 9}, "cluster", {"t": "topic-id"} if reported == "then" else {})
    with pytest.raises(
        TopicRecreatedError, match=r"^the topic t was deleted and recreated: the position includes t-2, "
    ):
        _plan(cluster, state)
    context = SplitEnumeratorContext(tolerated=frozenset({TopicRecreatedError}))
    plan = KafkaSourceEnumerator(_source(), cluster, context, state).start()
    assert [str(split) for split in plan.splits] == ["t-0 [0, 3)", "t-1 [0, 2)"]
    assert dict(plan.state.position) == {T0: 3, T1: 2}, "the next run meets nothing of the earlier topic"


def test_an_override_with_specific_offsets_moves_only_what_it_names():
    cluster = ClusterModel({T0: _log(10, beginning=3), T1: _log(9), T2: _log(4)}, committed={T1: 8})
    state = EnumeratorState({T0: 1, T1: 5}, "cluster", {})
    # The way out of what retention has overtaken, as its error advises.
    plan = _plan(cluster, state, override=OffsetsInitializer.specific_offsets({T0: 3}))
    assert [str(split) for split in plan.splits] == ["t-0 [3, 10)", "t-1 [5, 9)", "t-2 [0, 4)"]
    fresh = _plan(cluster, None, override=OffsetsInitializer.specific_offsets({T0: 4}))
    assert [str(split) for split in fresh.splits] == ["t-0 [4, 10)", "t-1 [8, 9)", "t-2 [0, 4)"]


def test_an_id_that_the_cluster_does_not_report_is_unknown_and_not_different():
    cluster = ClusterModel({T0: _log(3)}, id=None, topic_id=None)
    plan = _plan(cluster, EnumeratorState({T0: 1}, "cluster", {"t": "topic-id"}))
    assert [str(split) for split in plan.splits] == ["t-0 [1, 3)"]
    assert (plan.state.topic_ids, plan.state.cluster_id) == ({"t": "topic-id"}, "cluster"), "and is not forgotten"
    assert _plan(ClusterModel({T0: _log(3)}), EnumeratorState({T0: 1})).state.cluster_id == "cluster"


_STATE = EnumeratorState({T0: 4, T1: 2}, "cluster", {"t": "topic-id"})


@pytest.mark.parametrize(
    ("logs", "state", "error", "reported"),
    [
        (
            {T0: _log(9, beginning=7), T1: _log(2)},
            _STATE,
            RetentionOvertookPositionError,
            ("t-0: ", "next offset to read is 4, but the log begins at 7: up to 3 ", 'offsets:{"t": {"0": 7}}'),
        ),
        (
            {T0: _log(9, beginning=7), T1: _log(9, beginning=4)},
            _STATE,
            RetentionOvertookPositionError,
            ("(also affects 1 more topic partition, up to 5 records in total)", 'offsets:{"t": {"0": 7, "1": 4}}'),
        ),
        (
            {T0: _log(4), T1: _log(1)},
            _STATE,
            EndBeforePositionError,
            ("t-1: the log ends at offset 1, before the position 2", 'offsets:{"t": {"1": 0}}', AFTER_A_KILL),
        ),
        (
            {T0: replace(_log(3), epochs={0: 0, 1: 2}), T1: _log(2)},
            replace(_STATE, leader_epochs={T0: 0}),
            EndBeforePositionError,
            ("ends at offset 3, before the position 4: ", "at offset 2", 'offsets:{"t": {"0": 2}}', AFTER_A_KILL),
        ),
        (
            {T0: replace(_log(3), epochs={0: 0, 1: 2}), T1: _log(2)},
            replace(_STATE, leader_epochs={T0: 0}, topic_ids={}),
            EndBeforePositionError,
            ("or the topic is a different one", 'offsets:{"t": {"0": 0}}', AFTER_A_KILL),
        ),
        (
            {T0: replace(_log(9), epochs={0: 0, 4: 3}), T1: replace(_log(9), epochs={0: 0, 7: 1})},
            replace(_STATE, leader_epochs={T0: 3, T1: 0}),
            EndBeforePositionError,
            ("truncated at offset 3 and written again, beyond the position 4", 'offsets:{"t": {"0": 3, "1": 1}}'),
        ),
        (
            {T0: _log(4), T1: _log(2)},
            replace(_STATE, cluster_id="another"),
            ClusterChangedError,
            ("the Kafka cluster another, but the bootstrap servers now lead to cluster", "new stream id"),
        ),
        (
            {T0: _log(4), T1: _log(2)},
            replace(_STATE, topic_ids={"t": "old-id"}),
            TopicRecreatedError,
            ("topic id old-id, and the id is now topic-id", """position set --table <table> --stream <stream> --"""),
        ),
    ],
)
def test_a_position_that_does_not_fit_the_log_is_refused_with_the_numbers(logs, state, error, reported):
    with pytest.raises(error) as refused:
        _plan(ClusterModel(logs), state)
    assert [each for each in reported if each not in str(refused.value)] == []


def test_records_that_retention_took_from_an_added_topic_partition_are_missed_and_those_of_an_added_topic_are_not():
    state, other = EnumeratorState({T0: 4}, "cluster", {"t": "topic-id"}), TopicPartition("u", 0)
    cluster = ClusterModel({T0: _log(4), T1: _log(7, beginning=5), other: _log(9, beginning=3)})
    source = KafkaSource(topics=("t", "u"))
    with pytest.raises(RetentionOvertookPositionError) as refused:
        KafkaSourceEnumerator(source, cluster, SplitEnumeratorContext(), state).start()
    assert str(refused.value).startswith(
        "t-1: retention has overtaken the position. The next offset to read is 0, but the log begins at 5: up to 5 "
        "unread records are gone."
    )
    tolerated = SplitEnumeratorContext(tolerated=frozenset({RetentionOvertookPositionError}))
    for enumerator in (
        KafkaSourceEnumerator(source, cluster, tolerated, state),
        # Whoever lists topic partitions adds one as it is.
        KafkaSourceEnumerator(KafkaSource(partitions=(T0, T1, other)), cluster, SplitEnumeratorContext(), state),
    ):
        assert enumerator.start().starting_position == {T0: 4, T1: 5, other: 3}


def test_the_way_out_of_a_recreated_topic_begins_where_its_log_begins_now():
    cluster = ClusterModel({T1: _log(4, beginning=3), T2: _log(2)})
    with pytest.raises(TopicRecreatedError, match=re.escape("""--to 'offsets:{"t": {"1": 3}}'""")):
        _plan(cluster, replace(_STATE, topic_ids={"t": "old-id"}))


def test_a_recreated_topic_without_the_topic_partitions_to_read_is_named():
    other = TopicPartition("u", 0)
    state = replace(_STATE, position={T1: 2, other: 5}, topic_ids={"t": "old-id", "u": "topic-id"})
    source = KafkaSource.builder().set_partitions([T1, other]).build()
    context = SplitEnumeratorContext(tolerated=frozenset({TopicNotFoundError}))
    enumerator = KafkaSourceEnumerator(source, ClusterModel({T0: _log(1), other: _log(9)}), context, state)
    with pytest.raises(
        TopicRecreatedError, match=r"^the topic t was .* continue the others: .*--to 'offsets:{.u.: {.0.: 5}}'"
    ):
        enumerator.start()


@st.composite
def _broken(draw):
    """A log that a position in it may no longer fit, and that position."""
    position = draw(st.integers(0, 8))
    beginning = draw(st.integers(0, 12))
    log = _log(draw(st.integers(beginning, 14)), beginning)
    log.open_from = draw(st.none() | st.integers(beginning, log.high_watermark))
    log.epochs = draw(st.sampled_from([{}, {0: 0}, {0: 0, 2: min(log.high_watermark, draw(st.integers(0, 14)))}]))
    return log, position


@settings(max_examples=300)
@given(broken=st.lists(_broken(), min_size=3, max_size=3), ids=st.booleans(), epochs=st.booleans())
def test_whatever_happened_to_logs_one_start_leads_past_it_and_skips_no_record_of_them(broken, ids, epochs):
    partitions = (T0, T1, T2)
    position = {tp: at for tp, (_, at) in zip(partitions, broken, strict=True)}
    cluster = ClusterModel({tp: log for tp, (log, _) in zip(partitions, broken, strict=True)})
    state = EnumeratorState(
        position,
        "cluster",
        {"t": "topic-id"} if ids else {},
        leader_epochs=dict.fromkeys(position, 0) if epochs else {},
    )
    start: dict[TopicPartition, int] = {}
    try:
        plan = _plan(cluster, state)
    except (EndBeforePositionError, RetentionOvertookPositionError) as error:
        told = OffsetsInitializer.parse(re.findall(r"offsets:\{.*?\}\}", str(error))[0])
        start = dict(told.offsets or {})
        plan = _plan(cluster, state, override=told)
    assert start.keys() <= position.keys()
    for tp, log in cluster.logs.items():
        fits = log.beginning <= position[tp] <= log.high_watermark
        # Only another leader is asked, and only of a topic that is the same may its answer count beyond the end.
        is_told = epochs and 2 in log.epochs and (ids or fits)
        shared = log.end_of_epoch(0) if is_told else position[tp] if fits else 0
        assert plan.starting_position[tp] == max(log.beginning, min(position[tp], shared))
        assert tp in start or plan.starting_position[tp] == position[tp]
    again = _plan(cluster, plan.state)
    assert again.splits == ()


@pytest.mark.parametrize(
    "start",
    [
        OffsetsInitializer.specific_offsets({T0: 1}),
        OffsetsInitializer.specific_offsets({T0: 11}),
        OffsetsInitializer.committed_offsets("earliest"),
    ],
    ids=str,
)
def test_a_start_outside_of_the_log_is_refused(start):
    cluster = ClusterModel({T0: _log(10, beginning=2)}, committed={T0: 1})
    # Of a stream with a position, earliest and latest would move every topic partition.
    with pytest.raises(
        OffsetOutOfRangeError,
        match=r"^t-0: the start offset 11? .* holds offsets 2 to 10\. Choose an offset in that range$",
    ):
        _plan(cluster, starting_offsets=start)


@pytest.mark.parametrize("which", ["starting_offsets", "stopping_offsets"])
def test_an_offset_for_a_topic_partition_that_does_not_exist_is_refused(which):
    offsets = OffsetsInitializer.specific_offsets({T2: 0})
    with pytest.raises(TopicNotFoundError, match=r"^the offsets name t-2, which does not exist"):
        _plan(ClusterModel({T0: _log(3)}), **{which: offsets})
    # Nor is it passed over in a run that overrides the position.
    with pytest.raises(TopicNotFoundError, match=r"^the offsets name t-2, which does not exist"):
        _plan(ClusterModel({T0: _log(4), T1: _log(2)}), _STATE, override=offsets)


def test_committed_offsets_without_a_commit_and_a_reset_are_refused():
    with pytest.raises(OffsetNotFoundError, match=r"^t-0: the consumer group has no committed offset, and"):
        _plan(ClusterModel({T0: _log(3)}), starting_offsets=OffsetsInitializer.committed_offsets())


@pytest.mark.parametrize(
    ("stop", "before"), [(OffsetsInitializer.timestamp(3), 2), (OffsetsInitializer.specific_offsets({T0: 4}), 4)]
)
def test_a_run_that_starts_elsewhere_does_not_set_the_position_back(stop, before):
    cluster = ClusterModel({T0: LogModel([1, 2, 3, 4, 5, 6])})
    source = KafkaSource(topics=("t",)).with_overrides(OffsetsInitializer.earliest(), stop)
    state = EnumeratorState({T0: 5}, "cluster", {"t": "topic-id"})
    with pytest.raises(ConfigurationError, match=rf"would stop at offset {before}, before the position 5: .* mode: "):
        KafkaSourceEnumerator(source, cluster, SplitEnumeratorContext(), state).start()
    beyond = KafkaSource(topics=("t",)).with_overrides(OffsetsInitializer.earliest(), OffsetsInitializer.timestamp(6))
    plan = KafkaSourceEnumerator(beyond, cluster, SplitEnumeratorContext(), state).start()
    assert [str(split) for split in plan.splits] == ["t-0 [0, 5)"]


def test_an_id_that_is_missing_after_a_commit_is_not_compared_and_another_cluster_is_reported():
    cluster = ClusterModel({T0: _log(4)})
    enumerator = KafkaSourceEnumerator(KafkaSource(topics=("t",)), cluster, SplitEnumeratorContext())
    state = enumerator.start().state
    cluster.topic_id = cluster.id = None
    enumerator.check_same_logs(state, [T0])
    cluster.id = "another"
    with pytest.raises(ClusterChangedError):
        enumerator.check_same_logs(state, [T0])


def test_without_ids_a_topic_with_fewer_partitions_after_a_commit_is_another():
    cluster = ClusterModel({T0: _log(4), T1: _log(4)}, topic_id=None)
    enumerator = _enumerator(cluster)
    state = enumerator.start().state
    del cluster.logs[T1]
    with pytest.raises(TopicRecreatedError):
        enumerator.check_same_logs(state, [T0, T1])
    del cluster.logs[T0]
    enumerator.check_same_logs(state, [T0, T1])
