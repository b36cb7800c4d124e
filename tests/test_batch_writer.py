"""What follows from a check after a commit that Kafka does not answer."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_kafka_flip.errors import ClusterUnreachableError
from dagster_kafka_flip.ingestion.batch_writer import Batch, BatchWriter
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.table.target import DeltaTarget

_SPLITS = (KafkaPartitionSplit(TopicPartition("t", 0), 0, 6),)


def _ask() -> None:
    raise ClusterUnreachableError("no broker answers")


@pytest.fixture
def writer() -> BatchWriter:
    """A writer that has committed, and got no answer."""
    spec: Any = SimpleNamespace(log=logging.getLogger(__name__), decoder=None)
    writer = BatchWriter(spec, SplitEnumeratorContext(), DeltaTarget(table="/lake/t"))
    writer.confirm(_ask, "a batch", lambda _: "", (), None)
    return writer


def test_a_run_without_an_answer_ends_well_unless_the_next_one_would_tolerate_another_log(writer, caplog):
    writer.finish()
    assert caplog.messages[-1].endswith("the next run compares their ids: no broker answers")
    with pytest.raises(ClusterUnreachableError):
        writer.finish(is_needed=True)


def test_nothing_more_is_written_before_there_is_an_answer(writer):
    batch: Batch[str] = Batch(
        "the batch", pytest.fail, lambda: pytest.fail("records are read"), _SPLITS, EnumeratorState({})
    )
    with pytest.raises(ClusterUnreachableError):
        writer.write(lambda _: batch)
