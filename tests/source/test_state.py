"""EnumeratorState and splits: what is written can be read again, by this version and by none older."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_kafka_flip.errors import DocumentVersionError
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from dagster_kafka_flip.source.state import (
    EnumeratorState,
    position_to_json,
    splits_from_json,
    splits_to_json,
)
from tests.source.strategies import splits, states


@given(states)
def test_a_state_survives_json(state):
    assert EnumeratorState.from_json(json.loads(json.dumps(state.to_json()))) == state


@given(st.lists(splits))
def test_splits_survive_json_and_stay_in_order_within_a_topic(given_splits):
    ordered = tuple(sorted(given_splits))
    assert splits_from_json(json.loads(json.dumps(splits_to_json(ordered)))) == ordered


def test_the_form_is_compact_and_keeps_gaps():
    position = {TopicPartition("b", 0): 5, TopicPartition("a", 3): 7, TopicPartition("a", 1): 0}
    assert position_to_json(position) == {"a": [None, 0, None, 7], "b": [5]}
    assert EnumeratorState(position, "c", {"a": "id"}).to_json() == {
        "version": 1,
        "cluster": "c",
        "topics": {"a": "id"},
        "position": {"a": [None, 0, None, 7], "b": [5]},
    }
    assert splits_to_json([KafkaPartitionSplit(TopicPartition("a", 3), 5, 7)]) == {"a": [[3, 5, 7]]}


def test_a_state_of_a_newer_version_is_refused():
    document = {**EnumeratorState({}).to_json(), "version": 2}
    with pytest.raises(DocumentVersionError) as error:
        EnumeratorState.from_json(document)
    assert str(error.value) == (
        "the position was written in version 2 of its format, and this installation of dagster-kafka-flip reads "
        "versions up to 1: upgrade it to at least the one that wrote it"
    )
