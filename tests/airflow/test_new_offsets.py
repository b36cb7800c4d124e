"""The sensor's trigger waits on a real log, without a secret, and tells what it found."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import Asset, AssetWatcher
from airflow.triggers.base import TriggerEvent

from dagster_kafka_flip import EnumeratorState, KafkaSource, TopicPartition
from dagster_kafka_flip.airflow import KafkaLagSensor, NewOffsetsTrigger
from dagster_kafka_flip.airflow.given import source_to_json
from dagster_kafka_flip.airflow.new_offsets import LagWatch
from dagster_kafka_flip.errors import ClusterUnreachableError, ConfigurationError
from tests.kafka_topic import Kafka
from tests.source.log_model import ClusterModel, LogModel

SECRET = "never-to-be-seen-9c2d"


@pytest.fixture
def connected(broker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, address in (("SHOP", broker), ("NOBODY", "127.0.0.1:1")):
        extra = {"bootstrap.servers": address, "socket.timeout.ms": 1000, "ssl.key.password": SECRET}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps({"conn_type": "kafka", "extra": extra}))


def trigger(topic: str, offset: int | None, **options: Any) -> NewOffsetsTrigger:
    state = None if offset is None else EnumeratorState({TopicPartition(topic, 0): offset})
    document = None if state is None else state.to_json()
    given: dict[str, Any] = {"kafka_conn_id": "shop", "poll_interval": 0.02, **options}
    made = NewOffsetsTrigger(source_to_json(KafkaSource(topics=(topic,))), document, **given)
    # As the triggerer gets it.
    path, arguments = made.serialize()
    assert path == f"{NewOffsetsTrigger.__module__}.{NewOffsetsTrigger.__qualname__}"
    assert SECRET not in json.dumps(arguments)
    again = NewOffsetsTrigger(**json.loads(json.dumps(arguments)))
    assert again.serialize() == (path, arguments)
    return again


async def first(events: AsyncIterator[TriggerEvent]) -> Any:
    async for event in events:
        return event.payload
    raise AssertionError("no event")


def test_it_pauses_between_two_looks():
    with pytest.raises(ConfigurationError, match="poll_interval: 0 would ask the brokers without a pause"):
        trigger("orders", 1, poll_interval=0)


@pytest.mark.kafka
@pytest.mark.usefixtures("connected")
def test_it_waits_for_enough_offsets_behind_the_position(kafka: Kafka, topic: str):
    kafka.create(topic)
    kafka.produce(topic, [(None, "landed"), (None, "new")])

    async def wait() -> Any:
        waiting = asyncio.ensure_future(first(trigger(topic, 1, min_lag=2).run()))
        done, _ = await asyncio.wait([waiting], timeout=0.5)
        assert not done
        await asyncio.to_thread(kafka.produce, topic, [(None, "newer")])
        return await waiting

    assert asyncio.run(wait()) == {"lag": 2, "problems": []}


@pytest.mark.kafka
@pytest.mark.usefixtures("connected")
def test_a_log_that_changed_is_something_to_do(kafka: Kafka, topic: str):
    kafka.create(topic)
    kafka.produce(topic, [(None, "a"), (None, "b"), (None, "c")])
    assert asyncio.run(first(trigger(topic, 9).run())) == {
        "lag": 0,
        "problems": [f"{topic}-0: the log ends 6 offsets before the position"],
    }
    kafka.trim(topic, 0, 2)
    found = asyncio.run(first(trigger(topic, 1, min_lag=100).run()))
    assert found == {"lag": 1, "problems": [f"{topic}-0: 1 offsets were deleted before they were read"]}
    kafka.delete(topic)
    (problem,) = asyncio.run(first(trigger(topic, 3).run()))["problems"]
    assert "does not exist" in problem


@pytest.mark.kafka
@pytest.mark.usefixtures("connected")
def test_a_cluster_that_does_not_answer_is_the_tasks_error(topic: str):
    waiting = trigger(topic, 1, kafka_conn_id="nobody")
    waiting.task_instance = cast("Any", SimpleNamespace(task_id="wait"))
    event = asyncio.run(first(waiting.run()))
    sensor = KafkaLagSensor(task_id="wait", source=topic, table="/lake/orders")
    with pytest.raises(ClusterUnreachableError, match=r"127\.0\.0\.1:1"):
        sensor.execute_complete({}, event)


@pytest.mark.kafka
@pytest.mark.usefixtures("connected")
def test_a_watcher_has_an_event_for_what_came_since_the_last_one_and_waits_for_a_broker(
    kafka: Kafka, topic: str, broker: str, monkeypatch: pytest.MonkeyPatch
):
    kafka.create(topic)
    kafka.produce(topic, [(None, "a"), (None, "b")])
    trigger = NewOffsetsTrigger(topic, kafka_conn_id="shop", poll_interval=0.02)
    (watcher,) = Asset("arrived", watchers=[AssetWatcher("orders", trigger)]).watchers
    assert watcher.trigger is trigger
    looks: list[int] = []
    look = LagWatch.finding

    def finding(self: LagWatch, min_lag: int) -> dict[str, Any] | None:
        looks.append(min_lag)
        if len(looks) == 2:
            raise ClusterUnreachableError("for a moment")
        return look(self, min_lag)

    monkeypatch.setattr(LagWatch, "finding", finding)

    async def watch() -> list[Any]:
        events = trigger.run()
        found = [(await anext(events)).payload]
        await asyncio.to_thread(kafka.produce, topic, [(None, "c")])
        found.append((await anext(events)).payload)
        await events.aclose()  # pyright: ignore[reportAttributeAccessIssue]
        return found

    assert asyncio.run(watch()) == [{"lag": 2, "problems": []}, {"lag": 1, "problems": []}]
    assert len(looks) >= 3


def test_what_was_found_is_not_found_again():
    log = ClusterModel({TopicPartition("t", 0): LogModel([1, 2, 3])})
    watch = LagWatch(KafkaSource(topics=("t",)), cast("Any", None), None)
    watch._cluster = cast("Any", log)
    assert [watch.finding(1), watch.finding(1)] == [{"lag": 3, "problems": []}, None]
    watch._cluster = cast("Any", ClusterModel({TopicPartition("t", 0): LogModel([1, 2, 3, 4, 5])}))
    assert [watch.finding(3), watch.finding(2), watch.finding(1)] == [None, {"lag": 2, "problems": []}, None]
    watch._cluster = cast("Any", ClusterModel({}))
    found, again = watch.finding(1), watch.finding(1)
    assert found is not None
    assert ("does not exist" in found["problems"][0], again) == (True, None)
