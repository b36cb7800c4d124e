"""EnumeratorState and splits: what is written can be read again, by this version and by every later one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_kafka_flip.errors import DocumentVersionError
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState, position_to_json, splits_from_json, splits_to_json
from tests.source.strategies import splits, states

GOLDEN = Path(__file__).parent / "golden"

_STATE = EnumeratorState(
    position={
        TopicPartition("orders", 0): 0,
        TopicPartition("orders", 3): 9_223_372_036_854_775_807,
        TopicPartition("payments.eu-1_x", 0): 1_234_567,
        TopicPartition("payments.eu-1_x", 1): 1_234_568,
    },
    cluster_id="KWHWXlnYRzWWm_krlAs8gg",
    topic_ids={"orders": "TeqrGJacRuGM6m3V2B8cxA"},
    watermark=1_763_683_200_000,
)
_SPLITS = (
    KafkaPartitionSplit(TopicPartition("orders", 3), 17, 9_223_372_036_854_775_807),
    KafkaPartitionSplit(TopicPartition("payments.eu-1_x", 0), 1_234_560, 1_234_567),
    KafkaPartitionSplit(TopicPartition("payments.eu-1_x", 1), 0, 1_234_568),
)


def _through_json(document):
    return json.loads(json.dumps(document))


@given(states)
def test_a_state_survives_json(state):
    assert EnumeratorState.from_json(_through_json(state.to_json())) == state


@given(st.lists(splits))
def test_splits_survive_json_sorted(given_splits):
    document = _through_json(splits_to_json(given_splits))
    assert splits_from_json(document) == tuple(sorted(given_splits))


@pytest.mark.parametrize(
    ("write", "read", "name", "value"),
    [
        (EnumeratorState.to_json, EnumeratorState.from_json, "state", _STATE),
        (splits_to_json, splits_from_json, "splits", _SPLITS),
    ],
)
def test_version_1_is_written_and_read_as_it_always_was(write, read, name, value):
    # Tables out there hold this form. A change of it needs a new version, and these files stay.
    golden = json.loads((GOLDEN / f"{name}-v1.json").read_text(encoding="utf-8"))
    assert write(value) == golden
    assert read(golden) == value


def test_the_position_keeps_gaps():
    position = {TopicPartition("b", 0): 5, TopicPartition("a", 3): 7, TopicPartition("a", 1): 0}
    assert position_to_json(position) == {"a": [None, 0, None, 7], "b": [5]}


@pytest.mark.parametrize(
    ("written", "read", "what"),
    [
        (EnumeratorState({}).to_json(), EnumeratorState.from_json, "the position"),
        (splits_to_json(()), splits_from_json, "a batch's splits"),
    ],
)
def test_a_newer_version_is_refused(written, read, what):
    with pytest.raises(DocumentVersionError) as error:
        read({**written, "version": 2})
    assert str(error.value) == (
        f"{what} has format version 2, but this version of dagster-kafka-flip reads versions up to 1: upgrade "
        "dagster-kafka-flip to at least the version that wrote it"
    )


def test_ten_thousand_topic_partitions_take_less_than_400_kb():
    # Offsets of twelve digits: a trillion records in each topic partition.
    position = {
        TopicPartition(f"a-topic-with-a-long-name.{topic}", partition): 10**11 + topic * 10**7 + partition
        for topic in range(100)
        for partition in range(100)
    }
    state = EnumeratorState(position, "KWHWXlnYRzWWm_krlAs8gg", {tp.topic: "x" * 22 for tp in position}, 10**12)
    all_splits = tuple(KafkaPartitionSplit(tp, offset - 1_000_000, offset) for tp, offset in position.items())
    document = {"splits": splits_to_json(all_splits), "state": state.to_json()}
    assert len(json.dumps(document, separators=(",", ":"))) < 400_000
