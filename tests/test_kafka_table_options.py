"""A topic that Flink's options and columns define, landed end to end."""

from __future__ import annotations

import json

import pytest
from pydantic import SecretStr

from dagster_kafka_flip import KafkaTableOptions, build_kafka_delta_asset, ingest
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.formats.avro_schema import ANY_NAME
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.registry.schema_registry import SchemaRegistry
from dagster_kafka_flip.source.kafka_source import KafkaSource

_OPTIONS = {
    "connector": "kafka",
    "scan.startup.mode": "specific-offsets",
    "scan.startup.specific-offsets": "partition:0,offset:1",
    "scan.bounded.mode": "latest-offset",
    "key.format": "json",
    "key.fields": "k_id",
    "key.fields-prefix": "k_",
    "value.format": "csv",
    "value.csv.field-delimiter": ";",
    "value.csv.null-literal": "",
    "value.fields-include": "EXCEPT_KEY",
}
_SCHEMA = "k_id BIGINT NOT NULL, carrier STRING, delay INT"


def test_source_and_formats_are_options_of_an_asset():
    table = KafkaTableOptions.from_options({"topic": "t", "format": "json"}, schema="id INT")
    assert table.asset_options() == {
        "source": KafkaSource(topics=("t",)),
        "value_format": JsonFormat("`id` INT"),
        "key_format": None,
    }
    assert build_kafka_delta_asset(name="t", table="lake/t", **table.asset_options()).key.path == ["t"]


def test_a_source_in_yaml_takes_no_options_of_formats_and_shows_no_secret():
    with pytest.raises(ConfigurationError) as error:
        KafkaSource.from_options({"topic": "t", "avro-confluent.bearer-auth.token": "s3cret"})
    assert "'avro-confluent.bearer-auth.token': it sets how records are decoded" in str(error.value)
    assert "s3cret" not in str(error.value)


def test_avro_with_a_registry_is_an_option_of_an_asset():
    options = {"topic": "t", "format": "avro-confluent", "avro-confluent.url": "https://me:s3cret@registry:8081"}
    table = KafkaTableOptions.from_options(options, schema="id INT NOT NULL")
    schema = {"type": "record", "name": "record", "fields": [{"name": "id", "type": "int"}], ANY_NAME: True}
    registry = SchemaRegistry(url="https://registry:8081", username="me", password=SecretStr("s3cret"))
    assert table.value_format == AvroFormat(schema, registry=registry)
    assert "s3cret" not in repr(table)


@pytest.mark.kafka
@pytest.mark.spark
def test_a_topic_lands_as_flinks_options_say(kafka, connection, spark, spark_of, topic, table):
    kafka.create(topic)
    values = [b"skipped", b"UA;-5", b'"a;b";', None]
    kafka.produce(topic, [(json.dumps({"id": number}).encode(), value) for number, value in enumerate(values)])
    options = KafkaTableOptions.from_options({**_OPTIONS, "topic": topic}, schema=_SCHEMA)
    result = ingest(table=table, spark=spark_of, connection=connection, **options.asset_options())
    assert result.records == 3
    rows = spark.read.format("delta").load(table).orderBy("kafka_offset")
    assert [tuple(row) for row in rows.select("carrier", "delay", "kafka_key.id").collect()] == [
        ("UA", -5, 1),
        ("a;b", None, 2),
        (None, None, 3),
    ]
