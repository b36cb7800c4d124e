"""Requests that the network held back, and let through in a later transaction: that one is neither torn nor ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from dagster_kafka_flip.errors import ClusterUnreachableError, KafkaFlipError
from dagster_kafka_flip.sink.kafka_sink import KafkaSink
from dagster_kafka_flip.sink.lane import Lane
from dagster_kafka_flip.sink.progress import Origin, Progress
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.plan import Limits
from tests.faults.network import DistantBroker
from tests.kafka_topic import Kafka
from tests.sink.held_requests import END_TXN, PRODUCE, HeldRequests, Place
from tests.sink.numbers import EVERY_SCHEDULE, try_all

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def distant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DistantBroker]:
    """A broker behind such a network."""
    with DistantBroker(tmp_path_factory.mktemp("held"), HeldRequests) as local:
        yield local


@pytest.fixture
def network(distant: DistantBroker) -> HeldRequests:
    """The network."""
    assert isinstance(distant.network, HeldRequests)
    return distant.network


@pytest.fixture
def kafka(distant: DistantBroker) -> Iterator[Kafka]:
    """Makes topics, by a way of its own."""
    client = Kafka(distant.bootstrap_servers)
    yield client
    client.close()


@pytest.fixture
def connection(distant: DistantBroker) -> KafkaConnection:
    """The way to the broker through the network."""
    return KafkaConnection(bootstrap_servers=distant.distant_servers)


@pytest.mark.parametrize("lost", ["cut", "silence"])
def test_a_lane_that_gave_up_does_not_fence_the_next_one_when_the_brokers_are_back(
    kafka, network, distant, connection, topic, lost
):
    for name in (topic, f"{topic}-progress"):
        kafka.create(name)
    sink = KafkaSink(topic=topic, transactional_id_prefix=topic)
    getattr(network, lost)()
    first = Lane(connection.model_copy(update={"request_timeout": 2}), sink, 0)
    with pytest.raises(ClusterUnreachableError, match="did not accept init_transactions") as kept:
        first.open()
    first.close()
    following = Lane(KafkaConnection(bootstrap_servers=distant.bootstrap_servers), sink, 0)
    following.open()
    following.write(topic, b"k", b"v")
    network.heal()
    # As long as an asking producer takes to be answered.
    time.sleep(3)
    following.commit(Progress(0, 1, topic, None, "a", "i", Origin(0, snapshot=False), 1, 0, "{}", "s"))
    following.close()
    assert kept.value.__traceback__ is not None, "what keeps the names of the run that gave up"


@pytest.mark.spark
def test_a_commit_that_the_network_held_back_does_not_end_the_next_transaction(published, network):
    published.create()
    published.sql("INSERT INTO {t} SELECT id, 'a' FROM range(16)")
    # The first commit is that of the progress alone. Of the third transaction, some records are there.
    network.hold(Place(END_TXN, 2), until=Place(PRODUCE, 3))
    errors: list[KafkaFlipError] = []
    for _ in range(5):
        try:
            published.run(
                start=0,
                limits=Limits(max_records_per_batch=8),
                properties={"linger.ms": "0", "batch.num.messages": "1"},
            )
        except KafkaFlipError as error:  # noqa: PERF203 - run again, as its message says
            errors.append(error)
        else:
            break
    assert network.is_released
    assert published.texts() == {key: ["a"] for key in range(16)}
    assert errors == []


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_each_number_is_there_once_at_every_place(kafka, connection, topic, network):
    try_all(kafka, connection, topic, network, EVERY_SCHEDULE)
