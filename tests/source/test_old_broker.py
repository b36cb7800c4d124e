"""A broker that has no look-up of a log's highest timestamp (Kafka before 3.0) against one that has."""

from __future__ import annotations

import logging
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits, Spread
from dagster_kafka_flip.source.split import TopicPartition
from tests.brokers.release import OLDEST, release
from tests.kafka_topic import Kafka
from tests.source.flink.logs import splits_of, write

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.kafka

_HOUR = 3_600_000
_BASE = 1_700_000_000_000


@pytest.fixture(scope="module")
def old_kafka(tmp_path_factory) -> Iterator[Kafka]:
    """Kafka 2.8, which still needs ZooKeeper."""
    with release(tmp_path_factory.mktemp("old-kafka"), OLDEST) as bootstrap_servers:
        client = Kafka(bootstrap_servers)
        yield client
        client.close()


def test_an_old_broker_aligns_and_spreads_by_time_as_a_new_one_does(kafka, old_kafka, topic, caplog):
    logs = {
        0: [_BASE + hour * _HOUR for hour in range(48)],
        1: [_BASE + hour * _HOUR for hour in (3, 1, 2, 5, 4, 5, 0)],
        2: [_BASE + 9 * _HOUR],
        4: [-1, _BASE + 7 * _HOUR, -1],
    }
    partitions = [TopicPartition(topic, number) for number in range(5)]
    caplog.set_level(logging.INFO, "dagster_kafka_flip.source.cluster")
    reported = []
    for broker in (kafka, old_kafka):
        broker.create(topic, 5)
        write(broker, topic, logs)
        connection = KafkaConnection(bootstrap_servers=broker.bootstrap_servers)
        builder = KafkaSource.builder().set_topics(topic).set_bootstrap_servers(broker.bootstrap_servers)
        caplog.clear()
        with closing(KafkaCluster(connection)) as cluster:
            highest = cluster.max_timestamps(partitions)
        messages = list(caplog.messages)
        aligned = builder.set_watermark_alignment(timedelta(hours=2)).build()
        with closing(aligned.create_enumerator(SplitEnumeratorContext())) as enumerator:
            plan = enumerator.start()
        with closing(builder.build().create_enumerator(SplitEnumeratorContext())) as enumerator:
            enumerator.start()
            cuts = []
            while (batch := enumerator.assign(Limits(max_records_per_batch=20, spread=Spread.TIME))) is not None:
                cuts.append(splits_of(batch.plan))
        late = builder.set_starting_offsets(OffsetsInitializer.timestamp(_BASE + 6 * _HOUR)).build()
        with closing(late.create_enumerator(SplitEnumeratorContext())) as enumerator:
            starts = splits_of(enumerator.start())
        reported.append((highest, splits_of(plan), plan.state.watermark, cuts, starts, len(messages)))
    new, old = reported
    assert new[0] == {
        tp: (times.index(max(times)), max(times))
        for tp, times in ((tp, logs.get(tp.partition)) for tp in partitions)
        if times
    }
    # What is dated more than two hours later than the slowest one gets waits.
    assert new[1] == {0: (0, 8), 1: (0, 7), 4: (0, 3)}
    assert old[:5] == new[:5]
    # Only where it is so.
    assert (new[5], old[5]) == (0, 1)
