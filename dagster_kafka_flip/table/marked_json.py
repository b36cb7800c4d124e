"""JSON objects of ours among whatever else stands in commits' `userMetadata`."""

from __future__ import annotations

import json
from typing import Any


def marked_object(text: str | None, mark: str) -> dict[str, Any] | None:
    """The JSON object that a text is, if it has a key that marks it as ours; None if it is nobody's or somebody else's.

    Args:
        text: A commit's `userMetadata`.
        mark: The key.
    """
    if text is None or mark not in text:
        return None
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) and mark in document else None
