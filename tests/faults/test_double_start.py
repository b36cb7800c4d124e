"""Several processes that ingest one stream into one local table at once: one lands it, the others find out."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.split import TopicPartition
from tests import landed
from tests.faults.ingester import Ingester

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.nightly]

# How many processes start at once, in each round. In the first there is no table, and they race to make it too.
_ROUNDS = (2, 2)
_RECORDS = 200


def test_several_processes_at_once_land_each_record_once(
    kafka, broker, connection, spark, spark_of, topic, table, tmp_path
):
    kafka.create(topic, partitions=2)
    with ExitStack() as stack:
        ingesters = [
            stack.enter_context(Ingester(tmp_path, f"process-{number}", bootstrap_servers=broker))
            for number in range(max(_ROUNDS))
        ]
        for ingester in ingesters:
            ingester.wait_until_ready()
        for number, processes in enumerate(_ROUNDS):
            begin = number * _RECORDS
            for partition in (0, 1):
                values = [(None, f"{partition}-{offset}") for offset in range(begin, begin + _RECORDS)]
                kafka.produce(topic, values, partition=partition)

            racing = ingesters[:processes]
            for ingester in racing:
                ingester.order(topic, table)
            outcomes = [ingester.answer() for ingester in racing]

            reported = [outcome for outcome in outcomes if outcome is not None]
            assert len(reported) == processes, [ingester.log() for ingester in racing]
            winners = [outcome for outcome in reported if outcome["error"] is None and not outcome["is_idle"]]
            assert [winner["rows"] for winner in winners] == [2 * _RECORDS], reported
            losers = [outcome for outcome in reported if outcome not in winners]
            assert len(losers) == processes - 1
            for loser in losers:
                assert loser["error"] == "ConcurrentIngestionError" or loser.get("is_idle"), loser

    end = len(_ROUNDS) * _RECORDS
    assert landed.rows(table, "kafka_partition", "kafka_offset", "CAST(kafka_value AS STRING)") == [
        (partition, offset, f"{partition}-{offset}") for partition in (0, 1) for offset in range(end)
    ]
    assert landed.operations(table) == ["CREATE TABLE", *["WRITE"] * len(_ROUNDS)]
    last = ingest(KafkaSource(topics=(topic,)), table, spark=spark_of, connection=connection)
    assert last.is_idle
    assert last.state.position == {TopicPartition(topic, 0): end, TopicPartition(topic, 1): end}
