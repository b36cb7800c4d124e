"""Whether logs are those of a state, and continue at its position; else the one start that leaves them behind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from dagster_kafka_flip.errors import (
    ClusterChangedError,
    EndBeforePositionError,
    KafkaFlipError,
    RetentionOvertookPositionError,
    TopicNotFoundError,
    TopicRecreatedError,
)
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.source.incident import Incident
from dagster_kafka_flip.source.log import Log
from dagster_kafka_flip.source.next_step import set_position
from dagster_kafka_flip.source.offsets import OffsetsInitializer

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from dagster_kafka_flip.source.api import SplitEnumeratorContext
    from dagster_kafka_flip.source.cluster import KafkaCluster
    from dagster_kafka_flip.source.incident import Tolerance
    from dagster_kafka_flip.source.split import Position, TopicMetadata, TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.source.subscription import Subscription

    CutOff = Mapping[TopicPartition, int | None]
    from collections.abc import Mapping

    from dagster_kafka_flip.source.split import TopicPartition


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


_BOTH = "The table has records that the log no longer has, and {} those that have their offsets now"


class BrokenLogs(NamedTuple):
    """Topic partitions whose logs don't continue at the position, for the same reason."""

    error: type[KafkaFlipError]
    finding: str
    # Where a run can start to read what the logs have now.
    restart: Position
    # Where a run goes on that tolerates the error, and the same as a sentence.
    goes_on: Position
    continuation: str
    # Maximum number of records that this one loses; None if unknown.
    lost_offsets: int | None = None
    # Whether the restart reads nothing again that the table has.
    is_clear: bool = True


def broken_logs(
    position: Position, cut_off: CutOff, same_topics: Collection[str], log: Log, furthest: Position | None = None
) -> list[BrokenLogs]:
    """Logs that don't continue at a position, or don't reach the furthest as they did; `same_topics` by their ids."""
    beginning, ends = log.beginning_offsets(position), log.high_watermarks
    overtaken = [tp for tp, at in sorted(position.items()) if at < beginning[tp]]
    # Uses the high watermark, not the end offset: an open transaction must not look like a truncation.
    beyond = [tp for tp, at in sorted(position.items()) if at > ends[tp]]
    known = [tp for tp in beyond if cut_off.get(tp) is not None and tp.topic in same_topics]
    unknown = [tp for tp in beyond if tp not in known]
    cut = {tp: at or 0 for tp, at in sorted(cut_off.items()) if tp in position and tp not in beyond}
    rewritten = [tp for tp, at in cut.items() if at < position[tp]]
    reached = furthest or {}
    reread = [
        tp
        for tp, at in sorted(reached.items())
        if at > position.get(tp, at) and tp not in (*beyond, *rewritten) and (tp in cut or at > ends[tp])
    ]
    return [
        *([_overtaken(overtaken, position, beginning)] if overtaken else ()),
        *(_short(each, position, cut_off, same_topics, log) for each in (known, unknown) if each),
        *([_rewritten(rewritten, position, cut_off, beginning)] if rewritten else ()),
        *([_reread(reread, position, reached)] if reread else ()),
    ]


def _overtaken(affected: Sequence[TopicPartition], position: Position, beginning: Position) -> BrokenLogs:
    tp, restart = affected[0], {tp: beginning[tp] for tp in affected}
    gone = sum(restart[tp] - position[tp] for tp in affected)
    finding = (
        f"{tp}: retention has overtaken the position. The next offset to read is {position[tp]}, but the log begins "
        f"at {restart[tp]}: up to {restart[tp] - position[tp]} unread records are "
        f"gone{others_affected(affected, records=gone)}"
    )
    continuation = "The run continued at the beginning of the log."
    return BrokenLogs(RetentionOvertookPositionError, finding, restart, restart, continuation, gone)


def _short(
    affected: Sequence[TopicPartition], position: Position, cut_off: CutOff, same_topics: Collection[str], log: Log
) -> BrokenLogs:
    tp, beginning = affected[0], log.beginning_offsets(affected)
    at = cut_off.get(tp) if tp.topic in same_topics else None
    restart = {each: max(cut_off.get(each) or 0, beginning[each]) for each in affected}
    why = "truncated, or the topic is a different one" if at is None else f"truncated at offset {at}. "
    # A truncated topic with the same id: its records were written. A different topic: none were.
    same = [each for each in affected if each.topic in same_topics]
    return BrokenLogs(
        EndBeforePositionError,
        f"{tp}: the log ends at offset {log.high_watermarks[tp]}, before the position {position[tp]}"
        f"{others_affected(affected)}: the log was {why}{'' if at is None else _BOTH.format('may lack')}",
        beginning if at is None else restart,
        beginning | log.end_offsets(same),
        "The run continued at the end of the log if the topic id is unchanged, and at the beginning if the id is "
        "unknown. Records written since the truncation may be lost or duplicated.",
        is_clear=at is not None,
    )


def _rewritten(
    affected: Sequence[TopicPartition], position: Position, cut_off: CutOff, beginning: Position
) -> BrokenLogs:
    at = {tp: offset for tp in affected if (offset := cut_off[tp]) is not None}
    tp = next(iter(at), affected[0])
    is_clear = len(at) == len(affected)
    where = f" at offset {at[tp]}" if tp in at else ""
    return BrokenLogs(
        EndBeforePositionError,
        f"{tp}: the log was truncated{where} and written again, beyond the position {position[tp]}"
        f"{others_affected(affected)}, as after an unclean leader election. {_BOTH.format('lacks')}",
        {each: max(at.get(each, 0), beginning[each]) for each in affected},
        {each: position[each] for each in affected},
        "The run continued at the position, without the log's records before it.",
        sum(position[each] - at[each] for each in affected) if is_clear else None,
        is_clear,
    )


def _reread(affected: Sequence[TopicPartition], position: Position, furthest: Position) -> BrokenLogs:
    tp, here = affected[0], {each: position[each] for each in affected}
    return BrokenLogs(
        EndBeforePositionError,
        f"{tp}: the log was truncated before offset {furthest[tp]}, where the position was before it went back to "
        f"{position[tp]}{others_affected(affected)}. {_BOTH.format('may lack')}",
        here,
        here,
        "",
    )


def goes_on(broken: Sequence[BrokenLogs], tolerance: Tolerance) -> dict[TopicPartition, int]:
    """Returns where a run goes on that tolerates all of them; raises one error about those that it does not."""
    refused = [each for each in broken if each.error not in tolerance.tolerated]
    if refused:
        advice = (
            "To continue with what the logs have now, run once with start set to "
            f"{OffsetsInitializer.specific_offsets(restart(refused))} (in Airflow, where runs have no start: "
            "dagster-kafka-flip position set --to the same)"
        )
        finding = ". ".join(each.finding for each in refused)
        if all(each.error is RetentionOvertookPositionError for each in refused):
            raise _retention_error(finding, advice, restart(refused))
        if not all(each.is_clear for each in refused):
            advice += (
                ". Find out first what happened: it begins at the log's beginning where it is unknown what was "
                "truncated, and reads again what the table has of that log"
            )
        advice += (
            ". If the last run was killed, failed, or could not check the logs, first check whether the stream's last "
            "commit already holds what this reads: if it does, RESTORE the table to the version before it instead, and "
            "run again"
        )
        raise EndBeforePositionError(finding, advice)
    tolerance.incidents += (
        Incident(each.error.__name__, f"{each.finding}. {each.continuation}", each.lost_offsets) for each in broken
    )
    return {tp: at for each in broken for tp, at in each.goes_on.items()}


def restart(broken: Iterable[BrokenLogs]) -> dict[TopicPartition, int]:
    return {tp: at for each in broken for tp, at in each.restart.items()}


def check_planned(starts: Position, stops: Position, cut_off: CutOff, log: Log) -> None:
    # No start is told: the splits need not begin at the stream's position, and other logs may be broken, too.
    beginning, ends = log.beginning_offsets(starts), log.high_watermarks
    then = "The stream's next run plans anew from its position"
    if overtaken := [tp for tp, at in sorted(starts.items()) if at < beginning[tp]]:
        found = _overtaken(overtaken, starts, beginning)
        raise _retention_error(found.finding, then, found.restart)
    if gone := [tp for tp, stop in sorted(stops.items()) if stop > ends[tp] or tp in cut_off]:
        tp, at = gone[0], cut_off.get(gone[0])
        cut = "" if tp not in cut_off else "was truncated and " if at is None else f"was truncated at offset {at} and "
        raise EndBeforePositionError(
            f"{tp}: records up to offset {stops[tp]} were planned, but the log {cut}ends at offset {ends[tp]}"
            f"{others_affected(gone)}",
            then,
            cut_offsets={(tp.topic, tp.partition): at for tp in gone if (at := cut_off.get(tp)) is not None},
        )


def check_same_logs(cluster: KafkaCluster, state: EnumeratorState, read: Collection[TopicPartition]) -> Position:
    """Checks after reading that the logs are still those of the plan; returns where it ended in those that exist."""
    if not read:
        return {}
    check_cluster(state, cluster.cluster_id())
    topics = cluster.describe_topics(sorted({tp.topic for tp in read}), skip_missing=True)
    stops = {tp: state.position[tp] for tp in read}
    check_topics(replace(state, position=stops), topics)
    there = {tp for topic in topics.values() for tp in topic.partitions}
    return {tp: stop for tp, stop in stops.items() if tp in there}


def check_not_cut(cluster: KafkaCluster, isolation_level: str, plan: EnumeratorState, stops: Position) -> None:
    """Checks that no log was cut off before the end of what was read: it may have been read before or behind that."""
    epochs = plan.leader_epochs
    known = [tp for tp in stops if tp in epochs]
    # Only another leader may have cut one off.
    ends = cluster.log_ends(known, isolation_level) if known else {}
    led = {tp: stops[tp] for tp, end in ends.items() if end.leader_epoch != epochs[tp]}
    if led and (cut_off := Log(cluster, led, isolation_level).cut_offsets(led, epochs)):
        tp, at = min(cut_off.items())
        where = "" if at is None else f" at offset {at}"
        raise EndBeforePositionError(
            f"{tp}: the log was truncated{where}, as after an unclean leader election, and was read up to offset "
            f"{stops[tp]}{others_affected(cut_off)}"
        )


def _retention_error(finding: str, advice: str, begins: Position) -> RetentionOvertookPositionError:
    starts = {(tp.topic, tp.partition): at for tp, at in begins.items()}
    return RetentionOvertookPositionError(finding, advice, log_start_offsets=starts)


def others_affected(affected: Collection[object], what: str = "topic partition", records: int | None = None) -> str:
    """How many others a message is about that names the first; empty if there are none."""
    if len(affected) == 1:
        return ""
    total = "" if records is None else f", up to {counted(records, 'record')} in total"
    return f" (also affects {counted(len(affected) - 1, f'more {what}')}{total})"
