"""Output of `dagster-kafka-flip position set`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.cli.output import console, print_fields, print_table
from dagster_kafka_flip.settings.names import counted

if TYPE_CHECKING:
    from dagster_kafka_flip.ingestion.move_position import Move
    from dagster_kafka_flip.source.split import Position


def print_move(table: str, stream: str, move: Move, limit_rows: int) -> None:
    """Prints the old and new position of each topic partition, and the records in between."""
    out = console()
    before = {} if move.before is None else move.before.position
    print_fields(
        out,
        {
            "table": table,
            "stream": stream,
            "without the move": "runs continue from the old position"
            if move.problem is None
            else f"runs stop: {move.problem}",
            "read again": _up_to(move, move.read_again),
            "skipped": _up_to(move, move.skipped),
        },
    )
    if move.given_up:
        out.print()
        out.print(
            "The stream gives up these topic partitions. The next stream that reads them must begin at the old offset, "
            "or records are duplicated:"
        )
        given_up = [(str(tp), before.get(tp)) for tp in move.given_up]
        print_table(out, ("topic partition", "old"), given_up, indent=2, most=limit_rows)
        out.print()
    rows = [
        (str(tp), before.get(tp), offset, move.read_again.get(tp), move.skipped.get(tp))
        for tp, offset in sorted(move.after.position.items())
    ]
    rows.sort(key=lambda row: -((row[3] or 0) + (row[4] or 0)))
    print_table(out, ("topic partition", "old", "new", "read again", "skipped"), rows, most=limit_rows)


def _up_to(move: Move, records: Position) -> str:
    if move.unread is None:
        return "unknown, because the stream's position is"
    return f"up to {counted(sum(records.values()), 'record')}"
