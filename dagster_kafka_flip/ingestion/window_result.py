"""Result of a run that lands windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dagster_kafka_flip.ingestion.observation import Observed
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.window_plan import PlannedWindow, WindowPlan
    from dagster_kafka_flip.table.commit import Committed


@dataclass(frozen=True)
class WindowsSeen:
    """Counts of a batch's windows, from the read.

    Attributes:
        late: Records of each window that came after a record of a later window, by the window's number in the batch.
        stragglers: Records that came later than the maximum lateness allows, and are in no window.
        timeless: Records without a timestamp, which are in no window.
    """

    late: Mapping[int, int]
    stragglers: int
    timeless: int


@dataclass(frozen=True)
class WindowsResult:
    """One commit of windows.

    Attributes:
        plan: What was planned.
        tasks: Number of tasks that read it.
        committed: The commit as the table's history has it; None if there was nothing to read and nothing to replace.
        observed: Counts of the records, and which of them are unknown.
        seen: Counts of the windows; None if they are unknown, or if no record can miss its window.
        rows: Number of each window's rows in the table, by the window's key; if only some topics are landed, of these.
            None if unknown.
        location: Where the table is.
        table_name: Its full name in its catalog; None for a path.
        columns: Names and types of the table's columns.
        comments: The comment of each column that has one.
        reader_schemas: The registered schemas that records were read as, by `key` and `value`.
        plan_seconds: Time for planning.
        read_and_write_seconds: Time for reading, decoding, writing and Delta's commit, with all attempts.
        confirm_seconds: Time for confirming the commit.
        spark_ui: Address of the Spark UI; None if there is none.
        can_miss: Whether a record can miss its window; not in a repair.
        rows_by_topic: The same by the window's key and the topic, if only some topics are landed. None if unknown.
        kept: Topic partitions with windows in the table that were not read: their rows stayed.
        spark_seconds: Time until Spark was started, of a run's first result; 0 of the others.
        column_changes: How the commit changed the table's columns, such as `+ note string`.
        columns_not_written: Columns of the table, and fields in them, that the records did not have.
    """

    plan: WindowPlan
    tasks: int
    committed: Committed | None
    observed: Observed
    seen: WindowsSeen | None
    rows: Mapping[str, int] | None
    location: str
    columns: tuple[tuple[str, str], ...]
    comments: Mapping[str, str]
    reader_schemas: Mapping[str, str]
    plan_seconds: float
    read_and_write_seconds: float
    confirm_seconds: float
    spark_ui: str | None = None
    can_miss: bool = True
    rows_by_topic: Mapping[tuple[str, str], int] | None = None
    kept: tuple[TopicPartition, ...] = ()
    table_name: str | None = None
    spark_seconds: float = 0.0
    column_changes: tuple[str, ...] = ()
    columns_not_written: tuple[str, ...] = ()

    def rows_of(self, window: PlannedWindow, topics: Collection[str] | None = None) -> int | None:
        """Number of rows of one of its windows; None if unknown.

        Args:
            window: The window.
            topics: Of these topics only; None for all.
        """
        key = window.window.key
        if topics is None:
            return None if self.rows is None else self.rows.get(key, 0)
        if self.rows_by_topic is None:
            return None
        return sum(self.rows_by_topic.get((key, topic), 0) for topic in topics)

    @property
    def stragglers(self) -> int | None:
        """Records that were read and are in no window, because they came too late or have no time; None if unknown."""
        if self.seen is None:
            return None if self.can_miss else 0
        return self.seen.stragglers + self.seen.timeless

    def late_records(self, window: PlannedWindow) -> int | None:
        """Late records of one of its windows that were read nevertheless; None if unknown."""
        if self.seen is None:
            return None
        return self.seen.late.get(self.plan.windows.index(window), 0)
