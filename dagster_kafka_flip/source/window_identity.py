"""Checks that a table of windows holds rows of the current logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ClusterChangedError, EndBeforePositionError, TopicRecreatedError
from dagster_kafka_flip.source.identity import check_cluster, is_same_log, recreated_topics
from dagster_kafka_flip.source.incident import found
from dagster_kafka_flip.source.window_checks import also_affects

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.source.incident import Tolerance
    from dagster_kafka_flip.source.log import Log
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.source.subscription import Subscription, TopicMetadata
    from dagster_kafka_flip.source.window import Windows

_WENT_ON = "The run wrote the log's current records."


def check_identity(
    known: EnumeratorState,
    cluster_id: str | None,
    topics: Mapping[str, TopicMetadata],
    subscription: Subscription,
    rules: Windows,
    tolerance: Tolerance,
) -> frozenset[str]:
    """Checks that the table's rows come from the current cluster and topics.

    Args:
        known: Cluster and topics of the rows.
        cluster_id: Id of the current cluster; None if unknown.
        topics: The current topics.
        subscription: The source's topics.
        rules: The rules of the windows.
        tolerance: Collects tolerated errors.

    Returns:
        The topics that were recreated since; this is tolerated.

    Raises (unless the error is tolerated):
        ClusterChangedError: The rows belong to another cluster.
        TopicRecreatedError: The rows belong to an earlier topic with the same name.
    """
    continuation = "The run read the current log and replaced the rows of the windows with its records."
    stay = "Nothing was read, and the table's rows are unchanged."
    instead = "To replace the rows of these windows with its current records"
    try:
        check_cluster(known, cluster_id)
    except ClusterChangedError as error:
        if not rules.repair:
            ways_on = f"{stay} Correct bootstrap_servers, or use another table. {instead}, tolerate ClusterChangedError"
            error = ClusterChangedError(f"{found(error)} {ways_on}")
        tolerance.meet(error, continuation)
        return frozenset()
    made_again = recreated_topics(known, topics, subscription)
    for topic, error in made_again.items():
        if rules.repair:
            tolerance.meet(error, continuation)
            continue
        ways_on = f"{stay} Write the new topic to another table. {instead}, tolerate TopicRecreatedError"
        tolerance.meet(TopicRecreatedError(f"{found(error)} {ways_on}", (topic,)), continuation)
    return frozenset(made_again)


def check_ends(known: EnumeratorState, now: EnumeratorState, log: Log, tolerance: Tolerance) -> None:
    """Checks that the logs still have the offsets that the table's rows were read up to.

    Without topic ids, a recreated topic only shows in its offsets.

    Args:
        known: Cluster, topics and offsets of the rows.
        now: The current cluster and topics.
        log: The current logs.
        tolerance: Collects tolerated errors.

    Raises (unless the error is tolerated):
        EndBeforePositionError: A log ends before these offsets, or was cut off there and written again.
    """
    beyond = {
        tp: offset
        for tp, offset in sorted(known.position.items())
        if tp in log and offset > log.high_watermarks[tp] and is_same_log(tp, known, now)
    }
    if beyond:
        tp, offset = next(iter(beyond.items()))
        msg = (
            f"{tp}: the log ends at offset {log.high_watermarks[tp]}, but the table's windows were read up to "
            f"offset {offset}{also_affects(beyond, 'topic partition')}: the log was truncated, or the topic is a "
            "different one. Nothing was written, and the table's rows are unchanged. Find out which. To replace "
            "them with the log's current records, tolerate EndBeforePositionError"
        )
        tolerance.meet(EndBeforePositionError(msg), _WENT_ON)
    same = {
        tp: at for tp, at in known.position.items() if tp in log and tp not in beyond and is_same_log(tp, known, now)
    }
    cut = log.cut_offsets(same, known.leader_epochs)
    if cut:
        tp, offset = min(cut.items())
        where = "" if offset is None else f" at offset {offset}"
        msg = (
            f"{tp}: the log was truncated{where} and written again, as after an unclean leader election, but the "
            f"table's windows were read up to offset {known.position[tp]}{also_affects(cut, 'topic partition')}. "
            "Nothing was written, and the table's rows are unchanged. To replace them with the log's current records, "
            "tolerate EndBeforePositionError"
        )
        tolerance.meet(EndBeforePositionError(msg), _WENT_ON)
