"""publish(): what changes of a table become in a topic."""

from __future__ import annotations

import json

import pytest

from dagster_kafka_flip import DeltaTarget, JsonFormat, KafkaSource, ingest
from dagster_kafka_flip.sink.serializers import StringSerializer
from dagster_kafka_flip.source.plan import Limits
from tests.sink.conftest import FEED

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def test_snapshot_then_changes_then_nothing_without_spark(published):
    published.create()
    published.sql("INSERT INTO {t} VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    published.sql("INSERT INTO {t} VALUES (7, 'q')")
    first = published.run(stop=1)
    assert (first.records, first.first_version, first.last_version, first.lag_versions) == (3, 1, 1, 1)
    assert published.run(stop=None).records == 1

    published.sql("UPDATE {t} SET v = 'B' WHERE id = 2")
    published.sql("DELETE FROM {t} WHERE id = 3")
    published.sql("OPTIMIZE {t}")
    published.sql("UPDATE {t} SET id = 4 WHERE id = 1")
    published.sql(
        "MERGE INTO {t} AS t USING (SELECT 2 AS id, 'm' AS v UNION ALL SELECT 5, 'n') AS s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *"
    )
    published.sql("INSERT OVERWRITE {t} VALUES (2, 'o'), (6, 'p')")
    second = published.run()
    assert published.texts() == {
        1: ["a", None],
        2: ["b", "B", "m", "o"],
        3: ["c", None],
        4: ["a", None],
        5: ["n", None],
        6: ["p"],
        7: ["q", None],
    }
    assert second.lag_versions == 0
    assert (second.records, second.tombstones) == (11, 5)

    def no_spark():
        raise AssertionError

    third = published.run(spark=no_spark)
    assert (third.records, third.first_version, third.last_version) == (0, None, second.last_version)
    assert third.spark_seconds is None


def test_every_type_is_exact_in_json_whatever_the_sessions_time_zone(published):
    published.create(
        "id int, d decimal(38,18), t timestamp, n timestamp_ntz, b binary, f double, l bigint, "
        "s struct<a:array<int>, m:map<string,date>>, z string, h array<struct<key:string,value:binary>>, p int"
    )
    published.sql(
        "INSERT INTO {t} VALUES (1, 12345678901234567890.123456789012345678, "
        "timestamp'2026-01-02 03:04:05.123456+01:00', "
        "timestamp_ntz'1969-12-31 23:59:59.999999', X'00ff', 0.1, 9223372036854775807, "
        "named_struct('a', array(1, null), 'm', map('k', date'1500-01-01')), null, "
        "array(named_struct('key', 'x', 'value', X'01'), named_struct('key', 'x', 'value', null)), 1)"
    )
    zone = published.spark.conf.get("spark.sql.session.timeZone")
    published.spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        published.run(headers="h", timestamp="t", partition_column="p")
    finally:
        published.spark.conf.set("spark.sql.session.timeZone", zone)
    (record,) = published.records()
    assert record.value == (
        b'{"id":1,"d":12345678901234567890.123456789012345678,"t":"2026-01-02T02:04:05.123456Z",'
        b'"n":"1969-12-31T23:59:59.999999","b":"AP8=","f":0.1,"l":9223372036854775807,'
        b'"s":{"a":[1,null],"m":{"k":"1500-01-01"}},"z":null,'
        b'"h":[{"key":"x","value":"AQ=="},{"key":"x","value":null}],"p":1}'
    )
    assert record.key == b'{"id":1}'
    assert record.headers == (("x", b"\x01"), ("x", None))
    assert record.timestamp_ms == 1767319445123
    assert record.topic_partition.partition == 1


def test_a_session_whose_timestamps_have_no_zone_publishes_too(published):
    published.create()
    published.sql("INSERT INTO {t} VALUES (1, 'a')")
    published.spark.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    try:
        published.run()
    finally:
        published.spark.conf.unset("spark.sql.timestampType")
    assert [record.key for record in published.records()] == [b'{"id":1}']


def test_both_images_and_deleted_rows_say_what_they_are(published):
    published.create()
    published.sql("INSERT INTO {t} VALUES (1, 'a')")
    published.sql("UPDATE {t} SET v = 'b'")
    published.sql("DELETE FROM {t}")
    published.run(start=0, content="all_images", deletes="row", key=StringSerializer(column="id"), partitioner="fixed")
    assert [(record.key, json.loads(record.value)) for record in published.records()] == [
        (b"1", {"id": 1, "v": value, "_change_type": change})
        for value, change in (("a", "insert"), ("a", "update_preimage"), ("b", "update_postimage"), ("b", "delete"))
    ]


def test_among_both_images_a_key_that_an_update_left_ends_with_a_tombstone(published):
    published.create()
    published.sql("INSERT INTO {t} VALUES (1, 'a'), (2, 'b'), (null, 'c')")
    published.sql("UPDATE {t} SET id = 7 WHERE id = 1")
    published.sql("UPDATE {t} SET v = concat(v, v) WHERE id IN (2) OR id IS NULL")
    # The end of a batch may be before the tombstone.
    published.run(start=0, content="all_images", limits=Limits(max_records_per_batch=1))
    assert published.texts() == {1: ["a", "a", None], 7: ["a"], 2: ["b", "b", "bb"], None: ["c", "c", "cc"]}
    published.sql("UPDATE {t} SET v = 'hidden' WHERE id = 2")
    assert published.run(transform=lambda rows: rows.where("v <> 'hidden'")).tombstones == 1
    assert published.texts()[2] == ["b", "b", "bb", "bb", None]


def test_at_least_once_keeps_progress_too(published):
    published.create()
    published.sql("INSERT INTO {t} SELECT id, 'a' FROM range(20)")
    options = {"delivery_guarantee": "at_least_once", "lanes": 2, "partitioner": "round_robin"}
    assert published.run(**options).records == 20
    published.sql("INSERT INTO {t} VALUES (20, 'a')")
    result = published.run()
    assert (result.records, result.lag_versions) == (1, 0)
    assert published.texts() == {key: ["a"] for key in range(21)}
    assert {record.topic_partition.partition for record in published.records()} == {0, 1}


def test_records_go_to_the_topic_of_their_column(published, kafka, topic):
    kafka.create(f"{topic}-b")
    published.create("id int, v string, t string")
    published.sql(f"INSERT INTO {{t}} VALUES (1, 'a', '{topic}'), (2, 'b', '{topic}-b')")
    published.run(topic_column="t", value=StringSerializer(column="v"))
    # A row that moves to another topic leaves a tombstone in the one where it was.
    published.sql(f"UPDATE {{t}} SET v = 'c', t = '{topic}-b' WHERE id = 1")
    published.run()
    assert [record.value for record in published.records()] == [b"a", None]
    assert [record.value for record in published.records(f"{topic}-b")] == [b"b", b"c"]


def test_a_sink_that_starts_at_latest_remembers_where_that_was(published, caplog):
    published.create()
    published.sql("INSERT INTO {t} VALUES (1, 'a')")
    first = published.run(start="latest")
    assert (first.records, first.last_version) == (0, 1)
    published.sql("INSERT INTO {t} VALUES (2, 'b')")
    published.sql("INSERT INTO {t} VALUES (3, 'c')")
    second = published.run(stop=2)
    assert (second.records, second.lag_versions) == (1, 1)
    caplog.set_level("INFO")
    assert published.run().records == 0
    assert f"nothing new in {published.table}: version 2 is published" in caplog.text
    assert published.run(stop=None).first_version == 3
    assert published.texts() == {2: ["b"], 3: ["c"]}


def test_a_run_warns_of_a_topic_that_feeds_the_table(published, kafka, spark_of, caplog):
    kafka.produce(published.topic, [(None, '{"id": 1, "v": "a"}')])
    source = KafkaSource(topics=(published.topic,))
    target = DeltaTarget(table=published.table, properties=FEED)
    columns = JsonFormat("id INT, v STRING")
    ingest(source, target, spark=spark_of, connection=published.connection, value_format=columns)
    warning = f"{published.table} is fed by the topic {published.topic}, which this sink publishes to"
    assert published.run().records == 1
    assert warning in caplog.text
    caplog.clear()
    published.sql("UPDATE {t} SET v = 'b'")
    assert published.run().records == 1
    assert warning not in caplog.text
