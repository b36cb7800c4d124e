"""What users get wrong in Python: an error where it is defined, which names the option and what to write."""

# Every call here is wrong on purpose.
# pyright: reportCallIssue=false, reportArgumentType=false, reportAttributeAccessIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetSpec,
    BackfillPolicy,
    DailyPartitionsDefinition,
    EnvVar,
    MultiPartitionsDefinition,
    StaticPartitionsDefinition,
)

from dagster_kafka_flip import (
    DeltaSource,
    DeltaTarget,
    KafkaClusterConfig,
    KafkaColumns,
    KafkaConnection,
    KafkaDeltaComponent,
    KafkaDeltaTable,
    KafkaPartitionSplit,
    KafkaResource,
    KafkaSource,
    Limits,
    LocalBroker,
    OffsetsInitializer,
    SparkResource,
    StringFormat,
    TopicPartition,
    Windows,
    build_kafka_delta_asset,
    build_kafka_delta_assets,
    build_kafka_delta_multi_asset,
    ingest,
    kafka_delta_asset,
    kafka_delta_checks,
    kafka_topic_asset,
)
from dagster_kafka_flip.errors import ConfigurationError

_DAILY = DailyPartitionsDefinition("2026-01-01")


def _source(**changes: Any) -> KafkaSource:
    values: dict[str, Any] = {"topics": ("orders",), **changes}
    return KafkaSource(**values)


def _asset(**changes: Any) -> object:
    options: dict[str, Any] = {"source": _source(), "table": "lake/orders", "name": "orders", **changes}
    return build_kafka_delta_asset(**options)


def _target(**changes: Any) -> DeltaTarget:
    settings: dict[str, Any] = {"table": "lake/orders", **changes}
    return DeltaTarget(**settings)


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


def _checks(**options: Any) -> object:
    asset: Any = _asset()
    return kafka_delta_checks(asset, **options)


def _by_topic(**changes: Any) -> object:
    options: dict[str, Any] = {"source": _source(), "table": "lake/{topic}", **changes}
    return build_kafka_delta_assets(**options)


def _builder() -> Any:
    return KafkaSource.builder()


_SOURCE = (
    'expected KafkaSource or str or Sequence, got int; for example source="orders", or KafkaSource(topics=("orders",))'
)
_FORMAT = 'value_format: expected Format, got {}; for example value_format=JsonFormat("id BIGINT, name STRING")'
_TIMEDELTA = "verify_after: expected timedelta, got {}; for example verify_after=timedelta(hours=1)"
_LIST = '{}: expected a list, such as ["..."]'
_POSITIVE = "invalid Limits: {}: must be greater than or equal to 1"


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (_asset, {"source": 5}, f"source: {_SOURCE}"),
        (_asset, {"source": ["orders", 5]}, "source: expected str, got int"),
        (_asset, {"value_format": "json"}, _FORMAT.format("str")),
        (_asset, {"value_format": StringFormat}, _FORMAT.format("the class StringFormat itself")),
        (_asset, {"table": 5}, "table: expected str or PathLike or DeltaTarget, got int"),
        (_target, {"partition_by": "day"}, "invalid DeltaTarget: " + _LIST.format("partition_by")),
        (_target, {"properties": "x"}, "invalid DeltaTarget: properties: expected a mapping of names to values"),
        (_asset, {"verify_after": 3600}, _TIMEDELTA.format("int")),
        (_asset, {"verify_after": timedelta(-1)}, "verify_after: -1 day, 0:00:00 is negative"),
        (Limits, {"max_records_per_batch": 0}, _POSITIVE.format("max_records_per_batch")),
        (Limits, {"max_batches": True}, "invalid Limits: max_batches: expected a whole number"),
        (_asset, {"dead_letter": True}, "dead_letter: expected DeadLetters or str or PathLike, got bool"),
        (_asset, {"tolerate": "RetentionOvertookPositionError"}, "tolerate: expected list, got str; for "),
        (_asset, {"tolerate": [ValueError]}, "tolerate: ValueError can't be tolerated; allowed: "),
        (_asset, {"partitions_def": _DAILY, "windows": "exact"}, "windows: expected Windows, got str"),
        (_asset, {"windows": Windows()}, "windows and topics_of are for an asset with partitions"),
        (_asset, {"name": None}, "build_kafka_delta_asset needs a name or a key"),
        (_several, {"tables": ["lake/orders"]}, "tables: expected KafkaDeltaTable, got str"),
        (_source, {"start": "earliest"}, "invalid KafkaSource: start: unknown field"),
        (_source, {"starting_offsets": "earliest"}, "invalid KafkaSource: starting_offsets: expected"),
        (DeltaTarget, {}, "invalid DeltaTarget: table: missing"),
        (_source, {"max_drift": 5}, "invalid KafkaSource: max_drift: expected a timedelta, such as timedelta(hours=1)"),
        (_asset, {"table": "http://host/orders"}, "the table begins with http:, a web address, which Spark "),
        (_asset, {"table": "jdbc:postgresql://host/db"}, "the table begins with jdbc:, but has no slash; write it"),
        (KafkaConnection, {"bootstrap_servers": "a:1", "request_timeout": True}, "request_timeout: expected a number"),
        (KafkaConnection, {"bootstrap_servers": "localhost:99999"}, "invalid bootstrap server 'localhost:99999'"),
        (LocalBroker, {"data_dir": "x", "timeout": -1}, "timeout: invalid value -1; use a number of seconds"),
        (LocalBroker, {"data_dir": None}, "data_dir: expected str or Path, got None; for example data_dir="),
        (SparkResource, {"master": "local[2]", "remote": "sc://x"}, "master and remote are both set"),
        (SparkResource, {"master": "lokal"}, "invalid Spark master 'lokal'; write local[*]"),
        (SparkResource, {"remote": "x:15002"}, "remote is not a Spark Connect address"),
    ],
)
def test_a_wrong_input_is_reported_where_it_is_defined(make, options, message):
    with pytest.raises(ConfigurationError) as error:
        make(**options)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _asset(table="https://account.blob.core.windows.net/orders?sig=hunter2"), "a web address"),
        (lambda: _asset(table="abfss://lake@account.dfs.core.windows.net/orders?sv=1&sig=hunter2"), "has parameters"),
        (lambda: _asset(table="s3a://id:hunter2@bucket/orders"), "has a password"),
        (lambda: _asset(table=" s3a://id:hunter2@bucket/orders"), "has a password"),
        (lambda: _asset(table="\u200bs3a://id:hunter2@bucket/orders"), "has a password"),
        (lambda: _asset(table="delta.`s3a://id:hunter2@bucket/orders`"), "has a password"),
        (lambda: _asset(table="s3a://id%3Ahunter2@bucket/orders"), "has a password"),
        # A slash, as many keys have it, that should be %2F.
        (lambda: _asset(table="s3a://id:un/hunter2@bucket/orders"), "has a password"),
        (lambda: _asset(dead_letter="s3a://id:hunter2@bucket/rejected"), "has a password"),
        (lambda: DeltaSource(table="s3a://id:hunter2@bucket/orders"), "has a password"),
        (lambda: KafkaConnection(bootstrap_servers="ann:hunter2@broker:9092"), "sasl_password"),
        (lambda: KafkaResource(bootstrap_servers="SASL_SSL://ann:hunter2@broker"), "sasl_password"),
        (lambda: SparkResource(master="spark://ann:hunter2@spark:7077"), "masters have no login"),
        (lambda: SparkResource(remote="sc://spark:15002/?token=hunter2"), "not a Spark Connect address"),
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_repeated(make, message):
    with pytest.raises(ConfigurationError) as error:
        make()
    assert message in str(error.value)
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    "table",
    [
        "hdfs://node:8020/lake/orders@v1",
        "hdfs://[::1]:8020/orders",
        "abfss://lake@account.dfs.core.windows.net/a=b/orders",
        "s3a://bucket/what?/orders",
    ],
)
def test_an_address_without_a_secret_is_a_table(table):
    assert DeltaTarget(table=table).location == table


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: _asset(sauce=_source()), "kafka_delta_asset: unknown option sauce; did you mean source?"),
        (lambda: _asset(table=_target(cluster_by=["customer", "customer"])), "cluster_by: duplicate column 'customer'"),
        (lambda: _target(properties={"delta.appendOnly": True}), "invalid DeltaTarget: properties.delta.appendOnly"),
        (lambda: _target(schema_evolution="maybe"), "invalid DeltaTarget: schema_evolution: expected true or false"),
        (lambda: _asset(tolerate=["RetentionOvertookPositionError"]), "tolerate: 'RetentionOvertookPositionError' is"),
        (lambda: _asset(partitions_def=_DAILY, limits=Limits(max_batches=1)), "max_batches: not allowed for an asset"),
        (lambda: _asset(partitions_def=StaticPartitionsDefinition(["a"])), "StaticPartitionsDefinition: not"),
        (lambda: _asset(partitions_def=_DAILY, topics_of={"a": ["orders"]}), "topics_of needs time partitions with a"),
        (
            lambda: _asset(
                partitions_def=MultiPartitionsDefinition({"a": StaticPartitionsDefinition(["x"]), "b": _DAILY})
            ),
            "the source reads orders, not x",
        ),
        (lambda: _asset(backfill_policy=BackfillPolicy.single_run()), "backfill_policy is for an asset with"),
        (lambda: _asset(name="with space"), "name: invalid asset name 'with space'; use letters, digits and '_' only"),
        (lambda: _asset(key="a/b"), "key is the whole asset key; remove name and key_prefix, or key"),
        (lambda: _asset(group_name="with space"), '"with space" is not a valid asset group'),
        (lambda: _asset(table="lake..orders"), "invalid DeltaTarget: the table 'lake..orders' is neither a path nor a"),
        (lambda: _asset(table=" lake/orders"), "invalid DeltaTarget: the table ' lake/orders' begins or ends with a"),
        (lambda: _asset(table="s3a:"), "invalid DeltaTarget: the table 's3a:' has a scheme but no path"),
        (lambda: _asset(stream="x"), "kafka_delta_asset: stream is not an option of its own"),
        (lambda: _asset(limits={"max_batches": 1}), "limits: expected Limits, got dict"),
        (lambda: _ingest(max_batches=5), "ingest: max_batches is not an option of its own"),
        (lambda: KafkaDeltaTable("a", table="b/c", cluster_by=("d",)), "KafkaDeltaTable: cluster_by is not an option"),
        (lambda: kafka_topic_asset(_source(), group="a"), "kafka_topic_asset: unknown option group; did you mean"),
        (lambda: _asset(table=_target(stream="{topic}")), "the stream id '{topic}' is for an asset for each topic"),
        (lambda: _several(tables=[KafkaDeltaTable(spec=5, table="b/c")]), "spec: expected str or AssetSpec, got int"),
        (
            lambda: _several(tables=[KafkaDeltaTable(spec=AssetSpec("a", partitions_def=_DAILY), table="b/c")]),
            "spec: the asset a has partitions; several tables of one read must be streams",
        ),
        (lambda: _checks(rejected_within=timedelta(0)), "rejected_within: must be greater than 0"),
        (
            lambda: _by_topic(source=_source(topics=("a", "b")), table=_target(stream="{topic}"), name="x"),
            "the topics a and b would have the same asset x; put {topic} into name or key, or define",
        ),
        (
            lambda: _by_topic(source=KafkaSource(topic_pattern="a.*"), connection="localhost:9092"),
            "connection: expected KafkaConnection or KafkaResource, got str; for example connection=K",
        ),
        (lambda: KafkaSource("orders"), "KafkaSource takes keyword arguments only: write KafkaSource"),
        (lambda: OffsetsInitializer.specific_offsets(None), "offsets: expected Mapping, got None"),
        (lambda: OffsetsInitializer.timestamp(None), "timestamp: expected datetime, got None"),
        (lambda: KafkaColumns(fields=("ofset",)), "invalid KafkaColumns: fields.0: must be 'key', 'value', 'topic'"),
        (lambda: TopicPartition.parse(5), "expected a string such as 'flights-0' for a topic partition"),
        (KafkaResource, "KafkaResource: missing bootstrap_servers; set the cluster's addresses, or `clus"),
        (
            lambda: KafkaResource(bootstrap_servers="a:1", sasl_pasword="hunter2"),
            "invalid KafkaResource: sasl_pasword: unknown field; did you mean sasl_password ",
        ),
        (
            lambda: KafkaResource(bootstrap_servers="a:1", properties={"ssl.cipher.suites": "a"}),
            "invalid KafkaConnection: the property ssl.cipher.suites does not translate for librdkaf",
        ),
        (
            lambda: KafkaResource(bootstrap_servers="a:1", clusters={"eu": "b:1"}),
            "invalid KafkaResource: clusters.eu: expected KafkaClusterConfig",
        ),
        (lambda: SparkResource("local"), "SparkResource takes keyword arguments only: write SparkResource"),
        (lambda: SparkResource(packages=["hadoop-aws"]), "packages: invalid Maven coordinate 'hadoop-aws'; write"),
        (lambda: _ingest(source=_source()), "no Kafka connection: pass one to ingest(), or call set_bootstrap_servers"),
        (lambda: _ingest(spark=5), "spark: expected function, got int; for example spark=lambda: session"),
        (lambda: KafkaDeltaComponent(table="x/y"), "invalid KafkaDeltaComponent: source: missing"),
        (lambda: kafka_delta_asset(source=_source(), table="lake/x")(lambda rows: rows), "<lambda>() must take an"),
        (lambda: kafka_delta_asset(source=_source(), table="lake/x")(print), "print() must take an argument"),
        (lambda: _builder().set_partitions("a-0").build(), "set_partitions: expected list or tuple or set or"),
        (
            lambda: _builder().set_topics("a").set_properties({"bootstrap.servers": "a:1"}).build(),
            "invalid KafkaSource: the property bootstrap.servers belongs to the source: use the connection",
        ),
        (lambda: _builder().set_topics("a").set_cluster("a b").build(), "invalid KafkaSource: invalid cluster name"),
        (lambda: _builder().set_topics("a").build().only(["b"]), "the source reads a, not b"),
        (
            lambda: KafkaResource(clusters={"eu": KafkaClusterConfig(bootstrap_servers="b:1")}).connection(),
            "the KafkaResource has no bootstrap_servers, and the source does not name one of its clusters ('",
        ),
    ],
)
def test_each_wrong_call_is_an_error_of_configuration_that_names_the_option(make, message):
    with pytest.raises(ConfigurationError) as error:
        make()
    assert message in str(error.value)
    # Who gives a value of a wrong type is shown a right one.
    assert ", got " not in message or "; for example " in str(error.value)


@pytest.mark.parametrize("address", ["a:1", "a_b.c-d:9092", "[::1]:9092", "PLAINTEXT://a:1", "a:1, b:2"])
def test_addresses_as_both_clients_take_them_are_taken(address):
    assert KafkaConnection(bootstrap_servers=address).bootstrap_servers == address.replace(" ", "")


def test_a_function_that_gives_no_rows_back_is_refused_where_it_is_defined():
    async def later(records):
        return records

    def one_by_one(records):
        yield records

    for function, message in ((later, r"^later\(\) is async, "), (one_by_one, r"^one_by_one\(\) is a generator, ")):
        with pytest.raises(ConfigurationError, match=message):
            kafka_delta_asset(source=KafkaSource(topics=("t",)), table="lake/t")(function)


@pytest.mark.parametrize("parts", [0, -1, 1.5])
def test_a_split_is_divided_into_a_whole_number_of_parts(parts):
    split = KafkaPartitionSplit(TopicPartition("t", 0), 0, 3)
    with pytest.raises(ConfigurationError, match=r"^t-0 \[0, 3\) can't be divided into .* parts; give a whole number"):
        split.divide(parts)


def test_values_known_only_to_the_environment_are_not_checked():
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
    _asset(table=tmp_path / "landed", dead_letter=tmp_path / "rejected", value_format=StringFormat())
