"""Random changelogs: the table equals a fold of the topic, however it is cut into batches and whatever is repeated."""

from __future__ import annotations

import itertools
import json
import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.table.mode import Scd2, Upsert
from tests import landed
from tests.upsert.conftest import change

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_PARTITIONS = 2
_names = (f"name-{number}" for number in itertools.count())


def _changelog(at_least):
    """A key is always in the same topic partition; None is a delete. Each key has several records.

    A batch costs a second however many keys it has: many keys in few batches try more than few keys in many.
    """
    change_of_key = st.tuples(st.integers(0, 15), st.booleans())
    changes = change_of_key.map(lambda each: (each[0], next(_names) if each[1] else None))
    return st.lists(changes, min_size=at_least, max_size=at_least + 30)


def _tells_something(parts):
    """The simplest example, which hypothesis tries first, deletes one key that is not there, again and again."""
    return len({number for number, name in parts[0] if name is not None}) > 5


_AS_GIVEN = settings(
    max_examples=1,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
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


@_AS_GIVEN
@given(
    parts=st.tuples(_changelog(20), _changelog(1), _changelog(5)).filter(_tells_something), batches=st.integers(1, 4)
)
def test_the_table_equals_a_fold_of_the_topic(kafka, follow, topic, tmp_path, parts, batches):
    name, table = f"{topic}-{uuid.uuid4().hex[:8]}", str(tmp_path / uuid.uuid4().hex)
    kafka.create(name, partitions=_PARTITIONS)
    source = KafkaSource(topics=(name,))
    expected = []
    for number, part in enumerate(parts):
        for partition in range(_PARTITIONS):
            records = [change(*each) for each in part if each[0] % _PARTITIONS == partition]
            kafka.produce(name, records, partition=partition)
        # Only the first run is cut.
        limits = Limits(max_records_per_batch=-(-len(part) // batches) if number == 0 else None)
        result = follow(source=source, target={"table": table}, limits=limits)
        assert result.records == len(part)
        expected = fold(itertools.chain(*parts[: number + 1]))
        assert landed.rows(table, "id", "name") == expected
        assert result.known.table_rows == len(expected)
    everything = OffsetsInitializer.earliest()
    repeated = follow(source=source, target={"table": table}, starting_offsets=everything)
    assert landed.rows(table, "id", "name") == expected
    assert repeated.known.table_rows == len(expected)
    assert follow(source=source, target={"table": table}).is_idle


def with_deletes(changelog):
    """The rows that a loop leaves which marks what is deleted."""
    rows = {}
    for number, name in changelog:
        rows[number] = (name if name is not None else rows.get(number, (None,))[0], name is None)
    return sorted((number, *row) for number, row in rows.items())


def newest(changelog):
    """The rows that the highest rank of each key leaves; which values a deleted row has depends on the batches."""
    rows = {}
    for number, name, rank in changelog:
        if rank > rows.get(number, (0, ""))[0]:
            rows[number] = (rank, name)
    return sorted((number, rank, name or "", name is None) for number, (rank, name) in rows.items())


def history(changelog):
    """The history that a loop writes: a row for each value, that ends with the next change of its key."""
    rows, last = {}, {}
    for number, name, seconds in changelog:
        of_key = rows.setdefault(number, [])
        if name is None and (not of_key or of_key[-1][3] is not None):
            # It deletes what is not there, and a later batch would not know of it.
            continue
        last[number] = max(seconds, last.get(number, 0))
        if of_key and of_key[-1][3] is None:
            of_key[-1][3] = last[number]
        if name is not None:
            of_key.append([number, name, last[number], None])
    return sorted(tuple(map(_text, row)) for row in itertools.chain(*rows.values()))


def _text(value):
    return "" if value is None else str(value)


def _gone(records):
    from pyspark.sql import functions as f

    return records.withColumn("kafka_deleted", f.col("name").isNull())


_RANKED = JsonFormat(schema="id BIGINT, name STRING, rank BIGINT")


def _history_rows(table):
    since, until = "date_part('epoch', valid_from)", "coalesce(date_part('epoch', valid_to), -1)"
    rows = landed.rows(table, "id", "name", since, until, "is_current")
    assert all(is_current == (until < 0) for *_, until, is_current in rows)
    return sorted(
        (str(number), name, str(int(since)), "" if until < 0 else str(int(until)))
        for number, name, since, until, _ in rows
    )


@pytest.mark.nightly
@_AS_GIVEN
@given(
    parts=st.tuples(_changelog(20), _changelog(5), _changelog(5)).filter(_tells_something),
    order=st.randoms(use_true_random=False),
)
def test_each_mode_equals_its_fold_also_after_a_restore_and_when_records_are_read_again(
    kafka, follow, spark, topic, tmp_path, parts, order
):
    """One topic for all: a table with deleted rows, one in the order of a column, and a history."""
    sizes = [len(part) for part in parts]
    ranks = list(range(1, sum(sizes) + 1))
    order.shuffle(ranks)
    # Times go back now and then.
    times = [1_767_225_600 + 10 * number - order.choice([0, 0, 35]) for number in range(sum(sizes))]
    changes = [(*each, rank, time) for each, rank, time in zip(itertools.chain(*parts), ranks, times, strict=True)]
    name, folder = f"{topic}-{uuid.uuid4().hex[:8]}", tmp_path / uuid.uuid4().hex
    kafka.create(name, partitions=_PARTITIONS)
    kafka.create(f"{name}-ranked", partitions=_PARTITIONS)
    for_all: dict[str, Any] = {"value_format": _RANKED, "transform": _gone, "source": KafkaSource(topics=(name,))}
    ranked = {**for_all, "source": KafkaSource(topics=(f"{name}-ranked",))}
    modes = {
        "soft": (Upsert(key=("id",), soft_delete=True), for_all),
        "ranked": (Upsert(key=("id",), order_by="rank", soft_delete=True), ranked),
        "history": (Scd2(key=("id",)), for_all),
    }
    done = 0
    for step, size in enumerate(sizes):
        part = changes[done : done + size]
        done += size
        for number, value, rank, time in part:
            record = None, json.dumps({"id": number, "name": value, "rank": rank})
            kafka.produce(name, [record], partition=number % _PARTITIONS, timestamp=time * 1000)
            kafka.produce(f"{name}-ranked", [record], partition=rank % _PARTITIONS, timestamp=time * 1000)
        seen = changes[:done]
        for mode, (settings_of, options) in modes.items():
            target = {"table": str(folder / mode), "mode": settings_of}
            follow(target=target, limits=Limits(max_records_per_batch=-(-size // 2) if step == 0 else None), **options)
            if step == 1:
                spark.sql(f"RESTORE delta.`{folder / mode}` TO VERSION AS OF 1")
                follow(target=target, **options)
            elif step == len(sizes) - 1:
                repeated = follow(target=target, starting_offsets=OffsetsInitializer.earliest(), **options)
                assert (repeated.merged.inserted, repeated.merged.updated) == (0, 0)
        assert landed.rows(folder / "soft", "id", "name", "kafka_deleted") == with_deletes(
            (number, value) for number, value, *_ in seen
        )
        kept = "CASE WHEN kafka_deleted THEN '' ELSE name END"
        assert landed.rows(folder / "ranked", "id", "rank", kept, "kafka_deleted") == newest(
            (number, value, rank) for number, value, rank, _ in seen
        )
        expected = history((number, value, time) for number, value, _, time in seen)
        assert _history_rows(folder / "history") == expected
