"""docs/guarantees.md names tests that exist, and every error that a run can end with."""

from __future__ import annotations

from dagster_kafka_flip import errors
from tests.document_tests import ROOT, missing_tests, named_tests, written_tests

DOCUMENT = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
NAMED = named_tests(DOCUMENT)

# The base class, and what only the development broker raises.
_NO_END_OF_A_RUN = {"KafkaFlipError", "BrokerError"}


def test_every_test_that_the_document_names_exists():
    assert len(NAMED) > 30
    assert missing_tests(DOCUMENT) == set()


def test_a_test_is_named_as_pytest_calls_it():
    # What looks like a test and is not read by the pattern above would be checked by nobody.
    assert DOCUMENT.count("::test_") == len(NAMED)


def test_every_test_of_a_fault_is_named():
    there = written_tests("tests/faults")
    # These are about the tests themselves.
    there -= {
        ("tests/faults/test_kills.py", "test_every_step_is_killed_at"),
        ("tests/faults/test_soak.py", "test_the_comparison_finds_lost_doubled_aborted_and_misordered_rows"),
        ("tests/faults/test_soak.py", "test_the_comparison_of_changes_finds_lost_doubled_and_misordered_rows"),
        ("tests/faults/test_soak.py", "test_each_keys_last_change_is_expected_unless_it_deletes"),
    }
    assert there - set(NAMED) == set()


def test_every_error_that_a_run_can_end_with_is_named():
    classes = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    assert {name for name in classes - _NO_END_OF_A_RUN if f"`{name}`" not in DOCUMENT} == set()


def test_every_row_of_a_table_names_a_test():
    rows = [line for line in DOCUMENT.splitlines() if line.startswith("| ") and not line.startswith("| Fault")]
    assert len(rows) > 30
    assert [row for row in rows if "::test_" not in row] == []
