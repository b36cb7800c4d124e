"""What the demo's verdict rests on: a comparison that finds every kind of difference, and the flights themselves."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest

from examples.comparison import Comparison, compare
from examples.flights_data import FIELDS, load_flights

RECORDS = pd.DataFrame(
    {"partition": [0, 0, 1], "offset": [0, 1, 0], "key": [b"UA", None, b"AA"], "delay": [2.0, float("nan"), -1.0]}
)


def changed(row: int, column: str, value: Any) -> pd.DataFrame:
    rows = RECORDS.copy()
    rows.at[row, column] = value
    return rows


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param(RECORDS[::-1], {}, id="equal in another order"),
        pytest.param(RECORDS[1:], {"rows": 2, "lost": 1}, id="lost"),
        pytest.param(pd.concat([RECORDS, RECORDS[:1]]), {"rows": 4, "doubled": 1}, id="doubled"),
        pytest.param(changed(2, "offset", 7), {"lost": 1, "foreign": 1}, id="another offset"),
        pytest.param(changed(0, "key", b"DL"), {"different": 1}, id="another key"),
        pytest.param(changed(1, "key", b""), {"different": 1}, id="empty instead of null"),
        pytest.param(changed(0, "delay", float("nan")), {"different": 1}, id="null instead of a value"),
        pytest.param(RECORDS[:0], {"rows": 0, "lost": 3}, id="nothing"),
    ],
)
def test_every_kind_of_difference_is_found(rows: pd.DataFrame, expected: dict[str, int]):
    same = {"records": 3, "rows": 3, "lost": 0, "doubled": 0, "foreign": 0, "different": 0}
    found = compare(RECORDS, rows)
    assert found == Comparison(**{**same, **expected})
    assert found.is_equal == (not expected)


def test_the_flights_are_two_halves_of_a_year_in_the_order_of_departure():
    first, second = load_flights()
    assert (len(first), len(second)) == (166_158, 170_618)
    departures = first.departures + second.departures
    assert departures == sorted(departures)
    # In New York that was 5:15 on the first morning and 23:59 on the last evening.
    assert str(pd.to_datetime(departures[0], unit="ms")) == "2013-01-01 10:15:00"
    assert str(pd.to_datetime(departures[-1], unit="ms")) == "2014-01-01 04:59:00"
    value = json.loads(first.values[0])
    assert tuple(value) == FIELDS
    assert (value["carrier"], value["flight"], value["dep_delay"]) == ("UA", 1545, 2.0)
    assert None in {json.loads(value)["dep_delay"] for value in first.values[:5_000]}


def test_a_limit_is_shared_by_both_halves():
    assert [len(half) for half in load_flights(5)] == [3, 2]
