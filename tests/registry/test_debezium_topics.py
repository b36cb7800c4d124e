"""Debezium's events in Avro with a real registry: from confluent-kafka's serializer to the table."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from confluent_kafka.schema_registry import record_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from dagster_kafka_flip.errors import ConfigurationError, RecordsRejectedError
from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.formats.debezium_avro import DebeziumAvroFormat
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.table.mode import Append, Upsert
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

PLACEHOLDER = "__debezium_unavailable_value"
OLD_KEY = "__debezium.oldkey"


def nullable(kind):
    return {"type": ["null", kind], "default": None}


def envelope(*more):
    """As Confluent's converter makes it of the connector's schema."""
    columns = [
        {"name": "id", "type": "long", "doc": "The number."},
        {"name": "name", **nullable("string")},
        {"name": "picture", **nullable("bytes")},
        {"name": "tags", **nullable({"type": "array", "items": ["null", "string"]})},
        *more,
    ]
    source = [{"name": "db", "type": "string"}, {"name": "ts_ms", "type": "long"}, {"name": "lsn", **nullable("long")}]
    return {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.public.customers",
        "fields": [
            {"name": "before", **nullable({"type": "record", "name": "Value", "fields": columns})},
            {"name": "after", **nullable("Value")},
            {
                "name": "source",
                "type": {"type": "record", "name": "Source", "namespace": "io.debezium", "fields": source},
            },
            {"name": "op", "type": "string"},
            {"name": "ts_ms", **nullable("long")},
        ],
    }


KEY = {
    "type": "record",
    "name": "Key",
    "namespace": "shop.public.customers",
    "fields": [{"name": "id", "type": "long"}],
}
HEARTBEAT = {
    "type": "record",
    "name": "Heartbeat",
    "namespace": "io.debezium.connector.common",
    "fields": [{"name": "ts_ms", "type": "long"}],
}

TRANSACTION_KEY = {
    "type": "record",
    "name": "TransactionMetadataKey",
    "namespace": "io.debezium.connector.common",
    "fields": [{"name": "id", "type": "string"}],
}
TRANSACTION = {
    "type": "record",
    "name": "TransactionMetadataValue",
    "namespace": "io.debezium.connector.common",
    "fields": [{"name": "status", "type": "string"}, {"name": "id", "type": "string"}],
}
SCHEMA_CHANGE = {
    "type": "record",
    "name": "SchemaChangeValue",
    "namespace": "io.debezium.connector.mariadb",
    "fields": [{"name": "ddl", **nullable("string")}],
}


def semantic(kind, name, **more):
    """A type as the connector names it."""
    return {"type": kind, "connect.version": 1, "connect.name": name, **more}


def typed(time="MicroTimestamp", price=None):
    """Columns of the types that are no more than a name, or none of Avro's own."""
    decimal = semantic(
        "bytes",
        "org.apache.kafka.connect.data.Decimal",
        logicalType="decimal",
        scale=2,
        precision=10,
        **{"connect.parameters": {"scale": "2", "connect.decimal.precision": "10"}},
    )
    scaled = {"type": "record", "name": "VariableScaleDecimal", "namespace": "io.debezium.data"}
    fields = [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}]
    return (
        {"name": "at", **nullable(semantic("long", f"io.debezium.time.{time}"))},
        {"name": "price", **nullable(price or decimal)},
        {"name": "free", **nullable({**scaled, "fields": fields})},
        {"name": "day", **nullable(semantic("int", "io.debezium.time.Date"))},
        {"name": "legal", **nullable(semantic("int", "org.apache.kafka.connect.data.Date", logicalType="date"))},
        {"name": "seen", **nullable(semantic("string", "io.debezium.time.ZonedTimestamp"))},
        {"name": "kind", "type": [semantic("string", "io.debezium.data.Enum"), "null"], "default": "a"},
        {"name": "made", "type": semantic("long", "io.debezium.time.MicroTimestamp"), "default": 1577836800000000},
    )


def row(number, name=None, picture=None, tags=None, **more):
    return {"id": number, "name": name, "picture": picture, "tags": tags, **more}


def event(op, after=None, before=None, lsn=None):
    return {"before": before, "after": after, "source": {"db": "shop", "ts_ms": 1, "lsn": lsn}, "op": op, "ts_ms": 2}


@pytest.fixture
def produce(client, kafka, topic):
    """Writes an event as the connector does."""

    def write(value, number=None, *, schema=None, headers=None, key=None):
        make: Any = AvroSerializer
        # As for a topic with records of several schemas.
        own = None if value is None or "op" in value else {"subject.name.strategy": record_subject_name_strategy}
        serialize = make(client, json.dumps(schema or envelope()), conf=own)
        in_value, in_key = (SerializationContext(topic, field) for field in (MessageField.VALUE, MessageField.KEY))
        if number is not None:
            key = KEY, {"id": number}
        if key is not None:
            key = make(client, json.dumps(key[0]), conf=own)(key[1], in_key)
        kafka.produce(topic, [(key, None if value is None else serialize(value, in_value))], headers=headers)

    return write


@pytest.fixture
def follow(registry, land, table):
    def run(mode=None):
        path = table if mode is None else f"{table}-changes"
        return land(
            DebeziumAvroFormat(registry=registry, metadata=("source_lsn", "before", "source_properties")),
            target=DeltaTarget(table=path, mode=mode or Upsert(key=("id",)), schema_evolution=True),
            key_format=AvroFormat(registry=registry),
            columns=None,
        )

    return run


def test_events_become_rows_and_changes(kafka, topic, table, produce, follow):
    kafka.create(topic)
    produce(event("r", row(1, "a", b"\x01", ["x"]), lsn=7), 1)
    produce(event("c", row(2, "b", b"\x02", [None])), 2)
    produce({"ts_ms": 5}, schema=HEARTBEAT)
    first = follow()
    assert (first.records, first.events_without_row, first.rejected_records) == (3, 1, 0)
    assert landed.rows(table, "id", "name", "picture", "source_lsn") == [(1, "a", b"\x01", 7), (2, "b", b"\x02", None)]
    assert dict(first.comments)["id"] == "The number."

    # The columns that the update left out keep their values; the key of the other row changes.
    produce(event("u", row(1, "a2", PLACEHOLDER.encode(), [PLACEHOLDER]), row(1, "a")), 1)
    produce(event("d", None, row(2)), 2)
    produce(None, 2)
    produce(event("c", row(3, "b", b"\x02", ["y"])), 3, headers=[(OLD_KEY, b'{"id":2}')])
    # A later schema has one more column.
    produce(event("c", row(4, "d", n=9)), 4, schema=envelope({"name": "n", **nullable("int")}))
    follow()
    assert landed.rows(table, "id", "name", "picture", "tags", "n") == [
        (1, "a2", b"\x01", ["x"], None),
        (3, "b", b"\x02", ["y"], None),
        (4, "d", None, None, 9),
    ]

    appended = follow(Append())
    assert (appended.rows, appended.events_without_row) == (6, 2)
    changes = landed.rows(f"{table}-changes", "kafka_offset", "kafka_op", "id", "kafka_unavailable", "before['name']")
    assert changes == [
        (0, "read", 1, None, None),
        (1, "insert", 2, None, None),
        (3, "update", 1, ["picture", "tags"], "a"),
        (4, "delete", 2, None, None),
        (6, "insert", 3, None, None),
        (7, "insert", 4, None, None),
    ]
    properties = landed.rows(f"{table}-changes", "source_properties", where="kafka_offset = 0")
    assert [dict(each) for (each,) in properties] == [{"db": "shop", "ts_ms": "1", "lsn": "7"}]


@pytest.mark.nightly
def test_types_and_events_as_connectors_write_them(kafka, topic, table, produce, follow):
    def values(number, price: Any = Decimal("12.50")):
        free = {"scale": 3, "value": b"\x01\xe2@"}
        # The year 999, before the calendar was changed.
        times = {"at": -30636483647876544, "day": -354592, "legal": -354592, "seen": "2026-11-24T10:11:12.5Z"}
        return row(number, price=price, free=free, kind="b", made=0, **times)

    kafka.create(topic)
    produce(event("c", values(1)), 1, schema=envelope(*typed()))
    # Their keys are not those of rows.
    produce({"ts_ms": 5}, schema=HEARTBEAT, key=(HEARTBEAT, {"ts_ms": 5}))
    produce({"status": "BEGIN", "id": "7"}, schema=TRANSACTION, key=(TRANSACTION_KEY, {"id": "7"}))
    produce({"ddl": "ALTER TABLE"}, schema=SCHEMA_CHANGE)
    landed_first = follow()
    assert (landed_first.records, landed_first.events_without_row, landed_first.rejected_records) == (4, 3, 0)
    columns = ("id", "at", "CAST(price AS VARCHAR)", "free['scale']", "free['value']", "day", "CAST(legal AS VARCHAR)")
    assert landed.rows(table, *columns, "seen", "kind", "made") == [
        (1, -30636483647876544, "12.50", 3, b"\x01\xe2@", -354592, "0999-02-28", "2026-11-24T10:11:12.5Z", "b", 0)
    ]

    # Neither are a column's milliseconds read as microseconds, nor the bytes of a number as a text, after its type or
    # the connector's settings changed.
    produce(event("c", values(2)), 2, schema=envelope(*typed(time="Timestamp")))
    produce(event("c", values(3, "12.50")), 3, schema=envelope(*typed(price="string")))
    produce(event("c", {**values(4), "n": 1}), 4, schema=envelope(*typed(), {"name": "n", **nullable("int")}))
    kafka.produce(topic, [(None, b"\x00\xff\xff\xff\xff\x00")])
    with pytest.raises(RecordsRejectedError) as caught:
        follow()
    reported = str(caught.value)
    assert reported.startswith("3 records can't be decoded")
    for offset, reason in (
        (4, "after.at: a io.debezium.time.Timestamp would be read as a io.debezium.time.MicroTimestamp"),
        (5, "after.price: string can't be read as bytes (decimal of scale 2)"),
        (7, "the registry has no schema 4294967295"),
    ):
        assert f"{topic}-0 offset {offset}: " in reported
        assert reason in reported

    # PostgreSQL's money, and any number without a precision.
    money = semantic("bytes", "org.apache.kafka.connect.data.Decimal", logicalType="decimal", scale=2, precision=64)
    produce(event("c", values(5)), 5, schema=envelope(*typed(price=money)))
    with pytest.raises(ConfigurationError, match="a decimal has 64 digits; Spark's DECIMAL has at most 38"):
        follow()


@pytest.mark.nightly
def test_wrong_schemas_and_columns_are_refused_where_they_are_written():
    with pytest.raises(ConfigurationError, match="is not that of Debezium's events: a record with op"):
        DebeziumAvroFormat(KEY, registry="registry")
    other: Any = envelope()
    other["fields"][1] = {"name": "after", **nullable({**KEY, "name": "Other"})}
    with pytest.raises(ConfigurationError, match="before and after have different columns"):
        DebeziumAvroFormat(other, registry="registry")
    form = DebeziumAvroFormat(envelope(), registry="registry", metadata=("before",))
    assert form.column_names == ["id", "name", "picture", "tags", "before"]
    assert DebeziumAvroFormat(registry="registry").column_names is None
    with pytest.raises(ConfigurationError, match="two columns would be named 'kafka_op'"):
        Decoder.of(None, DebeziumAvroFormat(envelope({"name": "kafka_op", "type": "int"}), registry="registry"), None)
