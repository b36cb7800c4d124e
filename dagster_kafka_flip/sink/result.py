"""PublishResult: what a run published."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.sink.progress import Progress

LEFT_OUT, LEFT_OUT_BY_ERROR = "kafka/rows_left_out", "kafka/rows_left_out_by_error"
"""Facts of rows that a run left out."""
SINK, SINK_PROGRESS = "kafka/sink", "kafka/sink_progress"
"""The sink that an event is of, and what it reached."""


@dataclass(frozen=True)
class PublishResult:
    """What a run published.

    Attributes:
        table: The table.
        table_id: Delta's id of the table.
        topic: The topic.
        first_version: The first table version that the run published, or the rest of it; None if there was nothing new.
        last_version: All versions up to this one are published.
        newest_version: The table's newest version when the run planned.
        rows_left: Whether a limit ended the run before the planned version.
        batches: Number of batches: on each lane a transaction with its progress.
        records: Number of records, without progress records.
        tombstones: How many of them are tombstones.
        bytes: Bytes of their keys and values, and of dead letters.
        left_out: Rows that the sink tolerates and left out, by the name of their error.
        dead_letters: How many of them are in the dead-letter topic.
        partitions_added: Topic partitions that were added since the sink last published, so that keys moved.
        spark_seconds: Seconds until Spark was there; None if it was not needed.
        seconds: Seconds of the whole run.
        progress: Progress of each lane at the end of the run.
        sink: The sink's `transactional_id_prefix`.
        progress_topic: The topic of its progress.
    """

    table: str
    table_id: str
    topic: str
    first_version: int | None
    last_version: int
    newest_version: int
    rows_left: bool = False
    batches: int = 0
    records: int = 0
    tombstones: int = 0
    bytes: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])
    dead_letters: int = 0
    partitions_added: int = 0
    spark_seconds: float | None = None
    seconds: float = 0.0
    progress: tuple[Progress, ...] = ()
    sink: str = ""
    progress_topic: str = ""

    @property
    def lag_versions(self) -> int:
        """Number of table versions, up to the newest, that are not published yet."""
        return max(0, self.newest_version - self.last_version)

    @property
    def metadata(self) -> dict[str, Any]:
        """What the scheduler's metadata shows, by the keys of docs/metadata.md."""
        starting = self.spark_seconds
        publishing = self.seconds - (starting or 0)
        rate = round(self.records / publishing, 3) if self.records and publishing > 0 else None
        values: dict[str, Any] = {
            "kafka/idle": self.first_version is None,
            "kafka/records_written": self.records,
            "kafka/bytes_written": self.bytes,
            "kafka/tombstones_written": self.tombstones,
            "kafka/transactions": self.batches,
            "kafka/partitions_added": self.partitions_added or None,
            LEFT_OUT: sum(self.left_out.values()) or None,
            LEFT_OUT_BY_ERROR: dict(self.left_out) or None,
            "kafka/dead_letters_written": self.dead_letters if self.left_out else None,
            "delta/from_version": self.first_version,
            "delta/to_version": self.last_version,
            "delta/newest_version": self.newest_version,
            "delta/lag_versions": self.lag_versions,
            "spark/started": starting is not None,
            "seconds/spark_start": None if starting is None else round(starting, 3),
            "seconds/total": round(self.seconds, 3),
            "kafka/records_written_per_second": rate,
            SINK: self.sink,
            "kafka/progress_topic": self.progress_topic,
            SINK_PROGRESS: self.known_json,
        }
        return {name: value for name, value in values.items() if value is not None}

    @property
    def known_json(self) -> dict[str, dict[str, int]]:
        """`known` as JSON, and how many rows were left out since the sink began, if any."""
        left_out = {each.lane: {"left_out": each.left_out} if each.left_out else {} for each in self.progress}
        return {
            str(lane): {"version": version, "rows": rows, **left_out[lane]}
            for lane, (version, rows) in self.known.items()
        }

    @property
    def known(self) -> dict[int, tuple[int, int]]:
        """By lane: the last complete table version, and the rows published of the next. Pass it to the next run."""
        return {lane.lane: lane.at for lane in self.progress}


def known_of(told: Any) -> dict[int, tuple[int, int]]:
    """`known`, of what a run's metadata tells; empty if that is somebody else's, under the same name."""
    try:
        return {int(lane): (int(reached["version"]), int(reached["rows"])) for lane, reached in told.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}
