"""What a run gives back: its commits, and the position that it reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_kafka_flip.source.incident import lost_offsets

if TYPE_CHECKING:
    from datetime import datetime

    from dagster_kafka_flip.observation import Observed
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.plan import ReadPlan
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.delta_table import Committed


@dataclass(frozen=True)
class KnownPosition:
    """A copy of the position that is at hand without Spark, such as in Dagster's record of the last run.

    It is believed only when it says that there is nothing new, and where the table's history has lost the position
    while Delta still holds the transaction version that it carries.

    Attributes:
        stream: Id of the stream.
        table: The table, as its DeltaTarget prints it.
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


@dataclass(frozen=True)
class BatchResult:
    """One commit of a run.

    Attributes:
        plan: What was planned.
        tasks: Number of tasks that read it.
        committed: What the table's history says.
        observed: What was observed while reading; None if Spark had nothing to tell.
        read_and_write_seconds: Time for reading, decoding, writing and Delta's commit.
        confirm_seconds: Time for making sure of the commit.
    """

    plan: ReadPlan
    tasks: int
    committed: Committed
    observed: Observed | None
    read_and_write_seconds: float
    confirm_seconds: float


@dataclass(frozen=True)
class IngestResult:
    """What a run did.

    Attributes:
        plan: The whole run's plan; its batches read it in turn.
        batches: One for each commit, none if there was nothing to do.
        known: The position reached, for the next run to know.
        location: The table's location, where it is known.
        columns: Names and types of the columns landed, where Spark was started.
        overrides_start: Whether this run was told to start elsewhere than at the position.
        started_spark: Whether a Spark session was asked for.
        group_commit_failures: How often the consumer group could not be told of a commit.
        dead_letters: Records that could not be decoded and were landed in the dead-letter table, those that an earlier
            run left owing included.
        dead_letter_table: That table; None if there is none.
        incidents: What would have ended the run, and was tolerated.
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
    dead_letters: int = 0
    dead_letter_table: str | None = None
    incidents: tuple[Incident, ...] = ()
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
        """Records read; None if Spark had nothing to tell."""
        seen = [batch.observed for batch in self.batches]
        return None if None in seen else sum(observed.records for observed in seen if observed is not None)

    @property
    def rows(self) -> int:
        """Rows committed."""
        return sum(batch.committed.rows for batch in self.batches)

    @property
    def rejected_records(self) -> int:
        """Records that could not be decoded and were kept, or became dead letters, as far as Spark tells."""
        seen = (batch.observed.rejected for batch in self.batches if batch.observed is not None)
        return max(sum(seen), self.dead_letters)

    @property
    def lost_offsets(self) -> int | None:
        """The largest number of records that were lost by what was tolerated; None where nobody can tell."""
        return lost_offsets(self.incidents)

    @property
    def lag_after(self) -> int:
        """Offsets between the position reached and the end offsets that were seen when planning."""
        position = self.state.position
        return sum(max(0, end - position[tp]) for tp, end in self.plan.end_offsets.items())
