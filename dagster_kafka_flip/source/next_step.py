"""Commands that a message names as the next step: whole, so that they run once the <placeholders> are filled in."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

WHERE = "<earliest, latest, timestamp:..., or offsets:{...}>"
"""The place of a position that nobody but the reader knows."""

TOPIC = ("<topic>",)
"""The place of the topics of a stream of which nothing is known any more."""


def set_position(
    table: str = "<table>", stream: str = "<stream>", *, to: str | None = WHERE, topics: Iterable[str] = ()
) -> str:
    """The command that moves a stream's position.

    Args:
        table: The table, or a placeholder.
        stream: The stream, or a placeholder.
        to: Where to; None gives up what the source no longer reads.
        topics: What the stream reads. Default: what it has read.
    """
    words = ["--table", table, "--stream", stream, "--bootstrap-servers", "<host:port>"]
    for topic in topics:
        words += ["--topic", topic]
    words += ["--give-up"] if to is None else ["--to", to]
    words += ["--reason", "<why>"]
    return "dagster-kafka-flip position set " + " ".join(
        word if word.startswith("<") else shlex.quote(word) for word in words
    )
