"""A short soak: what `make soak` does for ten minutes, and how it would tell of a loss."""

from __future__ import annotations

import pytest

from tests.faults.ingesting import DELETES, SLOTS
from tests.soak import Outcome, compare, compare_changes, last_changes, soak


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.nightly
def test_kills_at_any_moment_neither_lose_nor_double_a_record(spark, tmp_path):
    # As many rounds as fit, but on a slow machine enough for a kill.
    found = soak(tmp_path, seconds=25, seed=5, rounds=12, spark=spark)
    print(found.to_text())
    assert sum(found.kills.values()) >= 1, found.to_text()
    assert found.records > 0
    assert found.zeros == dict.fromkeys(found.zeros, 0), found.to_text()


def test_the_comparison_finds_lost_doubled_aborted_and_misordered_rows():
    committed = {(0, 0): "1", (0, 1): "2", (0, 3): "4", (1, 0): "3"}
    found = Outcome()
    compare(committed, [((0, 0), "1"), ((0, 1), "2"), ((0, 3), "4"), ((1, 0), "3")], found)
    assert (found.records, set(found.zeros.values())) == (4, {0})

    compare(committed, [((0, 0), "5"), ((0, 1), "2"), ((0, 1), "2"), ((0, 2), "6"), ((1, 0), "3")], found)
    assert (found.lost, found.doubled, found.aborted, found.wrong, found.disordered) == (1, 1, 1, 1, 2)


def test_the_comparison_of_changes_finds_lost_doubled_and_misordered_rows():
    first, second = (1, "a"), (2, "b")
    found = Outcome()
    compare_changes({(0, 0): [first, None, second]}, {(0, 0): [first, None, second]}, found)
    assert set(found.zeros.values()) == {0}
    compare_changes({(0, 0): [first, None]}, {(0, 0): [None, first]}, found)
    compare_changes({(0, 0): [first, second]}, {(0, 0): [first], (0, 1): [second]}, found)
    assert (found.lost, found.doubled, found.disordered) == (1, 1, 1)


def test_each_keys_last_change_is_expected_unless_it_deletes():
    numbers = enumerate((1, 2, SLOTS + 1, SLOTS + 2, SLOTS + 3, 3))
    changes = {(0, offset): f"{number:012d} plain" for offset, number in numbers}
    elsewhere = {(1, 0): "000000000001 committed"}
    assert (SLOTS + 2) % DELETES == 3 % DELETES == 0
    assert last_changes(changes | elsewhere) == {(0, 2): changes[0, 2], **elsewhere}
