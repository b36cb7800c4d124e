"""What ends a run of a sink, and that nothing is published then."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import functions as f

from dagster_kafka_flip.errors import (
    ChangeDataFeedError,
    ConfigurationError,
    IncompatibleVersionsError,
    KafkaFlipError,
    NotAppendedError,
    PublishFailedError,
    RowMisplacedError,
    RowNotSerializableError,
    RowTooLargeError,
    SinkProgressError,
    SinkProgressUnknownError,
    TableError,
    TopicNotFoundError,
    VersionOutOfRangeError,
    VersionsGoneError,
)
from dagster_kafka_flip.sink.delta_source import DeltaSource
from dagster_kafka_flip.sink.kafka_sink import KafkaSink
from dagster_kafka_flip.sink.serializers import JsonSerializer, RawSerializer
from tests.kafka_topic import QUIET
from tests.sink.conftest import FEED


@pytest.mark.parametrize(
    ("wrong", "output"),
    [
        ({"topic": "a b"}, "invalid topic 'a b'"),
        ({"transactional_id_prefix": ""}, "invalid transactional_id_prefix"),
        ({"key": "json"}, "expected a serializer"),
        ({"lanes": 0}, "lanes"),
        ({"delivery_guarantee": "exactly-once"}, "delivery_guarantee"),
        ({"transaction_timeout": timedelta(0)}, "transaction_timeout: must be greater than or equal to 1 second"),
        ({"properties": {"transactional.id": "x"}}, "use transactional_id_prefix"),
        ({"properties": {"sasl.password": "x"}}, "belongs to the connection"),
        ({"partition_column": "p", "partitioner": "fixed"}, "set one of the two"),
        ({"progress_topic": "t"}, "needs a separate topic"),
        ({"tpic": "t"}, "did you mean topic"),
    ],
)
def test_a_wrong_sink_is_refused_before_anything_runs(wrong, output):
    with pytest.raises(ConfigurationError, match=output):
        KafkaSink(**({"topic": "t", "transactional_id_prefix": "s"} | wrong))


@pytest.mark.parametrize(
    ("wrong", "output"),
    [
        ({"table": ""}, "empty"),
        ({"table": "~/t"}, "only a shell expands"),
        ({"start": "earliest"}, 'expected "snapshot"'),
        ({"start": -1}, 'expected "snapshot"'),
        ({"start": True}, 'expected "snapshot"'),
        ({"start": datetime(2026, 1, 1)}, "no UTC offset"),  # noqa: DTZ001 - that is the mistake
        ({"stop": -1}, "stop"),
        ({"content": "rows"}, "content"),
    ],
)
def test_a_wrong_source_is_refused_before_anything_runs(wrong, output):
    with pytest.raises(ConfigurationError, match=output):
        DeltaSource(**({"table": "lake/t"} | wrong))


def test_an_object_has_each_column_once():
    with pytest.raises(ConfigurationError, match="columns: duplicate column 'id'"):
        JsonSerializer(columns=("id", "v", "id"))


def test_tombstones_need_a_key():
    with pytest.raises(ConfigurationError, match='deletes="tombstone" needs a key'):
        KafkaSink(topic="t", transactional_id_prefix="s").check_content("changes")
    KafkaSink(topic="t", transactional_id_prefix="s").check_content("appended_rows")


def _fails(published, error: type[KafkaFlipError], output: str, **options):
    """A run fails, and readers of committed records see what they saw."""
    before = published.records()
    source, sink = published.source, published.sink
    with pytest.raises(error, match=output):
        published.run(**options)
    assert published.records() == before
    published.source, published.sink = source, sink


@pytest.mark.kafka
@pytest.mark.spark
def test_tables_and_versions_that_are_not_there(published, tmp_path):
    _fails(published, TableError, "does not exist", table=str(tmp_path / "nothing"))
    published.create()
    published.sql("INSERT INTO {t} VALUES (1, 'a')")
    _fails(published, TopicNotFoundError, "the topic nowhere does not exist.* Create it", topic="nowhere")
    _fails(published, VersionOutOfRangeError, r"start, version 3, .* newest version is 1", start=3)
    _fails(published, VersionOutOfRangeError, r"stop, version 2, .* newest version is 1", stop=2)
    _fails(published, ConfigurationError, "no column idd; did you mean id", key=JsonSerializer(columns=("idd",)))
    _fails(published, ConfigurationError, "v is STRING; RawSerializer", key=RawSerializer(column="v"))
    _fails(published, ConfigurationError, "timestamp: the column id is INT", timestamp="id")
    _fails(published, ConfigurationError, "headers: the column id is INT", headers="id")
    published.spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        _fails(published, ConfigurationError, "ignoreMissingFiles is true")
    finally:
        published.spark.conf.unset("spark.sql.files.ignoreMissingFiles")


@pytest.mark.kafka
@pytest.mark.spark
def test_a_table_without_change_data_feed_says_how_to_get_one(published, caplog):
    published.create(properties={})
    published.sql("INSERT INTO {t} VALUES (1, 'a')")
    assert published.run().records == 1
    assert "a run after the table's next change will fail, and the sink must then start over" in caplog.text
    published.sql("INSERT INTO {t} VALUES (2, 'b')")
    _fails(published, ChangeDataFeedError, r"no change data feed.*ALTER TABLE .* \(delta.enableChangeDataFeed = true\)")
    published.sql("ALTER TABLE {t} SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    output = r"had no change data feed in versions 2 to 3: what some of them changed .* to an empty topic"
    _fails(published, ChangeDataFeedError, output)


@pytest.mark.kafka
@pytest.mark.spark
def test_changes_around_a_schema_change_that_one_read_can_not_span_say_where_to_stop(published):
    published.create("id int, v string", {**FEED, "delta.columnMapping.mode": "name"})
    published.sql("INSERT INTO {t} VALUES (1, 'a')")
    published.run()
    published.sql("INSERT INTO {t} VALUES (2, 'b')")
    published.sql("ALTER TABLE {t} RENAME COLUMN v TO w")
    published.sql("INSERT INTO {t} VALUES (3, 'c')")
    _fails(published, IncompatibleVersionsError, r"versions 2 to 4 of the table .* stop=2")
    for stop in (2, 3, None):
        published.run(stop=stop)
    values = [json.loads(record.value) for record in published.records() if record.value]
    by_id = sorted(values, key=lambda value: value["id"])
    assert by_id == [{"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 3, "w": "c"}]


@pytest.mark.kafka
@pytest.mark.spark
def test_versions_that_retention_or_vacuum_took_are_named(published, table, topic):
    published.create()
    published.sql("INSERT INTO {t} VALUES (1, 'a'), (2, 'b')")
    assert published.run().records == 2
    published.sql("UPDATE {t} SET v = 'c' WHERE id = 1")
    feed = list(Path(table, "_change_data").glob("*.parquet"))
    (taken,) = feed
    kept = taken.read_bytes()
    taken.unlink()
    _fails(published, VersionsGoneError, r"version 2 of the table .* files of them are gone \(VACUUM, or")
    taken.write_bytes(kept)
    (Path(table, "_change_data") / f".{taken.name}.crc").unlink(missing_ok=True)

    published.sql("INSERT INTO {t} VALUES (3, 'c')")
    # Retention deletes a log up to a checkpoint.
    published.spark._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
        published.spark._jsparkSession, table
    ).checkpoint()
    for version in (0, 1, 2):
        Path(table, "_delta_log", f"{version:020}.json").unlink()
    _fails(published, VersionsGoneError, r"version 2 of the table .* no longer has them .* the newest is 3")
    # Whether the versions that are gone were before or after the time is not known.
    long_ago = datetime(2026, 1, 1, tzinfo=timezone.utc)
    prefix = f"{topic}-new"
    _fails(published, VersionsGoneError, "log begins with version 3", start=long_ago, transactional_id_prefix=prefix)


@pytest.mark.kafka
@pytest.mark.spark
def test_versions_that_are_too_old_for_delta_are_named_with_the_property_that_makes_them_readable(published, table):
    published.create()
    for row in ("1, 'a'", "2, 'b'", "3, 'c'"):
        published.sql(f"INSERT INTO {{t}} VALUES ({row})")
        long_ago = time.time() - 20 * 24 * 3600
        os.utime(max(Path(table, "_delta_log").glob("*.json")), (long_ago, long_ago))
        if row[0] == "1":
            assert published.run().records == 1
    published.sql("INSERT INTO {t} VALUES (4, 'd')")
    # Delta remembers the times of the commits that it has read.
    published.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    finding = r"^versions 2 to 4 of the table .* can't be published: Delta reads no version that is older than"
    with pytest.raises(VersionsGoneError, match=f"{finding}.*the newest is 4") as raised:
        published.run()
    (statement,) = re.findall(r"ALTER TABLE .*?'\)", str(raised.value))
    published.sql(statement)
    assert published.run().records == 3


@pytest.mark.kafka
@pytest.mark.spark
def test_rows_that_spark_can_not_read_or_transform_are_reported(published, table):
    @f.udf("string")
    def fail(_):
        return 1 / 0

    published.create("id int, v string, n int")
    published.sql("INSERT INTO {t} VALUES (1, 'a', 0)")
    assert published.run().records == 1
    published.sql("INSERT INTO {t} VALUES (2, 'b', 0)")
    began = (
        r"^version 2 of the table .* can't be published, because Spark failed to read the rows or to transform them: "
    )
    for output, transform in {
        "AnalysisException: .*`name` cannot be resolved": lambda rows: rows.withColumnRenamed("v", "w").select("name"),
        "AnalysisException: .*`nowhere` cannot be found": lambda rows: rows.sparkSession.table("nowhere"),
        "ZeroDivisionError: division by zero": lambda rows: rows.withColumn("v", fail("v")),
        "DIVIDE_BY_ZERO": lambda rows: rows.withColumn("n", f.expr("1 / n")),
        "CAST_INVALID_INPUT": lambda rows: rows.withColumn("n", f.expr("cast(v AS int)")),
    }.items():
        with pytest.raises(PublishFailedError, match=f"{began}.*{output}"):
            published.run(transform=transform)
    file = max(Path(table).glob("*.parquet"), key=lambda file: file.stat().st_mtime_ns)
    # Java opens it as little as a file without the right to read it.
    kept = file.read_bytes()
    file.unlink()
    file.mkdir()
    with pytest.raises(PublishFailedError, match=rf"{began}.*{file.name}"):
        published.run()
    file.rmdir()
    file.write_bytes(kept)
    assert published.run().records == 1


@pytest.mark.kafka
@pytest.mark.spark
def test_another_table_topic_or_number_of_lanes_under_the_same_prefix_is_refused(published, kafka, topic, tmp_path):
    published.create()
    published.sql("INSERT INTO {t} VALUES (1, 'a')")
    published.run()
    kafka.grow(published.sink.progress_name, 2)
    _fails(published, SinkProgressError, "with 1 lanes up to table version 1, but lanes is 2 now", lanes=2)
    kafka.create(f"{topic}-other")
    _fails(published, SinkProgressError, "-other now, which would get only", topic=f"{topic}-other")
    reported = "USING delta TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
    published.sql(f"CREATE OR REPLACE TABLE {{t}} {reported} AS SELECT 2 AS id, 'b' AS v")
    _fails(published, SinkProgressError, r"up to version 1, but .* or was recreated")
    published.table = str(tmp_path / "other")
    published.create()
    _fails(published, SinkProgressError, r"up to version 1, but .*other has the id", table=published.table)
    kafka.delete(topic)
    kafka.create(topic)
    _fails(published, SinkProgressError, f"the topic {topic} was recreated.* up to version 1")


@pytest.mark.kafka
@pytest.mark.spark
def test_a_table_that_an_older_copy_replaced_is_refused(published, spark, tmp_path):
    published.create()
    published.sql("INSERT INTO {t} VALUES (1, 'a')")
    copies = [str(tmp_path / name) for name in ("same", "shorter", "other")]
    for copy in copies[1:]:
        shutil.copytree(published.table, copy)
    published.sql("INSERT INTO {t} VALUES (2, 'b')")
    published.run()
    shutil.copytree(published.table, copies[0])
    assert published.run(table=copies[0]).batches == 0
    _fails(published, SinkProgressError, r"up to version 2, but its newest version is 1.*older copy", table=copies[1])
    published.table = copies[2]
    rows = spark.sql("SELECT 3 AS id, 'c' AS v")
    rows.write.format("delta").mode("append").option("userMetadata", "another run").save(copies[2])
    for _ in range(2):
        # First where a run would have nothing to do.
        another = r"up to version 2, but version 2 is another commit now.*older copy"
        _fails(published, SinkProgressError, another, table=copies[2])
        published.sql("INSERT INTO {t} VALUES (4, 'd')")


@pytest.mark.kafka
@pytest.mark.spark
def test_a_progress_topic_that_would_lose_or_mix_progress_is_refused(published, kafka, topic):
    published.create()
    kafka.create(f"{topic}-expires", cleanup_policy="compact,delete")
    _fails(published, SinkProgressError, "cleanup.policy=compact,delete", progress_topic=f"{topic}-expires")
    kafka.create(f"{topic}-small", cleanup_policy="compact")
    _fails(published, SinkProgressError, "1 topic partition, .* 2 lanes", progress_topic=f"{topic}-small", lanes=2)
    kafka.produce(f"{topic}-small", [("other-0", "x")])
    _fails(
        published, SinkProgressError, "-small-0 offset 0: .* not belong to the sink", progress_topic=f"{topic}-small"
    )


@pytest.mark.kafka
@pytest.mark.spark
def test_progress_that_was_deleted_is_refused_though_no_earlier_run_is_known(published, kafka):
    published.create()
    published.sql("INSERT INTO {t} SELECT id, 'a' FROM range(9)")
    published.run(lanes=2)
    progress = published.sink.progress_name
    # Brokers delete no records of a topic that is only compacted.
    kafka.configure(progress, cleanup_policy="delete")
    kafka.trim(progress, 1, kafka.end_offset(progress, 1))
    kafka.configure(progress, cleanup_policy="compact")
    published.sql("INSERT INTO {t} SELECT id + 9, 'a' FROM range(9)")
    _fails(published, SinkProgressError, f"{progress}-1 has no progress .* begins at offset 4: .* was deleted")


@pytest.mark.kafka
@pytest.mark.spark
def test_rows_that_no_record_can_hold_are_named(published, kafka, topic):
    published.create(
        "id int, v string, t timestamp, p int, n string, h array<struct<key:string,value:binary>>, "
        "early timestamp, late timestamp"
    )
    published.sql(
        "INSERT INTO {t} SELECT 7, array_join(transform(sequence(1, 31250), x -> sha2(string(x), 256)), ''), "
        "timestamp_millis(-5), 9, '', array(null), now() - interval 2 hours, now() + interval 2 hours"
    )
    kafka.configure(topic, message_timestamp_before_max_ms="3600000", message_timestamp_after_max_ms="3600000")
    output = r"version 1 .*7.*2000\d+ bytes .* is larger than message.max.bytes of the producer"
    _fails(published, RowTooLargeError, output)
    _fails(published, RowMisplacedError, r"-5 ms after 1970.* leave it out with tolerate or dead_letter", timestamp="t")
    _fails(published, RowMisplacedError, "at most 3600000 ms older than now", timestamp="early")
    _fails(published, RowMisplacedError, "at most 3600000 ms later than now", timestamp="late")
    _fails(published, RowMisplacedError, "a header in the column h is null or has no name", headers="h")
    _fails(published, RowMisplacedError, "topic partition 9, but .* has 2", partition_column="p")
    output = "names the topic partition -1.* Readers of committed records see nothing.* add topic partitions"
    _fails(published, RowMisplacedError, output, partitioner=lambda *_: -1)
    output = "names the topic partition -1.* Records since .* may be in the topic.* add topic partitions"
    weaker = {"delivery_guarantee": "at_least_once", "transactional_id_prefix": f"{topic}-weaker"}
    _fails(published, RowMisplacedError, output, partitioner=lambda *_: -1, **weaker)
    _fails(published, RowMisplacedError, "the column n names no topic", topic_column="n")
    small = f"{topic}-small"
    kafka.create(small, max_message_bytes="100000")
    options = {"topic": small, "transactional_id_prefix": small}
    output = r"version 1 .*7.*the record of 2000\d+ bytes is larger than max.message.bytes of the topic .* \(100000\)"
    _fails(published, RowTooLargeError, output, properties={"message.max.bytes": "5000000"}, **options)
    # Before a record is compressed, only its broker knows whether it is too large.
    compressed = {"message.max.bytes": "5000000", "compression.type": "gzip"}
    output = r"larger than the topic allows. The largest of them is .*, key .*7.*, 2000\d+ bytes.* DESCRIBE_CONFIGS"
    _fails(published, RowTooLargeError, output, properties=compressed, **options)


@pytest.mark.kafka
@pytest.mark.spark
def test_a_text_that_is_no_utf_8_is_no_json(published, topic):
    # Spark would put U+FFFD in place of the bytes, and two keys would become one.
    published.create("id string, v string, m map<string,array<string>>")
    published.sql("INSERT INTO {t} VALUES (cast(X'61ff' AS string), 'a', null), (cast(X'61fe' AS string), 'b', null)")
    _fails(published, RowNotSerializableError, "key: id is not valid UTF-8")
    published.sql("DELETE FROM {t}")
    published.sql("INSERT INTO {t} VALUES ('k', 'a', map('n', array('ok', cast(X'ff' AS string))))")
    output = r"value: m\{\}\[\] is not valid UTF-8"
    _fails(published, RowNotSerializableError, output, transactional_id_prefix=f"{topic}-2")
    published.sql("INSERT OVERWRITE {t} VALUES ('ü', '😀', map('', array(null)))")
    assert published.run(transactional_id_prefix=f"{topic}-3").records == 1


@pytest.mark.kafka
@pytest.mark.spark
def test_a_column_with_a_name_of_the_change_data_feed_is_named(published):
    published.create("id int, _Commit_Version int", {})
    published.sql("INSERT INTO {t} VALUES (1, 77)")
    _fails(published, ConfigurationError, r"has a column _Commit_Version, .* Rename the column")


@pytest.mark.kafka
@pytest.mark.spark
def test_updates_are_not_appended_rows(published):
    published.create()
    published.sql("INSERT INTO {t} VALUES (1, 'a')")
    published.sql("UPDATE {t} SET v = 'b'")
    published.sql("INSERT INTO {t} VALUES (2, 'c')")
    options = {"content": "appended_rows", "start": 0}
    _fails(published, NotAppendedError, "version 2 of the table .* updated or deleted", **options)
    assert published.run(**options, skip_change_commits=True).records == 2
    assert published.texts() == {1: ["a"], 2: ["c"]}


@pytest.mark.kafka
@pytest.mark.spark
def test_an_open_transaction_in_the_progress_topic_does_not_mean_no_progress(published, broker):
    published.create()
    published.run()
    other = Producer({"bootstrap.servers": broker, "transactional.id": f"{published.topic}-other", **QUIET})
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(published.sink.progress_name, b"x", b"x", partition=0)
    other.flush(30)
    published.sql("INSERT INTO {t} VALUES (1, 'a')")
    _fails(published, SinkProgressUnknownError, "a transaction of another producer is open")
    other.abort_transaction(30)
    assert published.run().records == 1


@pytest.mark.kafka
@pytest.mark.spark
def test_a_start_by_time_is_the_first_version_at_or_after_it(published):
    published.create()
    published.sql("INSERT INTO {t} VALUES (1, 'a')")
    between = datetime.now(timezone.utc)
    published.sql("INSERT INTO {t} VALUES (2, 'b')")
    assert published.run(start=between).records == 1
    assert published.texts() == {2: ["b"]}


@pytest.mark.kafka
@pytest.mark.spark
def test_a_table_that_is_recreated_during_a_run_is_not_published(published):
    published.create()
    published.sql("INSERT INTO {t} VALUES (1, 'a')")
    published.run()
    published.sql("INSERT INTO {t} VALUES (2, 'b')")

    def recreating(rows):
        shutil.rmtree(published.table)
        published.create()
        for number in range(3, 6):
            published.sql(f"INSERT INTO {{t}} VALUES ({number}, 'of another table')")
        return rows

    with pytest.raises((SinkProgressError, VersionsGoneError), match=r"was recreated|can't be published"):
        published.run(transform=recreating)
    assert published.texts() == {1: ["a"]}
