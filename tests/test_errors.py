"""An error's three parts: they make its message, survive every way to another process, and the writer adds one."""

from __future__ import annotations

import copy
import inspect
import logging
import pickle
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_kafka_flip import errors
from dagster_kafka_flip.assets.step_events import as_failure
from dagster_kafka_flip.errors import (
    KafkaFlipError,
    RetentionOvertookPositionError,
    TopicNotFoundError,
    TopicRecreatedError,
    outcome,
)
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.ingestion.rewrite_windows import run_windows
from dagster_kafka_flip.ingestion.run_spec import RunSpec, nothing_written
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.window import Window, Windows
from dagster_kafka_flip.table.target import DeltaTarget

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


@pytest.mark.parametrize(
    ("dead_letters", "said"), [(0, "Nothing was written"), (1, "Nothing but dead letters was written")]
)
def test_dead_letters_that_a_run_wrote_are_not_denied(dead_letters, said):
    assert nothing_written(0, dead_letters) == said
    assert nothing_written(1, dead_letters) == f"{said} after 1 commit of this run"
    assert nothing_written(0, None) == "Nothing but dead letters was written"
    # Those of the commits are not those of what failed.
    assert nothing_written(1, 5, 5) == "Nothing was written after 1 commit of this run"
    assert nothing_written(1, 6, 5) == "Nothing but dead letters was written after 1 commit of this run"
    assert nothing_written(1, None, None) == "Nothing but dead letters was written after 1 commit of this run"


def test_dagsters_failure_has_the_whole_message_and_each_part_is_still_there():
    error = TopicRecreatedError("the topic is another one", "Read it", topics=("t",))
    failure = as_failure(error)
    assert isinstance(failure, TopicRecreatedError)
    assert (failure.finding, failure.outcome, failure.advice) == ("the topic is another one", "", "Read it")
    assert vars(failure)["description"] == str(failure) == str(error)
    assert list(vars(failure)["metadata"]) == ["topics"]


def test_windows_that_fail_do_not_deny_those_that_their_run_wrote_before(monkeypatch):
    def discover() -> None:
        raise TopicNotFoundError("the topic is gone", "Create it")

    enumerator = SimpleNamespace(discover=discover, close=lambda: None)
    monkeypatch.setattr(KafkaSource, "window_enumerator", lambda self, rules, context: enumerator)
    connection = KafkaConnection(bootstrap_servers="broker:9092")
    spec = RunSpec(
        source=KafkaSource(topics=("t",), connection=connection),
        target=DeltaTarget(table="/lake/t"),
        spark=lambda: pytest.fail("Spark is started"),
        decoder=Decoder.of(None, None, None),
        limits=Limits(),
        log=logging.getLogger(__name__),
    )
    window = Window.between("2026-01-31T00:00:00Z", "2026-02-01T00:00:00Z")

    def message(**before: Any) -> str:
        with pytest.raises(TopicNotFoundError) as error:
            list(run_windows(spec, [window], Windows(), **before))
        return str(error.value)

    assert message() == "the topic is gone. Nothing was written. Create it"
    assert message(commits=2) == "the topic is gone. Nothing was written after 2 commits of this run. Create it"
