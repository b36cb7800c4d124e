"""Landing windows on the session's broker and Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from dagster_kafka_flip.formats.string import StringFormat
from dagster_kafka_flip.ingestion.rewrite_windows import rewrite_windows
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.window import Window
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dagster_kafka_flip.ingestion.result import WindowsResult

HOUR = 3_600_000
DAY = 24 * HOUR
# 2013-03-01T00:00:00Z, long ago: all windows are over.
START = 1_362_096_000_000


def hours(first: int, last: int) -> list[Window]:
    """Windows of an hour each, by their number since `START`."""
    return [Window(f"h{hour:03}", START + hour * HOUR, START + (hour + 1) * HOUR) for hour in range(first, last)]


@pytest.fixture
def rewrite(connection, spark_of, table, topic) -> Callable[..., list[WindowsResult]]:
    """Lands windows of the test's topic in the test's table."""

    def run(windows: Iterable[Window], **options: Any) -> list[WindowsResult]:
        settings: dict[str, Any] = {
            "spark": spark_of,
            "connection": connection,
            "value_format": StringFormat(),
            "definition": "hours",
            **options,
        }
        target = settings.pop("target", None) or DeltaTarget(table=table, partition_by=("kafka_window",))
        source = settings.pop("source", None) or KafkaSource(topics=(topic,))
        return list(rewrite_windows(source, target, windows, **settings))

    return run


@pytest.fixture
def rows(table) -> Callable[[], list[tuple[Any, ...]]]:
    """Window, topic partition, offset and value of all rows of the test's table, sorted."""

    def read() -> list[tuple[Any, ...]]:
        columns = ("kafka_window", "kafka_partition", "kafka_offset", "kafka_value")
        return landed.rows(table, *columns)

    return read
