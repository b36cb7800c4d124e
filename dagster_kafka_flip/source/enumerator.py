"""Plans a run: discovers topic partitions, and fixes the start and stop offset of each.

FLIP-27's split enumerator for a bounded read. It only uses Kafka's metadata, with a number of round trips that does not
depend on the number of topic partitions. No record is read before all offsets are fixed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, Protocol

from dagster_kafka_flip.errors import (
    ClusterChangedError,
    ConfigurationError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
    TopicRecreatedError,
)
from dagster_kafka_flip.source.identity import (
    broken_logs,
    check_cluster,
    check_not_cut,
    check_planned,
    check_same_logs,
    check_topics,
    found_topics,
    goes_on,
    others_affected,
    recreated_error,
    recreated_topics,
    restart,
    topic_ids_of,
)
from dagster_kafka_flip.source.incident import Tolerance
from dagster_kafka_flip.source.instants import LAST_SPARK_TIMESTAMP_MS
from dagster_kafka_flip.source.log import Log, align
from dagster_kafka_flip.source.offsets import OffsetsInitializer, OffsetsKind
from dagster_kafka_flip.source.plan import ReadPlan
from dagster_kafka_flip.source.split import RecordSearch, splits_between
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.source.subscription import Subscription, get_partition_change

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.source.api import SplitAssignment, SplitEnumeratorContext
    from dagster_kafka_flip.source.cluster import KafkaCluster
    from dagster_kafka_flip.source.plan import Limits
    from dagster_kafka_flip.source.split import (
        KafkaPartitionSplit,
        Position,
        TimestampedOffset,
        TopicMetadata,
        TopicPartition,
    )
    from dagster_kafka_flip.source.subscription import PartitionChange

# Only a run that ends well has asked whether its last batch came from the log that was planned.
_MAY_BE_DOUBLED = (
    "If the run before was killed or failed just after a commit, that commit may hold new records already: these are "
    "then doubled."
)


class ReadSettings(Protocol):
    """What enumerators ask of a source; `KafkaSource` implements it."""

    starting_offsets: OffsetsInitializer
    stopping_offsets: OffsetsInitializer
    overrides_position: bool
    isolation_level: Literal["read_committed", "read_uncommitted"]
    group_id: str | None
    commit_offsets: bool
    max_drift: timedelta | None

    @property
    def subscription(self) -> Subscription: ...


class Enumerator:
    """What the enumerators of streams and of windows share."""

    def __init__(self, source: ReadSettings, cluster: KafkaCluster, context: SplitEnumeratorContext) -> None:
        self._source = source
        self._cluster = cluster
        self._context = context

    def discover(self) -> None:
        found_topics(self._source.subscription, self._cluster, Tolerance(self._context.tolerated))

    def check_same_logs(self, state: EnumeratorState, read: Collection[TopicPartition]) -> None:
        """Checks that what was read up to a state's position came from the state's logs."""
        stops = check_same_logs(self._cluster, state, read)
        check_not_cut(self._cluster, self._source.isolation_level, state, stops)

    def close(self) -> None:
        self._cluster.close()


class KafkaSourceEnumerator(Enumerator):
    """Plans a run of a source, and hands the plan out in batches.

    Its life in one run:

        enumerator.start()                                         # looks at the logs, fixes all ranges
        while (assignment := enumerator.assign(limits)) is not None:
            ...                                                    # read and commit, with enumerator.snapshot_state()
            enumerator.add_splits_back(assignment.plan)            # only if that failed: as if never assigned
    """

    def __init__(
        self,
        source: ReadSettings,
        cluster: KafkaCluster,
        context: SplitEnumeratorContext,
        state: EnumeratorState | None = None,
    ) -> None:
        super().__init__(source, cluster, context)
        self._state = state
        self._planned: ReadPlan | None = None
        self._left: ReadPlan | None = None

    def plan(self, state: EnumeratorState | None, refused: Collection[type[KafkaFlipError]] = ()) -> ReadPlan:
        """Plans from a state; None for a new stream. See `plan`. The refused errors are not tolerated this time."""
        # A second plan in the same run continues from the first plan's start.
        overrides = self._source.overrides_position and self._planned is None
        context = replace(self._context, tolerated=self._context.tolerated.difference(refused))
        return plan(self._source, self._cluster, context, state, overrides=overrides)

    def start(self, refused: Collection[type[KafkaFlipError]] = ()) -> ReadPlan:
        """Plans from the stream's current state. After a failure, plans again, including records that arrived since."""
        self._planned = self._left = self.plan(self._state, refused)
        self._state = self._planned.starting_state
        return self._planned

    @property
    def has_pending(self) -> bool:
        return self._left is not None

    def assign(self, limits: Limits, until: Position | None = None) -> SplitAssignment | None:
        """The next batch, before `until` if it can be. A plan's first one may be empty: it stores the position."""
        left = self._left
        if left is None:
            return None
        batch = (left.before(until) if until else left).take(limits.max_offsets(self._context.record_bytes))
        self._left, self._state = left.continued_at(batch.state.position), batch.state
        return self._context.assignment(batch)

    def snapshot_state(self) -> EnumeratorState | None:
        """State of the stream once all assigned splits are committed; None before the first `start`."""
        return self._state

    def add_splits_back(self, batch: ReadPlan) -> None:
        """Takes back a batch that was not committed, and all that were assigned after it."""
        self._state = batch.starting_state
        self._left = None if self._planned is None else self._planned.continued_at(batch.starting_position)

    def replay(self, splits: Iterable[KafkaPartitionSplit]) -> SplitAssignment:
        """Assigns given splits exactly as they were planned before; the enumerator's own state does not change."""
        splits = tuple(splits)
        starts = {split.topic_partition: split.starting_offset for split in splits}
        stops = {split.topic_partition: split.stopping_offset for split in splits}
        if len(starts) != len(splits):
            msg = "one batch can't repeat two splits of the same topic partition; repeat them one after the other"
            raise ConfigurationError(msg)
        state = self._state or EnumeratorState({})
        cluster_id = self._cluster.cluster_id()
        subscription = Subscription(partitions=tuple(sorted(starts)))
        # A recreated topic is the better explanation for missing partitions.
        topics = subscription.describe(self._cluster, skip_missing=True)
        check_cluster(state, cluster_id)
        if self._state is not None:
            check_topics(replace(state, position=starts), topics)
        if subscription.missing(topics):
            subscription.describe(self._cluster)
        log = Log(self._cluster, list(starts), self._source.isolation_level)
        check_planned(starts, stops, log.cut_offsets(stops, state.leader_epochs), log)
        plan = ReadPlan(
            state=EnumeratorState(stops, cluster_id, topic_ids_of(topics), leader_epochs=log.leader_epochs),
            beginning_offsets=log.beginning_offsets(starts),
            end_offsets=log.end_offsets(starts),
            high_watermarks=log.high_watermarks,
            starting_position=starts,
        )
        return self._context.assignment(plan)

    def notify_checkpoint_complete(self) -> None:
        """Commits the position to the consumer group if the source has `commit_offsets`."""
        group_id = self._source.group_id
        if not self._source.commit_offsets or group_id is None or self._state is None or self._planned is None:
            return
        self._cluster.commit_offsets({tp: self._state.position[tp] for tp in self._planned.end_offsets}, group_id)

    def reached_brokers(self, partitions: Collection[TopicPartition]) -> tuple[str, ...]:
        """The brokers' advertised addresses, after the leaders of the topic partitions answered."""
        self._cluster.end_offsets(partitions, self._source.isolation_level)
        return self._cluster.broker_addresses()

    def unreadable_record(
        self, splits: Sequence[KafkaPartitionSplit]
    ) -> tuple[TopicPartition, TimestampedOffset] | None:
        """The first record too late for a Spark TIMESTAMP. One before 1970 stays unnamed: Kafka can't look it up."""
        level, first = self._source.isolation_level, LAST_SPARK_TIMESTAMP_MS + 1
        found = self._cluster.offsets_for_times({split.topic_partition: first for split in splits}, level)
        searches = [
            RecordSearch(
                split.topic_partition, split.within(found.get(split.topic_partition)), split.stopping_offset, first
            )
            for split in splits
        ]
        records = self._cluster.search_records(searches, level)
        return next(((each.topic_partition, at) for each in searches if (at := records[each]) is not None), None)


def plan(
    source: ReadSettings,
    cluster: KafkaCluster,
    context: SplitEnumeratorContext,
    state: EnumeratorState | None,
    *,
    overrides: bool,
) -> ReadPlan:
    """Plans the splits of a run from a stream's state; None for a new stream. Has no side effects."""
    cluster_id = cluster.cluster_id()
    tolerance = Tolerance(context.tolerated)
    topics = found_topics(source.subscription, cluster, tolerance)
    before, recreated = _identified(state or EnumeratorState({}), cluster_id, topics, source.subscription, tolerance)
    position, topic_ids = before.position, topic_ids_of(topics)
    partitions = [tp for topic in topics.values() for tp in topic.partitions]
    change = get_partition_change(partitions, position, initial_discovery=state is None)
    log = Log(cluster, partitions, source.isolation_level, source.group_id)
    cut_off = log.cut_offsets(before.furthest, before.leader_epochs)
    same_topics = {topic for topic, topic_id in topic_ids.items() if before.topic_ids.get(topic) == topic_id}
    if recreated:
        kept = {tp: at for tp, at in position.items() if tp in log}
        broken = broken_logs(kept, cut_off, same_topics, log)
        # The source may read only topic partitions that the new topic lacks.
        begins = log.beginning_offsets([min(there) for topic in recreated if (there := topics[topic].partitions)])
        start = begins | restart(broken) or log.beginning_offsets(partitions) | kept
        raise recreated_error(recreated, [each.finding for each in broken], start, context)
    if overrides:
        _check_named_partitions(source.starting_offsets, log)
    moved = _moved(source.starting_offsets, change) if overrides else frozenset(change.initial)
    known = _known(source.subscription, change, position, moved)
    went_on = goes_on(broken_logs(known, cut_off, same_topics, log, before.furthest), tolerance)
    starts = known | went_on | _initial_starts(source.starting_offsets, moved, log) | _new_starts(change, moved, log)
    wanted = _stops(source.stopping_offsets, partitions, starts, log)
    if overrides and source.stopping_offsets.kind is not OffsetsKind.LATEST:
        _check_reaches(position, wanted)
    watermark = None if overrides else before.watermark
    stops, reached = wanted, None
    if source.max_drift is not None:
        aligned, reached = align(splits_between(starts, wanted), source.max_drift // timedelta(milliseconds=1), log)
        stops = wanted | dict(aligned)
    return ReadPlan(
        state=EnumeratorState(
            position={**position, **stops},
            cluster_id=cluster_id,
            topic_ids=topic_ids,
            # An idle topic partition may return with older records; the watermark must not decrease.
            watermark=max((time for time in (watermark, reached) if time is not None), default=None),
            leader_epochs=log.leader_epochs,
        ).over(before),
        beginning_offsets=log.beginning_offsets(partitions),
        end_offsets=log.end_offsets(partitions),
        high_watermarks=log.high_watermarks,
        starting_position={**position, **starts},
        discovered=change.new,
        removed=change.removed,
        paused={tp: stop - stops[tp] for tp, stop in wanted.items() if stop > stops[tp]},
        starting_watermark=watermark,
        incidents=tolerance.take(),
        cut_off=cut_off,
    )


def _identified(
    state: EnumeratorState,
    cluster_id: str | None,
    topics: Mapping[str, TopicMetadata],
    subscription: Subscription,
    tolerance: Tolerance,
) -> tuple[EnumeratorState, dict[str, TopicRecreatedError]]:
    """The part of a state that is still valid for the current cluster and topics, and what is not tolerated."""
    try:
        check_cluster(state, cluster_id)
    except ClusterChangedError as error:
        tolerance.meet(error, f"The run read every log of the new cluster from its beginning. {_MAY_BE_DOUBLED}")
        return EnumeratorState({}, watermark=state.watermark), {}
    recreated = recreated_topics(state, topics, subscription)
    state = replace(state, position={tp: at for tp, at in state.position.items() if tp.topic not in recreated})
    if TopicRecreatedError not in tolerance.tolerated:
        return state, recreated
    continuation = (
        f"The run read the new topic from its beginning; unread records of the old topic are lost. {_MAY_BE_DOUBLED}"
    )
    for error in recreated.values():
        tolerance.meet(error, continuation)
    return state, {}


def _known(
    subscription: Subscription, change: PartitionChange, position: Position, moved: Collection[TopicPartition]
) -> dict[TopicPartition, int]:
    """Where the stream's topic partitions go on. One that was added to a topic since has all records still to read."""
    known = {tp: position[tp] for tp in change.known if tp not in moved}
    if subscription.partitions is not None:
        return known
    topics = {tp.topic for tp in change.known}
    return known | {tp: 0 for tp in change.new if tp not in moved and tp.topic in topics}


def _new_starts(change: PartitionChange, moved: Collection[TopicPartition], log: Log) -> dict[TopicPartition, int]:
    # Flink's rule: topic partitions discovered later are read from the beginning, regardless of the initializer.
    return log.beginning_offsets([tp for tp in change.new if tp not in moved])


def _initial_starts(
    initializer: OffsetsInitializer, partitions: Collection[TopicPartition], log: Log
) -> dict[TopicPartition, int]:
    if not partitions:
        return {}
    _check_named_partitions(initializer, log)
    starts = initializer.starting_offsets(partitions, log)
    # Not the end offset: a log may have been truncated behind where an open transaction began.
    beginning, end = log.beginning_offsets(partitions), log.high_watermarks
    for tp, start in starts.items():
        # A lookup may return a record that arrived after the end offset was read: the next run starts there.
        if start < beginning[tp] or (start > end[tp] and initializer.kind is not OffsetsKind.TIMESTAMP):
            raise OffsetOutOfRangeError(
                f"{tp}: the start offset {start} ({initializer}) is outside the log, which holds offsets "
                f"{beginning[tp]} to {end[tp]}",
                "Choose an offset in that range",
            )
    return starts


def _stops(
    initializer: OffsetsInitializer, partitions: Collection[TopicPartition], starts: Position, log: Log
) -> dict[TopicPartition, int]:
    _check_named_partitions(initializer, log)
    wanted, end = initializer.stopping_offsets(partitions, log), log.end_offsets(partitions)
    # Not beyond the end offset (Spark would wait for records that an open transaction holds back), and not before the
    # start.
    return {tp: max(starts[tp], min(wanted.get(tp, starts[tp]), end[tp])) for tp in partitions}


def _moved(starting_offsets: OffsetsInitializer, change: PartitionChange) -> frozenset[TopicPartition]:
    partitions = frozenset({*change.initial, *change.new, *change.known})
    # Of a stream with a position, also where every topic was recreated, what is not named begins as without a start.
    if starting_offsets.kind is OffsetsKind.SPECIFIC and not change.initial:
        return partitions & (starting_offsets.offsets or {}).keys()
    return partitions


def _check_reaches(position: Position, stops: Position) -> None:
    before = sorted(tp for tp, offset in position.items() if tp in stops and stops[tp] < offset)
    if before:
        tp = before[0]
        raise ConfigurationError(
            f"{tp}: start overrides the position, and the run would stop at offset {stops[tp]}, before the position "
            f"{position[tp]}{others_affected(before)}: the next run would continue from there and duplicate the "
            "records in between",
            "Remove stop; or, to replace a time range of a table without a key, set mode: replace",
        )


def _check_named_partitions(initializer: OffsetsInitializer, log: Log) -> None:
    for tp in sorted(initializer.offsets or {}):
        if tp not in log:
            msg = f"the offsets name {tp}, which does not exist; correct the topic or the partition number"
            raise TopicNotFoundError(msg)


@dataclass(frozen=True)
class LogStatus:
    """Result of the comparison."""

    # None if unknown.
    cluster_id: str | None
    # Number of the source's existing topics.
    topics: int
    # Offsets between the position and the end offset, for each topic partition with an unchanged log.
    lag: Mapping[TopicPartition, int]
    # Of these, offsets between the position and the log start: deleted before they were read.
    lost: Mapping[TopicPartition, int]
    # Of these, offsets between the log end and the position after it: the log was truncated.
    beyond: Mapping[TopicPartition, int]
    # Errors for logs that changed or do not exist.
    changed: tuple[KafkaFlipError, ...]
    # Offsets between the end offset and the high watermark that an open transaction holds back.
    held_back: Mapping[TopicPartition, int] = field(default_factory=dict["TopicPartition", int])
    # Topic partitions of the position that no longer exist; they are not in the lag.
    gone: tuple[TopicPartition, ...] = ()

    # The end offset of each of these topic partitions, and the ids of the topics.
    end: Mapping[TopicPartition, int] = field(default_factory=dict["TopicPartition", int])
    topic_ids: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def total_lag(self) -> int:
        return sum(self.lag.values())


def log_status(source: ReadSettings, cluster: KafkaCluster, state: EnumeratorState) -> LogStatus:
    cluster_id = cluster.cluster_id()
    changed: list[KafkaFlipError] = []
    try:
        topics = source.subscription.describe(cluster, skip_missing=True)
    except TopicNotFoundError as error:
        topics = {}
        changed.append(error)
    missing = source.subscription.missing(topics)
    if missing:
        msg = f"{', '.join(missing)}: topic does not exist, or this client may not describe it"
        changed.append(TopicNotFoundError(msg))
    try:
        check_cluster(state, cluster_id)
    except ClusterChangedError as error:
        return LogStatus(cluster_id, len(topics), {}, {}, {}, (*changed, error))
    others = recreated_topics(state, topics, source.subscription)
    partitions = [tp for topic in topics.values() if topic.name not in others for tp in topic.partitions]
    there = {tp for topic in topics.values() for tp in topic.partitions}
    changed += others.values()
    gone = tuple(
        tp
        for tp in sorted(state.position)
        if tp not in there and tp.topic not in others and source.subscription.may_read(tp)
    )
    if not partitions:
        return LogStatus(cluster_id, len(topics), {}, {}, {}, tuple(changed), {}, gone)
    log = Log(cluster, partitions, source.isolation_level)
    begin, end, highest = log.beginning_offsets(partitions), log.end_offsets(partitions), log.high_watermarks
    # Topic partitions discovered later are read from the beginning.
    at = {tp: state.position.get(tp, begin[tp]) for tp in sorted(partitions)}
    return LogStatus(
        cluster_id,
        len(topics),
        lag={tp: max(0, end[tp] - max(position, begin[tp])) for tp, position in at.items()},
        lost={tp: begin[tp] - position for tp, position in at.items() if position < begin[tp]},
        beyond={tp: position - highest[tp] for tp, position in at.items() if position > highest[tp]},
        changed=tuple(changed),
        # Only unread offsets; the position may be after the start of a later transaction.
        held_back={tp: held for tp, position in at.items() if (held := highest[tp] - max(end[tp], position)) > 0},
        gone=gone,
        end=end,
        topic_ids={each.name: each.topic_id for each in topics.values() if each.topic_id},
    )
