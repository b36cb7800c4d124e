"""What users get wrong in Python: an error where it is defined, which names the option and what to write."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from dagster import DailyPartitionsDefinition, EnvVar

from dagster_kafka_flip import (
    DeltaTarget,
    JsonFormat,
    KafkaColumns,
    KafkaConnection,
    KafkaDeltaTable,
    KafkaResource,
    KafkaSource,
    Limits,
    OffsetsInitializer,
    SparkResource,
    StringFormat,
    Windows,
    build_kafka_delta_asset,
    build_kafka_delta_assets,
    build_kafka_delta_multi_asset,
    ingest,
    kafka_topic_asset,
    rewrite_windows,
)
from dagster_kafka_flip.errors import ConfigurationError, RetentionOvertookPositionError

_DAILY = DailyPartitionsDefinition("2026-01-01")


def _source(**changes: Any) -> KafkaSource:
    values: dict[str, Any] = {"topics": ("orders",), **changes}
    return KafkaSource(**values)


def _asset(**changes: Any) -> object:
    options: dict[str, Any] = {"source": _source(), "table": "lake/orders", "name": "orders", **changes}
    return build_kafka_delta_asset(**options)


def _several(**changes: Any) -> object:
    options: dict[str, Any] = {
        "name": "both",
        "source": _source(),
        "tables": [KafkaDeltaTable(spec="orders", table="lake/orders")],
        **changes,
    }
    return build_kafka_delta_multi_asset(**options)


def _no_spark() -> Any:
    raise AssertionError


def _ingest(**changes: Any) -> object:
    options: dict[str, Any] = {"source": _source(), "table": "lake/orders", "spark": _no_spark, **changes}
    return ingest(options.pop("source"), options.pop("table"), **options)


def _rewrite(**changes: Any) -> object:
    options: dict[str, Any] = {"source": _source(), "table": "lake/orders", "windows": [], "spark": _no_spark}
    options |= changes
    return rewrite_windows(options.pop("source"), options.pop("table"), options.pop("windows"), **options)


_SOURCE = 'expected KafkaSource, got str; for example source=KafkaSource(topics=("orders",))'
_FORMAT = 'value_format: expected Format, got {}; for example value_format=JsonFormat("id BIGINT, name STRING")'
_TIMEDELTA = "verify_after: expected timedelta, got {}; for example verify_after=timedelta(hours=1)"
_LIST = '{}: expected a list, such as ["..."]'
_POSITIVE = "invalid Limits: {}: Input should be greater than or equal to 1"


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (_asset, {"source": "orders"}, f"source: {_SOURCE}"),
        (_asset, {"source": None}, "source: expected KafkaSource, got None"),
        (_asset, {"source": KafkaSource}, "source: expected KafkaSource, got the class KafkaSource itself"),
        (_asset, {"source": "orders", "partitions_def": _DAILY}, f"source: {_SOURCE}"),
        (_several, {"source": "orders"}, f"source: {_SOURCE}"),
        (_ingest, {"source": "orders"}, f"source: {_SOURCE}"),
        (_rewrite, {"source": "orders"}, f"source: {_SOURCE}"),
        (kafka_topic_asset, {"source": "orders"}, f"source: {_SOURCE}"),
        (_asset, {"value_format": "json"}, _FORMAT.format("str")),
        (_asset, {"value_format": StringFormat}, _FORMAT.format("the class StringFormat itself")),
        (_asset, {"key_format": {"id": "INT"}}, "key_format: expected Format, got dict"),
        (_ingest, {"value_format": "json"}, _FORMAT.format("str")),
        (_asset, {"columns": ["kafka_key"]}, "columns: expected KafkaColumns, got list"),
        (_asset, {"columns": KafkaColumns}, "columns: expected KafkaColumns, got the class KafkaColumns itself"),
        (_asset, {"table": 5}, "table: expected str or PathLike or DeltaTarget, got int"),
        (_asset, {"table": None}, "table: expected str or PathLike or DeltaTarget, got None"),
        (_asset, {"table": ""}, "invalid DeltaTarget: table: is empty"),
        (_ingest, {"table": ["lake/orders"]}, "table: expected str or PathLike or DeltaTarget, got list"),
        (_rewrite, {"table": 5}, "table: expected str or PathLike or DeltaTarget, got int"),
        (_asset, {"cluster_by": "customer"}, "invalid DeltaTarget: " + _LIST.format("cluster_by")),
        (_asset, {"partition_by": "day"}, "invalid DeltaTarget: " + _LIST.format("partition_by")),
        (_asset, {"properties": "x"}, "invalid DeltaTarget: properties: expected a mapping of names to values"),
        (_asset, {"stream": "a b"}, "invalid DeltaTarget: the stream id 'a b' can't be"),
        (_asset, {"verify_after": 3600}, _TIMEDELTA.format("int")),
        (_asset, {"verify_after": "1h"}, _TIMEDELTA.format("str")),
        (_asset, {"verify_after": timedelta(-1)}, "verify_after: -1 day, 0:00:00 is negative"),
        (_several, {"verify_after": 3600}, _TIMEDELTA.format("int")),
        (_ingest, {"verify_after": 3600}, _TIMEDELTA.format("int")),
        (_asset, {"max_records_per_batch": 0}, _POSITIVE.format("max_records_per_batch")),
        (_asset, {"max_bytes_per_batch": -1}, _POSITIVE.format("max_bytes_per_batch")),
        (_asset, {"max_batches": 0}, _POSITIVE.format("max_batches")),
        (_asset, {"max_records_per_batch": 1.5}, "invalid Limits: max_records_per_batch: Input should be a valid int"),
        (_asset, {"max_records_per_batch": "many"}, "invalid Limits: max_records_per_batch: Input should be a valid i"),
        (_asset, {"spread": "evenly"}, "invalid Limits: spread: Input should be 'backlog' or 'time'"),
        (_asset, {"on_idle": "sleep"}, "on_idle: 'sleep' is neither materialize nor skip"),
        (_asset, {"dead_letter": True}, "dead_letter: expected DeadLetters or str or PathLike, got bool"),
        (_asset, {"dead_letter": ""}, "invalid DeadLetters: table: is empty"),
        (_asset, {"dead_letter": "lake/orders"}, "the dead-letter table is the stream's own table"),
        (
            _asset,
            {"tolerate": "RetentionOvertookPositionError"},
            "tolerate: expected list, got str; for ",
        ),
        (
            _asset,
            {"tolerate": RetentionOvertookPositionError},
            "tolerate: expected list, got the class ",
        ),
        (_asset, {"tolerate": [ValueError]}, "tolerate: ValueError can't be tolerated; those that can are "),
        (_asset, {"partitions_def": "daily"}, "str: an asset that lands a topic has partitions of time"),
        (_asset, {"partitions_def": _DAILY, "windows": "exact"}, "windows: expected Windows, got str"),
        (_asset, {"windows": Windows()}, "windows and topics_of are for an asset with partitions"),
        (_rewrite, {"rules": "exact"}, "rules: expected Windows, got str"),
        (_asset, {"name": None}, "build_kafka_delta_asset needs a name or a key"),
        (_several, {"tables": []}, "both lands no table"),
        (_several, {"tables": ["lake/orders"]}, "tables: expected KafkaDeltaTable, got str"),
        (build_kafka_delta_assets, {"source": "orders", "table": "lake/{topic}"}, f"source: {_SOURCE}"),
        (JsonFormat, {"schema": None}, "a JsonFormat's schema is DDL text or a StructType, not NoneType"),
        (JsonFormat, {"schema": {"id": "INT"}}, "a JsonFormat's schema is DDL text or a StructType, not dict"),
        (JsonFormat, {"schema": " "}, "a JsonFormat needs a schema, such as 'carrier STRING NOT NULL, flight INT'"),
        (JsonFormat, {"schema": "id strin"}, "schema: id: 'strin' is not a type of Spark; did you mean STRING?"),
        (JsonFormat, {"schema": "id INT", "on_error": "skip"}, "invalid JsonFormat: on_error: Input should be 'fail' "),
        (_source, {"topics": "orders"}, "invalid KafkaSource: " + _LIST.format("topics")),
        (_source, {"topics": ()}, "invalid KafkaSource: "),
        (_source, {"topics": (), "topic_pattern": "("}, "the topic pattern '(' is no regular expression"),
        (_source, {"start": "earliest"}, "invalid KafkaSource: start: there is no such field"),
        (
            _source,
            {"starting_offsets": "earliest"},
            "invalid KafkaSource: starting_offsets: expected OffsetsInitializer",
        ),
        (Limits, {"max_records": 5}, "invalid Limits: max_records: there is no such field"),
        (DeltaTarget, {}, "invalid DeltaTarget: table: is missing"),
        (DeltaTarget, {"table": "lake/x", "mode": "append"}, "invalid DeltaTarget: mode: there is no such field"),
        (DeltaTarget, {"table": "lake/x", "cluster_by": "a"}, "invalid DeltaTarget: " + _LIST.format("cluster_by")),
        (Windows, {"max_lateness": "soon"}, "invalid Windows: max_lateness: "),
        (KafkaConnection, {"bootstrap_servers": "localhost"}, "'localhost' is no address"),
        (KafkaConnection, {"bootstrap_servers": "localhost:99999"}, "'localhost:99999' is no address"),
        (KafkaConnection, {"bootstrap_servers": "a:0"}, "'a:0' is no address"),
        (KafkaConnection, {"bootstrap_servers": "http://a:1/x"}, "'http://a:1/x' is no address"),
        (KafkaConnection, {"bootstrap_servers": ["a:1"]}, "bootstrap_servers: expected a text"),
        (KafkaResource, {"bootstrap_servers": "localhost"}, "'localhost' is no address"),
        (KafkaResource, {"bootstrap_servers": "a:1", "security_protocol": "ssl"}, "security_protocol: Input should be"),
        (KafkaResource, {"bootstrap_servers": "a:1", "sasl_username": "ann"}, "SASL credentials are given but"),
        (KafkaResource, {"bootstrap_servers": "a:1", "request_timeout": 0}, "request_timeout: Input should be greater"),
        (SparkResource, {"master": "local[2]", "remote": "sc://x"}, "SparkResource: master and remote are both given"),
        (SparkResource, {"master": "lokal"}, "SparkResource: master 'lokal' is no master of Spark; write local[*]"),
        (SparkResource, {"remote": "x:15002"}, "SparkResource: remote is no address of a Spark Connect server"),
        (OffsetsInitializer.timestamp, {"timestamp": 1_763_800_000}, "looks like seconds since the epoch"),
        (OffsetsInitializer.timestamp, {"timestamp": "2026/11/20"}, "'2026/11/20' is no ISO 8601 time, such as "),
        (OffsetsInitializer.timestamp, {"timestamp": datetime(2026, 1, 1)}, "has no offset from UTC; write one"),  # noqa: DTZ001
        (OffsetsInitializer.timestamp, {"timestamp": -1}, "-1"),
        (OffsetsInitializer.parse, {"text": "yesterday"}, "yesterday"),
    ],
)
def test_a_wrong_input_is_told_where_it_is_defined(make, options, message):
    with pytest.raises(ConfigurationError) as error:
        make(**options)
    assert message in str(error.value)


def test_what_only_the_environment_knows_is_not_judged():
    KafkaResource(
        bootstrap_servers=EnvVar("KAFKA_SERVERS"),
        security_protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_username=EnvVar("KAFKA_USER"),
        sasl_password=EnvVar("KAFKA_PASSWORD"),
    )
    KafkaResource(bootstrap_servers="a:1", security_protocol=EnvVar("KAFKA_PROTOCOL"), sasl_username="ann")
    SparkResource(master=EnvVar("SPARK_MASTER"))
    SparkResource(remote=EnvVar("SPARK_REMOTE"))


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local[2]", "local[2, 4]", "local-cluster[2,1,1024]", "spark://a:7077,b:7077", "yarn"],
)
def test_masters_of_spark_are_taken(master):
    SparkResource(master=master)


def test_a_path_is_a_table(tmp_path: Path):
    assert DeltaTarget(table=tmp_path).identity == str(tmp_path)  # pyright: ignore[reportArgumentType]
    assert DeltaTarget.of(tmp_path) == DeltaTarget(table=str(tmp_path))
    _asset(table=tmp_path, dead_letter=tmp_path / "rejected", value_format=StringFormat())
