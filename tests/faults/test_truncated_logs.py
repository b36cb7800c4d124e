"""Logs that were truncated, and written again: the message's start leads on, whatever else has happened.

One broker is enough: it loses the end of a log's file while it is down, as a leader's disk does in a crash. When it
comes back it is the next leader, as after an unclean election.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from dagster_kafka_flip.broker.local_broker import LocalBroker
from dagster_kafka_flip.errors import ConfigurationError, EndBeforePositionError, LogChangedError
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.ingestion.move_position import commit_move, plan_move
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.table.mode import Upsert
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed
from tests.faults.following import AFTER_A_KILL, start_of
from tests.kafka_topic import Kafka

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


class _Truncating:
    """A broker that can lose the end of logs."""

    def __init__(self, broker: LocalBroker, folder: Path) -> None:
        self._broker, self._folder = broker, folder
        self._kept: dict[Path, int] = {}

    @property
    def servers(self) -> str:
        return self._broker.bootstrap_servers

    def produce(self, topic: str, partition: int, *values: str) -> None:
        # Another client each time: none remembers what a broker has lost.
        kafka = Kafka(self.servers)
        for value in values:
            kafka.produce(topic, [(None, value)], partition=partition)
        kafka.close()

    def keep(self, topic: str, *partitions: int) -> None:
        """What these logs have now, they will still have."""
        for partition in partitions:
            (log,) = self._folder.rglob(f"{topic}-{partition}/*.log")
            self._kept[log] = log.stat().st_size

    def lose(self) -> None:
        """Loses what came after that."""
        self._broker.stop()
        for log, size in self._kept.items():
            os.truncate(log, size)
        self._kept.clear()
        self._broker.start()


@pytest.fixture(scope="module")
def truncating(tmp_path_factory):
    folder = tmp_path_factory.mktemp("truncating")
    with LocalBroker(folder) as broker:
        yield _Truncating(broker, folder)


@pytest.fixture
def kafka(truncating):
    client = Kafka(truncating.servers)
    yield client
    client.close()


@pytest.fixture
def run(truncating, spark_of, table):
    """One run of a stream."""
    connection = KafkaConnection(bootstrap_servers=truncating.servers, read_timeout=3)

    def land(*topics, **options):
        return ingest(KafkaSource(topics=topics), table, spark=spark_of, connection=connection, **options).rows

    return land


def _rows(table):
    return landed.rows(table, "kafka_partition", "kafka_offset", "CAST(kafka_value AS STRING)")


_A, _B = [f"a{number}" for number in range(4)], [f"b{number}" for number in range(3)]
_C = [f"c{number}" for number in range(6)]


def test_one_start_leads_past_retention_and_every_kind_of_truncation(truncating, kafka, run, topic, table):
    kafka.create(topic, 5)
    for partition in range(5):
        truncating.produce(topic, partition, *_A)
    truncating.keep(topic, 0, 1, 4)
    for partition in range(5):
        truncating.produce(topic, partition, *_B)
    assert run(topic) == 35
    truncating.lose()
    truncating.produce(topic, 0, *_C[:1])
    truncating.produce(topic, 1, *_C)
    truncating.produce(topic, 2, *_C)
    truncating.produce(topic, 4, *_C)
    kafka.trim(topic, 2, 10)

    with pytest.raises(EndBeforePositionError) as refused:
        run(topic)
    message = str(refused.value)
    assert message == (
        f"{topic}-2: retention has overtaken the position. The next offset to read is 7, but the log begins at 10: up "
        f"to 3 unread records are gone. {topic}-0: the log ends at offset 5, before the position 7: the log was "
        "truncated at offset 4. The table has records that the log no longer has, and may lack those that have their "
        f"offsets now. {topic}-1: the log was truncated at offset 4 and written again, beyond the position 7 (also "
        "affects 1 more topic partition), as after an unclean leader election. The table has records that the log no "
        "longer has, and lacks those that have their offsets now. Nothing was written. To continue with what the logs "
        f'have now, run once with start set to offsets:{{"{topic}": {{"2": 10, "0": 4, "1": 4, "4": 4}}}} (in Airflow, '
        f"where runs have no start: dagster-kafka-flip position set --to the same){AFTER_A_KILL}"
    )

    assert run(topic, starting_offsets=start_of(refused)) == 1 + 6 + 3 + 6
    assert run(topic) == 0
    expected = [(partition, offset, value) for partition in range(5) for offset, value in enumerate([*_A, *_B])]
    expected += [(partition, 4 + offset, value) for partition in (1, 4) for offset, value in enumerate(_C)]
    expected += [(0, 4, "c0"), *((2, 7 + offset, value) for offset, value in enumerate(_C) if offset > 2)]
    assert _rows(table) == sorted(expected)


@pytest.mark.nightly
def test_a_log_that_is_truncated_and_written_again_between_plan_and_read_lands_once_as_the_messages_say(
    truncating, kafka, run, spark, topic, table
):
    kafka.create(topic)
    truncating.produce(topic, 0, *_A)
    assert run(topic) == 4
    truncating.keep(topic, 0)
    truncating.produce(topic, 0, *_B)
    lost = []

    def losing(records):
        if not lost:
            truncating.lose()
            truncating.produce(topic, 0, *_C)
            lost.append(True)
        return records

    with pytest.raises(LogChangedError) as refused:
        run(topic, transform=losing)
    begin = f"{topic}-0: the log was truncated at offset 4, as after an unclean leader election, and was read up to"
    assert str(refused.value).startswith(
        f"{begin} offset 7. This happened during the read of a batch, which version 2 of "
    )
    assert str(refused.value).endswith(
        f" has. Its rows of {topic}-0 [4, 7) may come from either log. The commit stays; nothing more was read, and "
        "all "
        f"runs of the stream stop until you decide. 1. RESTORE TABLE delta.`{table}` TO VERSION AS OF 1 removes "
        "the rows of that commit. Copy them first if you need what the log has lost. 2. Run again: it continues "
        "from there"
    )
    with pytest.raises(LogChangedError, match="all runs of the stream stop until you decide"):
        run(topic)
    spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF 1")
    assert run(topic) == 6
    assert run(topic) == 0
    assert _rows(table) == sorted((0, offset, value) for offset, value in enumerate([*_A, *_C]))


@pytest.mark.parametrize("way", ["position set", "start"])
def test_a_table_with_a_key_is_not_continued_if_records_that_it_has_are_cut_off_while_its_position_is_back(
    truncating, kafka, spark, spark_of, topic, table, way
):
    def change(number, name):
        return f'{{"id": {number}, "name": "{name}"}}'

    def run(**options):
        found = ingest(source, target, spark=spark_of, value_format=JsonFormat("id INT, name STRING"), **options)
        return found.records

    connection = KafkaConnection(bootstrap_servers=truncating.servers, read_timeout=3)
    source = KafkaSource(topics=(topic,), connection=connection)
    target = DeltaTarget(table=table, mode=Upsert(key=("id",)))
    back = OffsetsInitializer.specific_offsets({TopicPartition(topic, 0): 1})
    kafka.create(topic)
    truncating.produce(topic, 0, *(change(number, "kept") for number in range(4)))
    truncating.keep(topic, 0)
    truncating.produce(topic, 0, *(change(number, "lost") for number in range(3)))
    assert run() == 7
    if way == "start":
        assert run(starting_offsets=back, limits=Limits(max_records_per_batch=2, max_batches=1)) == 2
    else:
        commit_move(plan_move(source, target, spark, back), target, spark, "a test")
    truncating.lose()
    truncating.produce(topic, 0, *(change(number, "new") for number in range(2)))

    with pytest.raises(EndBeforePositionError) as refused:
        run()
    assert re.match(
        rf"{topic}-0: the log was truncated before offset 7, where the position was before it went back to [13]\. The "
        r"table has records that the log no longer has, .*\. Nothing was written\. The rows of .* have a key \(Upsert\)"
        r".* otherwise read the topic into a new table",
        str(refused.value),
    )
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=r"or it was truncated.* Read the topic into a new table"):
            run(starting_offsets=OffsetsInitializer.latest())
    assert set(landed.rows(table, "name")) == {("kept",), ("lost",)}
