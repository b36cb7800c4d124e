"""Random changelogs: the table equals a fold of the topic, however it is cut into batches and whatever is repeated."""

from __future__ import annotations

import itertools
import uuid

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.limits import Limits
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from tests import landed
from tests.upsert.conftest import change

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_PARTITIONS = 2
_names = (f"name-{number}" for number in itertools.count())

# A key is always in the same topic partition; None is a delete. Few keys, so that many records are of the same one.
_changelog = st.lists(
    st.tuples(st.integers(0, 5), st.booleans()).map(lambda each: (each[0], next(_names) if each[1] else None)),
    min_size=1,
    max_size=12,
)


def fold(changelog):
    """The rows that a plain loop over the records leaves."""
    rows = {}
    for number, name in changelog:
        if name is None:
            rows.pop(number, None)
        else:
            rows[number] = name
    return sorted(rows.items())


@settings(
    max_examples=6,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(parts=st.lists(_changelog, min_size=2, max_size=3), cut=st.sampled_from([None, 1, 3, 5]), again=st.booleans())
def test_the_table_equals_a_fold_of_the_topic(kafka, follow, topic, tmp_path, parts, cut, again):
    name, table = f"{topic}-{uuid.uuid4().hex[:8]}", str(tmp_path / uuid.uuid4().hex)
    kafka.create(name, partitions=_PARTITIONS)
    source = KafkaSource(topics=(name,))
    expected = []
    for number, part in enumerate(parts):
        for partition in range(_PARTITIONS):
            records = [change(*each) for each in part if each[0] % _PARTITIONS == partition]
            kafka.produce(name, records, partition=partition)
        # Only the first run is cut small: each batch costs a second.
        result = follow(
            source=source, target={"table": table}, limits=Limits(max_records_per_batch=cut if number == 0 else None)
        )
        assert result.records == len(part)
        expected = fold(itertools.chain(*parts[: number + 1]))
        assert landed.rows(table, "id", "name") == expected
        assert result.known.table_rows == len(expected)
    if again:
        everything = OffsetsInitializer.earliest()
        repeated = follow(source=source, target={"table": table}, starting_offsets=everything)
        assert landed.rows(table, "id", "name") == expected
        assert repeated.known.table_rows == len(expected)
    assert follow(source=source, target={"table": table}).is_idle
