"""ProgressTopic: the compacted topic that holds a sink's progress, one topic partition for each lane."""

from __future__ import annotations

from typing import TYPE_CHECKING

import tenacity

from dagster_kafka_flip.errors import SinkProgressError, SinkProgressUnknownError
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.sink.progress import ANOTHER, NOT_YET, Progress
from dagster_kafka_flip.source.split import READ_COMMITTED, READ_UNCOMMITTED, KafkaPartitionSplit, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dagster_kafka_flip.sink.kafka_sink import KafkaSink
    from dagster_kafka_flip.source.cluster import KafkaCluster, LogEnd
    from dagster_kafka_flip.telemetry.repeatedly import Log

# Compacted soon, because each run reads it: closed segments of a day, and a hundredth of stale records.
_SETTINGS = {"cleanup.policy": "compact", "segment.ms": "86400000", "min.cleanable.dirty.ratio": "0.01"}

# A lane's last record is near the end: behind it are only markers, and what runs aborted.
_NEAR_THE_END = 20

_MARKER_SECONDS = 5.0
_LOOK_SECONDS = 0.02


class ProgressTopic:
    """A sink's progress topic.

    Attributes:
        name: The topic's name.
    """

    def __init__(self, cluster: KafkaCluster, sink: KafkaSink) -> None:
        self._cluster, self._sink = cluster, sink
        self.name = sink.progress_name
        self._read_up_to: dict[TopicPartition, LogEnd] = {}
        self._found: dict[int, Progress] = {}

    def prepare(self, replicas: int, log: Log) -> None:
        """Creates the topic if it is missing, and checks it."""
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
            raise SinkProgressError(
                f"the progress topic {self.name} has {counted(len(described.partitions), 'topic partition')}, but the "
                f"sink {self._sink.transactional_id_prefix} has {counted(lanes, 'lane')}, and each needs its own",
                f"Set lanes={len(described.partitions)}; or, if the sink has not published yet, add topic partitions "
                f"to {self.name}",
            )
        policy = self._cluster.cleanup_policy(self.name)
        if policy != "compact":
            raise SinkProgressError(
                f"the progress topic {self.name} has cleanup.policy={policy}, so the progress would be deleted, and "
                "rows published again",
                f"Set cleanup.policy=compact on it. {NOT_YET}",
            )

    def read(self, *, settled: bool) -> dict[int, Progress]:
        """Returns the progress of each lane that has some: what is open does not count, or (`settled`) is an error."""
        partitions = [TopicPartition(self.name, lane) for lane in range(self._sink.lanes)]
        log_ends = self._settled_ends(partitions) if settled else self._cluster.log_ends(partitions, READ_COMMITTED)
        if log_ends != self._read_up_to:
            self._found = self._last_records(partitions, {tp: end.offset for tp, end in log_ends.items()})
            self._read_up_to = log_ends
        return dict(self._found)

    def _last_records(
        self, partitions: Collection[TopicPartition], ends: Mapping[TopicPartition, int]
    ) -> dict[int, Progress]:
        beginnings = self._cluster.beginning_offsets(partitions)
        found: dict[int, Progress] = {}
        near = {tp: max(beginnings[tp], ends[tp] - _NEAR_THE_END) for tp in partitions}
        for starts in (near, beginnings):
            missing = [tp for tp in partitions if tp.partition not in found and starts[tp] < ends[tp]]
            found |= self._read([KafkaPartitionSplit(tp, starts[tp], ends[tp]) for tp in missing])
        for tp in partitions:
            # Compaction keeps the first offset: only retention or a person deletes records there.
            if tp.partition not in found and beginnings[tp] > 0:
                raise SinkProgressError(
                    f"{tp} has no progress of the sink {self._sink.transactional_id_prefix}, and begins at offset "
                    f"{beginnings[tp]}: what was before was deleted. This run would publish rows twice",
                    f"Set {ANOTHER}, and start in the DeltaSource if the topic already has rows of the table",
                )
        return found

    def _read(self, ranges: Collection[KafkaPartitionSplit]) -> dict[int, Progress]:
        found: dict[int, Progress] = {}
        if not ranges:
            return found
        for record in self._cluster.records(list(ranges), READ_COMMITTED):
            lane, value = record.partition() or 0, record.value()
            where = f"{self.name}-{lane} offset {record.offset()}"
            if record.key() != self._sink.transactional_id(lane).encode() or not isinstance(value, bytes):
                raise SinkProgressError(
                    f"{where}: the progress topic has a record that does not belong to the sink "
                    f"{self._sink.transactional_id_prefix}",
                    f"Each sink needs its own progress topic: correct transactional_id_prefix. {NOT_YET}",
                )
            found[lane] = Progress.from_bytes(value, where)
        return found

    def _settled_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        # Brokers may need a moment between the end of a transaction and its marker.
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(SinkProgressUnknownError),
            wait=tenacity.wait_fixed(_LOOK_SECONDS),
            stop=tenacity.stop_after_delay(_MARKER_SECONDS),
            reraise=True,
        )
        return retrying(self._compared_ends, partitions)

    def _compared_ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, LogEnd]:
        stable = self._cluster.log_ends(partitions, READ_COMMITTED)
        for tp, end in self._cluster.end_offsets(partitions, READ_UNCOMMITTED).items():
            if stable[tp].offset < end:
                raise SinkProgressUnknownError(
                    f"{tp}: a transaction of another producer is open at offset {stable[tp].offset} (the log ends at "
                    f"{end}), so the progress is unknown",
                    "If another run of this sink has just started, leave it to that run; otherwise find the producer "
                    "that writes to this topic",
                )
        return stable
