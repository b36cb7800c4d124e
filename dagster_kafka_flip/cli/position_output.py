"""Output of `dagster-kafka-flip position show`, as text and JSON, and of `position set`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.cli.output import console, iso, print_fields, print_table, utc
from dagster_kafka_flip.errors import KafkaFlipError
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.source.state import position_to_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.console import Console

    from dagster_kafka_flip.ingestion.move_position import Move
    from dagster_kafka_flip.source.split import Position, TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.commit import Commit
    from dagster_kafka_flip.table.position_report import PositionReport, StreamCommit

_ANCHORS = {
    "commit": "the stream's last commit",
    "restore": "a RESTORE",
    "creation": "the table's creation",
    "replacement": "the table's replacement",
}


@dataclass(frozen=True)
class StreamPosition:
    """A stream's position and lag.

    Attributes:
        report: The report from the table's history.
        lag: The lag, its error, or None if not requested.
    """

    report: PositionReport
    lag: Mapping[TopicPartition, int] | KafkaFlipError | None

    @property
    def state(self) -> EnumeratorState | None:
        """The stream's state; None if it has no position, or if it is unknown."""
        return None if self.report.anchor is None else self.report.anchor.state

    @property
    def has_failed(self) -> bool:
        """Whether a requested value is unknown."""
        return self.report.error is not None or isinstance(self.lag, KafkaFlipError)


def to_json(table: str, history: Sequence[Commit], positions: Sequence[StreamPosition]) -> dict[str, Any]:
    """Returns all values as JSON."""
    return {
        "table": table,
        "version": history[0].version if history else None,
        "streams": [_stream_to_json(one) for one in positions],
    }


def _stream_to_json(one: StreamPosition) -> dict[str, Any]:
    report, state, lag = one.report, one.state, one.lag
    anchor = None
    if report.anchor is not None and report.anchor_commit is not None:
        anchor = {
            "kind": report.anchor_kind,
            "version": report.anchor.version,
            "timestamp": iso(report.anchor_commit.timestamp_ms),
            "operation": report.anchor_commit.operation,
        }
    measured = None if lag is None or isinstance(lag, KafkaFlipError) else lag
    return {
        "stream": report.stream,
        "key": list(_key(report)),
        "position": None if state is None else position_to_json(state.position),
        "cluster_id": None if state is None else state.cluster_id,
        "topic_ids": None if state is None else dict(state.topic_ids),
        "low_watermark": None if state is None else iso(state.watermark),
        "anchor": anchor,
        "error": _error_to_json(report.error),
        "lag": None if measured is None else sum(measured.values()),
        "lag_by_partition": None if measured is None else {str(tp): count for tp, count in sorted(measured.items())},
        "lag_error": _error_to_json(lag if isinstance(lag, KafkaFlipError) else None),
        "commits": [
            {
                "version": entry.commit.version,
                "timestamp": iso(entry.commit.timestamp_ms),
                "rows": entry.commit.rows_written,
                "records_at_most": _offsets(entry),
                "run_id": entry.document.run_id,
                "undone": entry.is_undone,
                "start_overridden": entry.document.overrides_start,
            }
            for entry in report.commits
        ],
    }


def _error_to_json(error: KafkaFlipError | None) -> dict[str, str] | None:
    return None if error is None else {"type": type(error).__name__, "message": str(error)}


def print_positions(
    table: str, history: Sequence[Commit], positions: Sequence[StreamPosition], limit_rows: int
) -> None:
    """Prints all values."""
    out = console()
    print_fields(out, {"table": f"{table}, version {history[0].version if history else 'unknown'}"})
    if not positions:
        out.print("No stream has written to this table in the available history.")
    for one in positions:
        out.print()
        _print_stream(out, one, limit_rows)


def _key(report: PositionReport) -> tuple[str, ...]:
    """The columns that identify the table's rows; empty if rows are appended."""
    document = None if report.anchor is None else report.anchor.document
    return () if document is None else document.key


def _position_fields(report: PositionReport, state: EnumeratorState | None) -> dict[str, str]:
    error = "" if report.error is None else f"{type(report.error).__name__}: {report.error}"
    if error and report.anchor is None:
        return {"position": f"unknown. {error}"}
    if state is None:
        return {"position": "none; a run begins at the source's starting_offsets"}
    topics = {tp.topic for tp in state.position}
    fields = {"position": f"{counted(len(state.position), 'topic partition')} of {counted(len(topics), 'topic')}"}
    return {**fields, "in doubt": f"runs can't continue from here. {error}"} if error else fields


def _print_stream(out: Console, one: StreamPosition, limit_rows: int) -> None:
    report, state, lag = one.report, one.state, one.lag
    fields: dict[str, object] = {"stream": report.stream, **_position_fields(report, state)}
    if report.anchor is not None and report.anchor_commit is not None and report.anchor_kind is not None:
        made = utc(report.anchor_commit.timestamp_ms)
        fields["anchor"] = f"version {report.anchor.version}, {_ANCHORS[report.anchor_kind]}, {made}"
    if key := _key(report):
        fields["key"] = ", ".join(key)
    if state is not None:
        fields["cluster"] = state.cluster_id or "without an id"
        if state.watermark is not None:
            fields["low watermark"] = utc(state.watermark)
    if isinstance(lag, KafkaFlipError):
        fields["lag"] = f"unknown. {type(lag).__name__}: {lag}"
    elif lag is not None:
        fields["lag"] = f"{sum(lag.values()):,} offsets"
    print_fields(out, fields)
    if state is not None:
        _print_offsets(out, state, {} if isinstance(lag, KafkaFlipError) else lag or {}, limit_rows)
    if report.commits:
        out.print()
        print_table(
            out,
            ["commit", "time", "rows", "records at most", "run", ""],
            [
                (
                    entry.commit.version,
                    utc(entry.commit.timestamp_ms),
                    "unknown" if (rows := entry.commit.rows_written) is None else rows,
                    _offsets(entry),
                    entry.document.run_id,
                    _remarks(entry),
                )
                for entry in report.commits
            ],
            indent=2,
        )


def _print_offsets(out: Console, state: EnumeratorState, lag: Mapping[TopicPartition, int], limit_rows: int) -> None:
    by_lag = sorted({*state.position, *lag}, key=lambda tp: (-lag.get(tp, 0), tp))
    out.print()
    print_table(
        out,
        ["topic partition", "next offset", *(["lag"] if lag else [])],
        [(tp, state.position.get(tp), *([lag.get(tp)] if lag else [])) for tp in by_lag],
        indent=2,
        most=limit_rows,
    )


def _offsets(entry: StreamCommit) -> int:
    return sum(split.offset_span for split in entry.document.splits)


def _remarks(entry: StreamCommit) -> str:
    remarks = (("undone by a RESTORE", entry.is_undone), ("start overridden", entry.document.overrides_start))
    return ", ".join(text for text, holds in remarks if holds)


def print_move(table: str, stream: str, move: Move, limit_rows: int) -> None:
    """Prints the old and new position of each topic partition, and the records in between."""
    out = console()
    before = {} if move.before is None else move.before.position
    print_fields(
        out,
        {
            "table": table,
            "stream": stream,
            "without the move": f"runs stop: {move.problem}"
            if move.problem is not None
            else f"runs {'begin at starting_offsets' if move.before is None else 'continue from the old position'}",
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
