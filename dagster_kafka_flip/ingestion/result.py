"""Results of runs: of a stream, its commits and its new position; of windows, what was landed of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_kafka_flip.formats.fields import merge_fields
from dagster_kafka_flip.source.incident import total
from dagster_kafka_flip.table.commit import MergedRows

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dagster_kafka_flip.formats.fields import FieldsSeen
    from dagster_kafka_flip.ingestion.observation import Observed
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.source.window import PlannedWindow, WindowPlan
    from dagster_kafka_flip.table.commit import Committed
    from dagster_kafka_flip.table.known_position import KnownPosition
    from dagster_kafka_flip.table.schema import TableColumns


@dataclass(frozen=True)
class UnreportedCommits:
    """Commits of earlier runs that were not reported, because the runs failed or were killed."""

    commits: int
    rows: int | None
    from_version: int
    to_version: int
    incidents: tuple[Incident, ...]
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class BatchResult:
    """One commit of a run: its plan, the number of tasks that read it, and what was met.

    Attributes:
        observed: Metrics of the read, and which are unknown.
        read_and_write_seconds: Seconds for reading, decoding, writing and Delta's commit, with all attempts.
        incidents: Tolerated errors that the commit records.
    """

    plan: ReadPlan
    tasks: int
    committed: Committed
    observed: Observed
    read_and_write_seconds: float
    incidents: tuple[Incident, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TableResult:
    """What every run tells of its table.

    Attributes:
        location: The table's location, if known.
        table_name: The table's full name in its catalog, if it has one and Spark was started.
        written: The table's columns, and what the run changed about them, if Spark was started.
        reader_schemas: The registered schemas that records were read as, by `key` and `value`.
        plan_seconds: Seconds for reading the position and planning, without Spark's start.
        spark_seconds: Seconds until the Spark session was available; 0 for a run's later results.
        spark_ui: Address of the Spark UI; None if there is none.
    """

    location: str | None = None
    table_name: str | None = None
    written: TableColumns | None = None
    reader_schemas: Mapping[str, str] = field(default_factory=dict[str, str])
    plan_seconds: float = 0.0
    spark_seconds: float = 0.0
    spark_ui: str | None = None

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Names and types of the table's columns, if Spark was started."""
        fields = () if self.written is None else self.written.struct.fields
        return tuple((each.name, each.dataType.simpleString()) for each in fields)

    @property
    def comments(self) -> Mapping[str, str]:
        """The comment of each column that has one, if Spark was started."""
        fields = () if self.written is None else self.written.struct.fields
        return {each.name: str(text) for each in fields if (text := (each.metadata or {}).get("comment")) is not None}

    @property
    def column_changes(self) -> tuple[str, ...]:
        """How the table's columns changed, such as `+ note string`."""
        return () if self.written is None else self.written.changes

    @property
    def columns_not_written(self) -> tuple[str, ...]:
        """Columns of the table, and fields in them, that the records did not have."""
        return () if self.written is None else self.written.not_written


@dataclass(frozen=True)
class IngestResult(TableResult):
    """Result of a run.

    Attributes:
        plan: The run's plan, with the logs as of the last planning.
        batches: One entry per commit; empty if there was nothing to do.
        known: The new position, as a record for the next run.
        overrides_start: Whether the run's start was overridden.
        started_spark: Whether the run used a Spark session.
        group_commit_failures: Number of failed commits to the consumer group.
        dead_letters: Number of records written to the dead-letter table, including pending ones of an earlier run; None
            if unknown.
        dead_letter_table: The dead-letter table; None if there is none.
        unreported: Unreported commits of earlier runs; None if there are none.
    """

    plan: ReadPlan
    batches: tuple[BatchResult, ...]
    known: KnownPosition
    overrides_start: bool = False
    started_spark: bool = False
    group_commit_failures: int = 0
    dead_letters: int | None = 0
    dead_letter_table: str | None = None
    incidents: tuple[Incident, ...] = ()
    unreported: UnreportedCommits | None = None

    @property
    def is_idle(self) -> bool:
        """Whether there was nothing to do and nothing was committed."""
        return not self.batches

    @property
    def state(self) -> EnumeratorState:
        """The stream's state after the run."""
        return self.known.state

    @property
    def records(self) -> int | None:
        """Number of records read; None if unknown."""
        return total(batch.observed.records for batch in self.batches)

    @property
    def bytes(self) -> int | None:
        """Bytes of keys and values read; None if unknown."""
        return total(batch.observed.bytes for batch in self.batches)

    @property
    def rows(self) -> int | None:
        """Number of rows committed: added, or by a merge also updated; None if unknown."""
        return total(batch.committed.rows for batch in self.batches)

    @property
    def merged(self) -> MergedRows | None:
        """What became of the changes of all batches; None if rows are appended, or if it is unknown."""
        merged = [batch.committed.merged for batch in self.batches if batch.plan.splits]
        known = [each for each in merged if each is not None]
        if not known or len(known) < len(merged):
            return None
        return MergedRows(
            inserted=sum(each.inserted for each in known),
            updated=sum(each.updated for each in known),
            deleted=sum(each.deleted for each in known),
            unchanged=total(each.unchanged for each in known),
        )

    @property
    def rejected_records(self) -> int | None:
        """Number of undecodable records, kept or written as dead letters; None if unknown."""
        rejected = total(batch.observed.rejected for batch in self.batches)
        # The dead letters may include some that were pending from an earlier run.
        return None if rejected is None or self.dead_letters is None else max(rejected, self.dead_letters)

    @property
    def events_without_row(self) -> int | None:
        """Number of records that change no row, if values are a database's changes; None if unknown."""
        return total(batch.observed.events_without_row for batch in self.batches)

    @property
    def unknown(self) -> str | None:
        """Reason why a value is unknown, from the first batch with one; None if all are known."""
        why = next((why for batch in self.batches if (why := batch.observed.unknown) is not None), None)
        if why is None and self.dead_letters is None:
            return f"the history of {self.dead_letter_table} does not record the number of dead letters"
        return why

    @property
    def fields(self) -> FieldsSeen | None:
        """Fields of the run's records; None if unknown, or if none are declared."""
        return merge_fields(batch.observed.fields for batch in self.batches if batch.plan.splits)

    @property
    def watermark(self) -> int | None:
        """Minimum event time that all read topic partitions have reached, in milliseconds since the epoch.

        None if nothing was read, or if a batch's value is unknown and may be lower.
        """
        highest: dict[TopicPartition, int] = {}
        for batch in self.batches:
            if batch.observed.highest_timestamps is None:
                return None
            for topic_partition, timestamp in batch.observed.highest_timestamps.items():
                highest[topic_partition] = max(timestamp, highest.get(topic_partition, timestamp))
        return min(highest.values(), default=None)

    @property
    def all_incidents(self) -> tuple[Incident, ...]:
        """Errors tolerated in this run and in unreported earlier runs."""
        before = () if self.unreported is None else self.unreported.incidents
        return tuple({incident.message: incident for incident in (*before, *self.incidents)}.values())

    @property
    def lost_offsets(self) -> int | None:
        """Maximum number of lost records in all tolerated errors; None if unknown."""
        return total(incident.lost_offsets for incident in self.all_incidents)

    @property
    def lag_after(self) -> int:
        """Offsets between the new position and the end offsets at planning."""
        return sum(max(0, end - self.position_of(tp)) for tp, end in self.plan.end_offsets.items())

    def position_of(self, tp: TopicPartition) -> int:
        """The new position of a topic partition."""
        return self.state.position.get(tp, self.plan.starting_position[tp])


@dataclass(frozen=True)
class WindowsResult(TableResult):
    """One commit of windows.

    Attributes:
        committed: The commit as the table's history has it; None if there was nothing to read and nothing to replace.
        observed: Counts of the records and windows, and which of them are unknown.
        rows: Number of each window's rows in the table, by the window's key; if only some topics are landed, of these.
            None if unknown.
        read_and_write_seconds: Time for reading, decoding, writing and Delta's commit, with all attempts.
        can_miss: Whether a record can miss its window; not in a repair.
        rows_by_topic: The same by the window's key and the topic, if only some topics are landed. None if unknown.
        kept: Topic partitions with windows in the table that were not read: their rows stayed.
    """

    plan: WindowPlan
    tasks: int
    committed: Committed | None
    observed: Observed
    rows: Mapping[str, int] | None
    location: str = field(default="", kw_only=True)
    read_and_write_seconds: float
    can_miss: bool = True
    rows_by_topic: Mapping[tuple[str, str], int] | None = None
    kept: tuple[TopicPartition, ...] = ()

    def rows_of(self, window: PlannedWindow, topics: Collection[str] | None = None) -> int | None:
        """Number of rows of one of its windows, of some topics only or of all; None if unknown."""
        key = window.window.key
        if topics is None:
            return None if self.rows is None else self.rows.get(key, 0)
        if self.rows_by_topic is None:
            return None
        return sum(self.rows_by_topic.get((key, topic), 0) for topic in topics)

    @property
    def stragglers(self) -> int | None:
        """Records that were read and are in no window, because they came too late or have no time; None if unknown."""
        if (seen := self.observed.windows) is None:
            return None if self.can_miss else 0
        return seen.stragglers + seen.timeless

    def late_records(self, window: PlannedWindow) -> int | None:
        """Late records of one of its windows that were read nevertheless; None if unknown."""
        seen = self.observed.windows
        return None if seen is None else seen.late.get(self.plan.windows.index(window), 0)
