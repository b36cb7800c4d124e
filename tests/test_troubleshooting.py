"""docs/troubleshooting.md has a section for each error class, with its cause and the fix."""

from __future__ import annotations

import inspect
import re

from dagster_kafka_flip import errors
from tests.document_tests import ROOT

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
SECTIONS = {
    text.partition("`")[0]: text.partition("\n")[2] for text in re.split(r"^### `", PAGE, flags=re.MULTILINE)[1:]
}
CLASSES = [name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)]


def test_every_error_class_has_its_section_and_every_section_its_class():
    assert len(CLASSES) > 30
    assert set(SECTIONS) ^ set(CLASSES) == set()


def test_every_section_says_the_cause_and_the_fix():
    wanted = ["Cause", "Fix"]
    output = {name: re.findall(r"^- \*\*([\w ]+):\*\* ", text, re.MULTILINE) for name, text in SECTIONS.items()}
    assert {name: found for name, found in output.items() if found != wanted} == {}
