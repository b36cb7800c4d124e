"""A source out of the options of Flink's Kafka table."""

from __future__ import annotations

import pytest

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetResetStrategy, OffsetsInitializer

_TOPIC = {"topic": "orders"}
_GROUP = {**_TOPIC, "properties.group.id": "g"}
_SPECIFIC = {("orders", 0): 42, ("orders", 1): 300}


def test_topics_and_properties_are_those_of_the_source():
    source = KafkaSource.from_options(
        {
            "connector": "kafka",
            "topic": "b; a",
            "properties.bootstrap.servers": "broker:9092",
            "properties.group.id": "g",
            "properties.isolation.level": "read_uncommitted",
            "properties.client.id.prefix": "p",
            "properties.client.rack": "r",
            "properties.commit.offsets.on.checkpoint": "TRUE",
            "properties.fetch.min.bytes": "1",
            "scan.startup.mode": "earliest-offset",
        }
    )
    built = (
        KafkaSource.builder()
        .set_topics("a", "b")
        .set_bootstrap_servers("broker:9092")
        .set_group_id("g")
        .set_isolation_level("read_uncommitted")
        .set_client_id_prefix("p")
        .set_client_rack("r")
        .set_commit_offsets()
        .set_property("fetch.min.bytes", "1")
    )
    assert source == built.build()
    assert KafkaSource.from_options({"topic-pattern": "o.*"}) == KafkaSource(topic_pattern="o.*")


@pytest.mark.parametrize(
    ("options", "start"),
    [
        (_TOPIC, OffsetsInitializer.earliest()),
        (_GROUP, OffsetsInitializer.committed_offsets()),
        ({**_GROUP, "scan.startup.mode": "group-offsets"}, OffsetsInitializer.committed_offsets()),
        (
            {**_GROUP, "properties.auto.offset.reset": "latest"},
            OffsetsInitializer.committed_offsets(OffsetResetStrategy.LATEST),
        ),
        ({**_GROUP, "scan.startup.mode": "Earliest-Offset"}, OffsetsInitializer.earliest()),
        ({**_TOPIC, "scan.startup.mode": "latest-offset"}, OffsetsInitializer.latest()),
        (
            {**_TOPIC, "scan.startup.mode": "timestamp", "scan.startup.timestamp-millis": "1769817600000"},
            OffsetsInitializer.timestamp(1769817600000),
        ),
        (
            {
                **_TOPIC,
                "scan.startup.mode": "specific-offsets",
                "scan.startup.specific-offsets": "partition:0,offset:42;partition:1,offset:300",
            },
            OffsetsInitializer.specific_offsets(_SPECIFIC),
        ),
    ],
)
def test_each_startup_mode(options, start):
    source = KafkaSource.from_options(options)
    assert source.starting_offsets == start
    assert source.stopping_offsets == OffsetsInitializer.latest()


@pytest.mark.parametrize(
    ("options", "stop"),
    [
        ({"scan.bounded.mode": "latest-offset"}, OffsetsInitializer.latest()),
        ({"scan.bounded.mode": "group-offsets", "properties.group.id": "g"}, OffsetsInitializer.committed_offsets()),
        (
            {"scan.bounded.mode": "timestamp", "scan.bounded.timestamp-millis": "1769817600000"},
            OffsetsInitializer.timestamp(1769817600000),
        ),
        (
            {
                "scan.bounded.mode": "specific-offsets",
                "scan.bounded.specific-offsets": "partition:0,offset:42;partition:1,offset:300;",
            },
            OffsetsInitializer.specific_offsets(_SPECIFIC),
        ),
    ],
)
def test_each_bounded_mode(options, stop):
    assert KafkaSource.from_options({**_TOPIC, **options}).stopping_offsets == stop


_MODE = "scan.startup.mode"
_OFFSETS = "scan.startup.specific-offsets"
_MILLIS = "scan.startup.timestamp-millis"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "'topic': missing; set it, or 'topic-pattern'"),
        ({**_TOPIC, "topic-pattern": "a"}, "'topic': set it or 'topic-pattern', not both"),
        ({"topic": "a;;b"}, "expected names with semicolons"),
        ({**_TOPIC, "connector": "upsert-kafka"}, "unsupported connector 'upsert-kafka'"),
        ({**_TOPIC, "scan.startup.mod": "x"}, "unknown, or without a meaning here; did you"),
        ({**_TOPIC, "sink.parallelism": "1"}, "unknown, or without a meaning here"),
        ({**_TOPIC, "scan.watermark.idle-timeout": "1"}, "unknown, or without"),
        ({**_TOPIC, "format": "json"}, "it sets how records are decoded"),
        ({**_TOPIC, "value.json.x": "1"}, "it sets how records are decoded"),
        ({**_TOPIC, _MODE: "earliest"}, "unknown mode 'earliest'; did you mean earliest-offset"),
        ({**_TOPIC, _MODE: "group-offsets"}, "group-offsets needs 'properties.group.id'"),
        ({**_TOPIC, _MODE: "timestamp"}, "'scan.startup.timestamp-millis': missing; 'scan.startup.mode' is timestamp"),
        ({**_TOPIC, _MILLIS: "1"}, "it has no effect unless 'scan.startup.mode' is timestamp"),
        ({**_TOPIC, _MODE: "timestamp", _MILLIS: "2026-01-31"}, "expected milliseconds since 1970"),
        ({**_TOPIC, _MODE: "timestamp", _MILLIS: "1769817600"}, "timestamp 1769817600 looks like seconds"),
        (
            {**_TOPIC, _MODE: "specific-offsets"},
            "'scan.startup.specific-offsets': missing; 'scan.startup.mode' is specific-offsets",
        ),
        ({"topic": "a;b", _MODE: "specific-offsets", _OFFSETS: "partition:0,offset:1"}, "it is for one topic"),
        (
            {"topic-pattern": "a", _MODE: "specific-offsets", _OFFSETS: "partition:0,offset:1"},
            "it is for one topic, and the table has a pattern",
        ),
        ({**_TOPIC, _MODE: "specific-offsets", _OFFSETS: "0:1"}, "write partition:0,offset:42"),
        ({**_TOPIC, _MODE: "specific-offsets", _OFFSETS: "partition:0,offset:-2"}, "write partition:0"),
        (
            {**_TOPIC, _MODE: "specific-offsets", _OFFSETS: "partition:0,offset:1;partition:0,offset:2"},
            "partition 0 is listed twice",
        ),
        ({**_TOPIC, "scan.bounded.mode": "unbounded"}, "a run is never unbounded"),
        ({**_TOPIC, "scan.bounded.mode": "group-offsets"}, "group-offsets needs"),
        (
            {**_TOPIC, _MODE: "latest-offset", "properties.auto.offset.reset": "earliest"},
            "it has no effect unless 'scan.startup.mode' is group-offsets",
        ),
        ({**_GROUP, "properties.auto.offset.reset": "x"}, "expected none, earliest or"),
        ({**_TOPIC, "properties.enable.auto.commit": "true"}, "the property"),
        ({**_TOPIC, "properties.register.consumer.metrics": "1"}, "the"),
        ({**_TOPIC, _MODE: 5}, "expected a string, as in Flink's WITH (...), got int"),
    ],
)
def test_an_option_that_can_not_be_is_refused_with_its_name(options, message):
    with pytest.raises(ConfigurationError) as error:
        KafkaSource.from_options(options)
    # The option is the last one, unless the message names another.
    named = message if message.startswith("'") else f"'{[*options][-1]}': {message}"
    assert str(error.value).startswith(f"table option {named}")


@pytest.mark.parametrize("name", ["sasl.jaas.config", "sasl.password", "ssl.keystore.password", "security.protocol"])
def test_a_secret_belongs_to_the_resource_and_is_not_shown(name):
    with pytest.raises(ConfigurationError) as error:
        KafkaSource.from_options({**_TOPIC, f"properties.{name}": "hunter2"})
    assert f"properties.{name}" in str(error.value)
    assert "belongs to the connection" in str(error.value)
    assert "hunter2" not in str(error.value)
