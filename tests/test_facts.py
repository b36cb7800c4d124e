"""The facts at the end of a log line can be taken apart by a machine."""

from __future__ import annotations

import shlex

from dagster_kafka_flip.source.log_line import facts


def test_facts_are_names_and_values_in_the_order_given():
    assert facts(rows=5, seconds=1.234, lag=0) == "rows=5 seconds=1.23 lag=0"


def test_what_is_not_known_is_left_out():
    assert facts(ui=None, seconds=2.0) == "seconds=2.00"


def test_a_text_with_spaces_or_quotes_stays_one_fact():
    line = facts(table='the "lake" = home', stream="main", empty="")
    assert shlex.split(line) == ['table=the "lake" = home', "stream=main", "empty="]
