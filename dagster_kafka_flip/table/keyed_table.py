"""Checks that a table is written in one mode alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import TableModeError
from dagster_kafka_flip.table.mode import Append, kind_of, mode_of, same_mode, written

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.table.mode import Mode
    from dagster_kafka_flip.table.target import DeltaTarget

KEY_PROPERTY = "dagster-kafka-flip.key"
"""Table property of a table that was created for rows with a key: the key."""

_KIND_PROPERTY = "dagster-kafka-flip.mode"


def mode_properties(mode: Mode) -> dict[str, str]:
    """The properties of a table that is created for a mode."""
    if isinstance(mode, Append):
        return {}
    kind = kind_of(mode)
    return {KEY_PROPERTY: json.dumps(list(mode.key)), **({_KIND_PROPERTY: json.dumps(kind)} if kind else {})}


def created_for(properties: Mapping[str, str]) -> Mode:
    """The mode that a table was created for."""
    names = _parsed(properties.get(KEY_PROPERTY, "[]"))
    kind = _parsed(properties.get(_KIND_PROPERTY, "{}"))
    key = tuple(map(str, names)) if isinstance(names, list) else (properties[KEY_PROPERTY],)
    return mode_of(key, kind if isinstance(kind, dict) else {})


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def check_mode(target: DeltaTarget, mode: Mode, where: str) -> None:
    """Checks that a target has the mode in which its table is written.

    Args:
        target: The table and the stream.
        mode: The table's mode.
        where: Where it is used, for the message.

    Raises:
        TableModeError: It has another one.
    """
    if same_mode(mode, target.mode):
        return
    msg = (
        f"the table {target} is written with {written(mode)} ({where}), but the stream {target.stream!r} has "
        f"{written(target.mode)}. Nothing was written. Set this mode back, or use another table: its first run reads "
        "everything that the topic holds"
    )
    raise TableModeError(msg)
