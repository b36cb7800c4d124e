"""Records that Java wrote: these bytes were recorded, each from the serializer that its test names."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.protobuf import ProtobufFormat
from dagster_kafka_flip.formats.protobuf_compiler import compiled
from dagster_kafka_flip.formats.schema_book import SchemaBook
from dagster_kafka_flip.registry.registered_schema import RegisteredSchema
from tests.formats.decoding import landed

pytestmark = pytest.mark.spark

NOTE = "Grüße \N{BALLOON}"
ID = 2**53 + 1


def _in_a_run(form: Any, number: int, kind: Any, text: str) -> Any:
    form = form.model_copy()
    form._book = SchemaBook(None, {f"00{number:08X}": RegisteredSchema(number, kind, text), f"00{0:08X}": None})
    return form


def _landed(spark, form, *values) -> list[Any]:
    return [row | {"kafka_error": error} for row, error in landed(spark, form, values)]


def test_avro(spark):
    # Flink 1.20's ConfluentRegistryAvroSerializationSchema, on Confluent's Java client. Apicurio 2.5's
    # AvroKafkaSerializer gives the same, with apicurio.registry.as-confluent.
    content = "828080808080802002184772c3bcc39f6520f09f8e8804fb1ef6a1d5edee66040261026200020278020002"
    price = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
    fields: dict[str, Any] = {
        "id": "long",
        "note": ["null", "string"],
        "price": price,
        "at": {"type": "long", "logicalType": "timestamp-millis"},
        "tags": {"type": "array", "items": "string"},
        "counts": {"type": "map", "values": "int"},
        "state": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]},
    }
    made = [{"name": name, "type": kind} for name, kind in fields.items()]
    text = json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": made})
    form = _in_a_run(AvroFormat(text, registry="registry"), 5, "AVRO", text)
    # Without that setting, Apicurio's ids have eight bytes.
    row, eight = _landed(
        spark, form, bytes.fromhex("0000000005" + content), bytes.fromhex("000000000000000005" + content)
    )
    assert (row["id"], row["note"], row["price"]) == (ID, NOTE, Decimal("-12.50"))
    assert row["at"].timestamp() == 1767225600.123
    assert (row["tags"], row["counts"], row["state"], row["kafka_error"]) == (["a", "b"], {"x": 1}, "PAID", None)
    assert (eight["id"], eight["kafka_error"]) == (None, "the registry has no schema 0")


def test_protobuf(spark):
    # protobuf-java 4.29, behind the frame that Confluent documents: the message is the second one in the second one.
    content = "088180808080808010120c4772c3bcc39f6520f09f8e881a0301d8042001"
    text = """syntax = "proto3"; package shop; message Other { int32 a = 1; }
        message Order { int64 id = 1; message Before { int32 a = 1; }
          message Line { int64 id = 1; optional string note = 2; repeated sint32 counts = 3; State state = 4; } }
        enum State { NEW = 0; PAID = 1; }"""
    given = ProtobufFormat(compiled(text), message="shop.Order.Line", registry="registry")
    form = _in_a_run(given, 3, "PROTOBUF", text)
    (row,) = _landed(spark, form, bytes.fromhex("0000000003" + "040202" + content))
    assert (row["id"], row["note"], row["counts"], row["state"]) == (ID, NOTE, [-1, 300], "PAID")
    assert row["kafka_error"] is None


def test_json_schema(spark):
    # Apicurio 2.5's JsonSchemaKafkaSerializer with apicurio.registry.as-confluent: a letter beyond 16 bits is escaped.
    content = "7b226964223a372c226e6f7465223a224772c3bcc39f65205c75443833435c7544463838222c227072696365223a312e32357d"
    form = JsonFormat("id BIGINT NOT NULL, note STRING, price DECIMAL(9,2)").as_framed("payload", is_key=False)
    row, eight = _landed(
        spark, form, bytes.fromhex("0000000004" + content), bytes.fromhex("000000000000000004" + content)
    )
    assert (row["id"], row["note"], row["price"], row["kafka_error"]) == (7, NOTE, Decimal("1.25"), None)
    assert eight["id"] is None
    assert eight["kafka_error"]
