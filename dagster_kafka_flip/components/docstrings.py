"""What docstrings say of parameters and attributes, for schemas that say it too."""

from __future__ import annotations

import inspect
import re


def entries(of: object) -> dict[str, str]:
    """Name and text of each entry under Args and Attributes.

    Args:
        of: Whose docstring, in Google's style.
    """
    found: dict[str, str] = {}
    for section in re.findall(r"^(?:Args|Attributes):\n((?:(?: .*)?\n?)*)", inspect.getdoc(of) or "", re.MULTILINE):
        for name, text in re.findall(r"^ {4}\*{0,2}(\w+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE):
            found[name] = " ".join(text.split())
    return found
