"""Lists in messages."""

from __future__ import annotations

from dagster_kafka_flip.settings.names import first_few


def test_a_long_list_names_the_first_ones_and_counts_the_others():
    assert first_few(range(3), most=3) == "0, 1, 2"
    assert first_few(range(3_000), most=3) == "0, 1, 2 and 2,997 more"
    assert first_few(()) == ""
    assert first_few("abc", most=2, between="; ") == "a; b and 1 more"
