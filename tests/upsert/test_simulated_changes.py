"""The simulator reads changes as Spark does: one batch of many keys, each of which is a case of its own."""

from __future__ import annotations

import random
from datetime import datetime, timezone
from typing import Any

import pytest
from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType

from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.ingestion.keyed_stream import change_columns
from dagster_kafka_flip.table import merge
from dagster_kafka_flip.table.changes import BEGAN, IS_CURRENT, ORIGIN, UNRESOLVED, VALID_FROM, VALID_TO, Changes
from dagster_kafka_flip.table.mode import Scd2, Upsert
from tests.simulation import sim_merge
from tests.simulation.sim_merge import DELETED, KEY, VALUE, ChangeRows, SimChanges, keyed_schema
from tests.simulation.world import World

OFFSET = "kafka_offset"
COLUMNS = change_columns(KafkaColumns())
MODES = [Upsert(key=(KEY,)), Upsert(key=(KEY,), soft_delete=True), Scd2(key=(KEY,))]


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, timezone.utc)


def _read(world: World, mode: Any, numbers: list[int]) -> tuple[Any, Any]:
    rows: Any = ChangeRows(world, lambda: numbers)
    latest = sim_merge.read(SimChanges(rows, mode, COLUMNS, mode.key))
    return latest, latest.rows


@pytest.mark.spark
@pytest.mark.parametrize("mode", MODES, ids=["upsert", "soft delete", "scd2"])
def test_the_simulator_reads_changes_as_spark_does(spark, mode):
    draw, world = random.Random(7), World(0, has_lock=True)
    world.leaves_out = True
    log, landed, batch = world.log, list[int](), list[int]()
    for topic in range(15):
        log.create(f"t{topic}", 3)
        for partition in log.topics[f"t{topic}"]:
            log.append(partition, [draw.randrange(1_000, 100_000) for _ in range(draw.randint(0, 14))])
            numbers = [entry.number for entry in partition.entries]
            reached = draw.randint(0, len(numbers))
            landed += numbers[:reached]
            # Some are read again.
            batch += numbers[draw.randint(0, reached) :]
    marks = [StructField(DELETED, BooleanType()), StructField(COLUMNS.unavailable, ArrayType(StringType()))]
    place = [(*log.place(number)[:3], _time(log.places[number][3])) for number in batch]
    told = [(None, [VALUE]) if world.is_left_out(number) else (number, None) for number in batch]
    frame = spark.createDataFrame(
        [
            (world.key(number), value, *at, world.is_deleted(number), left_out)
            for number, at, (value, left_out) in zip(batch, place, told, strict=True)
        ],
        StructType([*keyed_schema(MODES[0]).fields, *marks]),
    )

    real = merge.read(Changes(frame, mode, COLUMNS, mode.key))
    simulated, changes = _read(world, mode, batch)

    assert (real.keys, real.bounds, real.changes.left_out) == (simulated.keys, simulated.bounds, (VALUE,))
    assert {change.unresolved for change in changes} == {"", VALUE}

    def origin(row: Any) -> int | None:
        return row[ORIGIN] and row[ORIGIN][OFFSET] if ORIGIN in row else row[OFFSET]

    read = [
        (row[KEY], row[OFFSET], row[DELETED], row[VALUE], origin(row), " ".join(row[UNRESOLVED] or ()), row[BEGAN])
        for row in real.rows.collect()
    ]
    assert sorted(map(str, read)) == sorted(
        str(
            (
                *(each.key, log.offset(each.number), each.deleted, each.value),
                *(each.origin and log.offset(each.origin), each.unresolved, each.began),
            )
        )
        for each in changes
    )
    if not isinstance(mode, Scd2):
        return

    rows = sim_merge.versions(log, _read(world, mode, landed)[1], ())
    table = [
        (
            *(row.key, row.value, *log.place(row.number)[:3], _time(log.places[row.number][3])),
            *(_time(row.since), _time(row.until), row.is_current),
        )
        for row in rows
    ]
    history = merge.versions(real.changes, real.rows, spark.createDataFrame(table, keyed_schema(mode)))
    there: Any = [row for row in rows if row.is_current]
    wanted = sim_merge.versions(log, changes, rows)  # pyright: ignore[reportArgumentType]
    assert there
    assert any(row.ends for row in wanted)
    names = (KEY, OFFSET, VALUE, VALID_FROM, VALID_TO, IS_CURRENT, merge.ENDS)
    assert sorted(str(tuple(row[name] for name in names)) for row in _in_utc(history).collect()) == sorted(
        str((row.key, log.offset(row.number), row.value, row.since, row.until, row.is_current, row.ends))
        for row in wanted
    )


def _in_utc(rows: Any) -> Any:
    """With times as milliseconds."""
    from pyspark.sql import functions as f

    return rows.withColumns({name: f.unix_millis(name) for name in (VALID_FROM, VALID_TO)})
