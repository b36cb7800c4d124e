"""Which topics are there, and whether a state is of them: of the same cluster, and not of namesakes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ClusterChangedError, KafkaFlipError, TopicNotFoundError, TopicRecreatedError
from dagster_kafka_flip.source.incident import incident_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.source.subscription import Subscription, TopicDirectory, TopicMetadata


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


def recreated_topics(state: EnumeratorState, topic_ids: Mapping[str, str]) -> dict[str, TopicRecreatedError]:
    """Topics that have another id than the state's, and the error that this is."""
    errors: dict[str, TopicRecreatedError] = {}
    for topic, topic_id in topic_ids.items():
        known = state.topic_ids.get(topic)
        if known is not None and known != topic_id:
            errors[topic] = TopicRecreatedError(
                f"the topic {topic} was deleted and made again: the position is of topic id {known}, and now it is "
                f"{topic_id}. Offsets of the old topic mean nothing in the new one. Nothing was read. To read the new "
                "topic from its start and go on with the others: dagster-kafka-flip position set (with --asset or "
                f"--table) --to '{_start_of(topic)}'. If the last run was killed while it wrote, look first whether "
                "its last commit holds rows of the new topic already: they would be there twice",
                (topic,),
            )
    return errors


def check_topics(state: EnumeratorState, topic_ids: Mapping[str, str]) -> None:
    """Refuses a state of earlier topics than those that are there now.

    Raises:
        TopicRecreatedError: It is of some; the message is about the first one.
    """
    errors = recreated_topics(state, topic_ids)
    if errors:
        raise TopicRecreatedError(str(next(iter(errors.values()))), tuple(errors))


def _start_of(topic: str) -> str:
    return f'offsets:{{"{topic}": {{"0": 0}}}}'


def is_same_log(topic_partition: TopicPartition, one: EnumeratorState, other: EnumeratorState) -> bool:
    """Whether two streams mean the same log by a topic partition, as far as ids are known."""
    pairs = (
        (one.cluster_id, other.cluster_id),
        (one.topic_ids.get(topic_partition.topic), other.topic_ids.get(topic_partition.topic)),
    )
    return all(a is None or b is None or a == b for a, b in pairs)
