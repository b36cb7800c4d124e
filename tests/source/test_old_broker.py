"""A broker that has no look-up of a log's highest timestamp: Kafka before 3.0."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from dagster_kafka_flip.errors import ClusterRequestError
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.kafka_source import KafkaSource
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


def test_a_broker_that_can_not_tell_the_highest_time_is_refused_where_it_matters(old_kafka, topic):
    old_kafka.create(topic)
    write(old_kafka, topic, {0: [_BASE, _BASE + _HOUR]})
    builder = KafkaSource.builder().set_topics(topic).set_bootstrap_servers(old_kafka.bootstrap_servers)
    with closing(builder.build().create_enumerator(SplitEnumeratorContext())) as enumerator:
        assert splits_of(enumerator.start()) == {0: (0, 2)}
    aligned = builder.set_watermark_alignment(timedelta(hours=2)).build()
    with (
        closing(aligned.create_enumerator(SplitEnumeratorContext())) as enumerator,
        pytest.raises(ClusterRequestError, match=r"it is older than Kafka 3\.0\. Nothing was read"),
    ):
        enumerator.start()
