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
from dagster_kafka_flip.source.offsets import OffsetsInitializer, OffsetsKind
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
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


def _read(plan):
    return [split.topic_partition for split in plan.splits]


def _plan(cluster, state=None, **changes):
    return _enumerator(cluster, state, **changes).start()


def _log(records, beginning=0, open_from=None):
    return LogModel([1000 * (number + 1) for number in range(records)], beginning, open_from)


# --- many runs ----------------------------------------------------------------------------------------------------

_timestamps = st.integers(0, 100)
_resets = st.sampled_from(["earliest", "latest"])


@st.composite
def _initializers(draw, *, stop):
    """Any initializer that can't fail; offsets are drawn as fractions of the log, because it is not known yet."""
    kind = draw(st.sampled_from([kind for kind in OffsetsKind if not (stop and kind is OffsetsKind.EARLIEST)]))
    named = st.dictionaries(st.sampled_from([T0, T1, T2]), st.integers(0, 10), min_size=1)
    return kind, draw(_timestamps), draw(_resets), draw(named)


def _resolve(drawn, cluster, isolation_level):
    """The initializer, with specific offsets that lie in the logs as they are now."""
    kind, timestamp, reset, fractions = drawn
    if kind is OffsetsKind.TIMESTAMP:
        return OffsetsInitializer.timestamp(timestamp)
    if kind is OffsetsKind.COMMITTED:
        return OffsetsInitializer.committed_offsets(reset)
    if kind is OffsetsKind.SPECIFIC:
        named = {}
        for tp in fractions.keys() & cluster.logs.keys():
            log = cluster.logs[tp]
            named[tp] = log.beginning + (log.end(isolation_level) - log.beginning) * fractions[tp] // 10
        return OffsetsInitializer.specific_offsets(named, reset) if named else OffsetsInitializer.latest()
    return OffsetsInitializer(kind=kind)


def _expected(initializer, tp, cluster, isolation_level, *, stop):  # noqa: PLR0911 - one for each line of the table
    """The table of starts and stops in docs/architecture.md, line by line; None for "not read"."""
    log = cluster.logs[tp]
    end = log.end(isolation_level)
    if initializer.kind is OffsetsKind.EARLIEST:
        return log.beginning
    if initializer.kind is OffsetsKind.LATEST:
        return end
    if initializer.kind is OffsetsKind.TIMESTAMP:
        found = log.at_or_after(initializer.timestamp_ms, isolation_level)
        return end if found is None else found
    if initializer.kind is OffsetsKind.SPECIFIC:
        if tp in initializer.offsets:
            return initializer.offsets[tp]
        if stop:
            return None
    if tp in cluster.committed:
        return cluster.committed[tp]
    return log.beginning if initializer.reset.value == "earliest" else end


def _grow(draw, cluster, position):
    """Appends, opens and ends transactions, and lets retention eat what was read."""
    if draw(st.booleans()):
        new = TopicPartition("t", len(cluster.logs))
        cluster.logs.setdefault(new, LogModel())
    for tp, log in cluster.logs.items():
        log.timestamps += draw(st.lists(_timestamps, max_size=6))
        lowest_open = log.open_from if log.open_from is not None else log.high_watermark
        log.open_from = draw(st.none() | st.integers(min(lowest_open, log.high_watermark), log.high_watermark))
        if log.open_from is not None:
            log.open_from = max(log.open_from, log.beginning)
        if tp in position:
            # Neither beyond the position nor beyond what is committed.
            log.beginning = draw(st.integers(log.beginning, max(log.beginning, min(position[tp], log.end(_COMMITTED)))))


_COMMITTED = "read_committed"


@settings(max_examples=150)
@given(
    data=st.data(),
    isolation_level=st.sampled_from(["read_committed", "read_uncommitted"]),
    start=_initializers(stop=False),
    stop=_initializers(stop=True),
    limit=st.none() | st.integers(1, 7),
)
def test_successive_runs_tile_the_log_with_no_gap_and_no_overlap(data, isolation_level, start, stop, limit):
    cluster = ClusterModel({T0: LogModel(), T1: LogModel()})
    _grow(data.draw, cluster, {})
    for tp, log in cluster.logs.items():
        log.beginning = data.draw(st.integers(0, log.end(_COMMITTED)))
        if data.draw(st.booleans()):
            cluster.committed[tp] = data.draw(st.integers(log.beginning, log.end(isolation_level)))
    state: EnumeratorState | None = None
    read: dict[TopicPartition, list[int]] = {}
    first: dict[TopicPartition, int] = {}
    starting_offsets = _resolve(start, cluster, isolation_level)
    for _ in range(data.draw(st.integers(1, 4))):
        # Only the last run stops wherever the source says; that it may stop early must lose nothing either.
        stopping_offsets = _resolve(stop, cluster, isolation_level)
        source = _source(
            starting_offsets=starting_offsets, stopping_offsets=stopping_offsets, isolation_level=isolation_level
        )
        rest = KafkaSourceEnumerator(source, cluster, SplitEnumeratorContext(), state).start()
        before = {} if state is None else state.position
        for tp in cluster.logs:
            if tp not in first:
                begin = _expected(starting_offsets, tp, cluster, isolation_level, stop=False)
                first[tp] = begin if state is None and begin is not None else cluster.logs[tp].beginning
            assert rest.starting_position[tp] == before.get(tp, first[tp])
            wanted = _expected(stopping_offsets, tp, cluster, isolation_level, stop=True)
            begin = rest.starting_position[tp]
            end = cluster.logs[tp].end(isolation_level)
            assert rest.state.position[tp] == (begin if wanted is None else max(begin, min(wanted, end)))
            assert rest.held_back.get(tp, 0) == cluster.logs[tp].high_watermark - end
        planned, reached = rest.state, None
        while rest is not None:
            batch = rest.take(limit)
            rest = rest.continued_at(batch.state.position)
            for split in batch.splits:
                offsets = range(split.starting_offset, split.stopping_offset)
                assert split.stopping_offset <= cluster.logs[split.topic_partition].end(isolation_level)
                read.setdefault(split.topic_partition, []).extend(offsets)
            reached = batch.state
        assert reached == planned
        state = planned
        _grow(data.draw, cluster, planned.position)
    assert state is not None
    for tp, begin in first.items():
        assert read.get(tp, []) == list(range(begin, state.position[tp]))


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


# --- one run ------------------------------------------------------------------------------------------------------


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


def test_without_ids_topic_partitions_that_are_not_asked_for_any_longer_keep_their_position():
    cluster = ClusterModel({T0: _log(3), T1: _log(2)}, topic_id=None)
    state = EnumeratorState({T0: 1, T1: 2}, "cluster")
    source = KafkaSource.builder().set_partitions([T0]).build()
    plan = KafkaSourceEnumerator(source, cluster, SplitEnumeratorContext(), state).start()
    assert (plan.removed, dict(plan.state.position)) == ((T1,), {T0: 3, T1: 2})


def test_a_replay_of_a_topic_recreated_with_fewer_partitions_says_so():
    cluster = ClusterModel({T0: _log(3)}, topic_id=None)
    splits = (KafkaPartitionSplit(T0, 0, 1), KafkaPartitionSplit(T1, 0, 1))
    for state, error in (
        (EnumeratorState({T0: 1, T1: 1}, "cluster"), TopicRecreatedError),
        (EnumeratorState({T0: 1, T1: 1}, "cluster", {"t": "topic-id"}), TopicRecreatedError),
    ):
        with pytest.raises(error, match=r"the position includes t-1, which the topic no longer has"):
            _enumerator(cluster, state).replay(splits)
    cluster.topic_id = "topic-id"
    with pytest.raises(TopicNotFoundError):
        _enumerator(cluster, EnumeratorState({T0: 1, T1: 1}, "cluster", {"t": "topic-id"})).replay(splits)


def test_an_override_wins_over_the_position_for_this_run():
    cluster = ClusterModel({T0: _log(10, beginning=3), T1: _log(2)})
    state = EnumeratorState({T0: 1, T1: 2, T2: 8}, "cluster", {"t": "topic-id"})
    plan = _plan(cluster, state, override=OffsetsInitializer.earliest())
    assert [str(split) for split in plan.splits] == ["t-0 [3, 10)", "t-1 [0, 2)"]
    assert dict(plan.state.position) == {T0: 10, T1: 2, T2: 8}
    skipped = _plan(cluster, state, override=OffsetsInitializer.latest())
    assert (skipped.splits, dict(skipped.state.position)) == ((), {T0: 10, T1: 2, T2: 8})


def test_an_override_with_specific_offsets_moves_only_what_it_names():
    cluster = ClusterModel({T0: _log(10, beginning=3), T1: _log(9), T2: _log(4)}, committed={T1: 8})
    state = EnumeratorState({T0: 1, T1: 5}, "cluster", {})
    # The way out of what retention has overtaken, as its error advises.
    plan = _plan(cluster, state, override=OffsetsInitializer.specific_offsets({T0: 3}))
    assert [str(split) for split in plan.splits] == ["t-0 [3, 10)", "t-1 [5, 9)", "t-2 [0, 4)"]
    fresh = _plan(cluster, None, override=OffsetsInitializer.specific_offsets({T0: 4}))
    assert [str(split) for split in fresh.splits] == ["t-0 [4, 10)", "t-1 [8, 9)", "t-2 [0, 4)"]


def test_an_override_with_specific_offsets_moves_only_what_it_names_of_a_recreated_topic():
    state = EnumeratorState({T0: 9, T1: 9}, "cluster", {"t": "another-id"})
    # Somebody else's consumer of the group has gone on with the new topic.
    cluster = ClusterModel({T0: _log(10), T1: _log(9)}, committed={T1: 8})
    source = _source().with_overrides(starting_offsets=OffsetsInitializer.specific_offsets({T0: 4}))
    context = SplitEnumeratorContext(tolerated=frozenset({TopicRecreatedError}))
    plan = KafkaSourceEnumerator(source, cluster, context, state).start()
    assert [str(split) for split in plan.splits] == ["t-0 [4, 10)", "t-1 [0, 9)"]


def test_an_override_does_not_hide_what_it_does_not_name():
    cluster = ClusterModel({T0: _log(10), T1: _log(9, beginning=7)})
    state = EnumeratorState({T0: 1, T1: 5}, "cluster", {})
    with pytest.raises(RetentionOvertookPositionError, match=r"^t-1: retention has overtaken the position"):
        _plan(cluster, state, override=OffsetsInitializer.specific_offsets({T0: 3}))


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


def test_retention_during_planning_never_makes_a_split_run_backwards():
    class Moving(ClusterModel):
        def end_offsets(self, partitions, isolation_level):
            found = super().end_offsets(partitions, isolation_level)
            for tp in partitions:
                self.logs[tp] = _log(12, beginning=12)
            return found

    plan = _plan(Moving({T0: _log(10)}))
    assert plan.splits == ()
    assert dict(plan.state.position) == {T0: 12}


def test_a_record_that_arrives_between_end_and_time_look_up_is_left_to_the_next_run():
    class Growing(ClusterModel):
        def offsets_for_times(self, timestamps_ms, isolation_level):
            self.logs[T0] = _log(5)
            return super().offsets_for_times(timestamps_ms, isolation_level)

    cluster = Growing({T0: _log(3)})
    late = OffsetsInitializer.timestamp(5000)
    first = _plan(cluster, starting_offsets=late)
    assert (first.splits, dict(first.state.position)) == ((), {T0: 4})
    assert first.lag_after == {T0: 0}
    second = _plan(cluster, first.state, starting_offsets=late)
    assert [str(split) for split in second.splits] == ["t-0 [4, 5)"]


def test_a_timestamp_means_a_record_and_no_marker_or_aborted_record():
    # A transaction of old records, whose marker is dated by the broker, and one that was aborted.
    log = LogModel([10, 90, 20, 85, 30, 95, 40, 50], markers={1, 5}, aborted={3})
    cluster = ClusterModel({T0: log})
    stopped = _plan(cluster, stopping_offsets=OffsetsInitializer.timestamp(40))
    assert [str(split) for split in stopped.splits] == ["t-0 [0, 6)"]
    started = _plan(cluster, starting_offsets=OffsetsInitializer.timestamp(40))
    assert [str(split) for split in started.splits] == ["t-0 [6, 8)"]
    # No record is as late: the log is read to its end, and a stream that starts then starts there.
    assert _plan(cluster, stopping_offsets=OffsetsInitializer.timestamp(60)).splits[0].stopping_offset == 8
    assert _plan(cluster, starting_offsets=OffsetsInitializer.timestamp(60)).splits == ()


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


class _BusyCluster(ClusterModel):
    """A record arrives before each request."""

    def end_offsets(self, partitions, isolation_level):
        for log in self.logs.values():
            log.timestamps.append(1000)
        return super().end_offsets(partitions, isolation_level)


def test_records_that_arrive_during_planning_are_not_held_back_by_an_open_transaction():
    plan = _plan(_BusyCluster({T0: _log(4), T1: _log(2)}))
    assert plan.held_back == {}
    assert all(plan.high_watermarks[tp] >= end for tp, end in plan.end_offsets.items())


def test_records_held_back_by_an_open_transaction_are_reported_while_others_arrive():
    log = _log(4)
    log.open_from = 2
    plan = _plan(_BusyCluster({T0: log, T1: _log(2)}))
    assert plan.end_offsets[T0] == 2
    assert plan.held_back == {T0: 3}, "up to the high watermark that was asked for first"


@pytest.mark.parametrize("epochs", [{0: 0}, {}], ids=["", "brokers that tell no epochs"])
@pytest.mark.parametrize("lost", [0, 3])
def test_a_position_that_went_back_knows_how_far_it_reached_until_it_is_there_again(lost, epochs):
    cluster = ClusterModel({T0: replace(_log(9), epochs=epochs), T1: _log(2)})
    state = replace(_plan(cluster).state, position={T0: 2, T1: 2}, reached={T0: 9, T1: 2})
    state = EnumeratorState.from_json(state.to_json())
    assert state.furthest == {T0: 9, T1: 2}
    del cluster.logs[T0].timestamps[9 - lost :]
    if lost and epochs:
        # Written again, beyond all that was there.
        cluster.logs[T0].epochs[1] = 9 - lost
        cluster.logs[T0].timestamps += [1] * 9
    if not lost:
        plan = _plan(cluster, state)
        assert (_read(plan), plan.take(1).state.to_json()["reached"]) == ([T0], {"t": [9]})
        assert "reached" not in plan.state.to_json()
        return
    with pytest.raises(EndBeforePositionError) as refused:
        _plan(cluster, state)
    assert str(refused.value).startswith(
        "t-0: the log was truncated before offset 9, where the position was before it went back to 2. The table has "
        "records that the log no longer has"
    )


def test_an_id_that_is_missing_after_a_commit_is_not_compared_and_another_cluster_is_reported():
    cluster = ClusterModel({T0: _log(4)})
    enumerator = KafkaSourceEnumerator(KafkaSource(topics=("t",)), cluster, SplitEnumeratorContext())
    plan = enumerator.start()
    cluster.topic_id = cluster.id = None
    enumerator.check_same_logs(plan.state, _read(plan))
    cluster.id = "another"
    with pytest.raises(ClusterChangedError):
        enumerator.check_same_logs(plan.state, _read(plan))


def test_without_ids_a_topic_with_fewer_partitions_after_a_commit_is_another():
    cluster = ClusterModel({T0: _log(4), T1: _log(4)}, topic_id=None)
    enumerator = _enumerator(cluster)
    plan = enumerator.start()
    del cluster.logs[T1]
    with pytest.raises(TopicRecreatedError):
        enumerator.check_same_logs(plan.state, _read(plan))
    del cluster.logs[T0]
    enumerator.check_same_logs(plan.state, _read(plan))
