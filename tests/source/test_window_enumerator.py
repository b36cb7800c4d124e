"""The enumerator of windows against a model of a log: where a window's records are, and each of its refusals."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dagster_kafka_flip.errors import (
    ClusterChangedError,
    ConfigurationError,
    EndBeforePositionError,
    RecordsFromFutureError,
    TopicRecreatedError,
    WindowBeyondRetentionError,
    WindowNotCompleteError,
)
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.split import TopicPartition, TopicSettings
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.source.window import Window, Windows, carried
from dagster_kafka_flip.source.window_enumerator import WindowEnumerator
from tests.source.log_model import ClusterModel, LogModel

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
_BY_PRODUCER = TopicSettings("CreateTime", None, is_limited_by_size=False)


def _at(hours):
    """A time, in hours since one that is long past."""
    return 1_700_000_000_000 + round(hours * 3_600_000)


def _log(*hours, beginning=0, **fields):
    return LogModel([_at(hour) for hour in hours], beginning, **fields)


def _windows(first, last):
    """Windows of an hour each; window number k begins at hour k."""
    return [Window(f"w{number}", _at(number), _at(number + 1)) for number in range(first, last + 1)]


def _hours(hours):
    return None if hours is None else timedelta(hours=hours)


def _cluster(logs, settings: TopicSettings | None = _BY_PRODUCER, **fields):
    logs = {T0: logs} if isinstance(logs, LogModel) else logs
    topics = {tp.topic for tp in logs}
    return ClusterModel(logs, settings={} if settings is None else dict.fromkeys(topics, settings), **fields)


def _plan(
    cluster,
    first=1,
    last=None,
    *,
    windows=None,
    lateness: float | None = 1,
    now: float = 1000,
    tolerated=(),
    topics=("t",),
    isolation_level="read_committed",
    known=None,
    cut_at=None,
    **rules,
):
    cluster = cluster if isinstance(cluster, ClusterModel) else _cluster(cluster)
    enumerator = WindowEnumerator(
        source=KafkaSource.builder().set_topics(*topics).set_isolation_level(isolation_level).build(),
        cluster=cluster,
        windows=Windows(max_lateness=_hours(lateness), **rules),
        context=SplitEnumeratorContext(tolerated=frozenset(tolerated)),
        now=lambda: _at(now),
    )
    windows = windows or _windows(first, first if last is None else last)
    return enumerator.plan(windows, known=known, cut_at=cut_at)


def _ranges(plan, tp=T0):
    return [(planned.starts[tp], planned.stops[tp]) for planned in plan.windows]


def _incident(plan):
    (incident,) = plan.incidents
    return incident


_EACH_HALF_HOUR = _log(*(number / 2 for number in range(12)))


@pytest.mark.parametrize(
    ("lateness", "expected", "next_start"), [(0, (4, 6), 6), (1, (2, 8), 4), (100, (0, 12), 0), (None, (0, 12), 0)]
)
def test_if_the_value_has_the_time_the_start_is_widened_too(lateness, expected, next_start):
    plan = _plan(_EACH_HALF_HOUR, 2, lateness=lateness, event_time="at")
    assert _ranges(plan) == [expected]
    assert plan.stragglers_before == {T0: next_start}


def test_many_look_ups_are_asked_for_together():
    counted = [_plan(_cluster(_log(*range(500))), 1, 300), _plan(_cluster(_log(*range(5))), 1)]
    assert [len(plan.windows) for plan in counted] == [300, 1]

    class Counting(ClusterModel):
        rounds = 0

        def records_at(self, times, isolation_level):
            self.rounds += bool(times)
            return super().records_at(times, isolation_level)

    cluster = Counting({T0: _log(*range(500))})
    _plan(cluster, 1, 300)
    assert cluster.rounds == 1


def test_times_near_1970_are_not_widened_beyond_it():
    enumerator = WindowEnumerator(
        KafkaSource(topics=("t",)), _cluster(LogModel([0, 5, 20])), Windows(event_time="at"), SplitEnumeratorContext()
    )
    plan = enumerator.plan([Window("k", 0, 10)])
    assert _ranges(plan) == [(0, 3)]


def _timeless(number, *hours):
    """A log that begins with records without a time."""
    return LogModel([*[-1] * number, *map(_at, hours)])


def test_records_without_a_time_at_a_logs_start_are_read_with_every_window_that_they_may_be_of():
    log = _timeless(3, 1.5, 2.5, 3.5)
    assert _ranges(_plan(log, 0, 3, lateness=0)) == [(0, 3), (0, 4), (4, 5), (5, 6)]
    for number, expected in enumerate([(0, 3), (0, 4), (4, 5), (5, 6)]):
        assert _ranges(_plan(log, number, lateness=0)) == [expected]
    # In between they stand among others, and are read with these.
    log.timestamps[4:4] = [-1, -1]
    assert _ranges(_plan(log, 0, 3, lateness=0)) == [(0, 3), (0, 6), (6, 7), (7, 8)]


def test_a_log_without_any_time_is_read_from_its_beginning():
    log = _timeless(3)
    assert _ranges(_plan(log, 1, event_time="at")) == [(0, 3)]
    assert _ranges(_plan(log, 1)) == [(0, 3)]


def test_a_log_that_begins_within_a_window_may_have_lost_records_of_it():
    with pytest.raises(WindowBeyondRetentionError) as raised:
        _plan(_log(0, 1.1, 1.2, 2, 3, 4, beginning=2))
    message = str(raised.value)
    assert message.startswith("t-0: records of the window w1 [2023-11-14T23:13:20Z, 2023-11-15T00:13:20Z) may be gone")
    assert "the log begins at offset 2" in message
    assert "the earliest remaining record has the timestamp 2023-11-14T23:25:20Z" in message


_DAY = 24 * 3_600_000
_A_WEEK = TopicSettings("CreateTime", 7 * _DAY, is_limited_by_size=False)
_A_SIZE = TopicSettings("CreateTime", None, is_limited_by_size=True)


@pytest.mark.parametrize("settings", [_A_WEEK, _A_SIZE, None], ids=["time", "size", "unknown"])
@pytest.mark.parametrize("others", [20, 2000])
def test_stragglers_at_the_beginning_of_a_log_do_not_show_that_a_window_has_all_of_its_records(settings, others):
    """Retention has deleted the window's first half hour, and what was uploaded late is left before the rest."""
    late = max(1, others // 200)
    hours = [1.1, *[-300] * late, *(1.5 + number / others for number in range(others))]
    with pytest.raises(WindowBeyondRetentionError) as raised:
        _plan(_cluster(_log(*hours, beginning=1), settings))
    message = str(raised.value)
    assert "begins at offset 1, and the earliest remaining record has the timestamp 2023-11-02T" in message
    assert ", but it may have come late, and retention may have deleted records as young as the window's. " in message
    # Enough of them are no stragglers, and within the topic's retention nothing was deleted.
    older = [-3, *(-2 + number / others for number in range(others)), *hours[late + 1 :]]
    assert _plan(_cluster(_log(*older, beginning=1), settings)).incidents == ()
    if settings is _A_WEEK:
        assert _plan(_cluster(_log(*hours, beginning=1), settings), now=100).incidents == ()
    assert _plan(_log(*hours, beginning=1)).incidents == ()


@pytest.mark.parametrize(
    ("settings", "is_lost"),
    [
        # Somebody deleted them by hand, or changed the retention meanwhile.
        (TopicSettings("CreateTime", None, is_limited_by_size=False), True),
        (TopicSettings("CreateTime", 500 * 3_600_000, is_limited_by_size=False), True),
        (TopicSettings("CreateTime", 2000 * 3_600_000, is_limited_by_size=False), False),
        (TopicSettings("CreateTime", 2000 * 3_600_000, is_limited_by_size=True), True),
        (TopicSettings("CreateTime", None, is_limited_by_size=True), True),
        (None, True),
    ],
)
def test_a_fully_trimmed_log_is_judged_by_its_retention(settings, is_lost):
    cluster = _cluster(_log(1.5, 2.5, beginning=2), settings)
    if not is_lost:
        assert _plan(cluster).splits == ()
        return
    with pytest.raises(WindowBeyondRetentionError, match="begins at offset 2, and the log holds no records"):
        _plan(cluster)


def test_a_record_from_the_future_is_not_a_stop():
    log = _log(0.5, 1.1, 1001, 1.2, 1.3)
    with pytest.raises(
        RecordsFromFutureError,
        match=r"^t-0: the record at offset 2 has the timestamp .*Z, but the "
        "time is .*Z",
    ):
        _plan(log)
    plan = _plan(log, tolerated=[RecordsFromFutureError])
    assert plan.windows[0].stops == {T0: 5}
    incident = _incident(plan)
    assert (incident.error, incident.lost_offsets) == ("RecordsFromFutureError", 0)
    assert incident.message.endswith("The run read the log to its end.")


def test_clocks_may_differ_by_five_minutes():
    assert _ranges(_plan(_log(0.5, 1.1, 3 + 5 / 60), now=3)) == [(1, 2)]
    with pytest.raises(RecordsFromFutureError):
        _plan(_log(0.5, 1.1, 3 + 5 / 60 + 1 / 3600), now=3)


def test_a_tolerated_record_from_the_future_changes_no_other_window():
    log = _log(*[1.5] * 3, *[2.5] * 3, *[3.5] * 3, 1.6, 1001, *[4.5] * 3, *[5.5] * 3)
    together = _plan(log, 1, 5, tolerated=[RecordsFromFutureError])
    alone = [_plan(log, number, tolerated=[RecordsFromFutureError]).windows[0] for number in range(1, 6)]
    assert alone == list(together.windows)
    assert _ranges(together) == [(0, 6), (3, 17), (6, 17), (10, 17), (10, 17)]


def test_only_so_many_offsets_are_looked_through_for_a_stop(monkeypatch):
    monkeypatch.setattr("dagster_kafka_flip.source.window_enumerator.LOOKED_THROUGH", 4)
    log = _log(1.1, 900, 1.2, 1.3, 1.4, 5, markers={1})
    assert _ranges(_plan(log)) == [(0, 6)]
    # The records that an open transaction holds back may be of a window that goes on to the end.
    log.timestamps += [_at(6)]
    log.open_from = 6
    with pytest.raises(WindowNotCompleteError, match="an open transaction holds back 1 offsets from 6,"):
        _plan(log)


def test_a_trimmed_log_is_judged_by_its_first_record_and_not_by_a_marker():
    # The first entry that is left is a marker of hour 900, and the first record is older than the window.
    log = _log(0, 900, -5, 1.5, 4, beginning=1, markers={1})
    assert _plan(log).incidents == ()
    assert _ranges(_plan(log)) == [(1, 4)]


class _Forgetful(ClusterModel):
    """Answers as Kafka may for a log whose head was deleted: that there is nothing, though there is."""

    def records_at(self, times, isolation_level):
        return [{} for _ in times]


def test_a_look_up_that_misses_records_of_a_trimmed_log_loses_none():
    log = _log(-5, -4, 1.5, 1.6, 4, beginning=1)
    assert _ranges(_plan(_cluster(log))) == [(2, 4)]
    assert _ranges(_plan(_Forgetful({T0: log}, settings={"t": _BY_PRODUCER}))) == [(1, 4)]


def test_a_marker_dated_ahead_of_the_clock_is_not_a_record_from_the_future():
    plan = _plan(_log(0.5, 1.1, 1001, 1.2, markers={2}))
    assert _ranges(plan) == [(1, 4)]
    assert plan.incidents == ()


@pytest.mark.parametrize(
    "log", [_log(1.1, 900, 1.2, 1.3, open_from=2, markers={1}), _log(1.1, 1001, 1.2, 1.3, open_from=2)]
)
def test_a_log_that_is_read_to_its_end_waits_for_an_open_transaction(log):
    tolerated = [RecordsFromFutureError, WindowNotCompleteError]
    assert [window.is_complete for window in _plan(log, tolerated=tolerated).windows] == [False]


@pytest.mark.parametrize("beginning", [0, 1])
def test_a_time_beyond_the_calendar_is_reported_in_milliseconds(beginning):
    log = LogModel([_at(0.5), _at(1.1), _at(1.2) * 1000], beginning)
    with pytest.raises((RecordsFromFutureError, WindowBeyondRetentionError)):
        _plan(log)


def test_nothing_is_read_that_the_stream_will_read_itself():
    logs = {T0: _log(0.5, 1.5, 1.6, 1.7, 2.5), T1: _log(1.1, 1.2)}
    plan = _plan(logs, 1, 2, repair=True, cut_at={T0: 3})
    assert _ranges(plan, T0) == [(1, 3), (3, 3)]
    assert T1 not in plan.starting_position, "the stream does not know it yet"
    assert [str(split) for split in plan.splits] == ["t-0 [1, 3)"]
    assert plan.state.position == {T0: 3}
    assert [planned.ends for planned in plan.windows] == [{T0: 3}, {T0: 3}]


def test_a_repair_waits_for_nothing_because_the_stream_lands_what_is_still_to_come():
    log = _log(0.5, 1.5, 1.6, open_from=2)
    for cut_at in (None, {T0: 2}):
        assert _ranges(_plan(log, now=1.7, repair=True, cut_at=cut_at)) == [(1, 2)]


@pytest.mark.parametrize(("position", "splits"), [(0, []), (1, []), (2, ["t-0 [1, 2)"]), (99, ["t-0 [1, 4)"])])
def test_a_repair_ends_at_the_streams_position_or_at_the_windows_end(position, splits):
    plan = _plan(_log(0.5, 1.5, 1.6, 2.5, 3.5), repair=True, cut_at={T0: position})
    assert [str(split) for split in plan.splits] == splits


def test_a_topic_that_the_stream_has_not_read_can_not_be_repaired():
    logs = {T0: _log(0.5, 1.5), U0: _log(1.5)}
    with pytest.raises(ConfigurationError, match=r"has not read the topic u \(it reads t\)"):
        _plan(logs, topics=("t", "u"), repair=True, cut_at={T0: 3})


def test_records_that_the_next_part_has_are_no_stragglers_of_a_part():
    # Records of the second window may be an hour early: it begins within the range of the first.
    plan = _plan(_EACH_HALF_HOUR, 1, 3, lateness=1, event_time="at")
    part = plan.first_part(1)
    assert [planned.window.key for planned in part.windows] == ["w1"]
    assert part.stragglers_before == plan.windows[1].starts == {T0: 2}
    assert plan.first_part(100).stragglers_before == plan.stragglers_before == {T0: 6}


@pytest.mark.parametrize("repair", [False, True])
@pytest.mark.parametrize(
    ("known", "error"),
    [
        (EnumeratorState({T0: 9}, "cluster", {"t": "topic-id"}), EndBeforePositionError),
        (EnumeratorState({T0: 4}, "cluster", {"t": "topic-id"}, leader_epochs={T0: 0}), EndBeforePositionError),
        (EnumeratorState({T0: 4}, "cluster", {"t": "another"}), TopicRecreatedError),
        (EnumeratorState({T0: 4}, "another", {"t": "topic-id"}), ClusterChangedError),
    ],
)
def test_a_repair_of_other_logs_than_the_streams_is_never_tolerated(repair, known, error):
    cluster = _cluster({T0: _log(0.5, 1.5, 2.5, 4)})
    cluster.logs[T0].epochs = {0: 0, 1: 1}
    context = SplitEnumeratorContext(tolerated=frozenset({error}))
    source = KafkaSource(topics=("t",))
    enumerator = WindowEnumerator(source, cluster, Windows(repair=repair), context, lambda: _at(99))
    if not repair:
        assert [each.error for each in enumerator.plan(_windows(1, 1), known=known).incidents] == [error.__name__]
        return
    with pytest.raises(error):
        enumerator.plan(_windows(1, 1), known=known, cut_at={T0: 4})


def test_without_ids_windows_of_a_topic_with_fewer_partitions_are_not_landed():
    logs = {T0: _log(0.5, 1.5, 2.5, 4)}
    known = EnumeratorState({T0: 3, T1: 2}, "cluster")
    with pytest.raises(TopicRecreatedError, match=r"the position includes t-1, which .* Write the new topic"):
        _plan(_cluster(logs, topic_id=None), known=known)
    plan = _plan(_cluster(logs, topic_id=None), known=known, tolerated=[TopicRecreatedError])
    assert plan.made_again == {"t"}
    assert dict(carried(known, plan).position) == {T0: 3}, "the next landing meets nothing of the earlier topic"
