"""A broker that is killed in the middle of a sink's transaction, and comes back."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from dagster_kafka_flip.broker.local_broker import LocalBroker
from dagster_kafka_flip.errors import BrokerError
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.plan import Limits
from tests.kafka_topic import Kafka
from tests.sink.conftest import Published
from tests.sink.publishing import by_last_digit

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.nightly]


def test_a_broker_that_dies_in_a_transaction_and_comes_back_costs_and_doubles_no_record(spark, topic, table, tmp_path):
    with LocalBroker(tmp_path / "kafka") as local:
        kafka = Kafka(local.bootstrap_servers)
        connection = KafkaConnection(bootstrap_servers=local.bootstrap_servers)
        published = Published(spark, kafka, connection, topic, table)
        published.create()
        published.sql("INSERT INTO {t} SELECT id, concat('a', id) FROM range(9)")
        published.sql("UPDATE {t} SET v = concat('b', id)")
        calls = []

        def killing(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
            calls.append(key)
            # Between two batches' ends, with records of a transaction in the log.
            if len(calls) in (7, 16):
                status = local.status()
                assert status is not None
                os.kill(status.pid, signal.SIGKILL)
                with contextlib.suppress(BrokerError):
                    local.wait()
                local.start()
            return by_last_digit(topic, key, value, partitions)

        result = published.run(start=0, lanes=2, partitioner=killing, limits=Limits(max_records_per_batch=5))
        assert len(calls) >= 18
        assert (result.records, result.lag_versions) == (18, 0)
        assert published.texts() == {key: [f"a{key}", f"b{key}"] for key in range(9)}
        kafka.close()
