"""ProgressTopic: the compacted topic that holds a sink's progress, one topic partition for each lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tenacity

from dagster_kafka_flip.errors import SinkProgressError
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.sink.progress import Progress
from dagster_kafka_flip.source.isolation import READ_COMMITTED, READ_UNCOMMITTED
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection

    from dagster_kafka_flip.sink.kafka_sink import KafkaSink
    from dagster_kafka_flip.source.cluster import KafkaCluster
    from dagster_kafka_flip.telemetry.repeatedly import Log

# Compacted soon, because each run reads it: closed segments of a day, and a hundredth of stale records.
_SETTINGS = {"cleanup.policy": "compact", "segment.ms": "86400000", "min.cleanable.dirty.ratio": "0.01"}

# A lane's last record is near the end: behind it are only markers, and what runs aborted.
_NEAR_THE_END = 20

_MARKER_SECONDS = 5.0


class ProgressTopic:
    """A sink's progress topic.

    Attributes:
        name: The topic's name.
    """

    def __init__(self, cluster: KafkaCluster, sink: KafkaSink) -> None:
        self._cluster, self._sink = cluster, sink
        self.name = sink.progress_name

    def prepare(self, replicas: int, log: Log) -> None:
        """Creates the topic if it is missing, and checks it.

        Args:
            replicas: How many replicas the published topic has; 0 if unknown.
            log: The run's log.

        Raises:
            SinkProgressError: Its records may expire, or it has fewer topic partitions than the sink has lanes.
            ClusterAccessError: This client may not create it, or not see it or its settings.
        """
        lanes = self._sink.lanes
        described = self._cluster.describe_topics([self.name], skip_missing=True).get(self.name)
        if described is None:
            # A topic of one replica says nothing about what others are to have.
            self._cluster.create_topic(self.name, lanes, _SETTINGS, replicas if replicas > 1 else -1)
            return
        if described.replicas < replicas:
            log.warning(
                "the progress topic %s has %s, but the topic %s has %d: if their disks are lost, the sink must start "
                "over. Add replicas to the progress topic (kafka-reassign-partitions)",
                self.name,
                counted(described.replicas, "replica"),
                self._sink.topic,
                replicas,
            )
        if len(described.partitions) < lanes:
            msg = (
                f"the progress topic {self.name} has {counted(len(described.partitions), 'topic partition')}, but the "
                f"sink {self._sink.transactional_id_prefix} has {counted(lanes, 'lane')}, and each needs its own. "
                f"Nothing was published. Set lanes={len(described.partitions)}; or, if the sink has not published yet, "
                f"add topic partitions to {self.name}"
            )
            raise SinkProgressError(msg)
        policy = self._cluster.cleanup_policy(self.name)
        if policy != "compact":
            msg = (
                f"the progress topic {self.name} has cleanup.policy={policy}, so the progress would be deleted, and "
                "rows published again. Nothing was published. Set cleanup.policy=compact on it, or set another "
                "progress_topic"
            )
            raise SinkProgressError(msg)

    def read(self, *, is_owner: bool) -> dict[int, Progress]:
        """Returns the progress of each lane that has some.

        Args:
            is_owner: Whether `init_transactions` ended all that was open before, so nothing can be open now.

        Raises:
            SinkProgressError: A record is not of this sink, progress was deleted, or another producer has a transaction
                open here.
        """
        partitions = [TopicPartition(self.name, lane) for lane in range(self._sink.lanes)]
        if is_owner:
            self._check_closed()
        ends = self._cluster.end_offsets(partitions, READ_COMMITTED)
        beginnings = self._cluster.beginning_offsets(partitions)
        found: dict[int, Progress] = {}
        near = {tp: max(beginnings[tp], ends[tp] - _NEAR_THE_END) for tp in partitions}
        for starts in (near, beginnings):
            missing = [tp for tp in partitions if tp.partition not in found and starts[tp] < ends[tp]]
            found |= self._read([KafkaPartitionSplit(tp, starts[tp], ends[tp]) for tp in missing])
        for tp in partitions:
            # Compaction keeps the first offset: only retention or a person deletes records there.
            if tp.partition not in found and beginnings[tp] > 0:
                msg = (
                    f"{tp} has no progress of the sink {self._sink.transactional_id_prefix}, and begins at offset "
                    f"{beginnings[tp]}: what was before was deleted. This run would publish rows twice. Nothing was "
                    "published. Set another transactional_id_prefix, and start in the DeltaSource if the topic already "
                    "has rows of the table"
                )
                raise SinkProgressError(msg)
        return found

    def _read(self, ranges: Collection[KafkaPartitionSplit]) -> dict[int, Progress]:
        found: dict[int, Progress] = {}
        if not ranges:
            return found
        for record in self._cluster.records(list(ranges), READ_COMMITTED):
            lane = record.topic_partition.partition
            where = f"{record.topic_partition} offset {record.offset}"
            if record.key != self._sink.transactional_id(lane).encode() or record.value is None:
                msg = (
                    f"{where}: the progress topic has a record that does not belong to the sink "
                    f"{self._sink.transactional_id_prefix}. Nothing was published. Each sink needs its own progress "
                    "topic: set another progress_topic, or correct transactional_id_prefix"
                )
                raise SinkProgressError(msg)
            found[lane] = Progress.from_bytes(record.value, where)
        return found

    def _check_closed(self) -> None:
        partitions = [TopicPartition(self.name, lane) for lane in range(self._sink.lanes)]
        # Brokers may need a moment between the end of a transaction and its marker.
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(SinkProgressError),
            wait=tenacity.wait_fixed(0.1),
            stop=tenacity.stop_after_delay(_MARKER_SECONDS),
            reraise=True,
        )
        retrying(self._compare_ends, partitions)

    def _compare_ends(self, partitions: Collection[TopicPartition]) -> None:
        stable = self._cluster.end_offsets(partitions, READ_COMMITTED)
        for tp, end in self._cluster.end_offsets(partitions, READ_UNCOMMITTED).items():
            if stable[tp] < end:
                msg = (
                    f"{tp}: a transaction of another producer is open at offset {stable[tp]} (the log ends at {end}), "
                    "so the progress is unknown. Nothing was published. If another run of this sink has just started, "
                    "leave it to that run; otherwise find the producer that writes to this topic"
                )
                raise SinkProgressError(msg)
