"""What the enumerator does with a log that does not fit the position, where it is told to go on in spite of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_kafka_flip.errors import (
    ClusterChangedError,
    ConfigurationError,
    EndBeforePositionError,
    KafkaFlipError,
    RetentionOvertookPositionError,
    TopicNotFoundError,
    TopicRecreatedError,
    WriteFailedError,
)
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from tests.source.log_model import ClusterModel, LogModel

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
_STATE = EnumeratorState({T0: 4, T1: 2}, "cluster", {"t": "topic-id"})


def _log(records, beginning=0):
    return LogModel([1000 * (number + 1) for number in range(records)], beginning)


def _enumerator(logs, state, *tolerated, topics=("t",)):
    source = KafkaSource.builder().set_topics(*topics).build()
    context = SplitEnumeratorContext(tolerated=frozenset(tolerated))
    return KafkaSourceEnumerator(source, ClusterModel(logs), context, state)


def _splits(plan):
    return [str(split) for split in plan.splits]


def test_retention_costs_what_is_gone_and_nothing_more():
    plan = _enumerator(
        {T0: _log(9, beginning=7), T1: _log(9, beginning=1)}, _STATE, RetentionOvertookPositionError
    ).start()
    assert _splits(plan) == ["t-0 [7, 9)", "t-1 [2, 9)"]
    (incident,) = plan.incidents
    assert incident.error == "RetentionOvertookPositionError"
    assert incident.message == (
        "t-0: retention has overtaken the position. The next offset to read is 4, but the log begins at 7: up to 3 "
        "unread records are gone. The run continued at the beginning of the log."
    )
    assert incident.lost_offsets == 3


def test_a_truncated_topic_continues_at_its_end_and_an_unknown_one_at_its_beginning():
    logs = {T0: _log(4), T1: _log(1)}
    known = _enumerator(logs, _STATE, EndBeforePositionError).start()
    assert (_splits(known), dict(known.state.position)) == ([], {T0: 4, T1: 1})
    unknown = _enumerator(logs, replace(_STATE, topic_ids={}), EndBeforePositionError).start()
    assert (_splits(unknown), dict(unknown.state.position)) == (["t-1 [0, 1)"], {T0: 4, T1: 1})
    for plan in (known, unknown):
        (incident,) = plan.incidents
        assert (incident.error, incident.lost_offsets) == ("EndBeforePositionError", None)
        assert incident.message.startswith(
            "t-1: the log ends at offset 1, before the position 2: the log was truncated, "
        )


def test_a_log_that_was_cut_off_and_rewritten_continues_at_the_position():
    logs = {T0: replace(_log(6), epochs={0: 0, 5: 3}), T1: replace(_log(4), epochs={0: 0, 2: 2})}
    state = replace(_STATE, leader_epochs={T0: 4, T1: 1})
    plan = _enumerator(logs, state, EndBeforePositionError).start()
    assert _splits(plan) == ["t-0 [4, 6)", "t-1 [2, 4)"]
    (incident,) = plan.incidents
    assert (incident.error, incident.lost_offsets) == ("EndBeforePositionError", 1)
    assert incident.message.startswith("t-0: the log was truncated at offset 3 and written again, beyond the position")
    assert "The run continued at the position, without the log's records before it." in incident.message
    # It is told once: the state now names the leaders of the log as it is.
    assert plan.state.leader_epochs == {T0: 5, T1: 2}
    assert _enumerator(logs, plan.state).start().incidents == ()


@pytest.mark.parametrize("records", [1, 4, 9], ids=["fewer", "equal", "more"])
def test_a_recreated_topic_is_read_from_its_beginning(records):
    state = replace(_STATE, position={T0: 4, T1: 2, U0: 5}, topic_ids={"t": "old-id", "u": "u-id"})
    plan = _enumerator({T0: _log(records)}, state, TopicRecreatedError).start()
    assert _splits(plan) == [f"t-0 [0, {records})"]
    # Topic partition 1 is none of the new topic's; what the source no longer asks for is kept.
    assert dict(plan.state.position) == {T0: records, U0: 5}
    assert plan.state.topic_ids == {"t": "topic-id", "u": "u-id"}
    (incident,) = plan.incidents
    assert (incident.error, incident.lost_offsets) == ("TopicRecreatedError", None)
    assert "the topic t was deleted and recreated: the position belongs to topic id old-id" in incident.message


def test_a_recreated_topic_without_the_topic_partitions_to_read_is_named():
    state = replace(_STATE, position={T1: 2, U0: 5}, topic_ids={"t": "old-id", "u": "topic-id"})
    source = KafkaSource.builder().set_partitions([T1, U0]).build()
    context = SplitEnumeratorContext(tolerated=frozenset({TopicNotFoundError}))
    enumerator = KafkaSourceEnumerator(source, ClusterModel({T0: _log(1), U0: _log(9)}), context, state)
    with pytest.raises(
        TopicRecreatedError, match=r"^the topic t was .* continue the others: .*--to 'offsets:{.u.: {.0.: 5}}'"
    ):
        enumerator.start()


def test_another_cluster_is_read_from_its_beginning():
    state = replace(_STATE, cluster_id="another", topic_ids={"t": "old-id"}, watermark=7)
    plan = _enumerator({T0: _log(4), T1: _log(5)}, state, ClusterChangedError).start()
    assert _splits(plan) == ["t-0 [0, 4)", "t-1 [0, 5)"]
    assert (plan.state.cluster_id, plan.state.watermark) == ("cluster", 7)
    assert [incident.error for incident in plan.incidents] == ["ClusterChangedError"]


def test_a_missing_topic_is_left_out_and_its_position_kept():
    state = replace(_STATE, position={T0: 4, U0: 5})
    enumerator = _enumerator({T0: _log(6)}, state, TopicNotFoundError, topics=("t", "u"))
    enumerator.discover()
    plan = enumerator.start()
    assert (_splits(plan), dict(plan.state.position)) == (["t-0 [4, 6)"], {T0: 6, U0: 5})
    (incident,) = plan.incidents
    assert (incident.error, incident.lost_offsets) == ("TopicNotFoundError", 0)
    assert incident.message == (
        "u: topic does not exist, or this client may not describe it. The run continued with the other topics and "
        "kept the position of this one."
    )


def test_a_source_without_any_topic_is_still_an_error():
    with pytest.raises(TopicNotFoundError):
        _enumerator({T0: _log(1)}, None, TopicNotFoundError, topics=("u",)).start()


def test_an_error_that_is_not_tolerated_ends_the_run():
    logs = {T0: _log(9, beginning=7), T1: _log(9)}
    others = {EndBeforePositionError, TopicRecreatedError, ClusterChangedError, TopicNotFoundError}
    with pytest.raises(RetentionOvertookPositionError):
        _enumerator(logs, _STATE, *others).start()


def test_a_second_plan_of_the_run_continues_from_there():
    enumerator = _enumerator({T0: _log(9, beginning=7), T1: _log(2)}, _STATE, RetentionOvertookPositionError)
    first = enumerator.start()
    batch = enumerator.assign(Limits())
    assert batch is not None
    enumerator.add_splits_back(batch.plan)
    second = enumerator.start()
    assert (_splits(second), second.incidents) == (_splits(first), ())


@pytest.mark.parametrize("error", [WriteFailedError, KafkaFlipError, ValueError])
def test_an_intolerable_error_class_is_reported_before_anything_runs(error):
    source = KafkaSource.builder().set_topics("t").set_bootstrap_servers("nowhere:1").build()
    reported = (
        f"tolerate: {error.__name__} can't be tolerated; allowed: ClusterChangedError, ConcurrentIngestionError, "
    )
    with pytest.raises(ConfigurationError, match=reported):
        ingest(source, "t", spark=pytest.fail, tolerate=[error])
