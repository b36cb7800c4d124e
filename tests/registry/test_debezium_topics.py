"""Debezium's events in Avro with a real registry: from confluent-kafka's serializer to the table."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, record_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from dagster_kafka_flip.errors import ConfigurationError, RecordsRejectedError
from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.formats.debezium_avro import DebeziumAvroFormat
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.description import decoder_of, describe_decoder
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.table.mode import Append, Upsert
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

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
    source = [
        {"name": "db", "type": "string"},
        {"name": "ts_ms", "type": "long"},
        {"name": "lsn", **nullable("long")},
    ]
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


def row(number, name=None, picture=None, tags=None, **more):
    return {"id": number, "name": name, "picture": picture, "tags": tags, **more}


def event(op, after=None, before=None, lsn=None):
    return {"before": before, "after": after, "source": {"db": "shop", "ts_ms": 1, "lsn": lsn}, "op": op, "ts_ms": 2}


@pytest.fixture
def client(registry):
    with SchemaRegistryClient({"url": registry.url}) as producer:
        yield producer


@pytest.fixture
def produce(client, kafka, topic):
    """Writes an event as the connector does."""

    def write(value, number=None, *, schema=None, headers=None):
        make: Any = AvroSerializer
        # As for a topic with records of several schemas.
        own = None if value is None or "op" in value else {"subject.name.strategy": record_subject_name_strategy}
        serialize = make(client, json.dumps(schema or envelope()), conf=own)
        in_value, in_key = (SerializationContext(topic, field) for field in (MessageField.VALUE, MessageField.KEY))
        key = None if number is None else make(client, json.dumps(KEY))({"id": number}, in_key)
        kafka.produce(topic, [(key, None if value is None else serialize(value, in_value))], headers=headers)

    return write


@pytest.fixture
def follow(registry, connection, spark_of, topic, table):
    def run(mode=None, form=None, **options):
        suffix = "" if mode is None else "-changes"
        return ingest(
            KafkaSource(topics=(topic,)),
            DeltaTarget(table=table + suffix, mode=mode or Upsert(key=("id",)), schema_evolution=True),
            spark=spark_of,
            connection=connection,
            key_format=AvroFormat(registry=registry),
            value_format=form
            or DebeziumAvroFormat(registry=registry, metadata=("source_lsn", "before", "source_properties")),
            **options,
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
    left_out = row(3, PLACEHOLDER, PLACEHOLDER.encode(), ["y"])
    produce(event("c", left_out), 3, headers=[(OLD_KEY, b'{"id":2}')])
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
        (6, "insert", 3, ["name", "picture"], None),
        (7, "insert", 4, None, None),
    ]
    properties = landed.rows(f"{table}-changes", "source_properties", where="kafka_offset = 0")
    assert [dict(each) for (each,) in properties] == [{"db": "shop", "ts_ms": "1", "lsn": "7"}]


def test_what_is_no_event_of_a_row_is_rejected_with_a_reason(kafka, topic, table, client, registry, produce, follow):
    kafka.create(topic)
    produce(event("x", row(1)), 1)
    produce(event("u", None, row(1)))
    produce(event("d", row(1)))
    produce({"id": 1}, schema=KEY)
    kafka.produce(topic, [(None, b"?")])
    with pytest.raises(RecordsRejectedError) as caught:
        follow(Append())
    told = str(caught.value)
    for offset, reason in enumerate(
        (
            "not an event of Debezium: its op is unknown",
            "the event of a row, update, has no after",
            "the event of a row, delete, has no before",
            "can't be read as the reader schema: source: the writer lacks this field",
        )
    ):
        assert f"{topic}-0 offset {offset}: " in told
        assert reason in told
    assert told.startswith("5 records can't be decoded")

    client.register_schema("flat", _schema({"type": "record", "name": "A", "fields": [{"name": "id", "type": "int"}]}))
    with pytest.raises(ConfigurationError, match="the latest of the subject 'flat' is not that of Debezium's events"):
        follow(Append(), DebeziumAvroFormat(registry=registry, subject="flat"))


def _schema(schema):
    from confluent_kafka.schema_registry import Schema

    return Schema(json.dumps(schema), "AVRO")


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


def test_a_description_gives_the_format_back():
    form = DebeziumAvroFormat(envelope())
    decoder = Decoder.of(None, form, KafkaColumns())
    rebuilt = decoder_of(json.loads(json.dumps(describe_decoder(decoder))), Decoder.of(None, None, None))
    assert rebuilt is not None
    assert rebuilt.value_format == form
