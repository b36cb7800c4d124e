"""Checks that a state belongs to the current cluster and topics, and not to others with the same names."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ClusterChangedError, TopicNotFoundError, TopicRecreatedError
from dagster_kafka_flip.source.next_step import set_position
from dagster_kafka_flip.source.offsets import OffsetsInitializer

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dagster_kafka_flip.source.api import SplitEnumeratorContext
    from dagster_kafka_flip.source.cluster import KafkaCluster
    from dagster_kafka_flip.source.incident import Tolerance
    from dagster_kafka_flip.source.split import Position, TopicMetadata, TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.source.subscription import Subscription


def found_topics(
    subscription: Subscription, cluster: KafkaCluster, tolerance: Tolerance
) -> Mapping[str, TopicMetadata]:
    try:
        return subscription.describe(cluster)
    except TopicNotFoundError:
        if TopicNotFoundError not in tolerance.tolerated:
            raise
        there = subscription.describe(cluster, skip_missing=True)
        if not any(topic.partitions for topic in there.values()):
            raise
        missing = TopicNotFoundError(
            f"{', '.join(subscription.missing(there))}: topic does not exist, or this client may not describe it"
        )
        continuation = "The run continued with the other topics and kept the position of this one."
        tolerance.meet(missing, continuation, lost_offsets=0)
        return there


def topic_ids_of(topics: Mapping[str, TopicMetadata]) -> dict[str, str]:
    return {topic.name: topic.topic_id for topic in topics.values() if topic.topic_id is not None}


def check_cluster(state: EnumeratorState, cluster_id: str | None) -> None:
    if state.cluster_id is not None and cluster_id is not None and state.cluster_id != cluster_id:
        raise ClusterChangedError(
            f"the position belongs to the Kafka cluster {state.cluster_id}, but the bootstrap servers now lead to "
            f"{cluster_id}, whose offsets are unrelated",
            "Correct bootstrap_servers; or, if the new cluster has no copies of the old one's records, set a new "
            "stream id to read it from the beginning",
        )


def recreated_topics(
    state: EnumeratorState, topics: Mapping[str, TopicMetadata], subscription: Subscription | None = None
) -> dict[str, TopicRecreatedError]:
    signs = {topic.name: _another_topic(state, topic, subscription) for topic in topics.values()}
    return {
        topic: TopicRecreatedError(
            f"the topic {topic} was deleted and recreated: {sign}. Offsets of the old topic are meaningless in the new "
            "one",
            topics=(topic,),
        )
        for topic, sign in signs.items()
        if sign
    }


def _another_topic(state: EnumeratorState, topic: TopicMetadata, subscription: Subscription | None) -> str:
    """What tells a topic from the state's, if anything: without ids, missing partitions, because Kafka removes none."""
    known = state.topic_ids.get(topic.name)
    if known is not None and topic.topic_id is not None:
        same = known == topic.topic_id
        return "" if same else f"the position belongs to topic id {known}, and the id is now {topic.topic_id}"
    gone = sorted(tp for tp in state.position if tp.topic == topic.name and tp not in topic.partitions)
    gone = [tp for tp in gone if subscription is None or subscription.may_read(tp)]
    if not gone:
        return ""
    more = f" and {len(gone) - 1} more of its topic partitions" if len(gone) > 1 else ""
    return (
        f"the position includes {gone[0]}{more}, which the topic no longer has. Kafka never removes partitions from a "
        "topic, and no topic id is known to prove that it is the same topic"
    )


def recreated_error(
    errors: Mapping[str, TopicRecreatedError], others: Collection[str], start: Position, context: SplitEnumeratorContext
) -> TopicRecreatedError:
    """One error about all, and one command that leaves all behind; a log that it does not name begins anew."""
    to = str(OffsetsInitializer.specific_offsets(start))
    command = set_position(context.table, context.stream, to=to, servers=context.servers)
    which = "the new topic" if len(errors) == 1 else "the new topics"
    return TopicRecreatedError(
        ". ".join((*(error.finding for error in errors.values()), *others)),
        f"To read {which} from the beginning and continue the others: {command}. If the "
        "last run was killed, failed, or could not check the logs, first check whether the stream's last commit "
        "already holds what this reads: if it does, RESTORE the table to the version before it, and run again",
        topics=tuple(errors),
    )


def check_topics(
    state: EnumeratorState,
    topics: Mapping[str, TopicMetadata],
    advice: str = "The stream's next run says how it can go on",
) -> None:
    errors = recreated_topics(state, topics)
    if errors:
        raise TopicRecreatedError(". ".join(error.finding for error in errors.values()), advice, topics=tuple(errors))


def check_same_logs(
    cluster: KafkaCluster, state: EnumeratorState, read: Collection[TopicPartition]
) -> Collection[TopicPartition]:
    """Checks after reading that the logs are still those of the plan; returns those that still exist."""
    if not read:
        return ()
    check_cluster(state, cluster.cluster_id())
    topics = cluster.describe_topics(sorted({tp.topic for tp in read}), skip_missing=True)
    check_topics(replace(state, position={tp: state.position[tp] for tp in read}), topics)
    return {tp for topic in topics.values() for tp in topic.partitions}


def is_same_log(topic_partition: TopicPartition, one: EnumeratorState, other: EnumeratorState) -> bool:
    """Whether a topic partition is the same log in two streams, as far as ids are known."""
    pairs = (
        (one.cluster_id, other.cluster_id),
        (one.topic_ids.get(topic_partition.topic), other.topic_ids.get(topic_partition.topic)),
    )
    return all(a is None or b is None or a == b for a, b in pairs)


def taken_up(before: EnumeratorState | None, after: EnumeratorState) -> list[TopicPartition]:
    """The topic partitions of a state that an earlier one did not have, or of which it had another log."""
    return [
        tp for tp in after.position if before is None or tp not in before.position or not is_same_log(tp, before, after)
    ]
