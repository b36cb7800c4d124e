"""What a run gives back: its commits, and the position that it reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_kafka_flip.formats.fields import together
from dagster_kafka_flip.source.incident import lost_offsets
from dagster_kafka_flip.source.log_line import total
from dagster_kafka_flip.table.local_log import standing_at

if TYPE_CHECKING:
    from datetime import datetime

    from dagster_kafka_flip.formats.fields import FieldsSeen
    from dagster_kafka_flip.ingestion.observation import Observed
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.target import DeltaTarget
    from dagster_kafka_flip.table.written import Committed


@dataclass(frozen=True)
class KnownPosition:
    """A copy of the position that is at hand without Spark, such as in Dagster's record of the last run.

    It is believed only when it says that there is nothing new, and where the table's history has lost the position
    while Delta still holds the transaction version that it carries.

    Attributes:
        stream: Id of the stream.
        table: The table, as `DeltaTarget.identity` names it.
        state: Where the stream stood.
        verified_at: When that was last seen in the table itself.
        table_version: The table's version then.
        table_rows: The table's rows then, if they were known.
        record_bytes: Average size of the records that the run before read, keys and values, if it is known.
        kept_until: Until when the table's history surely holds the position: half of the log's retention after its
            commit. From then on the table is asked, and the position is committed anew.
        dead_letters_owed: Whether the dead-letter table did not say yet that nothing is owed to it.
        anchor_version: Version of the commit that defined the position, if it is known.
        transaction_version: The transaction version of that commit, if it is known.
        known_since: Where Dagster's storage was when the run began that looked at the table: whatever is stored behind
            it may have happened after the look.
        log: The table's location, if its log could be read from the run's own process without Spark; else None.
    """

    stream: str
    table: str
    state: EnumeratorState
    verified_at: datetime
    table_version: int
    table_rows: int | None = None
    record_bytes: float | None = None
    kept_until: datetime | None = None
    dead_letters_owed: bool = False
    anchor_version: int | None = None
    transaction_version: int | None = None
    known_since: int | None = None
    log: str | None = None

    def is_of(self, target: DeltaTarget) -> bool:
        """Whether this is where the stream of a target stands in its table.

        Args:
            target: The table and the stream.
        """
        return (self.stream, self.table) == (target.stream, target.identity)

    def seen_in_log(self) -> tuple[int, int | None] | None:
        """The table's newest version and its rows, as `standing_at` tells them; None if it can't."""
        if self.log is None or self.anchor_version is None:
            return None
        return standing_at(self.log, self.stream, self.state, self.anchor_version, self.table_version, self.table_rows)


@dataclass(frozen=True)
class Unreported:
    """Commits of the stream that an earlier run made and did not report, because it failed or was killed.

    Attributes:
        commits: Their number.
        rows: Rows that they brought; None if that is not known.
        from_version: The first of them.
        to_version: The last of them.
        incidents: What they tolerated.
    """

    commits: int
    rows: int | None
    from_version: int
    to_version: int
    incidents: tuple[Incident, ...]


@dataclass(frozen=True)
class BatchResult:
    """One commit of a run.

    Attributes:
        plan: What was planned.
        tasks: Number of tasks that read it.
        committed: What the table's history says.
        observed: What was observed while reading, and what of it is unknown.
        read_and_write_seconds: Time for reading, decoding, writing and Delta's commit.
        confirm_seconds: Time for making sure of the commit.
        incidents: What was met and tolerated while it was read; its document says so too.
    """

    plan: ReadPlan
    tasks: int
    committed: Committed
    observed: Observed
    read_and_write_seconds: float
    confirm_seconds: float
    incidents: tuple[Incident, ...] = ()


@dataclass(frozen=True)
class IngestResult:
    """What a run did.

    Attributes:
        plan: What the run read, and how the logs stood when it planned last; its batches read it in turn.
        batches: One for each commit, none if there was nothing to do.
        known: The position reached, for the next run to know.
        location: The table's location, where it is known.
        columns: Names and types of the columns landed, where Spark was started.
        overrides_start: Whether this run was told to start elsewhere than at the position.
        started_spark: Whether a Spark session was asked for.
        group_commit_failures: How often the consumer group could not be told of a commit.
        dead_letters: Records that could not be decoded and were landed in the dead-letter table, those that an earlier
            run left owing included; None where the history of that table does not tell.
        dead_letter_table: That table; None if there is none.
        incidents: What would have ended the run, and was tolerated.
        unreported: What runs before committed and did not report; None if there is no such commit.
        plan_seconds: Time for looking up the position and planning, without the start of Spark.
        spark_seconds: Time until a Spark session was there.
        spark_ui: Address of the Spark UI, where Spark was started; None where there is none.
    """

    plan: ReadPlan
    batches: tuple[BatchResult, ...]
    known: KnownPosition
    location: str | None
    columns: tuple[tuple[str, str], ...] = ()
    overrides_start: bool = False
    started_spark: bool = False
    group_commit_failures: int = 0
    dead_letters: int | None = 0
    dead_letter_table: str | None = None
    incidents: tuple[Incident, ...] = ()
    unreported: Unreported | None = None
    plan_seconds: float = 0.0
    spark_seconds: float = 0.0
    spark_ui: str | None = None

    @property
    def is_idle(self) -> bool:
        """Whether there was nothing to do, so that no commit was made."""
        return not self.batches

    @property
    def state(self) -> EnumeratorState:
        """Where the stream stands after the run."""
        return self.known.state

    @property
    def records(self) -> int | None:
        """Records read; None if that is unknown."""
        return total(batch.observed.records for batch in self.batches)

    @property
    def bytes(self) -> int | None:
        """Bytes of their keys and values; None if that is unknown."""
        return total(batch.observed.bytes for batch in self.batches)

    @property
    def rows(self) -> int | None:
        """Rows committed; None where the table's history does not tell."""
        return total(batch.committed.rows for batch in self.batches)

    @property
    def rejected_records(self) -> int | None:
        """Records that could not be decoded and were kept, or became dead letters; None if that is unknown."""
        rejected = total(batch.observed.rejected for batch in self.batches)
        # Those that an earlier run left owing are among the dead letters.
        return None if rejected is None or self.dead_letters is None else max(rejected, self.dead_letters)

    @property
    def unknown(self) -> str | None:
        """Why something of the records is unknown, by the first batch of which that is so; None if all is known."""
        why = next((why for batch in self.batches if (why := batch.observed.unknown) is not None), None)
        if why is None and self.dead_letters is None:
            return f"the history of {self.dead_letter_table} does not tell how many dead letters were landed"
        return why

    @property
    def fields(self) -> FieldsSeen | None:
        """Which fields the run's records have; None if that is unknown, or if none are declared."""
        return together(batch.observed.fields for batch in self.batches if batch.plan.splits)

    @property
    def watermark(self) -> int | None:
        """The event time that the topic partitions read have got to at least, in milliseconds since the epoch.

        None if nothing was read, or if it is unknown of a batch: what was not seen may be further back.
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
        """What was tolerated in this run, and in those before that did not report it."""
        before = () if self.unreported is None else self.unreported.incidents
        return tuple({incident.message: incident for incident in (*before, *self.incidents)}.values())

    @property
    def lost_offsets(self) -> int | None:
        """The largest number of records that were lost by what was tolerated; None if nobody can tell."""
        return lost_offsets(self.all_incidents)

    @property
    def lag_after(self) -> int:
        """Offsets between the position reached and the end offsets that were seen when planning."""
        return sum(max(0, end - self.position_of(tp)) for tp, end in self.plan.end_offsets.items())

    def position_of(self, tp: TopicPartition) -> int:
        """Where the stream stands in a topic partition after the run."""
        return self.state.position.get(tp, self.plan.starting_position[tp])
