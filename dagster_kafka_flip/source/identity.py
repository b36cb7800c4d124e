"""Which topics are there, and whether a state is of them: of the same cluster, and not of namesakes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from dagster_kafka_flip.errors import ClusterChangedError, KafkaFlipError, TopicNotFoundError, TopicRecreatedError
from dagster_kafka_flip.source.incident import incident_of
from dagster_kafka_flip.source.next_step import set_position
from dagster_kafka_flip.source.subscription import TopicDirectory

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.source.subscription import Subscription, TopicMetadata


class _Identified(TopicDirectory, Protocol):
    def cluster_id(self) -> str | None: ...


def found_topics(
    subscription: Subscription, directory: TopicDirectory, tolerated: Collection[type[KafkaFlipError]]
) -> tuple[Mapping[str, TopicMetadata], list[Incident]]:
    """The topics as they are now, and whether some that are named are missing.

    Raises:
        TopicNotFoundError: A topic is missing and that is not tolerated, or none is there.
    """
    try:
        return subscription.describe(directory), []
    except TopicNotFoundError:
        if TopicNotFoundError not in tolerated:
            raise
        there = subscription.describe(directory, skip_missing=True)
        if not any(topic.partitions for topic in there.values()):
            raise
        missing = TopicNotFoundError(
            f"{', '.join(subscription.missing(there))}: not there, or this client may not describe it."
        )
        return there, [incident_of(missing, "The run went on with the others; its position is kept.")]


def topic_ids_of(topics: Mapping[str, TopicMetadata]) -> dict[str, str]:
    """The ids of topics, as far as the cluster tells them."""
    return {topic.name: topic.topic_id for topic in topics.values() if topic.topic_id is not None}


def check_cluster(state: EnumeratorState, cluster_id: str | None) -> None:
    """Refuses a state of another cluster than the one that answers.

    Raises:
        ClusterChangedError: It is.
    """
    if state.cluster_id is not None and cluster_id is not None and state.cluster_id != cluster_id:
        msg = (
            f"the position is of the Kafka cluster {state.cluster_id}, but {cluster_id} answers now; its offsets mean "
            "something else. Nothing was read. Correct the address, or give the asset a new stream id to read the "
            "new cluster from its start"
        )
        raise ClusterChangedError(msg)


def recreated_topics(
    state: EnumeratorState, topics: Mapping[str, TopicMetadata], subscription: Subscription | None = None
) -> dict[str, TopicRecreatedError]:
    """Topics that are others than the state's, and the error that this is.

    Ids tell. Where one isn't known, so do topic partitions that are no longer there: Kafka never takes any away.

    Args:
        state: What is known.
        topics: The topics as they are now.
        subscription: What of them is asked for, where that is not all of them.
    """
    errors: dict[str, TopicRecreatedError] = {}
    for topic in topics.values():
        known = state.topic_ids.get(topic.name)
        if known is not None and topic.topic_id is not None:
            if known != topic.topic_id:
                what = f"the position is of topic id {known}, and now it is {topic.topic_id}"
                errors[topic.name] = _recreated(topic.name, what)
            continue
        gone = [
            tp
            for tp in sorted(state.position)
            if tp.topic == topic.name
            and tp not in topic.partitions
            and (subscription is None or subscription.may_read(tp))
        ]
        if gone:
            more = f" and {len(gone) - 1} more of its topic partitions" if len(gone) > 1 else ""
            what = (
                f"the position has {gone[0]}{more}, which the topic doesn't have now. Kafka takes no partition away "
                "from a topic, and no topic id says that it is the same"
            )
            errors[topic.name] = _recreated(topic.name, what)
    return errors


def _recreated(topic: str, what: str) -> TopicRecreatedError:
    return TopicRecreatedError(
        f"the topic {topic} was deleted and made again: {what}. Offsets of the old topic mean nothing in the new one. "
        "Nothing was read. To read the new topic from its start and go on with the others: "
        f"{set_position(to=_start_of(topic))}. If the last run was killed while it wrote, look first whether its last "
        "commit holds rows of the new topic already: they would be there twice",
        (topic,),
    )


def check_topics(state: EnumeratorState, topics: Mapping[str, TopicMetadata]) -> None:
    """Refuses a state of earlier topics than those that are there now.

    Raises:
        TopicRecreatedError: It is of some; the message is about the first one.
    """
    errors = recreated_topics(state, topics)
    if errors:
        raise TopicRecreatedError(str(next(iter(errors.values()))), tuple(errors))


def check_same_logs(cluster: _Identified, state: EnumeratorState, read: Collection[TopicPartition]) -> None:
    """Makes sure, once something was read, that the logs are still those that it was planned for.

    Two requests, however many topic partitions. A topic that is gone by now is no other than it was.

    Args:
        cluster: The cluster.
        state: Cluster and topics as they were planned.
        read: What was read.

    Raises:
        TopicRecreatedError: A topic was deleted and made again since.
        ClusterChangedError: Another cluster answers.
    """
    if not read:
        return
    check_cluster(state, cluster.cluster_id())
    topics = cluster.describe_topics(sorted({tp.topic for tp in read}), skip_missing=True)
    check_topics(replace(state, position={tp: state.position[tp] for tp in read}), topics)


def _start_of(topic: str) -> str:
    return f'offsets:{{"{topic}": {{"0": 0}}}}'


def is_same_log(topic_partition: TopicPartition, one: EnumeratorState, other: EnumeratorState) -> bool:
    """Whether two streams mean the same log by a topic partition, as far as ids are known."""
    pairs = (
        (one.cluster_id, other.cluster_id),
        (one.topic_ids.get(topic_partition.topic), other.topic_ids.get(topic_partition.topic)),
    )
    return all(a is None or b is None or a == b for a, b in pairs)
