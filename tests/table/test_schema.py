"""What Delta can't store is told before a table is made, and a history that can't be read in plain words."""

from __future__ import annotations

from typing import cast

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, MapType, NullType, StringType, StructField, StructType

from dagster_kafka_flip.errors import ConfigurationError, SchemaMismatchError, TableError
from dagster_kafka_flip.table.creation import create_statement
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.mode import Upsert
from dagster_kafka_flip.table.schema import check_can_be_stored, check_schema
from dagster_kafka_flip.table.sql import literal
from dagster_kafka_flip.table.target import DeltaTarget


def _columns(**types):
    return StructType([StructField(name, kind) for name, kind in types.items()])


@pytest.mark.parametrize(
    ("schema", "by", "message"),
    [
        (_columns(a=StructType([])), (), "the column 'a' is a STRUCT without fields, which Parquet can't store"),
        (_columns(a=NullType()), (), "the column 'a' has no type (VOID), as a null or an empty array has; cast it"),
        (_columns(a=_columns(b=ArrayType(NullType()))), (), "the column 'a.b' has no type (VOID)"),
        (_columns(a=BinaryType(), b=IntegerType()), ("A",), "the column 'a' is BINARY, and Delta would change its"),
    ],
)
def test_a_column_that_delta_would_not_keep_is_named(schema, by, message):
    with pytest.raises(ConfigurationError) as error:
        check_can_be_stored(schema, "t", by)
    assert str(error.value).startswith(f"the table t can't be created: {message}")


_TABLE = _columns(id=IntegerType(), s=_columns(x=IntegerType()), v=NullType())


def _fit(batch):
    check_schema(batch, _TABLE, "t", may_change=True, may_widen=lambda: False)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (_columns(a=MapType(StringType(), NullType())), "the column 'a' has no type (VOID)"),
        (_columns(s=_columns(y=StructType([]))), "the column 's.y' is a STRUCT without fields"),
    ],
)
def test_a_column_that_delta_does_not_add_to_a_table_is_named(batch, message):
    with pytest.raises(ConfigurationError) as error:
        _fit(batch)
    assert str(error.value).startswith(f"the batch does not fit the table t: {message}")


def test_columns_that_delta_adds_or_has_already_are_accepted():
    _fit(_columns(v=NullType(), a=IntegerType(), s=_columns(y=StringType())))


def test_a_users_property_counts_whatever_its_case():
    spark = cast("SparkSession", None)
    mode = Upsert(key=("id",))
    columns = _columns(id=IntegerType())
    for given, expected in (({}, "true"), ({"delta.enabledeletionvectors": "false"}, "false")):
        target = DeltaTarget(table="lake/orders", mode=mode, properties=given)
        statement = create_statement(spark, target, columns).lower()
        assert statement.count("deletionvectors") == 1
        assert f"'delta.enabledeletionvectors' = '{expected}'" in statement


@pytest.mark.spark
def test_a_history_that_can_not_be_read_is_reported_with_the_line_that_says_why(spark, monkeypatch):
    def sql(_: str) -> None:
        msg = "[REQUIRES_SINGLE_PART_NAMESPACE] spark_catalog requires a single-part namespace, not a.b\n\tat x"
        raise AnalysisException(msg)

    table = DeltaTable(spark, DeltaTarget(table="a.b.c.d"))
    monkeypatch.setattr(spark, "sql", sql)
    with pytest.raises(TableError) as error:
        table.anchor()
    assert str(error.value) == (
        "the history of the table a.b.c.d can't be read: AnalysisException: [REQUIRES_SINGLE_PART_NAMESPACE] "
        "spark_catalog requires a single-part namespace, not a.b. Check the table's name and this machine's access to "
        "its store and catalog, then run again"
    )


def test_a_message_about_thousands_of_columns_names_some_and_counts_the_others():
    table = StructType([StructField(f"c{number}", IntegerType()) for number in range(3_000)])
    for batch in (
        StructType([StructField(field.name, StringType()) for field in table.fields]),
        StructType([StructField(f"d{number}", IntegerType()) for number in range(3_000)]),
    ):
        with pytest.raises(SchemaMismatchError, match=r"[cd]2\b.* and 2,995 more") as caught:
            check_schema(batch, table, "t", may_change=False, may_widen=lambda: False)
        assert len(str(caught.value)) < 5_000


@pytest.mark.spark
@pytest.mark.parametrize("text", ["${x}", "a $ {x}", "\\${x}", "it's 'quoted'", "\\n\n"])
def test_a_literal_is_its_text(spark, text):
    assert spark.sql(f"SELECT {literal(text)}").first()[0] == text
