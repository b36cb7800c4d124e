"""The same scripts on the simulator and on real servers: where they end otherwise, the simulator is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dagster_kafka_flip.errors import KafkaFlipError
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.ingestion.result import IngestResult
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed
from tests.simulation.scheduler import Actor
from tests.simulation.sim_log import ABORTED, OPEN, RECORD
from tests.simulation.world import CONNECTION, SILENT, SimSession, SimSource, World

TOPIC = "t0"
Script = Callable[[Any], None]


class _Ground:
    """Where a script runs; `told` is what it came to."""

    def run(self: Any, start: int | None = None, **limits: Any) -> None:
        offsets = None if start is None else OffsetsInitializer.specific_offsets({self.partition: start})
        try:
            result = self.ingest(Limits(**limits), offsets)
            position = [offset for _, offset in sorted(result.state.position.items())]
            outcome: object = len(result.batches), result.rows, position
        except KafkaFlipError as error:
            outcome = type(error).__name__
        self.told.append((outcome, *self.table_now()))


class _Simulated(_Ground):
    def __init__(self, start: OffsetsInitializer) -> None:
        self.told: list[object] = []
        self.world = World(0, has_lock=True)
        self.world.log.create(TOPIC, 1)
        self._source = SimSource(topics=(TOPIC,), connection=CONNECTION, starting_offsets=start, world=self.world)
        self._target, self.partition = DeltaTarget(table="simulated.a"), TopicPartition(TOPIC, 0)
        self.table = self.world.table(self._target)

    def ingest(self, limits: Limits, start: OffsetsInitializer | None) -> IngestResult:
        session: Any = SimSession(self.world)
        options: Any = {"spark": lambda: session, "limits": limits, "starting_offsets": start, "logger": SILENT}
        found: list[IngestResult] = []

        def work() -> None:
            found.append(ingest(self._source, self._target, **options))

        with self.world.entered():
            self.world.scheduler.run([Actor("script", work)])
        return found[0]

    def table_now(self) -> tuple[int, int]:
        return len(self.table.versions) - 1, len(self.table.rows)

    def produce(self, records: int, partition: int = 0) -> None:
        log = self.world.log.topics[TOPIC][partition]
        self.world.log.append(log, [self.world.now_ms() for _ in range(records)])

    def transaction(self, records: int, *, commits: bool) -> None:
        log = self.world.log.topics[TOPIC][0]
        self.world.log.append(log, [self.world.now_ms() for _ in range(records)], OPEN)
        self.world.log.end_transaction(log, self.world.now_ms(), RECORD if commits else ABORTED)

    def trim(self, offset: int) -> None:
        self.world.log.retain(self.world.log.topics[TOPIC][0], offset)

    def grow(self) -> None:
        self.world.log.add_partitions(TOPIC, 1)

    def recreate(self) -> None:
        self.world.log.delete(TOPIC)
        self.world.log.create(TOPIC, 1)


class _Real(_Ground):
    def __init__(self, kafka, connection, spark, topic, table, start) -> None:
        self.told: list[object] = []
        self._kafka, self._spark, self._topic, self._path = kafka, spark, topic, table
        self.table, self.partition = self, TopicPartition(topic, 0)
        kafka.create(topic)
        self._source = KafkaSource(topics=(topic,), connection=connection, starting_offsets=start)

    def ingest(self, limits: Limits, start: OffsetsInitializer | None) -> IngestResult:
        return ingest(self._source, self._path, spark=lambda: self._spark, limits=limits, starting_offsets=start)

    def table_now(self) -> tuple[int, int]:
        return landed.version(self._path), landed.count(self._path)

    def produce(self, records: int, partition: int = 0) -> None:
        self._kafka.produce(self._topic, [(None, "v")] * records, partition=partition)

    def transaction(self, records: int, *, commits: bool) -> None:
        transaction = self._kafka.open_transaction(self._topic, [(None, "v")] * records)
        transaction.commit() if commits else transaction.abort()

    def trim(self, offset: int) -> None:
        self._kafka.trim(self._topic, 0, offset)

    def grow(self) -> None:
        self._kafka.grow(self._topic, 2)

    def recreate(self) -> None:
        self._kafka.delete(self._topic)
        self._kafka.create(self._topic)

    def restore(self, version: int) -> None:
        self._spark.sql(f"RESTORE delta.`{self._path}` TO VERSION AS OF {version}")

    def empty(self) -> None:
        self._spark.sql(f"DELETE FROM delta.`{self._path}`")

    def insert(self, _: int) -> None:
        self._spark.sql(f"INSERT INTO delta.`{self._path}` SELECT * FROM delta.`{self._path}` LIMIT 1")

    def set_property(self) -> None:
        self._spark.sql(f"ALTER TABLE delta.`{self._path}` SET TBLPROPERTIES ('a' = 'b')")


def _in_batches(ground: Any) -> None:
    ground.produce(5)
    ground.run(max_records_per_batch=2)
    ground.run()
    ground.transaction(2, commits=True)
    ground.transaction(2, commits=False)
    ground.produce(1)
    ground.run(max_records_per_batch=2, max_batches=2)
    ground.run()


def _restored(ground: Any) -> None:
    ground.produce(3)
    ground.run(max_records_per_batch=2)
    ground.table.restore(1)
    ground.produce(2)
    ground.run()
    ground.table.restore(0)
    ground.run(max_records_per_batch=4)
    ground.table.restore(3)
    ground.run()


def _emptied(ground: Any) -> None:
    ground.produce(3)
    ground.run()
    ground.table.empty()
    ground.run()
    ground.table.restore(1)
    ground.table.set_property()
    ground.produce(1)
    ground.run()


def _overtaken(ground: Any) -> None:
    ground.produce(5)
    ground.run(max_records_per_batch=2, max_batches=1)
    ground.trim(4)
    ground.run()
    ground.run(start=4)
    ground.run()


def _made_again_and_grown(ground: Any) -> None:
    ground.produce(2)
    ground.run()
    ground.grow()
    ground.produce(2, partition=1)
    ground.run()
    ground.table.insert(-1)
    ground.run()
    ground.recreate()
    ground.produce(1)
    ground.run()


_SCRIPTS: dict[str, tuple[Script, OffsetsInitializer]] = {
    "in batches": (_in_batches, OffsetsInitializer.earliest()),
    "restored": (_restored, OffsetsInitializer.earliest()),
    "restored, from the end on": (_restored, OffsetsInitializer.latest()),
    "emptied": (_emptied, OffsetsInitializer.earliest()),
    "overtaken": (_overtaken, OffsetsInitializer.earliest()),
    "made again and grown": (_made_again_and_grown, OffsetsInitializer.earliest()),
}


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("name", _SCRIPTS)
def test_a_script_ends_alike_in_the_simulator_and_on_real_servers(kafka, connection, spark, topic, table, name):
    script, start = _SCRIPTS[name]
    simulated, real = _Simulated(start), _Real(kafka, connection, spark, topic, table, start)
    script(simulated)
    script(real)
    assert simulated.told == real.told
