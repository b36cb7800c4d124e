"""The list of Flink's tests names tests that exist, and leaves out none of those that mirror Flink's."""

from __future__ import annotations

import re

from tests.document_tests import ROOT, missing_tests, named_tests, written_tests

DOCUMENT = (ROOT / "tests" / "source" / "flink" / "README.md").read_text(encoding="utf-8")
NAMED = set(named_tests(DOCUMENT))


def test_every_test_that_the_document_names_exists():
    assert len(NAMED) > 80
    assert missing_tests(DOCUMENT) == set()


def test_the_document_names_every_test_that_mirrors_flinks():
    there = written_tests("tests/source/flink")
    assert len(there) > 40
    assert there - NAMED == set()


def test_a_test_is_named_as_pytest_calls_it():
    # What looks like a test and is not read by the pattern above would be checked by nobody.
    assert DOCUMENT.count("::test_") == len(re.findall(r"`tests/[\w/]+\.py::\w+`", DOCUMENT))


def test_each_test_of_flinks_is_listed_once():
    sections = re.findall(r"^## (\w+(?:Test|ITCase)[^\n]*)\n(.*?)(?=^## )", DOCUMENT, flags=re.MULTILINE | re.DOTALL)
    assert len(sections) > 12
    for section, text in sections:
        reported = [name for row in re.findall(r"^\| (.*?) \|", text, flags=re.MULTILINE) for name in row.split(", ")]
        methods = [name for name in reported if re.fullmatch(r"(test|should|create)[A-Z]\w+", name)]
        assert methods, section
        assert len(methods) == len(set(methods)), section
