"""Reads this package's JSON objects from commits' `userMetadata`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_kafka_flip.errors import ConfigurationError, DocumentVersionError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def read_marked(text: str | None, mark: str, version: int, what: str, read: Callable[[dict[str, Any]], T]) -> T | None:
    """Reads a commit's `userMetadata`; None if it is empty or foreign.

    Args:
        text: The `userMetadata`.
        mark: The key that identifies the document; its value is the document version.
        version: The newest supported version.
        what: Name of the content, for messages.
        read: Parses the JSON object.

    Raises:
        DocumentVersionError: A newer version of this package wrote it, or it is damaged.
    """
    document = _marked_object(text, mark)
    if document is None:
        return None
    if isinstance(document[mark], int) and document[mark] > version:
        msg = (
            f"a commit of this table was written by a newer dagster-kafka-flip (document version {document[mark]}; "
            f"this version reads up to {version}): upgrade dagster-kafka-flip"
        )
        raise DocumentVersionError(msg)
    try:
        return read(document)
    except (KeyError, TypeError, ValueError, AttributeError, ConfigurationError) as error:
        msg = (
            f"a commit of this table contains {what} that can't be read ({type(error).__name__}: {error}): it is "
            "damaged, or was written by an early development version. Use another table"
        )
        raise DocumentVersionError(msg) from error


def _marked_object(text: str | None, mark: str) -> dict[str, Any] | None:
    """Parses a text as a JSON object with the given key; None if it is something else."""
    if text is None or mark not in text:
        return None
    try:
        document = json.loads(text)
    except ValueError:
        return None
    return document if isinstance(document, dict) and mark in document else None
