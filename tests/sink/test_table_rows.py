"""The order of rows that are published: that of a whole sort, though Spark samples only their beginnings."""

from __future__ import annotations

import random

import pytest

from dagster_kafka_flip.sink import table_rows
from dagster_kafka_flip.sink.table_rows import in_order

pytestmark = pytest.mark.spark

_COLUMNS = (
    "version long, rank int, key binary, value binary, topic string, partition int, timestamp_ms long, headers "
    "array<struct<key:string,value:binary>>, problem string, text string"
)
_KEYS = [None, b"", b"a", b"aa", b"aaa", b"aaab", b"aaac", b"ab", b"\xff"]


@pytest.fixture
def several_partitions(spark):
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "7")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)


@pytest.mark.parametrize("keys", [_KEYS, [None]], ids=["keys", "no keys"])
def test_the_order_is_that_of_a_whole_sort(spark, several_partitions, monkeypatch, keys):
    monkeypatch.setattr(table_rows, "_BEGINNING", 3)
    draw = random.Random(7)
    made = [
        (draw.randint(1, 2), draw.randint(0, 4), draw.choice(keys), draw.choice(_KEYS), *[None] * 6) for _ in range(400)
    ]
    rows = spark.createDataFrame(made, _COLUMNS)
    sorted_rows = in_order(rows)
    assert sorted_rows.collect() == rows.orderBy("version", "key", "rank", "value").collect()
    assert sorted_rows.rdd.getNumPartitions() == 7
    assert len([part for part in sorted_rows.rdd.glom().collect() if part]) > 2


def test_no_whole_value_is_sampled(spark, several_partitions, capsys):
    in_order(spark.createDataFrame([(1, 4, b"a", b"b", *[None] * 6)], _COLUMNS)).explain()
    _, _, ranges = capsys.readouterr().out.partition("rangepartitioning(")
    assert "substring(value" in ranges.splitlines()[0]
    assert "value" not in ranges.splitlines()[0].replace("substring(value", "")
