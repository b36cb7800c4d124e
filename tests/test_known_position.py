"""When a run believes the record of its position."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.table.known_position import KnownPosition
from dagster_kafka_flip.table.target import DeltaTarget
from tests.numbers import NUMBERS, numbers


def test_another_kind_of_source_is_refused(table):
    with pytest.raises(ConfigurationError, match=r"^source: expected str, got int"):
        ingest([1], table, spark=pytest.fail)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("hours_ago", "is_believed"), [(1, True), (23, True), (25, False), (-1, False), (-1000, False)]
)
def test_a_record_of_the_position_is_believed_while_it_is_young_and_never_if_it_is_dated_in_the_future(
    table, hours_ago, is_believed
):
    known = KnownPosition(
        stream="main",
        table=DeltaTarget(table=table).identity,
        state=EnumeratorState({NUMBERS: 5}),
        verified_at=datetime.now(tz=timezone.utc) - timedelta(hours=hours_ago),
        table_version=1,
        table_rows=5,
    )

    class AskedForSparkError(Exception):
        pass

    def spark():
        raise AskedForSparkError

    def land():
        return ingest(numbers(5), table, spark=spark, known=known)

    if is_believed:
        assert land().is_idle
    else:
        with pytest.raises(AskedForSparkError):
            land()
