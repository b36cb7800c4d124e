"""The history of keys: each change ends a row and begins another, once."""

from __future__ import annotations

import datetime as dt

import pytest

from dagster_kafka_flip.errors import ConfigurationError, KeyOrderUnknownError, TableModeError, UnavailableValueError
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.table.commit import MergedRows
from dagster_kafka_flip.table.mode import Append, Scd2, Upsert
from tests import landed
from tests.upsert.conftest import change
from tests.upsert.test_unavailable import OPTIONS as LEFT_OUT
from tests.upsert.test_unavailable import row

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

HISTORY = {"mode": Scd2(key=("id",))}
START = dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)


def at(seconds, record):
    """A record with a timestamp."""
    return record, int(START.timestamp() + seconds) * 1000


def produce(kafka, topic, records, partition=0):
    for record, timestamp in records:
        kafka.produce(topic, [record], partition=partition, timestamp=timestamp)


def history(table, *columns):
    """The rows of a table, with the seconds since which they are valid, and until when."""

    def seconds(time):
        return None if time is None else int((time - START).total_seconds())

    rows = landed.rows(table, "id", "valid_from", "kafka_offset", "valid_to", "is_current", *(columns or ("name",)))
    return [
        (number, *values, seconds(since), seconds(until), is_current)
        for number, since, _, until, is_current, *values in rows
    ]


def test_each_change_ends_a_row_and_begins_another(kafka, follow, topic, table):
    kafka.create(topic)
    produce(kafka, topic, [at(10, change(1, "a")), at(20, change(2, "b")), at(30, change(1, "c")), at(40, change(9))])
    assert follow(target=HISTORY).merged == MergedRows(inserted=3, updated=0, deleted=0, unchanged=None)
    first = [(1, "a", 10, 30, False), (1, "c", 30, None, True), (2, "b", 20, None, True)]
    assert history(table) == first

    records = [at(50, change(2)), at(51, change(2)), at(45, change(1, "d")), at(60, change(1)), at(55, change(1, "e"))]
    produce(kafka, topic, [*records, at(70, change(3, "f"))])
    # 2 and 1 end; d, e and f begin; a delete of what is gone does nothing.
    assert follow(target=HISTORY).merged == MergedRows(inserted=3, updated=2, deleted=0, unchanged=None)
    rows = [
        (1, "a", 10, 30, False),
        (1, "c", 30, 45, False),
        (1, "d", 45, 60, False),
        (
            1,
            "e",
            60,
            None,
            True,
        ),  # changes are in the order of their offsets, and a row begins where the last one ended
        (2, "b", 20, 50, False),
        (3, "f", 70, None, True),
    ]
    assert history(table) == rows
    assert landed.operations(table) == ["CREATE TABLE", "MERGE", "MERGE"]

    again = follow(target=HISTORY, starting_offsets=OffsetsInitializer.earliest())
    assert again.merged == MergedRows(0, 0, 0, None)
    part = OffsetsInitializer.specific_offsets({(topic, 0): 6})
    follow(target=HISTORY, starting_offsets=part, limits=Limits(max_records_per_batch=2))
    assert history(table) == rows
    assert again.known.table_rows == 6

    for mode in (Upsert(key=("id",)), Append()):
        with pytest.raises(TableModeError, match=r"is written with Scd2\(key=\['id'\]\) \(version"):
            follow(target={"mode": mode})


@pytest.mark.nightly
def test_rows_of_others_and_keys_in_two_topic_partitions(kafka, follow, spark, topic, table):
    kafka.create(topic, partitions=2)
    produce(kafka, topic, [at(10, change(1, "a"))])
    follow(target=HISTORY)
    values = "2, 'first load', timestamp '2026-01-01 00:00:05Z', true"
    spark.sql(f"INSERT INTO delta.`{table}` (id, name, valid_from, is_current) VALUES ({values})")
    produce(kafka, topic, [at(20, change(2, "b"))], partition=1)
    follow(target=HISTORY)
    rows = [(1, "a", 10, None, True), (2, "first load", 5, 20, False), (2, "b", 20, None, True)]
    assert history(table) == rows
    produce(kafka, topic, [at(30, change(1, "c"))], partition=1)
    with pytest.raises(KeyOrderUnknownError, match=rf"{topic}-1 offset 1 and {topic}-0 offset 0 have the same key"):
        follow(target=HISTORY)
    assert history(table) == rows


@pytest.mark.nightly
def test_values_that_were_left_out_are_in_each_row(kafka, follow, topic, table):
    kafka.create(topic)
    options = {"target": HISTORY, **LEFT_OUT}
    produce(kafka, topic, [at(1, row(1, "a", "one")), at(2, row(1, "b"))])
    follow(**options)
    produce(kafka, topic, [at(3, row(1, "c")), at(4, row(2, "d", "two")), at(5, row(2, "e"))])
    follow(**options)
    rows = [
        (1, "a", "one", 1, 2, False),
        (1, "b", "one", 2, 3, False),
        (1, "c", "one", 3, None, True),
        (2, "d", "two", 4, 5, False),
        (2, "e", "two", 5, None, True),
    ]
    assert history(table, "name", "bio") == rows
    produce(kafka, topic, [at(6, change(2))])
    follow(**options)
    produce(kafka, topic, [at(7, row(2, "g"))])
    with pytest.raises(UnavailableValueError, match=rf"{topic}-0 offset 6: bio, tags"):
        follow(**options)


def test_the_requirements_of_a_history_are_checked(kafka, follow, topic, table):
    kafka.create(topic)
    for options, reported in (
        (
            {"transform": lambda rows: rows.drop("kafka_timestamp")},
            "have no column kafka_timestamp, which its mode needs",
        ),
        (
            {"transform": lambda rows: rows.selectExpr("*", "id AS valid_to")},
            "have a column valid_to, which Scd2 adds to",
        ),
        (
            {"columns": KafkaColumns(fields=("key", "topic", "partition", "offset"))},
            "leaves out timestamp, which the rows",
        ),
        ({"value_format": JsonFormat(schema="id BIGINT, IS_CURRENT INT")}, "have a column is_current, which Scd2 adds"),
    ):
        with pytest.raises(ConfigurationError, match=reported):
            follow(target=HISTORY, **options)
    kafka.produce(topic, [change(1, "a")])
    with pytest.raises(KeyOrderUnknownError, match=rf"the record {topic}-0 offset 0 has no timestamp"):
        follow(
            target=HISTORY,
            transform=lambda rows: rows.selectExpr(
                "* EXCEPT (kafka_timestamp)", "CAST(NULL AS TIMESTAMP) AS kafka_timestamp"
            ),
        )


def test_a_record_without_a_timestamp_ends_the_run(kafka, follow, topic):
    mode = Upsert(key=("id",), order_by="kafka_timestamp", soft_delete=True)
    kafka.create(topic)
    kafka.produce(topic, [change(1, "a")])
    follow(target={"mode": mode})
    kafka.produce(topic, [change(1, "b")], timestamp=-1)
    with pytest.raises(KeyOrderUnknownError, match=rf"the record {topic}-0 offset 1 has no timestamp"):
        follow(target={"mode": mode})
