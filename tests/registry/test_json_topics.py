"""Topics in JSON with a real registry: from confluent-kafka's serializer to the table."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from tests import landed

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def order(**more):
    made = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "integer", "description": "The number."}, **more},
        "required": ["id"],
    }
    return json.dumps(made)


V1 = order()
V2 = order(note={"type": ["string", "null"], "maxLength": 20})


def serializer(client, schema) -> Any:
    """Confluent's own, which type checkers take for one without arguments."""
    make: Any = JSONSerializer
    return make(schema, client)


@pytest.fixture
def produce(client, kafka, topic):
    """Writes orders as a producer with a schema does."""

    def write(schema, *orders, behind=b"", **more):
        serialize = serializer(client, schema)
        context = SerializationContext(topic, MessageField.VALUE)
        kafka.produce(topic, [(None, serialize(one, context) + behind) for one in orders], **more)

    return write


@pytest.fixture
def run(registry, land):
    return lambda form=None, **options: land(form or JsonFormat(registry=registry), **options)


def test_a_schema_that_evolves_in_mid_topic(kafka, topic, table, produce, run, monkeypatch):
    kafka.create(topic)
    produce(V1, {"id": 1}, {"id": 2})
    first = run()
    assert (first.rows, dict(first.comments)["id"]) == (2, "The number.")
    produce(V2, {"id": 3, "note": "x"})
    produce(V1, {"id": 4})
    kafka.produce(topic, [(None, None)])
    # No record is read twice for its schema.
    from dagster_kafka_flip.formats import learning

    monkeypatch.setattr(learning, "learn_schemas", lambda *_: pytest.fail("the schemas were asked for"))
    result = run()
    assert result.rows == 3
    assert result.reader_schemas["value"].startswith(f"{topic}-value version 2 (schema ")
    assert landed.rows(table, "kafka_offset", "id", "note") == [
        (0, 1, None),
        (1, 2, None),
        (2, 3, "x"),
        (3, 4, None),
        (4, None, None),
    ]
    assert "schemas" not in json.loads(landed.history(table, 1)[0]["userMetadata"])


@pytest.mark.nightly
def test_references_and_keys_and_ids_in_headers(kafka, topic, table, client, registry, run):
    address = {"type": "object", "properties": {"city": {"type": "string"}}}
    client.register_schema(f"{topic}-address", Schema(json.dumps(address), "JSON"))
    text = order(to={"$ref": "address.json"}, also={"oneOf": [{"type": "null"}, {"$ref": "address.json"}]})
    schema = Schema(text, "JSON", [SchemaReference("address.json", f"{topic}-address", 1)])
    key_schema = json.dumps({"type": "object", "properties": {"k": {"type": "integer"}}})
    values, keys = (serializer(client, each) for each in (schema, key_schema))
    kafka.create(topic)
    for number in (1, 2):
        value = {"id": number, "to": {"city": "Ulm"}, "also": None}
        key, value = (
            keys({"k": number}, SerializationContext(topic, MessageField.KEY)),
            values(value, SerializationContext(topic, MessageField.VALUE)),
        )
        if number == 1:
            kafka.produce(topic, [(key, value)])
            continue
        # As HeaderSchemaIdSerializer does. Apicurio gives no GUID, which that needs, so this one is made up.
        guid = b"\x01" + uuid.uuid4().bytes
        headers: Any = [("__key_schema_id", guid), ("__value_schema_id", guid)]
        kafka.produce(topic, [(key[5:], value[5:])], headers=headers)
    form = JsonFormat(registry=registry, schema_id_in="headers")
    run(form, key_format=form, columns=KafkaColumns(fields=("key", "offset")))
    assert landed.rows(table, "id", '"to"', "also", "kafka_key") == [
        (number, {"city": "Ulm"}, None, {"k": number}) for number in (1, 2)
    ]


@pytest.mark.nightly
def test_a_subject_of_another_kind(kafka, topic, client, run):
    kafka.create(topic)
    client.register_schema(f"{topic}-value", Schema('"long"', "AVRO"))
    with pytest.raises(ConfigurationError, match="has the type AVRO; JsonFormat reads only JSON Schema"):
        run()
