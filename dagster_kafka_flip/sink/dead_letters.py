"""What a dead-letter topic gets of a row that is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dagster_kafka_flip.errors import UnpublishableRowError
    from dagster_kafka_flip.sink.kafka_sink import KafkaSink
    from dagster_kafka_flip.sink.table_rows import TableRow

_PREFIX = "kafka_flip."
_LONGEST_MESSAGE = 2000


class DeadLetter(NamedTuple):
    """A record of the dead-letter topic."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def dead_letters_of(
    row: TableRow, key: bytes | None, value: bytes | None, table: str, sink: KafkaSink, error: UnpublishableRowError
) -> list[DeadLetter]:
    """Returns what can be sent of a row, the most of it first: the next one counts if a topic does not take it."""
    why = {
        "error": type(error).__name__,
        "message": str(error)[:_LONGEST_MESSAGE],
        "table": table,
        "version": str(row.version),
        "topic": (row.topic or "")[:249] if sink.topic_column is not None else sink.topic,
        "sink": sink.transactional_id_prefix,
    }
    own = row.named_headers

    def headers(content: str) -> list[tuple[str, bytes | None]]:
        return [(f"{_PREFIX}{name}", text.encode()) for name, text in {**why, "value": content}.items()]

    # A row that can't be serialized is there as JSON.
    whole = (value, "record") if row.text is None else (row.text.encode(), "row as JSON")
    return [
        DeadLetter(key, whole[0], [*own, *headers(whole[1])]),
        DeadLetter(key, None, [*own, *headers("left out: too large")]),
        DeadLetter(key, None, headers("left out: too large")),
        DeadLetter(None, None, headers("left out: too large, as the key")),
    ]
