"""The plan of a run: which table versions to read, and with which columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_kafka_flip.sink.progress import are_even

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster_kafka_flip.sink.progress import Origin, Progress, SchemaIds


@dataclass(frozen=True)
class Segment:
    """Table versions that one query reads.

    Attributes:
        first: The first version.
        last: The last version.
        is_snapshot: Whether to read all rows of the version, not its changes.
        columns: The table's columns; None for those of the last version.
        schema_ids: Ids of the registered schemas of key and value; None for those that are registered now.
        types: The types of `columns`, as Spark's JSON; None for those of the last version.
    """

    first: int
    last: int
    is_snapshot: bool = False
    columns: tuple[str, ...] | None = None
    schema_ids: SchemaIds = (None, None)
    types: str | None = None

    def __str__(self) -> str:
        if self.is_snapshot:
            return f"the snapshot of version {self.last}"
        return f"version {self.last}" if self.first == self.last else f"versions {self.first} to {self.last}"


def plan_segments(found: Sequence[Progress], origin: Origin, last: int) -> list[Segment]:
    """Returns what to read until all lanes are at the same version.

    Lanes that are not at the same version, or in the middle of one, first follow the path of the furthest lane: with
    its columns and schemas, because without a key the lane and the order of a row depend on them.
    """
    start = min(progress.version for progress in found) + 1
    segments: list[Segment] = []
    if origin.snapshot and start <= origin.version <= last:
        # A snapshot has the columns of its version, whenever it is read.
        segments.append(Segment(origin.version, origin.version, is_snapshot=True))
        start = origin.version + 1
    if not are_even(found):
        furthest = max(found, key=lambda progress: (progress.version, progress.rows))
        reached = min(last, furthest.version + (1 if furthest.rows else 0))
        if start <= reached:
            segments.append(
                Segment(
                    start,
                    reached,
                    columns=furthest.columns,
                    schema_ids=furthest.schema_ids,
                    types=furthest.types,
                )
            )
            start = reached + 1
    if start <= last:
        segments.append(Segment(start, last))
    return segments
