"""A table is written in one mode alone, and what makes no sense for rows with a key is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dagster as dg
import pytest

from dagster_kafka_flip import build_kafka_delta_asset, build_kafka_delta_assets, rewrite_windows
from dagster_kafka_flip.assets.registry import ingestions_of
from dagster_kafka_flip.errors import (
    ClusterChangedError,
    ConcurrentIngestionError,
    ConfigurationError,
    TableModeError,
    TopicRecreatedError,
    WriteFailedError,
)
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.formats.maxwell import MaxwellFormat
from dagster_kafka_flip.formats.string import StringFormat
from dagster_kafka_flip.ingestion.keyed_stream import check_same_offsets
from dagster_kafka_flip.ingestion.move_position import commit_move, plan_move
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.window import Window, Windows
from dagster_kafka_flip.table.document import CommitDocument
from dagster_kafka_flip.table.layout import KEY_PROPERTY, created_for, mode_properties
from dagster_kafka_flip.table.merge import _bound
from dagster_kafka_flip.table.mode import Append, Scd2, Upsert, key_of, same_mode
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed
from tests.source.plans import make_plan
from tests.upsert.conftest import KEY, VALUE, change

SOURCE = KafkaSource(topics=("orders",))
TARGET = DeltaTarget(table="lake/orders", mode=Upsert(key=("id",)))


@pytest.mark.parametrize(
    ("key", "reported"),
    [
        ((), "name at least one column"),
        (("id", " "), "empty column name"),
        (("id", "ID"), "duplicate column 'ID'"),
        ("id", r"expected a list, such as"),
    ],
)
def test_a_key_has_columns(key, reported):
    for mode in (Upsert, Scd2):
        with pytest.raises(ConfigurationError, match=reported):
            mode(key=key)


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"tolerate": [TopicRecreatedError]}, "TopicRecreatedError can't be tolerated with Upsert"),
        ({"tolerate": [ConcurrentIngestionError, ClusterChangedError]}, "ClusterChangedError can't be tolerated"),
        ({"value_format": VALUE.model_copy(update={"on_error": "null"})}, "on_error='null' of the value format can't"),
        ({"key_format": StringFormat(on_error="null")}, "on_error='null' of the key format can't be used with Upsert"),
        ({"columns": KafkaColumns(fields=("key", "offset"))}, "KafkaColumns leaves out topic, partition, which the"),
        ({"value_format": JsonFormat(schema="name STRING")}, "have no column id; columns: name, kafka_key"),
        ({"value_format": JsonFormat(schema="id INT, kafka_deleted INT")}, "the records have a column kafka_deleted"),
        (
            {"value_format": MaxwellFormat("number INT, name STRING")},
            "^key: id is not declared in MaxwellFormat, so an update that changes the key would leave the row of",
        ),
        ({"partitions_def": dg.DailyPartitionsDefinition("2026-01-01")}, "windows, partitions and mode: replace are"),
    ],
)
def test_options_that_contradict_a_key_are_refused_when_the_asset_is_defined(options, reported):
    given: dict[str, Any] = {"key_format": KEY, "value_format": VALUE, **options}
    with pytest.raises(ConfigurationError, match=reported):
        build_kafka_delta_asset(source=SOURCE, table=TARGET, name="orders", **given)


def test_windows_of_a_table_with_a_key_are_refused_before_spark_is_asked_for():
    with pytest.raises(ConfigurationError, match=r"a time window of the topic does not have all records of a key"):
        rewrite_windows(
            SOURCE,
            TARGET,
            [Window.between("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")],
            spark=lambda: pytest.fail("Spark was asked for"),
            connection=KafkaConnection(bootstrap_servers="127.0.0.1:1"),
            rules=Windows(repair=True),
        )


def test_an_asset_shows_its_key_and_a_placeholder_in_its_table_keeps_it():
    asset = build_kafka_delta_asset(source=SOURCE, table=TARGET, name="orders", value_format=VALUE, key_format=KEY)
    assert asset.metadata_by_key[asset.key]["delta/key"] == "id"
    target = DeltaTarget(table="lake/{topic}", mode=Upsert(key=("id",)), properties={"a": "b"})
    (made,) = build_kafka_delta_assets(source=SOURCE, table=target, value_format=VALUE, key_format=KEY)
    assert ingestions_of(made)[made.key].target == DeltaTarget(
        table="lake/orders", mode=Upsert(key=("id",)), properties={"a": "b"}
    )


def test_a_position_does_not_move_to_a_log_whose_offsets_have_other_records():
    plan = make_plan({0: (3, 10)}, "orders")
    before = replace(plan.state, position={TopicPartition("orders", 0): 3, TopicPartition("gone", 0): 8})
    check_same_offsets(TARGET, ("id",), before, plan)
    check_same_offsets(TARGET, ("id",), None, plan)
    # What read_uncommitted has read of an open transaction, before the source became read_committed.
    open_from = replace(plan, end_offsets={**plan.end_offsets, TopicPartition("orders", 0): 2})
    check_same_offsets(TARGET, ("id",), before, open_from)
    truncated = replace(before, position={TopicPartition("orders", 0): 11})
    recreated = replace(before, topic_ids={"orders": "another"})
    elsewhere = replace(before, cluster_id="another")
    for other in (truncated, recreated, elsewhere):
        with pytest.raises(ConfigurationError, match=r"^orders-0 is not the log that the rows of .*lake/orders come"):
            check_same_offsets(TARGET, ("id",), other, plan)
        check_same_offsets(DeltaTarget(table="lake/orders"), (), other, plan)


def test_a_merge_leaves_out_files_by_texts_in_ascii_alone():
    assert _bound("name", "string", ">=", "a'b") == "dagster_kafka_flip_table.`name` >= 'a\\'b'"
    # Spark keeps bytes that are not UTF-8; here, and in what Delta keeps for a file, they are U+FFFD.
    for text in ("a\ufffd", "é"):
        assert _bound("name", "string", ">=", text) is None


@pytest.mark.parametrize(("text", "key"), [(None, ()), ('["a", "b"]', ("a", "b")), ("a", ("a",)), ("1", ("1",))])
def test_the_key_in_a_table_s_properties_is_read_whatever_it_is(text, key):
    assert key_of(created_for({} if text is None else {KEY_PROPERTY: text})) == key


@pytest.mark.parametrize(
    "mode",
    [
        Append(),
        Upsert(key=("id",)),
        Upsert(key=("id", "b"), soft_delete=True),
        Upsert(key=("id",), soft_delete=True, order_by="at"),
        Scd2(key=("id",)),
    ],
)
def test_a_mode_is_recorded_in_properties_and_documents(mode):
    assert created_for(mode_properties(mode)) == mode
    state = make_plan({0: (3, 10)}, "orders").state
    document = CommitDocument(
        stream="main", attempt="a", run_id="r", base_version=0, anchor_version=0, splits=(), state=state, mode=mode
    )
    assert CommitDocument.from_text(document.to_text()) == document


def test_the_case_and_order_of_a_key_s_columns_make_no_other_mode():
    one = Upsert(key=("id", "b"), soft_delete=True, order_by="at")
    assert same_mode(one, Upsert(key=("B", "ID"), soft_delete=True, order_by="AT"))
    for other in (Append(), Scd2(key=one.key), Upsert(key=one.key), Upsert(key=one.key, soft_delete=True)):
        assert not same_mode(one, other)


@pytest.mark.kafka
@pytest.mark.spark
def test_a_position_that_is_set_before_the_first_commit_keeps_the_tables_mode(
    kafka, follow, spark, connection, topic, table
):
    kafka.create(topic)
    kafka.produce(topic, [change(1, "a"), change(2, "b")])
    with pytest.raises(WriteFailedError):
        follow(transform=lambda records: records.where("raise_error('a row') IS NULL"))
    # As the command does that messages advise: with the table alone.
    source, target = KafkaSource(topics=(topic,), connection=connection), DeltaTarget(table=table)
    to = OffsetsInitializer.specific_offsets({TopicPartition(topic, 0): 1})
    commit_move(plan_move(source, target, spark, to), target, spark, "the first one is of no use")
    follow()
    kafka.produce(topic, [change(2, "c")])
    follow()
    assert landed.rows(table, "id", "name") == [(2, "c")]


@pytest.mark.kafka
@pytest.mark.spark
def test_a_table_takes_one_stream_with_its_first_key(kafka, follow, spark, topic, table):
    kafka.create(topic)
    kafka.create(f"{topic}-other")
    kafka.produce(topic, [change(1, "a")])
    other = KafkaSource(topics=(f"{topic}-other",))
    follow()

    for target, reported in (
        ({"mode": Append()}, r"is written with Upsert\(key=\['id'\]\) \(version 1\), but the stream 'main' has Append"),
        ({"mode": Upsert(key=("name",))}, r"is written with Upsert\(key=\['id'\]\) .* has Upsert\(key=\['name'\]\)"),
    ):
        with pytest.raises(TableModeError, match=reported):
            follow(target=target)
    for target, reported in (
        (
            {"mode": Append(), "stream": "b"},
            r"\(table property dagster-kafka-flip.key\), but the stream 'b' has Append",
        ),
        ({"stream": "b"}, r"the stream 'main' writes to .* with Upsert\(key=\['id'\]\), and the stream"),
    ):
        with pytest.raises(TableModeError, match=reported):
            follow(source=other, target=target)
    assert follow(target={"mode": Upsert(key=("ID",))}).is_idle, "names of columns have no case"

    appended = f"{table}-appended"
    follow(target={"mode": Append(), "table": appended})
    spark.sql(f"ALTER TABLE delta.`{appended}` SET TBLPROPERTIES ('a' = 'b')")
    with pytest.raises(TableModeError, match=r"the stream 'main' writes to .* with Append\(\), and the"):
        follow(source=other, target={"table": appended, "stream": "b"})
    with pytest.raises(
        TableModeError, match=r"is written with Append\(\) \(version 1\), but the stream 'main' has Ups"
    ):
        follow(target={"table": appended})
    assert landed.operations(table) == ["CREATE TABLE", "MERGE"]
    assert landed.operations(appended) == ["CREATE TABLE", "WRITE", "SET TBLPROPERTIES"]

    # A table that its first run made and never wrote to knows its key, too.
    made = f"{table}-made"
    spark.sql(f"CREATE TABLE delta.`{made}` (id BIGINT) USING delta TBLPROPERTIES ('{KEY_PROPERTY}' = '[\"id\"]')")
    with pytest.raises(TableModeError, match=r"\(table property dagster-kafka-flip.key\), but the stream 'main' has A"):
        follow(target={"table": made, "mode": Append()})
