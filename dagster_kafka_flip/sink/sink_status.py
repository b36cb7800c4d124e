"""What a sink has published, and what its next run would publish. Reads only."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.sink.progress import ProgressTopic, check_sink, check_table, plan_segments
from dagster_kafka_flip.sink.table_versions import TableVersions, local_version, not_there
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.table.commit import Effect, effect_of
from dagster_kafka_flip.table.delta_log import TableLog
from dagster_kafka_flip.table.local_log import commits_between, is_absent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.sink.delta_source import DeltaSource
    from dagster_kafka_flip.sink.kafka_sink import KafkaSink
    from dagster_kafka_flip.sink.progress import Progress
    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.table.commit import Commit


@dataclass(frozen=True)
class SinkStatus:
    """The progress of a sink, and what its next run would publish: versions from `first`, or its snapshot, to `stop`.

    Attributes:
        lanes: Progress of each lane that has some.
        first: None if nothing is left, or if only the table's history shows where the sink starts.
    """

    lanes: tuple[Progress, ...]
    first: int | None
    snapshot: bool
    newest_version: int
    stop: int

    @property
    def published_version(self) -> int | None:
        """All versions up to this one are published; None without progress."""
        return min((lane.version for lane in self.lanes), default=None)

    @property
    def lag_versions(self) -> int | None:
        """Number of versions, up to the newest, that are not published; None without progress."""
        published = self.published_version
        return None if published is None else max(0, self.newest_version - published)


def sink_status(
    source: DeltaSource, sink: KafkaSink, connection: KafkaConnection, spark: Callable[[], SparkSession]
) -> SinkStatus:
    """Reads a sink's progress and its table's newest version.

    A run that is under way may be further: only the owner of the transactional ids knows the progress for certain.
    """
    with contextlib.closing(KafkaCluster(connection)) as cluster:
        topic = ProgressTopic(cluster, sink)
        there = cluster.describe_topics([topic.name, sink.topic], skip_missing=True)
        found = topic.read(settled=False) if topic.name in there else {}
    topic_id = there[sink.topic].topic_id if sink.topic in there else None
    check_sink(found, sink.transactional_id_prefix, sink.lanes, sink.topic, topic_id)
    local = local_version(source)
    if local is None:
        # Known without Spark, which the caller may not want to start.
        if source.target.is_path and is_absent(source.target.location):
            raise not_there(source)
        versions = TableVersions(spark(), source)
        local = versions.newest, versions.table_id
    newest, table_id = local
    check_table(found, sink.transactional_id_prefix, str(source), table_id)
    stop = newest if source.stop is None else min(newest, source.stop)
    first, snapshot = _first(source, found, stop)
    return SinkStatus(tuple(found[number] for number in sorted(found)), first, snapshot, newest, stop)


def _first(source: DeltaSource, found: Mapping[int, Progress], stop: int) -> tuple[int | None, bool]:
    """The first version that the next run would publish, and whether as a snapshot."""
    if found:
        left = plan_segments([*found.values()], next(iter(found.values())).origin, stop)
        return (left[0].first, left[0].is_snapshot) if left else (None, False)
    if source.start == "snapshot":
        return stop, True
    if not isinstance(source.start, int):
        return None, False
    return (source.start, False) if source.start <= stop else (None, False)


def planned_versions(
    source: DeltaSource, first: int, last: int, spark: Callable[[], SparkSession]
) -> list[dict[str, Any]]:
    """Versions, and the rows that each inserted, updated or deleted; None if its commit does not report them."""
    target = source.target
    commits = commits_between(target.location, first, last) if target.is_path else None
    if commits is None:
        there = TableLog(spark(), target).commits()
        commits = [commit for commit in there if first <= commit.version <= last][::-1]
    return [{"version": each.version, "operation": each.operation, "rows": _changed_rows(each)} for each in commits]


def _changed_rows(commit: Commit) -> int | None:
    effect = effect_of(commit)
    if commit.operation in {"UPDATE", "DELETE"}:
        return commit.metric(f"num{commit.operation.title()}dRows")
    if commit.operation == "CREATE TABLE" or effect is Effect.KEEPS_ROWS:
        return 0
    if commit.operation == "MERGE":
        written, deleted = commit.rows_written, commit.metric("numTargetRowsDeleted")
        return None if written is None or deleted is None else written + deleted
    # A commit does not report what an overwrite deleted.
    return commit.rows_written if effect in (Effect.APPENDS, Effect.CREATES) else None
