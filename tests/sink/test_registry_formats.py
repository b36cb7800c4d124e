"""Tables that go to a topic in a registry's formats, and by the formats that read them into a table again."""

from __future__ import annotations

import json

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from dagster_kafka_flip.errors import RowNotSerializableError
from dagster_kafka_flip.formats.avro import AvroFormat
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.formats.protobuf import ProtobufFormat
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.sink.avro_serializer import AvroSerializer
from dagster_kafka_flip.sink.json_schema_serializer import JsonSchemaSerializer
from dagster_kafka_flip.sink.protobuf_serializer import ProtobufSerializer
from dagster_kafka_flip.sink.serializer import struct_of
from dagster_kafka_flip.sink.serializers import json_of
from dagster_kafka_flip.source.kafka_source import KafkaSource
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
    read = AvroDeserializer(client)
    context = SerializationContext(topic, MessageField.KEY)
    assert sorted(read(record.key, context)["id"] for record in published.records()) == [1, 2, 3, 4]


def test_json_schema_there_and_back(published, landed, registry, topic):
    filled(published, floats=None)
    published.run(value=JsonSchemaSerializer(registry=registry))
    # JSON Schema has no type for a time without an offset.
    assert landed(
        JsonFormat(registry=registry), lambda rows: rows.withColumn("z", rows["z"].cast("timestamp_ntz"))
    ) == shown(published, published.table)
    published.sql("UPDATE {t} SET d = CAST('NaN' AS DOUBLE) WHERE id = 2")
    with pytest.raises(RowNotSerializableError, match=r"version \d.* value: d is NaN or infinite"):
        published.run()


def test_protobuf_there_and_back(published, landed, registry):
    from pyspark.sql import functions as f

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
