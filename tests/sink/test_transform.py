"""A transform between table and topic: what it may do, what follows from it, and what is refused."""

from __future__ import annotations

import json
import uuid
from datetime import datetime, timezone

import pytest
from dagster import Definitions, materialize
from pyspark.sql import Window
from pyspark.sql import functions as f

from dagster_kafka_flip import DeltaSource, JsonSerializer, KafkaSink, Limits, StringSerializer, delta_kafka_asset
from dagster_kafka_flip.errors import ConfigurationError, SinkProgressError
from dagster_kafka_flip.sink.row_transform import checked_rows

_KEY = JsonSerializer(columns=("id",))


@pytest.mark.kafka
@pytest.mark.spark
def test_rows_that_a_function_chooses_and_derives_are_published_once_and_leave_with_a_tombstone(
    published, instance, resources
):
    published.create("id int, v string, amount int")
    published.sql("INSERT INTO {t} SELECT id, concat('a', id), id * 10 FROM range(6)")
    sink = KafkaSink(topic=published.topic, transactional_id_prefix=published.topic, key=_KEY, lanes=2)

    @delta_kafka_asset(source=DeltaSource(table=published.table), sink=sink, limits=Limits(max_records_per_batch=2))
    def paid(context, rows, factor):
        assert context.run_id
        double = (f.col("amount") * factor).alias("double")
        return rows.where("amount >= 20").select("id", double, "_change_type", "_commit_version")

    assert Definitions(assets=[paid], resources={**resources, "factor": 2}).resolve_all_asset_keys()

    def run():
        assert materialize([paid], instance=instance, resources={**resources, "factor": 2}).success

    run()
    published.sql("UPDATE {t} SET amount = amount - 20 WHERE id > 1")
    published.sql("DELETE FROM {t} WHERE id IN (0, 5)")
    run()
    values = {key: [each and each["double"] for each in found] for key, found in published.by_key().items()}
    # 2 and 3 no longer fit, 0 and 1 never did.
    assert values == {2: [40, None], 3: [60, None], 4: [80, 40], 5: [100, 60, None]}
    assert {json.dumps(value) for value in published.by_key()[4]} == {
        '{"id": 4, "double": 80}',
        '{"id": 4, "double": 40}',
    }


@pytest.mark.kafka
@pytest.mark.spark
def test_a_row_may_become_several(published):
    published.create("id int, v array<string>")
    published.sql("INSERT INTO {t} VALUES (1, array('a', 'b')), (2, array())")
    published.sql("UPDATE {t} SET v = array('b', 'c') WHERE id = 1")
    options = {"start": 0, "key": StringSerializer(column="word"), "value": JsonSerializer(columns=("id",))}
    published.run(**options, transform=lambda rows: rows.withColumn("word", f.explode("v")))
    found = {}
    for record in published.records():
        found.setdefault(record.key, []).append(record.value)
    row = b'{"id":1}'
    assert found == {b"a": [row, None], b"b": [row, row], b"c": [row]}


_REFUSED = {
    "a step Aggregate": lambda rows: rows.groupBy("id", "v", "_change_type", "_commit_version").count(),
    "a step Join": lambda rows: rows.join(
        rows.sparkSession.range(9).withColumnRenamed("id", "n"), f.col("n") == rows.id
    ),
    "a step Deduplicate": lambda rows: rows.dropDuplicates(["id"]),
    "a step GlobalLimit": lambda rows: rows.limit(1),
    "a step Union": lambda rows: rows.union(rows),
    # It sees many rows at once.
    "a step MapInPandas": lambda rows: rows.mapInPandas(lambda parts: parts, rows.schema),
    "a step Window": lambda rows: rows.withColumn("n", f.row_number().over(Window.orderBy("id"))),
    r"calls rand\(\)": lambda rows: rows.withColumns({f"c{number}": f.lit(number) for number in range(40)}).withColumn(
        "n", f.rand()
    ),
    r"calls current_timestamp\(\)": lambda rows: rows.withColumn("at", f.current_timestamp()),
    r"calls random\(\)": lambda rows: rows.withColumn("n", f.expr("random()")),
    r"calls SPARK_PARTITION_ID\(\)": lambda rows: rows.withColumn("n", f.spark_partition_id()),
    r"calls aes_encrypt\(\)": lambda rows: rows.withColumn("n", f.expr("aes_encrypt(v, '0000111122223333')")),
    r"calls reflect\(\)": lambda rows: rows.withColumn("n", f.expr("reflect('java.util.UUID', 'randomUUID')")),
    r"calls java_method\(\)": lambda rows: rows.withColumn("n", f.expr("java_method('java.util.UUID', 'randomUUID')")),
    r"calls try_reflect\(\)": lambda rows: rows.withColumn("n", f.expr("try_reflect('java.util.UUID', 'randomUUID')")),
    r"another plan each time it is called: .*at and then .*at\.": lambda rows: rows.withColumn(
        "at", f.lit(datetime.now(timezone.utc))
    ),
    r"another plan each time .* AS at and then .* AS at\. A run": lambda rows: rows.withColumn(
        "at", f.expr("timestamp'now'")
    ),
    "computes the column _change_type": lambda rows: rows.withColumn(
        "_change_type", f.when(f.col("id") == 1, "delete").otherwise(f.col("_change_type"))
    ),
    "computes the column _commit_version": lambda rows: rows.withColumn("_commit_version", f.col("id").cast("long")),
    "no column _change_type and no column _commit_version": lambda rows: rows.select("id", "v"),
    "two columns 'v'": lambda rows: rows.select("*", f.lit(1).alias("v")),
    "must return a Spark DataFrame": lambda rows: None,
}


def _in_a_view(rows):
    view = f"v{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(view)
    return rows.sparkSession.sql(f"SELECT * FROM {view} AS {view}_2")


_UNTOUCHED = (
    lambda rows: rows.orderBy("v"),
    _in_a_view,
    lambda rows: rows.select("*").where("_change_type = 'insert'"),
    lambda rows: rows.withColumnRenamed("_change_type", "kind").selectExpr(
        "id", "v", "kind _change_type", "_commit_version"
    ),
)


@pytest.mark.kafka
@pytest.mark.spark
def test_unrepeatable_functions_are_refused_and_nothing_is_published(published):
    changes = published.spark.createDataFrame(
        [(1, "a", "insert", 1), (2, "b", "insert", 1)], "id int, v string, _change_type string, _commit_version bigint"
    )

    def apply(transform):
        return checked_rows(changes, transform)

    for output, transform in _REFUSED.items():
        with pytest.raises(ConfigurationError, match=output):
            apply(transform)
    assert published.spark.conf.get("spark.sql.debug.maxToStringFields") == "25"
    for transform in _UNTOUCHED:
        assert apply(transform).collect() == changes.collect()

    published.create()
    published.sql("INSERT INTO {t} VALUES (1, 'a'), (2, 'b')")
    with pytest.raises(ConfigurationError, match="a step MapInPandas"):
        published.run(start=0, transform=_REFUSED["a step MapInPandas"])
    assert published.records() == []


@pytest.mark.kafka
@pytest.mark.spark
def test_a_transform_that_changes_in_the_middle_of_a_version_is_refused_until_it_is_set_back(published):
    published.create()
    published.sql("INSERT INTO {t} SELECT id, 'a' FROM range(5)")
    published.sql("INSERT INTO {t} SELECT id + 5, 'a' FROM range(5)")
    limits = Limits(max_records_per_batch=2, max_batches=1)

    def upper(rows):
        return rows.withColumn("v", f.upper("v"))

    published.run(start=1, transform=upper, limits=limits)
    with pytest.raises(SinkProgressError, match=r"2 rows of version 1 .* the transform has changed"):
        published.run()
    published.run(stop=1, transform=upper)
    published.run(stop=None)
    assert published.texts() == {key: ["A" if key < 5 else "a"] for key in range(10)}
