"""A backfill that is killed: what it had committed stays, and a repeat makes it whole."""

from __future__ import annotations

import pytest

from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.table.windowed_table import WindowedTable
from tests.windows.conftest import HOUR, START, hours

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


class _DiedError(BaseException):
    """What a kill looks like from inside: nothing of the package may handle it."""


def test_a_backfill_that_is_killed_leaves_whole_windows_and_continues(kafka, rewrite, rows, topic, monkeypatch):
    kafka.create(topic)
    for minute in range(0, 240, 30):
        kafka.produce(topic, [(None, str(minute))], timestamp=START + minute * 60_000)
    original, batches = WindowedTable.rewrite, []

    def deadly(*args):
        batches.append(args)
        if len(batches) == 2:
            raise _DiedError
        return original(*args)

    with monkeypatch.context() as patch:
        patch.setattr(WindowedTable, "rewrite", deadly)
        with pytest.raises(_DiedError):
            rewrite(hours(0, 4), limits=Limits(max_records_per_batch=4))
    assert [key for key, *_ in rows()] == ["h000", "h000"]
    rewrite(hours(0, 4), limits=Limits(max_records_per_batch=4))
    found = rows()
    assert [(key, int(minute)) for key, _, _, minute in found] == sorted(
        (f"h{minute * 60_000 // HOUR:03}", minute) for minute in range(0, 240, 30)
    )
