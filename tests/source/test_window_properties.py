"""Windows of random logs: what is selected for each is what a look at every record selects."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dagster_kafka_flip.errors import WindowBeyondRetentionError, WindowNotCompleteError
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.split import TopicPartition, TopicSettings
from dagster_kafka_flip.source.window import Window, Windows
from dagster_kafka_flip.source.window_enumerator import WindowEnumerator
from tests.source.log_model import ClusterModel, LogModel

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
_UNIT = 600_000
_LAST = 100
_MAX_LATENESS = 15
_NOW = 10_000 * _UNIT
_SETTINGS = {topic: TopicSettings("CreateTime", None, is_limited_by_size=False) for topic in ("t", "u")}


def _enumerator(logs, lateness: int | None = 0, *, tolerated=(), **rules):
    return WindowEnumerator(
        source=KafkaSource(topics=("t",)),
        cluster=ClusterModel(logs, settings=_SETTINGS),
        windows=Windows(max_lateness=None if lateness is None else timedelta(milliseconds=lateness * _UNIT), **rules),
        context=SplitEnumeratorContext(tolerated=frozenset(tolerated)),
        now=lambda: _NOW,
    )


@st.composite
def _contiguous(draw, min_size=1, max_size=6):
    start = draw(st.integers(0, _LAST // 2))
    lengths = draw(st.lists(st.integers(1, 20), min_size=min_size, max_size=max_size))
    windows = []
    for length in lengths:
        windows.append(Window(f"w{len(windows)}", start * _UNIT, (start + length) * _UNIT))
        start += length
    return windows


@st.composite
def _logs(draw, lateness):
    """A log in which no record is more than so much older than one before it."""
    times, highest = [], 0
    for time in draw(st.lists(st.integers(0, _LAST), max_size=25)):
        # Sorted roughly: what is drawn too late is moved up.
        times.append(max(time, highest - lateness))
        highest = max(highest, times[-1])
    return LogModel([time * _UNIT for time in times])


def _between(logs, window, starts, stops):
    """What is landed for a window: records of its time between its offsets."""
    return {
        (tp, offset)
        for tp, log in logs.items()
        for offset in range(starts[tp], stops[tp])
        if offset not in log.markers and window.start_ms <= log.timestamps[offset] < window.stop_ms
    }


def _selected(logs, plan):
    return {
        planned.window.key: _between(logs, planned.window, planned.starts, planned.stops) for planned in plan.windows
    }


def _by_time(logs, windows):
    everything = dict.fromkeys(logs, 0), {tp: log.high_watermark for tp, log in logs.items()}
    return {window.key: _between(logs, window, *everything) for window in windows}


_latenesses = st.integers(0, _MAX_LATENESS)


@settings(max_examples=100)
@given(st.data(), _latenesses, _contiguous())
def test_records_that_are_later_than_allowed_are_in_no_wrong_window_and_are_counted_as_stragglers(
    data, lateness, windows
):
    logs = {T0: data.draw(_logs(_LAST))}
    plan = _enumerator(logs, lateness).plan(windows)
    selected, expected = _selected(logs, plan), _by_time(logs, windows)
    # Nothing is without a limit to what a record may be late by.
    assert _selected(logs, _enumerator(logs, None).plan(windows)) == expected
    log = logs[T0]
    for planned in plan.windows:
        key = planned.window.key
        assert selected[key] <= expected[key]
        for _, offset in expected[key] - selected[key]:
            assert offset >= planned.stops[T0]
            assert max(log.timestamps[:offset]) - log.timestamps[offset] > lateness * _UNIT
        # Those that came in time stand before the window's end, and late ones behind it.
        before_end = {offset for _, offset in selected[key] if offset < planned.ends[T0]}
        assert all(max(log.timestamps[: offset + 1]) < planned.window.stop_ms for offset in before_end)


@settings(max_examples=100)
@given(st.data(), _latenesses, _contiguous())
def test_a_trimmed_log_has_lost_no_record_of_windows_that_are_not_refused(data, lateness, windows):
    logs = {T0: data.draw(_logs(lateness))}
    expected = _by_time(logs, windows)
    logs[T0].beginning = data.draw(st.integers(0, max(0, logs[T0].high_watermark - 1)))
    try:
        plan = _enumerator(logs, lateness).plan(windows)
    except WindowBeyondRetentionError:
        assert logs[T0].beginning > 0
    else:
        assert _selected(logs, plan) == expected


@settings(max_examples=100)
@given(st.data(), _latenesses, _contiguous(), st.integers(1, 30))
def test_the_first_part_of_a_plan_selects_what_the_plan_does(data, lateness, windows, limit):
    logs = {T0: data.draw(_logs(lateness)), T1: data.draw(_logs(lateness))}
    plan = _enumerator(logs, lateness).plan(windows)
    part = plan.first_part(limit)
    assert part.windows == plan.windows[: len(part.windows)] != ()
    assert part.offset_span <= limit or len(part.windows) == 1
    longer = replace(plan, windows=plan.windows[: len(part.windows) + 1])
    assert part.windows == plan.windows or longer.offset_span > limit
    for _, offset in (record for records in _selected(logs, part).values() for record in records):
        assert any(split.starting_offset <= offset < split.stopping_offset for split in part.splits)


# By how much later than its records a marker may be dated: a minute up to a year.
_gaps = st.sampled_from([60_000, 3_600_000, 24 * 3_600_000, 365 * 24 * 3_600_000])


@st.composite
def _chunks(draw):
    """Records that are written together: (times, what becomes of them, by how much later the marker is dated)."""
    times = draw(st.lists(st.integers(0, _LAST), max_size=8))
    return [time * _UNIT for time in times], draw(st.sampled_from(["plain", "committed", "aborted"])), draw(_gaps)


def _append(log, chunk):
    times, kind, gap = chunk
    first = len(log.timestamps)
    log.timestamps += times
    if kind != "plain" and times:
        log.markers.add(len(log.timestamps))
        log.timestamps.append(max(times) + gap)
        if kind == "aborted":
            log.aborted |= set(range(first, first + len(times)))


@st.composite
def _transactional_logs(draw):
    log = LogModel()
    for chunk in draw(st.lists(_chunks(), max_size=5)):
        _append(log, chunk)
    if draw(st.booleans()):
        log.open_from = len(log.timestamps)
        for chunk in draw(st.lists(_chunks(), min_size=1, max_size=2)):
            _append(log, chunk)
        if log.open_from == len(log.timestamps):
            log.open_from = None
    return log


def _records(log):
    return [offset for offset in range(log.high_watermark) if log.is_record(offset, "read_committed")]


def _first_record(log, ms):
    """The first record at or after a time, by a look at each; the end if there is none."""
    end = log.end("read_committed")
    return next((offset for offset in _records(log) if log.timestamps[offset] >= ms), end)


def _expected(logs, window, lateness):
    return {
        (tp, offset)
        for tp, log in logs.items()
        for offset in _records(log)
        if window.start_ms <= log.timestamps[offset] < window.stop_ms
        if lateness is None or offset < _first_record(log, window.stop_ms + lateness * _UNIT)
    }


def _landed(logs, planned):
    """What the filter keeps of what is read for a window."""
    return {
        (tp, offset)
        for tp, log in logs.items()
        for offset in _records(log)
        if planned.starts[tp] <= offset < planned.stops[tp]
        if planned.window.start_ms <= log.timestamps[offset] < planned.window.stop_ms
    }


@settings(max_examples=100)
@given(st.data(), st.none() | _latenesses, _contiguous())
def test_exact_windows_hold_what_a_look_at_every_record_finds_alone_together_and_again(data, lateness, windows):
    logs = {T0: data.draw(_transactional_logs()), T1: data.draw(_transactional_logs())}

    def plan(some):
        return _enumerator(logs, lateness, tolerated=[WindowNotCompleteError]).plan(some)

    together = plan(windows)
    for planned in together.windows:
        assert _landed(logs, planned) == _expected(logs, planned.window, lateness)
        assert planned.ends == {tp: _first_record(log, planned.window.stop_ms) for tp, log in logs.items()}
        assert plan([planned.window]).windows == (planned,)
    assert plan(windows) == together
    # The transactions end, in whatever way, and others come: a complete window that a record ends stays as it is.
    before = {planned.window.key: (planned, _landed(logs, planned)) for planned in together.windows}
    was = {tp: log.end("read_committed") for tp, log in logs.items()}
    for log in logs.values():
        log.open_from = None
        _append(log, data.draw(_chunks()))
    for planned in plan(windows).windows:
        earlier, rows = before[planned.window.key]
        assert _landed(logs, planned) == _expected(logs, planned.window, lateness)
        if earlier.is_complete and all(earlier.stops[tp] < end for tp, end in was.items()):
            assert (planned.stops, _landed(logs, planned)) == (earlier.stops, rows)


@settings(max_examples=80)
@given(st.data(), _latenesses, _contiguous())
def test_a_window_that_an_open_transaction_may_write_to_is_incomplete(data, lateness, windows):
    log = data.draw(_transactional_logs())
    assume(log.open_from is not None)
    plan = _enumerator({T0: log}, lateness, tolerated=[WindowNotCompleteError]).plan(windows)
    rows = {planned.window.key: _landed({T0: log}, planned) for planned in plan.windows}
    log.open_from = None
    # All that was held back is committed: no record of a complete window is among it.
    for planned in plan.windows:
        if planned.is_complete:
            assert rows[planned.window.key] == _expected({T0: log}, planned.window, lateness)
