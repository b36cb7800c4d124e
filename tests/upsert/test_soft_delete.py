"""Deleted rows that stay, and a column that orders the changes of a key across topic partitions."""

from __future__ import annotations

import json

import pytest

from dagster_kafka_flip.errors import ConfigurationError, KeyOrderUnknownError, TableModeError, UnavailableValueError
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.ingestion.keyed_stream import change_columns
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.table.changes import Changes
from dagster_kafka_flip.table.commit import MergedRows
from dagster_kafka_flip.table.mode import Upsert
from dagster_kafka_flip.table.transform import analyzed_plan
from tests import landed
from tests.upsert.conftest import change
from tests.upsert.test_unavailable import OPTIONS as LEFT_OUT
from tests.upsert.test_unavailable import row

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

SOFT = {"mode": Upsert(key=("id",), soft_delete=True)}
ORDERED = {"mode": Upsert(key=("id",), order_by="rank", soft_delete=True)}


def test_deleted_rows_stay_with_their_last_values_until_they_are_inserted_again(kafka, follow, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [change(1, "a"), change(2, "b"), change(3, "c"), change(3), change(4)])
    first = follow(target=SOFT)
    assert first.merged == MergedRows(inserted=4, updated=0, deleted=0, unchanged=0)
    columns = ("id", "name", "kafka_deleted", "kafka_offset")
    assert landed.rows(table, *columns) == [
        (1, "a", False, 0),
        (2, "b", False, 1),
        (3, "c", True, 3),
        (4, None, True, 4),
    ]
    kafka.produce(topic, [change(1), change(1), change(2, "d"), change(2), change(3, "e")])
    assert follow(target=SOFT).merged == MergedRows(inserted=0, updated=3, deleted=0, unchanged=0)
    rows = [(1, "a", True, 6), (2, "d", True, 8), (3, "e", False, 9), (4, None, True, 4)]
    assert landed.rows(table, *columns) == rows
    # Read again, also up to the middle: older values never come back.
    for cut in (1, None):
        earliest = OffsetsInitializer.earliest()
        limits = Limits(max_records_per_batch=cut, max_batches=cut)
        assert follow(target=SOFT, starting_offsets=earliest, limits=limits).merged.updated == 0
        assert landed.rows(table, *columns) == rows
    with pytest.raises(
        TableModeError, match=r"with Upsert\(key=\['id'\], soft_delete=True\) .* has Upsert\(key=\['id'\]\)"
    ):
        follow()


@pytest.mark.nightly
def test_a_value_that_was_left_out_is_not_taken_from_a_deleted_row(kafka, follow, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [row(1, "a", "one"), row(2, "b", "two"), row(2, "c"), change(2)])
    follow(target=SOFT, **LEFT_OUT)
    columns = ("id", "name", "bio", "kafka_deleted")
    assert landed.rows(table, *columns) == [(1, "a", "one", False), (2, "c", "two", True)]
    kafka.produce(topic, [row(2, "x")])
    with pytest.raises(UnavailableValueError, match=rf"{topic}-0 offset 4: bio, tags"):
        follow(target=SOFT, **LEFT_OUT)


def ranked(number, rank, name):
    return None, json.dumps({"id": number, "rank": rank, "name": name})


def gone(records):
    from pyspark.sql import functions as f

    return records.withColumn("kafka_deleted", f.col("name").isNull())


BY_RANK = {"value_format": JsonFormat(schema="id BIGINT, rank INT, name STRING"), "transform": gone, "target": ORDERED}


def test_a_column_orders_the_changes_of_a_key_across_topic_partitions(kafka, follow, topic, table):
    columns = ("id", "rank", "name", "kafka_deleted", "kafka_partition")
    kafka.create(topic, partitions=2)
    kafka.produce(topic, [ranked(1, 5, "a"), ranked(2, 5, "b"), ranked(3, 9, None)], partition=0)
    kafka.produce(topic, [ranked(1, 7, "c"), ranked(2, 3, "d"), ranked(2, 3, "dd"), ranked(3, 8, "e")], partition=1)
    follow(**BY_RANK)
    assert landed.rows(table, *columns) == [(1, 7, "c", False, 1), (2, 5, "b", False, 0), (3, 9, "e", True, 0)]
    # Older ones that come later don't win, not even over a row that is gone; equal ones are ordered by their offsets.
    kafka.produce(topic, [ranked(1, 6, None), ranked(2, 5, "f"), ranked(2, 5, "g"), ranked(3, 4, "h")], partition=0)
    assert follow(**BY_RANK).merged == MergedRows(inserted=0, updated=1, deleted=0, unchanged=2)
    rows = [(1, 7, "c", False, 1), (2, 5, "g", False, 0), (3, 9, "e", True, 0)]
    assert landed.rows(table, *columns) == rows
    follow(starting_offsets=OffsetsInitializer.earliest(), **BY_RANK)
    assert landed.rows(table, *columns) == rows
    # A delete that is newer keeps what the table has, and not an older change of its batch.
    kafka.produce(topic, [ranked(1, 6, "x"), ranked(1, 8, None)], partition=0)
    follow(**BY_RANK)
    assert landed.rows(table, *columns)[0] == (1, 8, "c", True, 0)


def test_a_row_of_a_first_load_counts_by_its_order(kafka, follow, spark, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [ranked(9, 1, "z")])
    follow(**BY_RANK)
    spark.sql(f"INSERT INTO delta.`{table}` (id, rank, name) VALUES (1, 100, 'first'), (2, 1, 'first'), (3, NULL, '')")
    kafka.produce(topic, [ranked(1, 5, "a"), ranked(2, 5, "b"), ranked(3, 5, "c")])
    follow(**BY_RANK)
    assert landed.rows(table, "id", "name") == [(1, "first"), (2, "b"), (3, "c"), (9, "z")]


def test_an_order_that_is_not_known_ends_the_run(kafka, follow, topic, table):
    kafka.create(topic, partitions=2)
    kafka.produce(topic, [ranked(1, 5, "a")])
    follow(**BY_RANK)
    kafka.produce(topic, [ranked(1, 5, "x")], partition=1)
    with pytest.raises(
        KeyOrderUnknownError,
        match=r"-1 offset 0 and .*-0 offset 0 have the same key \(id\) and the same value in the column",
    ):
        follow(**BY_RANK)
    kafka.produce(topic, [ranked(2, 6, "x"), ranked(2, None, "y")], partition=1)
    start = OffsetsInitializer.specific_offsets({(topic, 0): 1, (topic, 1): 1})
    with pytest.raises(KeyOrderUnknownError, match=r"-1 offset 2 has a null in the column of order_by"):
        follow(starting_offsets=start, **BY_RANK)
    assert landed.rows(table, "id", "name") == [(1, "a")]


def test_order_by_needs_rows_that_stay_and_a_column_that_orders(kafka, follow, topic):
    with pytest.raises(ConfigurationError, match="order_by needs soft_delete=True"):
        Upsert(key=("id",), order_by="rank")
    with pytest.raises(ConfigurationError, match="'ID' is a column of the key"):
        Upsert(key=("id",), order_by="ID", soft_delete=True)
    kafka.create(topic)
    with pytest.raises(ConfigurationError, match=r"order_by: the rows of .* have no column rank"):
        follow(target=ORDERED)
    for column in ("kafka_topic", "KAFKA_offset", "kafka_deleted"):
        ordered = {"mode": Upsert(key=("id",), order_by=column, soft_delete=True)}
        with pytest.raises(ConfigurationError, match=r"where a change was read|no column kafka_deleted"):
            follow(target=ordered)
    kafka.produce(topic, [row(1, "a")])
    ordered = {"mode": Upsert(key=("id",), order_by="name", soft_delete=True)}
    left_out = (
        "left out the value of bio, TAGS, and with order_by an older change .* or use a new table without order_by"
    )
    with pytest.raises(ConfigurationError, match=left_out):
        follow(target=ordered, **LEFT_OUT)


def test_the_changes_of_a_busy_key_are_gone_through_once(spark):
    rows = spark.sql(
        "SELECT 1 id, 'a' name, true kafka_deleted, 't' kafka_topic, 0 kafka_partition, id kafka_offset FROM range(3)"
    )
    changes = Changes(rows, Upsert(key=("id",), soft_delete=True), change_columns(KafkaColumns()), ("id",))
    # For each row Spark starts again with such a window.
    assert "currentrow$(), unboundedfollowing$()" not in analyzed_plan(changes.latest())
