"""Schemas of a real registry: by id and by subject, of all kinds, with what they refer to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient

from dagster_kafka_flip.errors import SchemaNotFoundError
from dagster_kafka_flip.registry.registered_schema import RegisteredSchema
from dagster_kafka_flip.registry.schema_registry import SchemaRegistry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dagster_kafka_flip.registry.schemas import Schemas

pytestmark = pytest.mark.slow

_NOWHERE = 2**31 - 1


@pytest.fixture
def schemas(registry: SchemaRegistry) -> Iterator[Schemas]:
    with registry.schemas() as reader:
        yield reader


def record(name: str, **fields: str) -> str:
    listed = [{"name": each, "type": kind} for each, kind in fields.items()]
    return json.dumps({"type": "record", "name": name, "namespace": "shop", "fields": listed})


def test_a_schema_is_found_by_its_id_and_as_the_latest_of_its_subject(
    client: SchemaRegistryClient, schemas: Schemas, topic: str
):
    first, second = record("Order", id="long"), record("Order", id="long", note="string")
    ids = [client.register_schema(topic, Schema(text, "AVRO")) for text in (first, second)]
    assert [schemas.by_id(each) for each in ids] == [
        RegisteredSchema(ids[0], "AVRO", first),
        RegisteredSchema(ids[1], "AVRO", second),
    ]
    assert schemas.by_id(ids[0], topic) == RegisteredSchema(ids[0], "AVRO", first, subject=topic)
    assert schemas.latest(topic) == RegisteredSchema(ids[1], "AVRO", second, subject=topic, version=2)


def test_referenced_schemas_come_first_and_once(client: SchemaRegistryClient, schemas: Schemas, topic: str):
    amount, line = record("Amount", cents="long"), record("Line", price="shop.Amount")
    order = record("Order", line="shop.Line", total="shop.Amount")
    of_amount = SchemaReference("shop.Amount", f"{topic}-amount", 1)
    of_line = SchemaReference("shop.Line", f"{topic}-line", 1)
    client.register_schema(f"{topic}-amount", Schema(amount, "AVRO"))
    client.register_schema(f"{topic}-line", Schema(line, "AVRO", [of_amount]))
    made = client.register_schema(topic, Schema(order, "AVRO", [of_line, of_amount]))
    expected = (("shop.Amount", amount), ("shop.Line", line))
    assert schemas.by_id(made).references == expected
    assert schemas.latest(topic).references == expected


def test_an_unknown_id_and_an_unknown_subject_are_reported(schemas: Schemas, registry: SchemaRegistry, topic: str):
    with pytest.raises(SchemaNotFoundError) as of_id:
        schemas.by_id(_NOWHERE)
    with pytest.raises(SchemaNotFoundError) as of_subject:
        schemas.latest(topic)
    found = [
        (each.value.schema_id, each.value.subject, each.value.status, each.value.code) for each in (of_id, of_subject)
    ]
    assert found == [(_NOWHERE, None, 404, 40403), (None, topic, 404, 40401)]
    assert registry.url in str(of_id.value)
