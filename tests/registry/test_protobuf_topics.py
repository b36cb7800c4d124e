"""Topics in Protobuf with a real registry: from confluent-kafka's serializer to the table."""

from __future__ import annotations

import base64
import json
import uuid
from datetime import datetime, timezone
from typing import Any

import pytest
from confluent_kafka.schema_registry import (
    Schema,
    SchemaReference,
    header_schema_id_serializer,
    prefix_schema_id_serializer,
)
from confluent_kafka.schema_registry.common.protobuf import (
    _create_index_array,  # pyright: ignore[reportPrivateUsage, reportUnknownVariableType]
)
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.schema_registry.serde import SchemaId
from confluent_kafka.serialization import MessageField, SerializationContext
from dagster import materialize
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from dagster_kafka_flip.assets.kafka_delta_asset import build_kafka_delta_asset
from dagster_kafka_flip.assets.resources import KafkaResource, SchemaRegistryResource, SparkResource
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.formats.protobuf import ProtobufFormat
from dagster_kafka_flip.formats.protobuf_compiler import compiled
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

OFFSET = KafkaColumns(fields=("topic", "partition", "offset"))
HEAD = 'syntax = "proto3"; package shop; '
V1 = HEAD + "message Order { int64 id = 1; }"
V2 = HEAD + "message Order { int64 id = 1; optional string note = 2; }"
V3 = HEAD + "message Order { int64 id = 1; optional string note = 2; map<string, int32> n = 3; }"


def pool_of(text, references=()):
    """The files of a text, each in a pool of its own as producers are processes of their own."""
    pool = descriptor_pool.DescriptorPool()
    for file in FileDescriptorSet.FromString(compiled(text, references)).file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool


def class_of(text, name="shop.Order", references=()):
    return message_factory.GetMessageClass(pool_of(text, references).FindMessageTypeByName(name))


@pytest.fixture
def serialized(client, topic):
    """What a producer with a schema writes, framed by Confluent's own functions.

    Their serializer itself takes a schema from a registry in Base64 alone, which this one does not give for a text.
    """

    def of(text, *orders, name="shop.Order", references=(), side=MessageField.VALUE, headers=None, subject=None):
        is_key = side == MessageField.KEY
        refers = [SchemaReference(file, f"{topic}-{file}", 1) for file, _ in references]
        number = client.register_schema(
            subject or f"{topic}-{'key' if is_key else 'value'}", Schema(text, "PROTOBUF", refers)
        )
        kind: Any = class_of(text, name, references)
        schema_id = SchemaId("PROTOBUF", number, str(uuid.uuid4()), _create_index_array(kind.DESCRIPTOR))
        frame = prefix_schema_id_serializer if headers is None else header_schema_id_serializer
        context = SerializationContext(topic, side, headers)
        return [frame(kind(**order).SerializeToString(), context, schema_id) for order in orders]

    return of


@pytest.fixture
def run(registry, land):
    return lambda form=None, **options: land(form or ProtobufFormat(registry=registry), **options)


def produce(kafka, topic, values, **more):
    kafka.produce(topic, [(None, value) for value in values], **more)


def test_a_schema_that_evolves_between_and_within_batches(kafka, topic, table, serialized, run):
    kafka.create(topic, partitions=2)
    produce(kafka, topic, serialized(V1, {"id": 1}, {"id": 2}))
    assert run().rows == 2
    produce(kafka, topic, serialized(V2, {"id": 3, "note": "x"}))
    produce(kafka, topic, serialized(V1, {"id": 0}))
    produce(kafka, topic, serialized(V3, {"id": 5, "n": {"a": 7}}), partition=1)
    result = run()
    assert (result.rows, result.records, result.known.table_rows) == (3, 3, 5)
    assert landed.rows(table, "id", "note", "n") == [
        (0, None, None),
        (1, None, None),
        (2, None, None),
        (3, "x", None),
        (5, None, [("a", 7)]),
    ]
    document = json.loads(landed.history(table, 1)[0]["userMetadata"])
    assert len(document["schemas"]["value"]) == 3


@pytest.mark.nightly
def test_references_nested_messages_keys_and_tombstones(kafka, topic, table, client, serialized, registry, run):
    money = 'syntax = "proto3"; package money; message Amount { int64 units = 1; }'
    client.register_schema(f"{topic}-common/money.proto", Schema(money, "PROTOBUF"))
    text = (
        HEAD
        + 'import "common/money.proto"; import "google/protobuf/timestamp.proto"; message Other { int32 a = 1; } '
        + "message Order { message Line { money.Amount price = 1; google.protobuf.Timestamp at = 2; } }"
    )
    references = (("common/money.proto", money),)
    (value,) = serialized(
        text, {"price": {"units": 7}, "at": {"seconds": 1}}, name="shop.Order.Line", references=references
    )
    # The count and the indexes of the message, behind the id.
    assert value[5:8] == b"\x04\x02\x00"
    (key,) = serialized(V1, {"id": 5}, side=MessageField.KEY)
    kafka.create(topic)
    kafka.produce(topic, [(key, value), (key, None)])
    with pytest.raises(ConfigurationError, match="it has 2 messages"):
        run()
    run(
        ProtobufFormat(registry=registry, message="shop.Order.Line"),
        key_format=ProtobufFormat(registry=registry),
        columns=KafkaColumns(fields=("key", "offset")),
    )
    columns = ("kafka_offset", "price", "at", "kafka_key")
    assert landed.rows(table, *columns) == [
        (0, {"units": 7}, datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc), {"id": 5}),
        (1, None, None, {"id": 5}),
    ]


@pytest.mark.nightly
def test_schemas_that_confluents_python_client_registers(kafka, topic, table, client, run):
    kafka.create(topic)
    kind = class_of(V2)
    make: Any = ProtobufSerializer
    try:
        value = make(kind, client)(kind(id=4, note="x"), SerializationContext(topic, MessageField.VALUE))
    finally:
        latest = client.get_latest_version(f"{topic}-value").schema.schema_str
    # A descriptor in Base64.
    assert base64.b64decode(latest, validate=True)
    produce(kafka, topic, [value])
    assert run().rows == 1
    assert landed.rows(table, "id", "note") == [(4, "x")]


@pytest.mark.nightly
def test_an_asset_says_what_its_columns_are_and_what_a_run_changed(
    kafka, topic, table, registry, broker, spark, serialized, instance
):
    first = HEAD + "message Order {\n  // The number.\n  int64 id = 1;\n  string name = 2;\n}"
    second = HEAD + "message Order {\n  int64 id = 1;\n  // What the customer's said.\n  optional string note = 2;\n}"
    kafka.create(topic)
    orders = build_kafka_delta_asset(
        name="orders",
        source=KafkaSource(topics=(topic,)),
        table=DeltaTarget(table=table, schema_evolution=True),
        value_format=ProtobufFormat(registry="schemas"),
        columns=OFFSET,
    )
    resources = {
        "kafka": KafkaResource(bootstrap_servers=broker),
        "spark": SparkResource(),
        "schemas": SchemaRegistryResource(url=registry.url),
    }
    seen: Any = []
    for text, order in ((first, {"id": 1}), (second, {"id": 2, "note": "x"})):
        produce(kafka, topic, serialized(text, order))
        result = materialize([orders], resources=resources, instance=instance)
        (landed_it,) = result.asset_materializations_for_node("orders")
        seen.append({name: entry.value for name, entry in landed_it.metadata.items()})
    assert not {"delta/column_changes", "delta/columns_not_written"} & set(seen[0])
    # The field has another name, so it is another column.
    assert (seen[1]["delta/column_changes"], seen[1]["delta/columns_not_written"]) == ("+ note string", "name")
    versions = [str(metadata["kafka/value_schema"]).partition(" (")[0] for metadata in seen]
    assert versions == [f"{topic}-value version {number}" for number in (1, 2)]
    columns = {column.name: column.description for column in seen[1]["dagster/column_schema"].columns}
    # The first comment stays although the second schema has none.
    assert (columns["id"], columns["note"]) == ("The number.", "What the customer's said.")
    described = {row["col_name"]: row["comment"] for row in spark.sql(f"DESCRIBE TABLE delta.`{table}`").collect()}
    assert {name: described[name] for name in ("id", "note")} == {name: columns[name] for name in ("id", "note")}
    # A resource of another kind is named.
    with pytest.raises(ConfigurationError, match="the resource 'schemas'"):
        materialize([orders], resources={**resources, "schemas": KafkaResource(bootstrap_servers=broker)})
