"""What follows from an error of a write, and from a check after a commit that Kafka does not answer."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_kafka_flip.errors import (
    ClusterUnreachableError,
    ConcurrentIngestionError,
    KafkaFlipError,
    WriteFailedError,
)
from dagster_kafka_flip.ingestion.batch_writer import MOST_PLANS, Batch, BatchWriter
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.table import interruptible
from dagster_kafka_flip.table.table_port import ForeignConflictError
from dagster_kafka_flip.table.target import DeltaTarget

_SPLITS = (KafkaPartitionSplit(TopicPartition("t", 0), 0, 6),)
_UNREACHABLE = ClusterUnreachableError("no broker answers")


class Story:
    """A writer, a batch that meets errors, and what was done, in order."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.begins: list[Exception] = []
        self.writes: list[Exception] = []
        self.replays: list[Exception] = []
        spec: Any = SimpleNamespace(log=logging.getLogger(__name__), decoder=None, source=self)
        self.writer = BatchWriter(spec, SplitEnumeratorContext(), DeltaTarget(table="/lake/t"))

    def restore_enumerator(self, context: Any, state: Any) -> Any:
        return SimpleNamespace(replay=lambda _: self._do("logs", self.replays), close=lambda: None)

    def plan(self, conflict: KafkaFlipError | None) -> Batch[str]:
        self.done.append("plan" if conflict is None else f"plan after {type(conflict).__name__}")
        return Batch("the batch", self._begin, lambda: pytest.fail("records are read"), _SPLITS, EnumeratorState({}))

    def _begin(self) -> Any:
        self._do("begin", self.begins)
        return lambda: self._do("write", self.writes)

    def _do(self, what: str, errors: list[Exception]) -> str:
        self.done.append(what)
        if errors:
            raise errors.pop(0)
        return "written"


@pytest.fixture
def story(monkeypatch):
    monkeypatch.setattr(interruptible, "_FIRST_WAIT_SECONDS", 0.0)
    return Story()


# --- the loop -----------------------------------------------------------------------------------------------------


def test_transient_errors_end_the_run_after_five_tries_and_a_cluster_that_is_not_reached_before_a_try_counts(story):
    story.writes, story.replays = [_UNREACHABLE] * 2, [_UNREACHABLE] * 3
    with pytest.raises(ClusterUnreachableError):
        story.writer.write(story.plan)
    assert story.done == ["plan", "begin", "write", "logs", "logs", "logs", "logs", "write"]


@pytest.mark.parametrize("part", ["begins", "writes"])
def test_another_writers_change_leads_to_another_plan(story, part):
    setattr(story, part, [ForeignConflictError("version 3")])
    assert story.writer.write(story.plan) == "written"
    assert story.done[-3:] == ["plan after ForeignConflictError", "begin", "write"]


def test_a_conflict_is_told_by_what_happened_and_not_by_what_else_its_error_says(story):
    story.writes = [ConcurrentIngestionError("another run was first", "Run again", outcome="Not lost")] * MOST_PLANS
    with pytest.raises(WriteFailedError) as error:
        story.writer.write(story.plan, [ConcurrentIngestionError])
    assert story.done.count("begin") == MOST_PLANS
    assert error.value.finding.endswith("the last one with another run was first")
    assert error.value.outcome == "Nothing of the batch was written"


# --- the check after a commit -------------------------------------------------------------------------------------


def _ask() -> None:
    raise _UNREACHABLE


def test_a_run_without_an_answer_ends_well_unless_the_next_one_would_tolerate_another_log(story, caplog):
    story.writer.confirm(_ask, "a batch", lambda _: "", (), None)
    story.writer.finish()
    assert caplog.messages[-1].endswith("the next run compares their ids: no broker answers")
    with pytest.raises(ClusterUnreachableError):
        story.writer.finish(is_needed=True)


def test_nothing_more_is_written_before_there_is_an_answer(story):
    story.writer.confirm(_ask, "a batch", lambda _: "", (), None)
    with pytest.raises(ClusterUnreachableError):
        story.writer.write(story.plan)
    assert story.done == ["plan"]
