"""What messages of simulated runs advise and deny."""

from __future__ import annotations

from typing import Any

import pytest

from dagster_kafka_flip.errors import LogChangedError, WriteFailedError
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.table.mode import Upsert
from dagster_kafka_flip.table.table_writer import TableWriter
from dagster_kafka_flip.table.target import DeltaTarget
from tests.simulation.scheduler import Actor
from tests.simulation.world import CONNECTION, SILENT, SimSession, SimSource, World

TOPIC = "t0"


@pytest.fixture
def world():
    made = World(0, has_lock=True)
    made.log.create(TOPIC, 1)
    return made


def run(world: World, target: DeltaTarget, **options: Any) -> None:
    session: Any = SimSession(world)
    source = SimSource(topics=(TOPIC,), connection=CONNECTION, world=world)

    def work() -> None:
        ingest(source, target, spark=lambda: session, logger=SILENT, **options)

    with world.entered():
        world.scheduler.run([Actor("run", work)])


def produce(world: World, records: int) -> None:
    world.log.append(world.log.topics[TOPIC][0], [world.now_ms()] * records)


def test_no_position_is_advised_for_a_table_with_a_key_whose_topic_was_recreated_while_it_was_read(world, monkeypatch):
    commit = TableWriter.commit

    def recreated(self, *arguments):
        done = commit(self, *arguments)
        world.log.delete(TOPIC)
        world.log.create(TOPIC, 1)
        return done

    produce(world, 3)
    monkeypatch.setattr(TableWriter, "commit", recreated)
    with pytest.raises(LogChangedError) as stopped:
        run(world, DeltaTarget(table="simulated.k", mode=Upsert(key=("kafka_key",))))
    assert "TO VERSION AS OF 0 removes the rows of that commit." in stopped.value.advice
    assert "position set" not in stopped.value.advice
    assert stopped.value.advice.endswith(
        "2. Read the new log into a new table: offsets decide which records of a key are newer"
    )


def test_dead_letters_of_a_batch_that_is_committed_are_not_those_of_the_one_that_failed(world, monkeypatch):
    commit = TableWriter.commit

    def failing(self, rows, document, *more):
        if any(split.starting_offset for split in document.splits):
            raise WriteFailedError("a full disk")
        return commit(self, rows, document, *more)

    world.rejects = 2
    produce(world, 4)
    monkeypatch.setattr(TableWriter, "commit", failing)
    with pytest.raises(WriteFailedError) as failed:
        run(
            world,
            DeltaTarget(table="simulated.a"),
            dead_letter="simulated.rejected",
            limits=Limits(max_records_per_batch=2),
        )
    assert len(world.tables["simulated.rejected"].rows) == 1
    assert failed.value.outcome == "Nothing was written after 1 commit of this run"
