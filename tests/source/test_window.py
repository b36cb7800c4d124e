"""Windows: how they are named and put in order, and which rules for them make sense."""

from __future__ import annotations

import contextlib
import itertools
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_kafka_flip.errors import ConfigurationError, WindowsChangedError
from dagster_kafka_flip.source.window import Window, Windows, check_keys, contiguous_groups

_DAY = 86_400_000


def _window(start, stop, key=None):
    return Window.between(start, stop, key)


@pytest.mark.parametrize(
    "start",
    [
        _DAY,
        "1970-01-02T00:00:00Z",
        "1970-01-02T00:00:00+00:00",
        "1970-01-02T02:00:00+02:00",
        datetime(1970, 1, 2, tzinfo=timezone.utc),
        datetime(1970, 1, 1, 22, tzinfo=timezone(timedelta(hours=-2))),
    ],
)
def test_both_ends_may_be_milliseconds_texts_or_aware_times(start):
    assert Window.between(start, 2 * _DAY, "k") == Window("k", _DAY, 2 * _DAY)
    assert Window.between(0, start, "k") == Window("k", 0, _DAY)


@pytest.mark.parametrize(
    ("start", "stop", "message"),
    [
        (datetime(2026, 1, 1), 2**42, "has no UTC offset"),  # noqa: DTZ001
        ("2026-01-01", 2**42, "has no UTC offset"),
        (0, "2026-01-01T00:00:00", "has no UTC offset"),
        ("yesterday", 5, "write ISO 8601"),
        ("", 5, "write ISO 8601"),
        ("2026-13-01T00:00:00Z", 5, "write ISO 8601"),
        ("1969-12-31T00:00:00Z", 5, "before 1970"),
        (1000, 1000, r"the window k ends at .*, which is not after its start"),
        (1000, 999, r"the window k ends at .*, which is not after its start"),
    ],
)
def test_ends_that_are_no_window_are_refused(start, stop, message):
    with pytest.raises(ConfigurationError, match=message):
        Window.between(start, stop, "k")


@pytest.mark.parametrize("make", [Window, lambda key, start, stop: Window.between(start, stop, key)])
def test_a_key_that_is_not_a_text_is_refused(make):
    with pytest.raises(ConfigurationError, match="key: expected str, got int"):
        make(5, 0, 1500)


@pytest.mark.parametrize(
    ("first", "second"), [((0, 10), (9, 20)), ((0, 10), (0, 10)), ((0, 10), (2, 3)), ((5, 6), (0, 10))]
)
def test_windows_that_overlap_are_refused(first, second):
    with pytest.raises(ConfigurationError, match=r"the windows a \[.*\) and b \[.*\) overlap|b \[.*\) and a \[.*\) ov"):
        contiguous_groups([Window("a", *first), Window("b", *second)])


def test_two_windows_of_one_name_and_no_windows_are_refused():
    with pytest.raises(ConfigurationError, match="two windows have the key a"):
        contiguous_groups([_window(0, 10, "a"), _window(11, 20, "a")])
    with pytest.raises(ConfigurationError, match="no windows given"):
        contiguous_groups([])


_LANDED = st.lists(
    st.builds(
        lambda key, start, length: Window(key, start, start + length), st.sampled_from("abcd"), *[st.integers(1, 6)] * 2
    ),
    max_size=4,
)


@given(windows=_LANDED, landed=_LANDED)
def test_a_window_has_the_key_and_the_time_that_it_had_before(windows, landed):
    wrong = [
        (window, other)
        for window in windows
        for other in set(landed).difference(windows)
        if window.key == other.key or (window.start_ms < other.stop_ms and other.start_ms < window.stop_ms)
    ]
    with pytest.raises(WindowsChangedError) if wrong else contextlib.nullcontext():
        check_keys(windows, landed, "t")


@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=12), st.randoms())
def test_groups_hold_every_window_once_and_break_just_at_gaps(lengths, random):
    windows, gaps, at = [], 0, 0
    for length, has_gap in lengths:
        gap = int(has_gap and bool(windows))
        windows.append(_window(at + gap, at + gap + length))
        at, gaps = windows[-1].stop_ms, gaps + gap
    shuffled = random.sample(windows, len(windows))
    groups = contiguous_groups(shuffled)
    assert [window for group in groups for window in group] == windows
    assert len(groups) == gaps + 1
    for group in groups:
        assert all(before.stop_ms == after.start_ms for before, after in itertools.pairwise(group))


def test_a_record_may_be_an_hour_late_unless_said_otherwise():
    assert Windows().lateness_ms == 3_600_000
    assert Windows().column == "kafka_window"
    assert Windows(max_lateness=None).lateness_ms is None
    assert Windows(max_lateness=timedelta(0)).lateness_ms == 0
    assert Windows(max_lateness=timedelta(microseconds=1999)).lateness_ms == 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mode": "exact"}, "^invalid Windows: mode: unknown field"),
        ({"max_lateness": timedelta(seconds=-1)}, "max_lateness: must be greater than or equal to 0 seconds"),
        ({"time_column": "at"}, "time_column is only for repair"),
        ({"lateness": timedelta(0)}, "lateness: "),
        ({"column": "the `window`"}, "a backtick"),
    ],
)
def test_rules_that_contradict_each_other_are_refused(values, message):
    with pytest.raises(ConfigurationError, match=message):
        Windows(**values)


def test_a_repair_may_name_the_column_of_the_time():
    assert Windows(repair=True, time_column="at").time_column == "at"
