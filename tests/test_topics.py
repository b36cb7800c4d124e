"""Topics as observable assets, on a real broker."""

from __future__ import annotations

import logging
import re
import socket
import time
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from dagster import AssetKey, DagsterInstance, Definitions
from dagster._core.definitions.observe import observe

from dagster_kafka_flip import KafkaResource, KafkaSource, kafka_topic_asset, topic_asset_key
from dagster_kafka_flip.errors import ClusterUnreachableError, TopicNotFoundError
from dagster_kafka_flip.source import cluster_client
from dagster_kafka_flip.source.cluster import KafkaCluster


def looked_at(asset: Any, instance: DagsterInstance, resources: Any, **options: Any) -> dict[AssetKey, dict[str, Any]]:
    """Observes topics, and gives what each one's observation tells."""
    result = observe([asset], instance=instance, resources=resources, **options)
    observations = [event.asset_observation_data.asset_observation for event in result.get_asset_observation_events()]
    return {each.asset_key: {key: value.value for key, value in each.metadata.items()} for each in observations}


@pytest.fixture
def kafka_only(broker: str) -> dict[str, Any]:
    return {"kafka": KafkaResource(bootstrap_servers=broker)}


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a real client is asked for, as it is asked."""
    asked: list[str] = []

    class Watched(AdminClient):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            asked.append("client")
            super().__init__(*args, **kwargs)

        def describe_topics(self, *args: Any, **kwargs: Any) -> Any:
            asked.append("describe_topics")
            return super().describe_topics(*args, **kwargs)

        def list_offsets(self, *args: Any, **kwargs: Any) -> Any:
            asked.append("list_offsets")
            return super().list_offsets(*args, **kwargs)

        def describe_configs(self, *args: Any, **kwargs: Any) -> Any:
            asked.append("describe_configs")
            return super().describe_configs(*args, **kwargs)

        def list_topics(self, *args: Any, **kwargs: Any) -> Any:
            asked.append("list_topics")
            return super().list_topics(*args, **kwargs)

    monkeypatch.setattr(cluster_client, "AdminClient", Watched)
    return asked


@pytest.mark.kafka
def test_many_topics_of_a_pattern_are_an_asset_each_and_cost_as_many_requests_as_one(
    kafka, instance, kafka_only, topic, requests
):
    names = [f"{topic}.{number}" for number in range(12)]
    for number, name in enumerate(names):
        kafka.create(name, partitions=1 + number % 3)
        kafka.produce(name, [(None, "record")] * number)
    pattern = KafkaSource(topic_pattern=rf"{topic}\.\d+")
    asset = kafka_topic_asset(pattern.only(names))
    assert asset.keys == {topic_asset_key(name) for name in names}

    found = looked_at(asset, instance, kafka_only)

    spans = {key.path[-1]: metadata["kafka/offset_span"] for key, metadata in found.items()}
    assert spans == {name: number for number, name in enumerate(names)}
    assert requests == ["client", "describe_topics", "list_offsets", "list_offsets", "describe_configs"]


@pytest.mark.kafka
def test_a_missing_topic_does_not_keep_the_others_from_being_observed(kafka, instance, kafka_only, topic):
    kafka.create(topic)
    kafka.produce(topic, [(None, "record")])
    missing = f"{topic}-gone"
    source = KafkaSource(topics=(topic, missing))
    asset = kafka_topic_asset(source)
    result = observe([asset], instance=instance, resources=kafka_only)
    lines = [entry.user_message for entry in instance.all_logs(result.run_id) if entry.level == logging.ERROR]
    assert re.search(rf"{missing}.*; 1 other topics were observed", "".join(lines))
    record = instance.get_latest_data_version_record(topic_asset_key(topic))
    assert record is not None
    assert record.asset_observation is not None
    assert record.asset_observation.metadata["kafka/offset_span"].value == 1
    # Its data version has changed: so the assets downstream run, and fail with this error.
    gone = instance.get_latest_data_version_record(topic_asset_key(missing))
    assert gone is not None
    assert gone.asset_observation is not None
    assert gone.asset_observation.metadata["kafka/topics"].value == 0
    with pytest.raises(TopicNotFoundError, match=rf"{missing}.*; 0 other topics were observed"):
        observe([kafka_topic_asset(source.only([missing]))], instance=instance, resources=kafka_only)


def test_an_observation_waits_a_few_seconds_for_a_cluster_that_is_away(instance):
    topics = kafka_topic_asset(KafkaSource(topics=("orders", "payments")))
    with socket.create_server(("127.0.0.1", 0)) as mute:
        away = {"kafka": KafkaResource(bootstrap_servers=f"127.0.0.1:{mute.getsockname()[1]}")}
        began = time.monotonic()
        with pytest.raises(ClusterUnreachableError):
            observe([topics], instance=instance, resources=away)
    assert time.monotonic() - began < 15


@pytest.mark.kafka
def test_an_observation_reports_all_that_the_cluster_reports(kafka, instance, kafka_only, topic):
    kafka.create(topic, partitions=2, retention_ms="5400000", message_timestamp_type="LogAppendTime")
    kafka.produce(topic, [(None, "record")] * 5)
    kafka.produce(topic, [(None, "record")] * 2, partition=1)
    kafka.trim(topic, 0, 3)
    kafka.open_transaction(topic, [(None, "not yet")], partition=1)
    (found,) = looked_at(kafka_topic_asset(KafkaSource(topics=(topic,))), instance, kafka_only).values()
    ids = KafkaCluster(kafka_only["kafka"].connection()).describe_topics([topic])
    assert found == {
        "kafka/topics": 1,
        "kafka/partitions": 2,
        "kafka/topic_id": ids[topic].topic_id,
        "kafka/beginning_offsets": {topic: [3, 0]},
        # What is in an open transaction is not there yet.
        "kafka/end_offsets": {topic: [5, 2]},
        "kafka/offset_span": 4,
        "kafka/timestamp_type": "LogAppendTime",
        "kafka/retention_hours": 1.5,
    }


def test_assets_of_topics_that_differ_in_a_dash_alone_live_in_one_project():
    sources = [
        *(
            KafkaSource(topics=(name,))
            for name in (
                "a-b",
                "a_b",
                "a.b",
                "a__b",
                "a___b",
                "a_-b",
                "a-_b",
                "a.-b",
                "a-.b",
                f"{'long-' * 40}1",
                f"{'long-' * 40}2",
            )
        ),
        KafkaSource(topics=("a", "b")),
        KafkaSource(topic_pattern="a[.]c"),
    ]
    assets = [kafka_topic_asset(source) for source in sources]
    Definitions.validate_loadable(Definitions(assets=assets, resources={"kafka": object()}))
    assert len({asset.op.name for asset in assets}) == len(assets)
    assert max(len(asset.op.name) for asset in assets) < 100
    for topic, name in (
        ("flights", "observe_flights"),
        ("current-customers", "observe_current___customers"),
        ("shop.public.orders", "observe_shop__public__orders"),
    ):
        assert kafka_topic_asset(KafkaSource(topics=(topic,))).op.name == name
