"""Batches: gives each row to its lane, and tracks the position of each in the versions. No Kafka, no Spark."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import SinkProgressError
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.sink.progress import ANEW
from dagster_kafka_flip.sink.table_rows import INSERT, LEFT, UPDATED, TableRow

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dagster_kafka_flip.sink.progress import Progress


@dataclass(slots=True)
class _LanePosition:
    """Where a lane is: its progress, how many rows of the version that is read it has seen, and their checksums."""

    progress: Progress
    seen: int = 0
    digest: int = 0
    # Without the last row.
    before: int = 0


def _place(row: TableRow) -> tuple[bytes | None, str | None, int | None]:
    return row.key, row.topic, row.partition


class Batches:
    """Takes the rows of all lanes in order, and yields those to publish.

    If it `folds`, each tombstone gives way to a later row of the same key, version, topic and topic partition; else
    only that of a key that an update may have left.

    Attributes:
        version: The version that is read; None before the first row.
    """

    def __init__(self, found: Sequence[Progress], *, folds: bool) -> None:
        self._positions = [_LanePosition(progress) for progress in found]
        self._folds = folds
        # The version that is read.
        self.version: int | None = None
        # A tombstone whose key may follow with a value.
        self._held: TableRow | None = None

    def take(self, row: TableRow) -> Sequence[TableRow]:
        """Adds the next row, in the order of SegmentRows; returns those that are to be published now."""
        held, self._held = self._held, None
        # Elsewhere the row takes nothing's place: there the key's earlier value stays without a tombstone.
        is_followed = held is not None and row.key is not None and _place(held) == _place(row)
        # One tombstone of several is enough, too.
        if is_followed and (row.rank in _VALUES or row.value is None):
            held = None
        before = () if held is None else (held,)
        position = self._positions[row.lane]
        position.seen += 1
        position.before = position.digest
        position.digest = zlib.crc32(row.value or b"", zlib.crc32(row.key or b"", position.before))
        progress = position.progress
        if progress.version >= row.version or position.seen <= progress.rows:
            if position.seen == progress.rows and progress.version < row.version and position.digest != progress.digest:
                raise _other_rows(progress)
            return before
        if row.rank == LEFT or (self._folds and row.rank not in _VALUES):
            self._held = row
            return before
        return (*before, row)

    def turn_to(self, version: int) -> Iterator[TableRow]:
        """Ends the version that is read, and those without rows behind it; yields the held row, if there is one."""
        held, self._held = self._held, None
        if held is not None:
            yield held
        for position in self._positions:
            progress = position.progress
            if progress.version < version - 1:
                rows = position.seen if self.version == progress.version + 1 else 0
                if rows < progress.rows:
                    raise SinkProgressError(
                        f"lane {progress.lane}: {counted(progress.rows, 'row')} of table version "
                        f"{progress.version + 1} were published, but {progress.table}, or the sink's function, "
                        f"now has only {counted(rows, 'row')} of it, so it is unknown which rows are left",
                        f"Set the function back, if it changed. Else {ANEW}",
                    )
                position.progress = replace(progress, version=version - 1, rows=0, digest=0)
            position.seen = position.digest = position.before = 0
        self.version = version

    def reached(self) -> list[Progress]:
        return [self._reached(position) for position in self._positions]

    def _reached(self, position: _LanePosition) -> Progress:
        progress = position.progress
        if self.version != progress.version + 1:
            return progress
        is_held = self._held is not None and self._held.lane == progress.lane
        rows = position.seen - is_held
        if rows <= progress.rows:
            return progress
        return replace(progress, rows=rows, digest=position.before if is_held else position.digest)


def _other_rows(progress: Progress) -> SinkProgressError:
    return SinkProgressError(
        f"lane {progress.lane}: {counted(progress.rows, 'row')} of version {progress.version + 1} of {progress.table} "
        "were published, but their keys and values are different now, so it is unknown which rows are left: the "
        "transform has changed, or does not return the same rows each time",
        "Set the transform back for one run, which finishes the version; or publish the table under another "
        "transactional_id_prefix",
    )


_VALUES = (UPDATED, INSERT)
