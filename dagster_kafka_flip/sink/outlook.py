"""What a sink has published, and what its next run would publish. Reads only."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_kafka_flip.sink.progress import check_sink, check_table
from dagster_kafka_flip.sink.progress_topic import ProgressTopic
from dagster_kafka_flip.sink.table_versions import TableVersions, local_version
from dagster_kafka_flip.source.cluster import KafkaCluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from dagster_kafka_flip.sink.delta_source import DeltaSource
    from dagster_kafka_flip.sink.kafka_sink import KafkaSink
    from dagster_kafka_flip.sink.progress import Progress
    from dagster_kafka_flip.source.connection import KafkaConnection


@dataclass(frozen=True)
class Outlook:
    """Where a sink is, and where its next run would end.

    Attributes:
        lanes: Progress of each lane that has some.
        newest_version: The table's newest version.
        stop: The last version that the next run would publish.
    """

    lanes: tuple[Progress, ...]
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


def outlook(
    source: DeltaSource, sink: KafkaSink, connection: KafkaConnection, spark: Callable[[], SparkSession]
) -> Outlook:
    """Reads a sink's progress and its table's newest version.

    A run that is under way may be further: only the owner of the transactional ids knows the progress for certain.

    Args:
        source: The table.
        sink: The sink.
        connection: Kafka connection.
        spark: Returns a Spark session; only called if the table's log can't be seen without.

    Raises:
        KafkaFlipError: The progress does not fit the sink, or the table or the topic can't be read.
    """
    with contextlib.closing(KafkaCluster(connection)) as cluster:
        topic = ProgressTopic(cluster, sink)
        there = cluster.describe_topics([topic.name, sink.topic], skip_missing=True)
        found = topic.read(is_owner=False) if topic.name in there else {}
    topic_id = there[sink.topic].topic_id if sink.topic in there else None
    check_sink(found, sink.transactional_id_prefix, sink.lanes, sink.topic, topic_id)
    local = local_version(source)
    if local is None:
        versions = TableVersions(spark(), source)
        local = versions.newest, versions.table_id
    newest, table_id = local
    check_table(found, sink.transactional_id_prefix, str(source), table_id)
    stop = newest if source.stop is None else min(newest, source.stop)
    return Outlook(tuple(found[number] for number in sorted(found)), newest, stop)
