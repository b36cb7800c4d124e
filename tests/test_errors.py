"""An error's three parts: they make its message, survive every way to another process, and the writer adds one."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

from dagster_kafka_flip import errors
from dagster_kafka_flip.assets.step_events import as_failure
from dagster_kafka_flip.errors import KafkaFlipError, RetentionOvertookPositionError, TopicRecreatedError, outcome
from dagster_kafka_flip.ingestion.run_spec import nothing_written

_MORE = {RetentionOvertookPositionError: {"log_start_offsets": {("t", 0): 7}}, TopicRecreatedError: {"topics": ("t",)}}
_CLASSES = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, KafkaFlipError)]


@pytest.mark.parametrize("kind", _CLASSES)
@pytest.mark.parametrize("sent", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_arrives_with_its_parts_and_all_that_it_knows(kind, sent):
    error = kind("the table is gone", "Restore it", **_MORE.get(kind, {}))
    error.outcome = "Nothing was written"
    arrived = sent(error)
    assert type(arrived) is kind
    assert str(arrived) == "the table is gone. Nothing was written. Restore it"
    assert vars(arrived) == vars(error)
    assert vars(arrived).keys() >= {"finding", "outcome", "advice", *_MORE.get(kind, ())}


def test_a_part_that_is_not_there_leaves_nothing_behind():
    assert str(KafkaFlipError("the table is gone")) == "the table is gone"
    assert str(KafkaFlipError("the table is gone", "Restore it")) == "the table is gone. Restore it"
    assert str(KafkaFlipError("the table is gone", outcome="Nothing was read")) == "the table is gone. Nothing was read"


def test_the_outcome_is_that_of_who_is_nearest_to_the_write():
    committed = 0

    @outcome(lambda: nothing_written(committed))
    def run(said: str) -> None:
        nonlocal committed
        committed = 2
        raise KafkaFlipError("the log ends", "Run again", outcome=said)

    with pytest.raises(KafkaFlipError) as error:
        run("")
    assert str(error.value) == "the log ends. Nothing was written after 2 commits of this run. Run again"
    with pytest.raises(KafkaFlipError) as error:
        run("Version 3 is committed")
    assert str(error.value) == "the log ends. Version 3 is committed. Run again"


def test_dagsters_failure_has_the_whole_message_and_each_part_is_still_there():
    error = TopicRecreatedError("the topic is another one", "Read it", topics=("t",))
    failure = as_failure(error)
    assert isinstance(failure, TopicRecreatedError)
    assert (failure.finding, failure.outcome, failure.advice) == ("the topic is another one", "", "Read it")
    assert vars(failure)["description"] == str(failure) == str(error)
    assert list(vars(failure)["metadata"]) == ["topics"]
