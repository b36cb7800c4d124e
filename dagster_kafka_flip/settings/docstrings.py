"""Reads what docstrings say of each option, so that schemas and Dagster's config say the same."""

from __future__ import annotations

import inspect
import re
import sys
from collections import defaultdict


def entries(of: object) -> dict[str, str]:
    # Python leaves out docstrings under -OO. Elsewhere one that is missing is an error.
    found: dict[str, str] = defaultdict(str) if sys.flags.optimize > 1 else {}
    for section in re.findall(r"^(?:Args|Attributes):\n((?:(?: .*)?\n?)*)", inspect.getdoc(of) or "", re.MULTILINE):
        for name, text in re.findall(r"^ {4}\*{0,2}(\w+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE):
            found[name] = " ".join(text.split())
    return found
