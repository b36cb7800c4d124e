"""Complete commands for error messages; they run once the <placeholders> are filled in."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

WHERE = "<offsets:{...}>"
"""Placeholder for a position that only the user knows."""

AS_PRINTED = "<offsets:{...} as printed>"
"""Placeholder for the position that another stream has given up."""

SERVERS = "<host:port>"
"""Placeholder for addresses of a cluster."""

TOPIC = ("<topic>",)
"""Placeholder for the topics of a stream without any known topics."""


def plan_range(asset: str, defined_in: Iterable[str]) -> str:
    """Returns the command that shows what would land a range of time again."""
    options = ["--asset", asset, *defined_in, "--from", "<time>", "--to", "<time>"]
    return f"dagster-kafka-flip plan {_written(options)}"


def materialize(
    asset: str, defined_in: Iterable[str], *, partitions: Sequence[str] = (), config: Mapping[str, Any] | None = None
) -> str:
    words = ["--select", asset]
    if len(partitions) == 1:
        words += ["--partition", partitions[0]]
    elif partitions:
        words += ["--partition-range", f"{partitions[0]}...{partitions[-1]}"]
    if config is not None:
        words += ["--config-json", json.dumps(config)]
    return f"dagster asset materialize {_written([*words, *defined_in])}"


def show_position(asset: str, defined_in: Iterable[str]) -> str:
    return f"dagster-kafka-flip position show {_written(['--asset', asset, *defined_in])}"


def set_position(
    table: str = "<table>",
    stream: str = "<stream>",
    *,
    to: str | None = WHERE,
    topics: Iterable[str] = (),
    servers: str = SERVERS,
) -> str:
    """Returns the command that moves a stream's position, or without one gives up what the source no longer reads."""
    words = ["--table", table, "--stream", stream, "--bootstrap-servers", servers]
    for topic in topics:
        words += ["--topic", topic]
    words += ["--give-up"] if to is None else ["--to", to]
    words += ["--reason", "<why>"]
    return f"dagster-kafka-flip position set {_written(words)}"


def _written(words: Iterable[str]) -> str:
    return " ".join(word if word.startswith("<") else shlex.quote(word) for word in words)
