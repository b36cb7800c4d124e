"""docs/benchmarks.md says what was measured: its tables are those of benchmarks/results."""

from __future__ import annotations

from benchmarks.document import DOCUMENT, RESULTS, written


def test_the_tables_are_those_of_the_kept_measurements():
    text = DOCUMENT.read_text(encoding="utf-8")
    assert written(text) == text


def test_every_file_of_measurements_is_in_the_document():
    text = DOCUMENT.read_text(encoding="utf-8")
    names = {path.stem for path in RESULTS.glob("*.json")}
    assert names
    assert {name for name in names if f"<!-- from {name}" not in text} == set()
