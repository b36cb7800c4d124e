"""The check after a commit, where Kafka does not answer it."""

from __future__ import annotations

import logging

import pytest

from dagster_kafka_flip.errors import ClusterUnreachableError, KafkaFlipError, LogChangedError
from dagster_kafka_flip.ingestion.log_confirmation import LogConfirmation


def _ask() -> None:
    raise ClusterUnreachableError("no broker answers")


def _doubt(error: KafkaFlipError) -> LogChangedError:
    return LogChangedError(error.finding)


def test_a_run_without_an_answer_ends_well_unless_the_next_one_would_tolerate_another_log(caplog):
    confirmation = LogConfirmation(logging.getLogger(__name__))
    confirmation.confirm(_ask, _doubt)
    confirmation.finish()
    assert caplog.messages[-1].endswith("the next run compares their ids: no broker answers")
    with pytest.raises(ClusterUnreachableError):
        confirmation.finish(is_needed=True)


def test_a_run_that_has_asked_needs_no_other_answer():
    confirmation = LogConfirmation(logging.getLogger(__name__))
    confirmation.confirm(lambda: None, _doubt)
    confirmation.finish(is_needed=True)
