"""JSON objects of ours among whatever else stands in commits' `userMetadata`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_kafka_flip.errors import ConfigurationError, DocumentVersionError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def read_marked(text: str | None, mark: str, version: int, what: str, read: Callable[[dict[str, Any]], T]) -> T | None:
    """Reads a commit's `userMetadata`; None if it is nobody's or somebody else's.

    Args:
        text: The `userMetadata`.
        mark: The key by which it is ours; its value is the version of the document.
        version: The newest version that can be read.
        what: What it carries, for messages.
        read: Reads the JSON object.

    Raises:
        DocumentVersionError: A newer version of this package wrote it, or it is ours and can't be read.
    """
    document = _marked_object(text, mark)
    if document is None:
        return None
    if isinstance(document[mark], int) and document[mark] > version:
        msg = (
            f"a commit of this table was written by a newer dagster-kafka-flip (document version {document[mark]}; "
            f"this installation reads up to {version}): upgrade this one"
        )
        raise DocumentVersionError(msg)
    try:
        return read(document)
    except (KeyError, TypeError, ValueError, AttributeError, ConfigurationError) as error:
        msg = (
            f"a commit of this table carries {what} that can't be read ({type(error).__name__}: {error}): it was "
            "damaged, or written by an early development version. Land in another table"
        )
        raise DocumentVersionError(msg) from error


def _marked_object(text: str | None, mark: str) -> dict[str, Any] | None:
    """The JSON object that a text is, if it has a key that marks it as ours."""
    if text is None or mark not in text:
        return None
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) and mark in document else None
