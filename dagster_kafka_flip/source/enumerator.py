"""KafkaSourceEnumerator: discovers topic partitions and fixes the start and stop offset of each.

FLIP-27's split enumerator for a bounded read. It only uses Kafka's metadata, with a number of round trips that does not
depend on the number of topic partitions. No record is read before all offsets are fixed.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    ClusterChangedError,
    ClusterUnreachableError,
    ConfigurationError,
    EndBeforePositionError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
    TopicRecreatedError,
)
from dagster_kafka_flip.source.alignment import align, cuts_by_time
from dagster_kafka_flip.source.api import SplitEnumerator
from dagster_kafka_flip.source.broken_logs import (
    broken_logs,
    check_not_cut,
    check_planned,
    goes_on,
    others_affected,
    restart,
)
from dagster_kafka_flip.source.identity import (
    check_cluster,
    check_same_logs,
    check_topics,
    found_topics,
    recreated_error,
    recreated_topics,
    topic_ids_of,
)
from dagster_kafka_flip.source.incident import incident_of, tolerate
from dagster_kafka_flip.source.log import Log, Times
from dagster_kafka_flip.source.offsets import OffsetsInitializer, OffsetsKind
from dagster_kafka_flip.source.plan import ReadPlan
from dagster_kafka_flip.source.split import splits_between
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.source.subscription import PartitionSetSubscription, get_partition_change
from dagster_kafka_flip.source.unreadable import unreadable_record

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from dagster_kafka_flip.source.api import SplitEnumeratorContext
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.log import Cluster, ReadSettings
    from dagster_kafka_flip.source.split import (
        KafkaPartitionSplit,
        Position,
        SplitSample,
        TimestampedOffset,
        TopicPartition,
    )
    from dagster_kafka_flip.source.subscription import PartitionChange, TopicMetadata

_logger = logging.getLogger(__name__)

# A few splits are enough for an average; more would make the sample as slow as the read.
_SAMPLED_SPLITS = 32

# Kafka's default for the largest record batch of a topic (message.max.bytes).
_LARGE_RECORD = 1024 * 1024

# Only a run that ends well has asked whether its last batch came from the log that was planned.
_MAY_BE_DOUBLED = (
    "If the run before was killed or failed just after a commit, that commit may hold new records already: these are "
    "then doubled."
)


class KafkaSourceEnumerator(SplitEnumerator):
    """Turns a source and a state into splits."""

    def __init__(
        self,
        source: ReadSettings,
        cluster: Cluster,
        context: SplitEnumeratorContext,
        state: EnumeratorState | None = None,
    ) -> None:
        super().__init__(context, state)
        self._source = source
        self._cluster = cluster

    def discover(self) -> None:
        """Discovers the topics."""
        self._topics()

    def plan(self, state: EnumeratorState | None) -> ReadPlan:
        """Plans the splits of a run.

        Args:
            state: The stream's state; None for a new stream.

        Raises (unless the context tolerates the error):
            TopicNotFoundError: A topic is missing.
            ClusterChangedError: The state belongs to another cluster.
            TopicRecreatedError: The state belongs to an earlier topic with the same name.
            RetentionOvertookPositionError: The log begins after the position.
            EndBeforePositionError: The log ends before the position, or was truncated there and written again.
            OffsetOutOfRangeError: A specific offset is outside the log.
            OffsetNotFoundError: The consumer group has no committed offset.
            ConfigurationError: A run with an overridden start would stop before the position.
            ClusterUnreachableError: No broker answered.
        """
        cluster_id = self._cluster.cluster_id()
        topics, missing = self._topics()
        topic_ids = topic_ids_of(topics)
        others: list[Incident] = []
        recreated: dict[str, TopicRecreatedError] = {}
        if state is not None:
            state, others, recreated = self._identified(state, cluster_id, topics)
        partitions = [tp for topic in topics.values() for tp in topic.partitions]
        position = {} if state is None else state.position
        change = get_partition_change(partitions, position, initial_discovery=state is None)

        log = Log(self._source, self._cluster, partitions)
        # A second plan in the same run continues from the first plan's start.
        overrides = self._source.overrides_position and self._planned is None
        cut_off = {} if state is None else log.cut_offsets(state.position, state.leader_epochs)
        known_ids = {} if state is None else state.topic_ids
        same_topics = {topic for topic, topic_id in topic_ids.items() if known_ids.get(topic) == topic_id}
        if state is not None and recreated:
            known = {tp: at for tp, at in state.position.items() if tp in log}
            broken = broken_logs(known, cut_off, same_topics, log)
            begins = log.beginning_offsets([min(topics[topic].partitions) for topic in recreated])
            named = self._context.table, self._context.stream
            raise recreated_error(recreated, [each.finding for each in broken], begins | restart(broken), *named)
        starts, moved = self._starts(change, state, same_topics, log, cut_off, overrides=overrides)
        wanted = self._stops(partitions, starts, log)
        if overrides and self._source.stopping_offsets.kind is not OffsetsKind.LATEST:
            _check_reaches(position, wanted)
        watermark = None if state is None or overrides else state.watermark
        stops, reached = self._aligned(starts, wanted, log)

        return ReadPlan(
            splits=splits_between(starts, stops),
            state=EnumeratorState(
                position={**position, **stops},
                # Ids that the cluster does not return this time are kept from the last state.
                cluster_id=state.cluster_id if cluster_id is None and state is not None else cluster_id,
                topic_ids=({} if state is None else dict(state.topic_ids)) | topic_ids,
                # An idle topic partition may return with older records; the watermark must not decrease.
                watermark=max((time for time in (watermark, reached) if time is not None), default=None),
                leader_epochs=({} if state is None else dict(state.leader_epochs)) | log.leader_epochs,
            ),
            beginning_offsets=log.beginning_offsets(partitions),
            end_offsets=log.end_offsets(partitions),
            high_watermarks=log.high_watermarks,
            starting_position={**position, **starts},
            discovered=change.new,
            removed=change.removed,
            paused={tp: stop - stops[tp] for tp, stop in wanted.items() if stop > stops[tp]},
            starting_watermark=watermark,
            incidents=(*missing, *others, *moved),
            cut_off=cut_off,
        )

    def plan_exactly(self, splits: tuple[KafkaPartitionSplit, ...]) -> ReadPlan:
        """Returns a plan of exactly these splits.

        Raises:
            TopicNotFoundError: A topic partition no longer exists.
            ClusterChangedError: The enumerator's state belongs to another cluster.
            TopicRecreatedError: The enumerator's state belongs to an earlier topic with the same name.
            RetentionOvertookPositionError: The log begins after a split's start.
            EndBeforePositionError: The log ends before a split's stop, or was truncated there and written again.
            ConfigurationError: Two splits have the same topic partition.
        """
        starts = {split.topic_partition: split.starting_offset for split in splits}
        stops = {split.topic_partition: split.stopping_offset for split in splits}
        if len(starts) != len(splits):
            msg = "one batch can't repeat two splits of the same topic partition; repeat them one after the other"
            raise ConfigurationError(msg)
        state = self.snapshot_state()
        cluster_id = self._cluster.cluster_id()
        subscription = PartitionSetSubscription(tuple(sorted(starts)))
        # A recreated topic is the better explanation for missing partitions.
        topics = subscription.describe(self._cluster, skip_missing=True)
        topic_ids = topic_ids_of(topics)
        if state is not None:
            check_cluster(state, cluster_id)
            check_topics(replace(state, position=starts), topics)
        if subscription.missing(topics):
            subscription.describe(self._cluster)
        log = Log(self._source, self._cluster, list(starts))
        check_planned(splits, {} if state is None else log.cut_offsets(stops, state.leader_epochs), log)
        return ReadPlan(
            splits=splits,
            state=EnumeratorState(stops, cluster_id, topic_ids, leader_epochs=log.leader_epochs),
            beginning_offsets=log.beginning_offsets(starts),
            end_offsets=log.end_offsets(starts),
            high_watermarks=log.high_watermarks,
            starting_position=starts,
        )

    def check_same_logs(self, batch: ReadPlan) -> None:
        """See `identity.check_same_logs` and `broken_logs.check_not_cut`."""
        stops = {split.topic_partition: split.stopping_offset for split in batch.splits}
        there = check_same_logs(self._cluster, batch.state, stops)
        if EndBeforePositionError not in self._context.tolerated:
            check_not_cut(self._source, self._cluster, batch.state, {tp: stops[tp] for tp in stops if tp in there})

    def notify_checkpoint_complete(self) -> None:
        """Commits the position to the consumer group if the source has `commit_offsets`."""
        state, group_id = self.snapshot_state(), self._source.group_id
        if not self._source.commit_offsets or group_id is None or state is None or self._planned is None:
            return
        self._cluster.commit_offsets({tp: state.position[tp] for tp in self._planned.end_offsets}, group_id)

    def close(self) -> None:
        """Closes the client's threads and connections."""
        self._cluster.close()

    def cut_by_time(self, plan: ReadPlan, max_offsets: int) -> tuple[ReadPlan, ReadPlan | None]:
        """Splits off a batch in which every topic partition advances to the same event time."""
        times = Times(self._cluster, self._source.isolation_level)
        return plan.cut_at(cuts_by_time(plan.splits, max_offsets, times))

    def estimate_record_bytes(self, plan: ReadPlan) -> float | None:
        """Average record size in bytes, sampled from the largest splits; None if the plan has no records.

        Without a sample, assumes Kafka's default maximum record size, so that a batch is too small rather than too
        large. The first batch provides the actual size.
        """
        largest = sorted(plan.splits, key=lambda split: -split.offset_span)[:_SAMPLED_SPLITS]
        try:
            samples = self.sample(largest).values()
        except ClusterUnreachableError as error:
            _logger.warning("the record size is unknown; assuming %d bytes: %s", _LARGE_RECORD, error)
            return float(_LARGE_RECORD)
        records = sum(sample.records for sample in samples)
        if not records:
            return None if len(largest) == len(plan.splits) else float(_LARGE_RECORD)
        return sum(sample.bytes for sample in samples) / records

    def sample(self, splits: Iterable[KafkaPartitionSplit]) -> Mapping[TopicPartition, SplitSample]:
        """Samples a few records of each split; omits splits without records."""
        return self._cluster.sample(splits, self._source.isolation_level)

    def reached_brokers(self, partitions: Collection[TopicPartition]) -> tuple[str, ...]:
        """The brokers' advertised addresses, after the leaders of the topic partitions answered."""
        self._cluster.end_offsets(partitions, self._source.isolation_level)
        return self._cluster.broker_addresses()

    def unreadable_record(
        self, splits: Iterable[KafkaPartitionSplit]
    ) -> tuple[TopicPartition, TimestampedOffset] | None:
        """A record whose timestamp is out of range for a Spark TIMESTAMP. Reads the splits from the first one on."""
        return unreadable_record(self._cluster, tuple(splits), self._source.isolation_level)

    def _topics(self) -> tuple[Mapping[str, TopicMetadata], list[Incident]]:
        return found_topics(self._source.subscription, self._cluster, self._context.tolerated)

    def _identified(
        self, state: EnumeratorState, cluster_id: str | None, topics: Mapping[str, TopicMetadata]
    ) -> tuple[EnumeratorState, list[Incident], dict[str, TopicRecreatedError]]:
        """The part of a state that is still valid for the current cluster and topics, and what is not tolerated."""
        tolerated = self._context.tolerated
        try:
            check_cluster(state, cluster_id)
        except ClusterChangedError as error:
            continuation = f"The run read every log of the new cluster from its beginning. {_MAY_BE_DOUBLED}"
            return EnumeratorState({}, watermark=state.watermark), [tolerate(error, tolerated, continuation)], {}
        recreated = recreated_topics(state, topics, self._source.subscription)
        state = replace(state, position={tp: at for tp, at in state.position.items() if tp.topic not in recreated})
        if TopicRecreatedError not in tolerated:
            return state, [], recreated
        continuation = (
            "The run read the new topic from its beginning; unread records of the old topic are lost. "
            f"{_MAY_BE_DOUBLED}"
        )
        return state, [incident_of(error, continuation, lost_offsets=None) for error in recreated.values()], {}

    def _starts(
        self,
        change: PartitionChange,
        state: EnumeratorState | None,
        same_topics: Collection[str],
        log: Log,
        cut_off: Mapping[TopicPartition, int | None],
        *,
        overrides: bool,
    ) -> tuple[dict[TopicPartition, int], list[Incident]]:
        if overrides:
            _check_named_partitions(self._source.starting_offsets, log)
        moved = _moved(self._source.starting_offsets, change) if overrides else frozenset(change.initial)
        known = {} if state is None else {tp: state.position[tp] for tp in change.known if tp not in moved}
        if not isinstance(self._source.subscription, PartitionSetSubscription):
            # One that was added to a topic since: all its records are still to be read.
            topics = {tp.topic for tp in change.known}
            known |= {tp: 0 for tp in change.new if tp not in moved and tp.topic in topics}
        went_on, incidents = goes_on(broken_logs(known, cut_off, same_topics, log), self._context.tolerated)
        starts = known | went_on | self._initial_starts(moved, log)
        # Flink's rule: topic partitions discovered later are read from the beginning, regardless of the initializer.
        return starts | log.beginning_offsets([tp for tp in change.new if tp not in moved]), incidents

    def _initial_starts(self, partitions: Collection[TopicPartition], log: Log) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        initializer = self._source.starting_offsets
        _check_named_partitions(initializer, log)
        starts = initializer.starting_offsets(partitions, log)
        # Not the end offset: a log may have been truncated behind where an open transaction began.
        beginning, end = log.beginning_offsets(partitions), log.high_watermarks
        for tp, start in starts.items():
            # A lookup may return a record that arrived after the end offset was read: the next run starts there.
            if start < beginning[tp] or (start > end[tp] and initializer.kind is not OffsetsKind.TIMESTAMP):
                raise OffsetOutOfRangeError(
                    f"{tp}: the start offset {start} ({initializer}) is outside the log, which holds offsets "
                    f"{beginning[tp]} to {end[tp]}; choose an offset in that range, or earliest or latest"
                )
        return starts

    def _stops(
        self, partitions: Collection[TopicPartition], starts: Mapping[TopicPartition, int], log: Log
    ) -> dict[TopicPartition, int]:
        initializer = self._source.stopping_offsets
        _check_named_partitions(initializer, log)
        wanted = initializer.stopping_offsets(partitions, log)
        end = log.end_offsets(partitions)
        # Not beyond the end offset (Spark would wait for records that an open transaction holds back), and not before
        # the start.
        return {tp: max(starts[tp], min(wanted.get(tp, starts[tp]), end[tp])) for tp in partitions}

    def _aligned(
        self, starts: Mapping[TopicPartition, int], stops: dict[TopicPartition, int], log: Log
    ) -> tuple[dict[TopicPartition, int], int | None]:
        max_drift = self._source.max_drift
        if max_drift is None:
            return stops, None
        alignment = align(splits_between(starts, stops), max_drift // timedelta(milliseconds=1), log)
        return stops | dict(alignment.stopping_offsets), alignment.watermark


def _moved(starting_offsets: OffsetsInitializer, change: PartitionChange) -> frozenset[TopicPartition]:
    """The topic partitions whose start is overridden for this run."""
    partitions = frozenset({*change.initial, *change.new, *change.known})
    # Of a stream with a position, also where every topic was recreated, what is not named begins as without a start.
    if starting_offsets.kind is OffsetsKind.SPECIFIC and not change.initial:
        return partitions & (starting_offsets.offsets or {}).keys()
    return partitions


def _check_reaches(position: Position, stops: Position) -> None:
    """Rejects a run that would move the position back to before committed records."""
    before = sorted(tp for tp, offset in position.items() if tp in stops and stops[tp] < offset)
    if before:
        tp = before[0]
        raise ConfigurationError(
            f"{tp}: start overrides the position, and the run would stop at offset {stops[tp]}, before the position "
            f"{position[tp]}{others_affected(before)}: the next run would continue from there and duplicate the "
            "records in between",
            "Remove stop; or, to replace a time range of the table, set mode: replace",
        )


def _check_named_partitions(initializer: OffsetsInitializer, log: Log) -> None:
    for tp in sorted(initializer.offsets or {}):
        if tp not in log:
            msg = f"the offsets name {tp}, which does not exist; correct the topic or the partition number"
            raise TopicNotFoundError(msg)
