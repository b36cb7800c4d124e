"""DeltaKafkaComponent: an asset that publishes a table, in a defs.yaml."""

from __future__ import annotations

import inspect
from datetime import datetime, timedelta, timezone

import pytest
from dagster import AssetKey, OpDefinition
from dagster.components.testing.utils import component_defs

from dagster_kafka_flip import (
    AvroSerializer,
    DeltaKafkaComponent,
    DeltaSource,
    JsonSchemaSerializer,
    JsonSerializer,
    KafkaSink,
    ProtobufSerializer,
    StringSerializer,
    delta_kafka_asset,
)
from dagster_kafka_flip.assets.asset_options import MaterializedOptions
from dagster_kafka_flip.assets.delta_kafka_asset import publishing_of
from dagster_kafka_flip.errors import RowTooLargeError
from tests.test_component import RESOURCES, load, whole_refusal

_SINK = "type: dagster_kafka_flip.DeltaKafkaComponent\nattributes:\n"
_MORE = """\
  source: {table: lake/orders, start: "2026-03-01T00:00:00Z", content: changes}
  sink:
    topic: orders
    transactional_id_prefix: orders-sink
    key: {type: json, columns: [id]}
    value: {type: string, column: v}
    transaction_timeout: PT2M
    lanes: 2
    properties: {compression.type: lz4, linger.ms: 5}
  upstream: lake/orders
  limits: {max_records_per_batch: 10}
  group_name: out
  deps: [given]
  kinds: [json]
  code_version: "007"
  checks: {max_records: 5, op_tags: {memory: 4g}, pool: spark}
"""


def test_the_attributes_are_the_options_of_the_decorator():
    options = set(inspect.signature(delta_kafka_asset).parameters) - {"asset_options"}
    options |= set(MaterializedOptions.__annotations__)
    assert set(DeltaKafkaComponent.model_fields) == options | {"checks"}


def test_a_yaml_file_defines_the_same_as_python(monkeypatch):
    monkeypatch.setenv("TEST_KAFKA", "127.0.0.1:1")
    defs = load(resources=RESOURCES, published=_SINK + _MORE)
    key = AssetKey(["kafka", "orders"])
    made = defs.resolve_assets_def(key)
    publishing = publishing_of(made)
    assert publishing is not None
    assert publishing.source == DeltaSource(table="lake/orders", start=datetime(2026, 3, 1, tzinfo=timezone.utc))
    assert publishing.sink == KafkaSink(
        topic="orders",
        transactional_id_prefix="orders-sink",
        key=JsonSerializer(columns=("id",)),
        value=StringSerializer(column="v"),
        transaction_timeout=timedelta(minutes=2),
        lanes=2,
        properties={"compression.type": "lz4", "linger.ms": "5"},
    )
    assert publishing.limits.max_records_per_batch == 10
    assert publishing.transform is None
    spec = made.get_asset_spec(key)
    assert (spec.group_name, spec.kinds, spec.code_version) == ("out", {"kafka", "spark", "json"}, "007")
    assert [each.asset_key.to_user_string() for each in spec.deps] == ["lake/orders", "given"]
    graph = defs.resolve_asset_graph()
    (check,) = graph.get_check_keys_for_assets({key})
    assert check.name == "published_equals_table"
    step = defs.resolve_implicit_global_asset_job_def().get_node_named("kafka__orders__topic_checks").definition
    assert isinstance(step, OpDefinition)
    assert (step.tags["memory"], step.pool) == ("4g", "spark")


_REGISTERED = """\
  source: {table: lake/orders}
  sink:
    topic: orders
    transactional_id_prefix: orders-sink
    key: {type: avro, registry: schemas, columns: [id], schema: {type: int}}
    value: {type: protobuf, registry: schemas, message: Order, schema: 'syntax = "proto3"; message Order {}'}
    tolerate: [RowTooLargeError]
    dead_letter_topic: orders-rejected
"""
_WITH_REGISTRY = RESOURCES + "  schema_registry: {url: http://127.0.0.1:1}\n  schema_registry_key: schemas\n"


def test_serializers_have_their_registry_by_its_key(monkeypatch):
    monkeypatch.setenv("TEST_KAFKA", "127.0.0.1:1")
    key = AssetKey(["kafka", "orders"])
    publishing = publishing_of(load(resources=_WITH_REGISTRY, published=_SINK + _REGISTERED).resolve_assets_def(key))
    assert publishing is not None
    sink = publishing.sink
    assert sink.key == AvroSerializer({"type": "int"}, registry="schemas", columns=("id",))
    assert sink.value == ProtobufSerializer('syntax = "proto3"; message Order {}', message="Order", registry="schemas")
    assert (sink.tolerate, sink.dead_letter_topic) == ((RowTooLargeError,), "orders-rejected")
    assert publishing.resource_keys == {"kafka", "spark", "schemas"}
    latest = _REGISTERED.replace("type: avro", "type: json_schema").replace("schema: {type: int}", "use_latest: true")
    publishing = publishing_of(load(resources=_WITH_REGISTRY, published=_SINK + latest).resolve_assets_def(key))
    assert publishing is not None
    assert publishing.sink.key == JsonSchemaSerializer(registry="schemas", columns=("id",), use_latest=True)


def test_a_subclass_has_a_function():
    class Paid(DeltaKafkaComponent):
        def transform(self, rows):
            """Orders that are paid."""
            return rows.where("paid")

    component = Paid(
        source=DeltaSource(table="lake/orders"),
        sink=KafkaSink(topic="paid", transactional_id_prefix="paid", key=JsonSerializer(columns=("id",))),
    )
    made = component_defs(component=component, resources={"kafka": None, "spark": None}).resolve_assets_def(
        AssetKey(["kafka", "paid"])
    )
    assert made.get_asset_spec().description == "Orders that are paid."
    publishing = publishing_of(made)
    assert publishing is not None
    assert publishing.transform == component.transform


@pytest.mark.parametrize(
    ("attributes", "line", "reported"),
    [
        ("  source: {table: lake/o}\n  sink: {topic: o}\n", 4, "transactional_id_prefix"),
        ("  source: {table: lake/o}\n  sink: {topic: o, transactional_id_prefix: o}\n", 2, "needs a key"),
        (
            "  source: {table: lake/o, start: tomorrow}\n  sink: {topic: o, transactional_id_prefix: o}\n",
            3,
            "invalid timestamp 'tomorrow'",
        ),
        (
            "  source: {table: lake/o}\n  sink: {topic: o, transactional_id_prefix: o, key: {type: xml, column: id}}\n",
            4,
            "key",
        ),
        (
            _REGISTERED.replace("schema: {type: int}", "schema: {type: int}, use_latest: true"),
            7,
            "schema and use_latest both choose the schema",
        ),
        (
            "  source: {table: lake/o}\n  sink: {topic: o, transactional_id_prefix: o, key: {type: avro}}\n",
            4,
            "registry",
        ),
        (
            "  source: {table: lake/o}\n  sink: {topic: o, transactional_id_prefix: o, tolerate: [SinkFencedError]}\n",
            4,
            "'SinkFencedError' can't be tolerated by a sink; allowed are the classes UnpublishableRowError",
        ),
        ("  source: {table: lake/o}\n  lanes: 3\n  sink: {topic: o, transactional_id_prefix: o}\n", 4, "sink"),
    ],
)
def test_errors_are_reported_with_their_line(attributes, line, reported):
    output = whole_refusal(published=_SINK + attributes)
    assert f"published/defs.yaml:{line}" in output
    assert reported in output
