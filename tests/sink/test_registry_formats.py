"""Tables that go to a topic in a registry's formats, and by the formats that read them into a table again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from dagster import materialize
from pyspark.sql import functions as f

from dagster_kafka_flip.assets.delta_kafka_asset import build_delta_kafka_asset
from dagster_kafka_flip.assets.resources import SchemaRegistryResource
from dagster_kafka_flip.checks.delta_kafka_checks import delta_kafka_checks
from dagster_kafka_flip.errors import (
    ConfigurationError,
    IncompatibleSchemaError,
    RowNotSerializableError,
    UnpublishableRowError,
)
from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.formats.avro_schema import AvroSchema
from dagster_kafka_flip.formats.column_types import of_spark
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.formats.protobuf import ProtobufFormat
from dagster_kafka_flip.formats.protobuf_compiler import compiled
from dagster_kafka_flip.formats.protobuf_schema import schema_of
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.sink.avro_serializer import AvroSerializer, conversion_of
from dagster_kafka_flip.sink.comparison import TopicComparison
from dagster_kafka_flip.sink.json_schema_serializer import JsonSchemaSerializer
from dagster_kafka_flip.sink.protobuf_serializer import MESSAGE, ProtobufSerializer, proto_of
from dagster_kafka_flip.sink.protobuf_serializer import conversion_of as protobuf_conversion_of
from dagster_kafka_flip.sink.serializers import json_of, struct_of
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.table.target import DeltaTarget

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

COLUMNS = (
    "id INT NOT NULL, l BIGINT, s STRING, b BINARY, o BOOLEAN, f FLOAT, d DOUBLE, n DECIMAL(38,18), w DECIMAL(5,0), "
    "day DATE, t TIMESTAMP, z TIMESTAMP_NTZ, "
    "inner STRUCT<a: INT, deep: STRUCT<t: TIMESTAMP, x: ARRAY<STRING>>>, "
    "list ARRAY<STRUCT<t: TIMESTAMP, n: DECIMAL(10,2)>>, m MAP<STRING, BIGINT>, sm MAP<STRING, STRUCT<d: DATE>>"
)
FULL = (
    "{id}, 9223372036854775807, 'süß', X'00FF', true, CAST(0.1 AS FLOAT), 1e-300, "
    "12345678901234567890.123456789012345678, -99999, DATE'1500-01-01', "
    "TIMESTAMP'2026-10-25 00:30:00.123456Z', TIMESTAMP_NTZ'1969-12-31 23:59:59.999999', "
    "named_struct('a', 0, 'deep', named_struct('t', TIMESTAMP'0001-01-01 00:00:00.000001Z', 'x', array('', 'y'))), "
    "array(named_struct('t', TIMESTAMP'9999-12-31 23:59:59.999999Z', 'n', -0.01), "
    "named_struct('t', null, 'n', null)), map('k', 1, '', -1), map('k', named_struct('d', DATE'9999-12-31'))"
)
ZERO = (
    "{id}, 0, '', X'', false, CAST(0 AS FLOAT), CAST('0' AS DOUBLE), 0, 0, DATE'1970-01-01', "
    "TIMESTAMP'1970-01-01 00:00:00Z', TIMESTAMP_NTZ'1970-01-01 00:00:00', "
    "named_struct('a', null, 'deep', named_struct('t', null, 'x', array())), array(), map(), map()"
)


@pytest.fixture
def client(registry):
    with SchemaRegistryClient({"url": registry.url}) as one:
        yield one


@pytest.fixture
def landed(published, topic, registry, tmp_path):
    """What the topic's values become when they are read into a table: rows by id, as text."""

    def of(form, transform=None):
        table = str(tmp_path / "landed")
        ingest(
            KafkaSource(topics=(topic,)),
            DeltaTarget(table=table, schema_evolution=True),
            spark=lambda: published.spark,
            connection=published.connection,
            value_format=form,
            columns=KafkaColumns(fields=("topic", "partition", "offset")),
            transform=transform,
        )
        return shown(published, table)

    return of


def shown(published, table):
    """The types and the rows of a table, each as text with all its digits."""
    names = published.spark.read.format("delta").load(published.table).columns
    found = published.spark.read.format("delta").load(table).select(names)
    rows = found.select(json_of(struct_of(names)).cast("string")).collect()
    # The entries of a map have no order.
    return found.dtypes, sorted(json.dumps(json.loads(text, parse_float=str), sort_keys=True) for (text,) in rows)


def filled(published, *, lists=(None, None, None), floats="f = CAST('NaN' AS FLOAT), d = CAST('-Infinity' AS DOUBLE)"):
    """Makes the table, with all that its types can hold."""
    published.create(COLUMNS)
    rows = ", ".join(f"({each.format(id=number)})" for number, each in enumerate((FULL, ZERO, FULL), start=1))
    published.sql(f"INSERT INTO {{t}} VALUES {rows}")
    # INSERT would make a null STRUCT one of nulls.
    nulls = published.spark.createDataFrame([(4, *(None,) * 12, *lists)], COLUMNS)
    nulls.write.format("delta").mode("append").save(published.table)
    if floats:
        published.sql(f"UPDATE {{t}} SET {floats} WHERE id = 3")


def test_avro_there_and_back(published, landed, registry, client, topic):
    filled(published)
    value = AvroSerializer(registry=registry)
    published.run(value=value, key=AvroSerializer(registry=registry, columns=["id"]))
    assert landed(AvroFormat(registry=registry)) == shown(published, published.table)

    # As Confluent's own client reads it.
    read: Any = AvroDeserializer(client)  # pyright: ignore[reportCallIssue] - its parameters have defaults
    context = SerializationContext(topic, MessageField.KEY)
    assert sorted(read(record.key, context)["id"] for record in published.records()) == [1, 2, 3, 4]


@pytest.mark.nightly
def test_json_schema_there_and_back(published, landed, registry, topic):
    filled(published, floats="")
    published.run(value=JsonSchemaSerializer(registry=registry))
    # JSON Schema has no type for a time without an offset.
    assert landed(
        JsonFormat(registry=registry), lambda rows: rows.withColumn("z", rows["z"].cast("timestamp_ntz"))
    ) == shown(published, published.table)
    published.sql("UPDATE {t} SET d = CAST('NaN' AS DOUBLE) WHERE id = 2")
    with pytest.raises(RowNotSerializableError, match=r"version \d.* value: d is NaN or infinite"):
        published.run()


@pytest.mark.nightly
def test_protobuf_there_and_back(published, landed, registry):

    filled(published, lists=([], {}, {}))
    published.run(
        value=ProtobufSerializer(registry=registry), key=ProtobufSerializer(registry=registry, columns=["id"])
    )

    def typed(rows):
        # Protobuf has no types for these.
        for name, kind in (("n", "decimal(38,18)"), ("w", "decimal(5,0)"), ("day", "date"), ("z", "timestamp_ntz")):
            rows = rows.withColumn(name, rows[name].cast(kind))
        rows = rows.withColumn("sm", f.transform_values("sm", lambda _, v: v.withField("d", v["d"].cast("date"))))
        return rows.withColumn("list", f.transform("list", lambda v: v.withField("n", v["n"].cast("decimal(10,2)"))))

    assert landed(ProtobufFormat(registry=registry), typed) == shown(published, published.table)
    published.sql("UPDATE {t} SET list = null WHERE id = 2")
    with pytest.raises(RowNotSerializableError, match="value: list is null, and Protobuf has no null here"):
        published.run()


def test_a_time_without_a_zone_is_written_as_its_clock_shows_it_whatever_the_zone_of_the_session(spark):
    zone = spark.conf.get("spark.sql.session.timeZone")
    rows = spark.sql(
        "SELECT TIMESTAMP_NTZ'2026-03-29 02:30:00' AS z, CAST(null AS TIMESTAMP_NTZ) AS none, "
        "array(TIMESTAMP_NTZ'0001-01-01 00:00:00.000001', TIMESTAMP_NTZ'9999-12-31 23:59:59.999999') AS list"
    )
    columns = of_spark(rows.schema)
    message = schema_of(compiled(proto_of(columns, None))).message(MESSAGE)
    conversion = protobuf_conversion_of(columns, message, "the schema")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        # This clock does not show the first one.
        ((found,),) = rows.select(conversion.changed(struct_of(columns.names))).collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert tuple(found) == (
        "2026-03-29T02:30:00.000000",
        None,
        ["0001-01-01T00:00:00.000001", "9999-12-31T23:59:59.999999"],
    )


def test_a_text_that_is_not_the_uuid_of_its_schema_is_an_error_of_its_row(spark):
    uuid = "0123ABCD-0123-4567-89ab-0123456789ab"
    texts = [uuid, None, "", "x", f"{uuid}\n", f" {uuid}", uuid.replace("-", ""), f"{{{uuid}}}", uuid.replace("A", "g")]
    rows = spark.createDataFrame([(text, [text]) for text in texts], "u STRING, list ARRAY<STRING>")
    typed = ["null", {"type": "string", "logicalType": "uuid"}]
    fields = [{"name": "u", "type": typed}, {"name": "list", "type": {"type": "array", "items": typed}}]
    schema = AvroSchema.of(json.dumps({"type": "record", "name": "R", "fields": fields}))
    wrong = conversion_of(of_spark(rows.schema), schema, "the schema").wrong
    assert wrong is not None
    for columns, why in (
        (("u", "list"), "u is not a UUID, as its schema says"),
        (("list",), "list[] is not a UUID, as its schema says"),
    ):
        some = rows.withColumns({name: rows[name] if name in columns else f.lit(None) for name in rows.columns})
        found = [reason for (reason,) in some.select(wrong(struct_of(("u", "list")))).collect()]
        assert found == [None, None, *[why] * 7]


def ids_of(published):
    """The ids of the schemas that records name, by key."""
    return {json.loads(record.key)["id"]: int.from_bytes(record.value[1:5], "big") for record in published.records()}


def test_a_column_that_is_added_registers_the_next_schema_and_an_incompatible_one_is_refused(
    published, registry, client, topic
):
    published.create("id INT NOT NULL, v STRING")
    published.sql("INSERT INTO {t} VALUES (1, 'a')")
    published.run(value=AvroSerializer(registry=registry))
    client.set_compatibility(f"{topic}-value", "BACKWARD")
    published.sql("ALTER TABLE {t} ADD COLUMN w INT")
    published.sql("INSERT INTO {t} VALUES (2, 'b', 2)")
    published.run()
    published.sql("INSERT INTO {t} VALUES (3, 'c', 3)")
    published.run()
    ids = ids_of(published)
    assert ids[2] == ids[3] != ids[1]
    assert len(client.get_versions(f"{topic}-value")) == 2

    published.sql("INSERT INTO {t} VALUES (4, 'd', 4)")
    field = {"name": "x", "type": "int"}
    fields = [{"name": "id", "type": "int"}, {"name": "v", "type": ["null", "string"]}, {"name": "w", "type": "int"}]
    with pytest.raises(
        ConfigurationError, match=r"value: the schema of the AvroSerializer .*: x is a field that can't"
    ):
        published.run(
            value=AvroSerializer({"type": "record", "name": "record", "fields": [*fields, field]}, registry=registry)
        )
    refused = AvroSerializer({"type": "record", "name": "record", "fields": fields}, registry=registry)
    with pytest.raises(
        IncompatibleSchemaError, match=rf"refuses a schema of the subject '{topic}-value': it is not compat"
    ):
        published.run(value=refused)
    assert ids_of(published) == ids
    assert len(client.get_versions(f"{topic}-value")) == 2


def test_a_version_in_part_goes_on_with_its_schema_though_there_is_a_later_one(published, registry, client, topic):
    fields = [{"name": "id", "type": "int"}, {"name": "v", "type": ["null", "string"], "default": None}]
    subject = f"{topic}-shop.Order"

    def register(*fields):
        text = json.dumps({"type": "record", "name": "Order", "namespace": "shop", "fields": fields})
        return client.register_schema(subject, Schema(text, "AVRO"))

    published.create("id INT NOT NULL, v STRING")
    published.sql("INSERT INTO {t} SELECT id, 'a' FROM range(30)")
    first = register(*fields)
    value = AvroSerializer(registry=registry, use_latest=True, subject="{topic}-shop.Order")
    result = published.run(value=value, limits=Limits(max_records_per_batch=10, max_batches=1))
    assert result.rows_left
    assert result.progress[0].schema_ids == (None, first)
    second = register(*reversed(fields))
    published.sql("INSERT INTO {t} VALUES (30, 'b')")
    published.run()
    assert ids_of(published) == {**dict.fromkeys(range(30), first), 30: second}
    assert len(published.records()) == 31

    published.sql("INSERT INTO {t} VALUES (31, 'c')")
    with pytest.raises(ConfigurationError, match=r"has the type AVRO; JsonSchemaSerializer writes only JSON"):
        published.run(value=JsonSchemaSerializer(registry=registry, use_latest=True, subject=subject))
    with pytest.raises(ConfigurationError, match="SchemaRegistryResource, which only Dagster has"):
        published.run(value=AvroSerializer(registry="registry"))


GIVEN_AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "extra", "type": ["null", "string"], "default": None},
        {"name": "e", "type": ["null", {"type": "enum", "name": "E", "symbols": ["A", "B"]}]},
        {"name": "x", "type": ["null", {"type": "fixed", "name": "F", "size": 2}]},
        {"name": "t", "type": [{"type": "long", "logicalType": "timestamp-millis"}, "null"]},
        {"name": "id", "type": "long"},
        {"name": "n", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 4}]},
        {"name": "a", "type": {"type": "array", "items": "int"}},
    ],
}
GIVEN_PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/wrappers.proto";
import "google/protobuf/timestamp.proto";
message Other { int32 x = 1; }
message Order {
  enum E { A = 0; B = 1; }
  message Line { int32 q = 1; }
  optional string extra = 9;
  E e = 1;
  google.protobuf.BytesValue x = 2;
  google.protobuf.Timestamp t = 3;
  uint64 id = 4;
  optional string n = 5;
  repeated int32 a = 6;
}
"""
GIVEN_JSON = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "e": {"type": "string"},
        "x": {"type": "string"},
        "t": {"type": "string", "format": "date-time"},
        "n": {"type": "number"},
        "a": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["id", "e", "a"],
}
GIVEN_ROWS = {
    1: "'A', X'0001', TIMESTAMP'2026-01-01 00:00:00.123Z', 1.25, array(1, 2)",
    2: "'C', X'0001', TIMESTAMP'2026-01-01 00:00:00.123Z', 1.25, array()",
    3: "'B', X'00', null, null, array()",
    4: "'B', null, TIMESTAMP'2026-01-01 00:00:00.1234Z', null, array()",
    5: "'B', null, null, null, array(1, null)",
    6: "'B', null, null, null, null",
    7: "null, null, null, null, array()",
    -8: "'B', null, null, null, array()",
}


@pytest.mark.parametrize(
    ("make", "form", "wrong"),
    [
        pytest.param(
            lambda registry: AvroSerializer(GIVEN_AVRO, registry=registry),
            lambda registry: AvroFormat(registry=registry),
            {2: "e is none of the 2 symbols", 3: "x does not have the 2 bytes", 4: "t has microseconds"}
            | {5: "a[] is null", 6: "a is null"},
            id="avro",
        ),
        pytest.param(
            lambda registry: ProtobufSerializer(GIVEN_PROTO, message="shop.Order", registry=registry),
            lambda registry: ProtobufFormat(registry=registry, message="shop.Order"),
            {2: "e is not a name of its enum", 5: "a[] is null", 6: "a is null", 7: "e is null"}
            | {-8: "id is out of the range"},
            id="protobuf",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            lambda registry: JsonSchemaSerializer(GIVEN_JSON, registry=registry),
            lambda registry: JsonFormat(registry=registry),
            {5: "a[] is null", 6: "a is null", 7: "e is null"},
            id="json",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_rows_that_a_given_schema_has_no_form_for_are_dead_letters(
    published, landed, registry, kafka, topic, make, form, wrong
):
    kafka.create(f"{topic}-dead")
    published.create("id INT NOT NULL, e STRING, x BINARY, t TIMESTAMP, n DECIMAL(10,2), a ARRAY<INT>")
    published.sql(f"INSERT INTO {{t}} VALUES {', '.join(f'({key}, {row})' for key, row in GIVEN_ROWS.items())}")
    published.sql("DELETE FROM {t} WHERE id = 6")
    result = published.run(value=make(registry), start=0, dead_letter_topic=f"{topic}-dead", partitioner="fixed")
    # A deleted row has no value that could be wrong: its tombstone is published.
    assert [record.key for record in published.records() if record.value is None] == [b'{"id":6}']
    assert result.left_out == {"RowNotSerializableError": len(wrong)}
    letters = {}
    for record in published.records(f"{topic}-dead"):
        row = json.loads(record.value)
        letters[row["id"]] = dict(record.headers)["kafka_flip.message"].decode()
        assert set(row) == {"id", "e", "x", "t", "n", "a"}
        assert dict(record.headers)["kafka_flip.value"] == b"row as JSON"
    assert letters.keys() == wrong.keys()
    assert [key for key, output in wrong.items() if f"value: {output}" not in letters[key]] == []
    _, there = landed(form(registry), lambda rows: rows.where("id IS NOT NULL"))
    assert sorted(int(json.loads(text)["id"]) for text in there) == sorted(GIVEN_ROWS.keys() - wrong.keys())


@pytest.mark.parametrize(
    "serializer",
    [
        AvroSerializer,
        pytest.param(JsonSchemaSerializer, marks=pytest.mark.nightly),
        pytest.param(ProtobufSerializer, marks=pytest.mark.nightly),
    ],
)
def test_a_text_that_is_not_utf_8_is_an_error_of_its_row(published, registry, kafka, topic, serializer):
    # Other characters would take the place of its bytes, and the change would be no error.
    kafka.create(f"{topic}-dead")
    published.create("id INT NOT NULL, s STRING, x STRUCT<a: ARRAY<STRING>>, m MAP<STRING, STRING>")
    broken = "CAST(X'61FF' AS STRING)"
    rows = {
        1: "'ü', named_struct('a', array('😀', '')), map('', '')",
        2: f"{broken}, named_struct('a', array()), map()",
        3: f"'ü', named_struct('a', array('ok', {broken})), map()",
        4: f"'ü', named_struct('a', array()), map('', '', {broken}, '')",
        5: f"'ü', named_struct('a', array()), map('', '', 'k', {broken})",
    }
    published.sql(f"INSERT INTO {{t}} VALUES {', '.join(f'({key}, {row})' for key, row in rows.items())}")
    result = published.run(value=serializer(registry=registry), dead_letter_topic=f"{topic}-dead")
    assert [record.key for record in published.records()] == [b'{"id":1}']
    assert result.left_out == {"RowNotSerializableError": 4}
    why = {
        json.loads(record.value)["id"]: dict(record.headers)["kafka_flip.message"].decode()
        for record in published.records(f"{topic}-dead")
    }
    paths = {2: "s", 3: "x.a[]", 4: "m{}", 5: "m{}"}
    assert [path for key, path in paths.items() if f"value: {path} is not valid UTF-8" not in why[key]] == []


def compared(published):
    """What is unknown, and how many keys are compared, missing, surplus and differing."""
    found = TopicComparison(published.source, published.sink, None, published.connection, published.spark, 1000)
    result = found.compare()
    return result.unknown, (result.keys, result.missing, result.surplus, result.differing)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("serializer", "options"),
    [
        pytest.param(AvroSerializer, {}, id="avro"),
        pytest.param(JsonSchemaSerializer, {"floats": ""}, id="json"),
        pytest.param(ProtobufSerializer, {"lists": ([], {}, {})}, id="protobuf"),
    ],
)
def test_a_topic_of_nested_rows_is_compared_in_each_format(published, registry, kafka, topic, serializer, options):
    filled(published, **options)
    published.run(key=serializer(registry=registry, columns=["id"]), value=serializer(registry=registry))
    published.sql("UPDATE {t} SET s = 'ä', n = -0.000000000000000001, inner.a = 5 WHERE id = 2")
    published.sql("UPDATE {t} SET m = map('b', 1, 'a', 2), inner = null WHERE id = 1")
    published.sql("DELETE FROM {t} WHERE id = 3")
    published.run()
    assert compared(published) == ([], (4, 0, 0, 0))
    last_of_key = {record.key: record for record in published.records()}
    first, *_, last = [record for record in last_of_key.values() if record.value is not None]
    kafka.produce(topic, [(last.key, first.value)], partition=last.topic_partition.partition)
    assert compared(published) == ([], (4, 0, 0, 1))


def test_an_asset_has_its_registry_from_a_resource_and_says_what_it_left_out(published, registry, resources):
    published.create("id INT NOT NULL, d DOUBLE")
    published.sql("INSERT INTO {t} VALUES (1, 0.5), (2, CAST('NaN' AS DOUBLE))")
    key, value = AvroSerializer(registry="schemas", columns=["id"]), JsonSchemaSerializer(registry="schemas")
    changes = {"key": key, "value": value, "tolerate": (UnpublishableRowError,)}
    sink = published.sink.model_copy(update=changes)
    asset = build_delta_kafka_asset(source=published.source, sink=sink)
    schemas = SchemaRegistryResource(url=registry.url)
    done = materialize([asset, *delta_kafka_checks(asset)], resources=resources | {"schemas": schemas})
    (found,) = done.get_asset_materialization_events()
    metadata = {name: each.value for name, each in found.materialization.metadata.items()}
    assert (metadata["kafka/records_written"], metadata["kafka/rows_left_out"]) == (1, 1)
    assert metadata["kafka/rows_left_out_by_error"] == {"RowNotSerializableError": 1}
    assert metadata["kafka/dead_letters_written"] == 0
    (record,) = published.records()
    assert record.value[5:] == b'{"id":1,"d":0.5}'
    assert (record.key[:1], record.key[5:]) == (b"\x00", b"\x02")
    # The check has the registry from the resource, too, and the row without a record is not taken for a tombstone.
    checks = {each.check_name: each for each in done.get_asset_check_evaluations()}
    assert checks["published_equals_table"].metadata["missing"].value == 1
    assert "may be rows that the sink left out" in (checks["published_equals_table"].description or "")
