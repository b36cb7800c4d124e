"""Checks that a table is written in one mode alone: rows are appended, or they are upserted by one key."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import TableModeError
from dagster_kafka_flip.table.history import documented
from dagster_kafka_flip.table.mode import same_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dagster_kafka_flip.table.history import Commit
    from dagster_kafka_flip.table.target import DeltaTarget

KEY_PROPERTY = "dagster-kafka-flip.key"
"""Table property of a table that was created to be upserted: its key."""


def key_text(key: tuple[str, ...]) -> str:
    """A key as the table's property has it.

    Args:
        key: Names of columns.
    """
    return json.dumps(list(key))


def key_of(properties: Mapping[str, str]) -> tuple[str, ...]:
    """The key that a table was created with; empty if there is none.

    Args:
        properties: The table's properties.
    """
    text = properties.get(KEY_PROPERTY)
    if text is None:
        return ()
    try:
        names: Any = json.loads(text)
    except ValueError:
        return (text,)
    return tuple(map(str, names)) if isinstance(names, list) else (text,)


def check_key(target: DeltaTarget, key: tuple[str, ...], where: str) -> None:
    """Checks that a target has the key by which its table is written.

    Args:
        target: The table and the stream.
        key: The table's key; empty if rows are appended to it.
        where: Where this is told, for the message.

    Raises:
        TableModeError: It has another one.
    """
    if same_key(key, target.key):
        return
    msg = (
        f"the table {target} is written with {_mode(key)} ({where}), but the stream {target.stream!r} has "
        f"{_mode(target.key)}. Nothing was written. Set this mode back, or use another table: its first run reads "
        "everything that the topic holds"
    )
    raise TableModeError(msg)


def check_only_stream(target: DeltaTarget, history: Iterable[Commit]) -> None:
    """Checks that a stream may begin to write to a table that other streams have written to.

    Args:
        target: The table and the stream.
        history: The table's commits.

    Raises:
        TableModeError: One of the two upserts.
    """
    for commit, document in documented(history):
        if document.stream != target.stream and (target.key or document.key):
            msg = (
                f"the stream {document.stream!r} writes to {target} with {_mode(document.key)} (version "
                f"{commit.version}), and the stream {target.stream!r} has {_mode(target.key)}. Nothing was written. A "
                "table whose rows have a key belongs to one stream: let one source read all topics, or use another "
                "table"
            )
            raise TableModeError(msg)


def _mode(key: tuple[str, ...]) -> str:
    return f"Upsert(key=[{', '.join(map(repr, key))}])" if key else "Append()"
