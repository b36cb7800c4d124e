"""Where the columns of a table come from, as Dagster is told."""

from __future__ import annotations

from dagster import AssetKey, TableColumn, TableColumnDep, TableSchema

from dagster_kafka_flip import Append, KafkaColumns, KafkaSource, Scd2, kafka_topic_asset, topic_asset_key
from dagster_kafka_flip.assets.column_descriptions import column_lineage, described, record_schema
from dagster_kafka_flip.reader.kafka_reader import RECORD_SCHEMA

TOPIC = topic_asset_key("orders")


def test_a_records_own_fields_are_distinguished_from_those_of_its_value():
    names = ("amount", "k_offset", "k_key", "k_timestamp_type", "k_value", "k_rejected_value", "k_error")
    schema = TableSchema(columns=[TableColumn(name, "string") for name in names])
    lineage = column_lineage(schema, KafkaColumns(prefix="k_"), Append(), [TOPIC])
    fields = {name: [dep.column_name for dep in deps] for name, deps in lineage.deps_by_column.items()}
    assert fields == {
        "amount": ["value"],
        "k_offset": ["offset"],
        "k_key": ["key"],
        "k_timestamp_type": ["timestamp_type"],
        "k_value": ["value"],
        "k_rejected_value": ["value"],
        "k_error": ["key", "value"],
    }


def test_columns_of_a_records_own_fields_are_described_unless_they_are_already():
    columns = [TableColumn("amount", "int"), TableColumn("k_offset", "bigint"), TableColumn("k_key", "string", "mine")]
    reported = described(TableSchema(columns=columns), KafkaColumns(prefix="k_"), Append()).columns
    assert [(each.name, each.type) for each in reported] == [(each.name, each.type) for each in columns]
    assert [each.description for each in reported] == [None, "The record's offset in its topic partition.", "mine"]


def test_a_column_that_the_table_spells_differently_is_the_same_column():
    schema = TableSchema(columns=[TableColumn("KAFKA_OFFSET", "bigint")])
    lineage = column_lineage(schema, KafkaColumns(), Append(), [TOPIC]).deps_by_column
    assert lineage == {"KAFKA_OFFSET": [TableColumnDep(asset_key=TOPIC, column_name="offset")]}
    (column,) = described(schema, KafkaColumns(), Append()).columns
    assert column.description == "The record's offset in its topic partition."


def test_columns_of_a_history_come_from_the_records_time():
    schema = TableSchema(columns=[TableColumn(name, "timestamp") for name in ("valid_from", "valid_to")])
    columns, history = KafkaColumns(), Scd2(key=("id",))
    lineage = column_lineage(schema, columns, history, [TOPIC]).deps_by_column
    assert {name: [dep.column_name for dep in deps] for name, deps in lineage.items()} == {
        "valid_from": ["timestamp"],
        "valid_to": ["timestamp"],
    }
    assert all(each.description for each in described(schema, columns, history).columns)
    assert not any(each.description for each in described(schema, columns, Append()).columns), (
        "a column of the record's"
    )


def test_a_column_comes_from_every_topic_that_is_read():
    schema = TableSchema(columns=[TableColumn("amount", "int")])
    topics = [AssetKey(["kafka", name]) for name in ("eu", "us")]
    deps = column_lineage(schema, KafkaColumns(), Append(), topics).deps_by_column["amount"]
    assert deps == [TableColumnDep(asset_key=topic, column_name="value") for topic in topics]


def test_a_topic_has_the_columns_that_spark_reads_of_it():
    spec = kafka_topic_asset(KafkaSource(topics=("orders",))).specs_by_key[TOPIC]
    assert spec.metadata["dagster/column_schema"] == record_schema()
    reported = [f"{column.name.replace('_', '')} {column.type}" for column in record_schema().columns]
    # The type's name that no session takes for another; Spark's own short name is the other one.
    schema = RECORD_SCHEMA.lower().replace("timestamp_ltz", "timestamp").replace("`", "")
    read = schema.replace(": ", ":").replace("key:string, value", "key:string,value").split(", ")
    assert sorted(reported) == sorted(read)
