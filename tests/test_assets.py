"""The Dagster side on a real broker, with real Spark and a real instance."""

from __future__ import annotations

import os
from typing import Any

import pytest
from dagster import (
    AssetCheckSeverity,
    AssetKey,
    AssetsDefinition,
    AutomationCondition,
    ConfigurableResource,
    DagsterInstance,
    Definitions,
    RetryPolicy,
    TableSchema,
    asset,
    evaluate_automation_conditions,
    materialize,
)
from dagster._core.definitions.metadata.table import TableColumn
from dagster._core.definitions.observe import observe

from dagster_kafka_flip import (
    DeltaTarget,
    JsonFormat,
    KafkaClusterConfig,
    KafkaResource,
    KafkaSource,
    Limits,
    SparkResource,
    StringFormat,
    build_kafka_delta_asset,
    kafka_delta_asset,
    kafka_topic_asset,
    topic_asset_key,
)
from dagster_kafka_flip.assets.position_record import read_record
from dagster_kafka_flip.errors import ConfigurationError
from tests import landed
from tests.reports import report

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


class Greeting(ConfigurableResource[Any]):
    """A resource that a transform asks for."""

    text: str


@pytest.fixture
def source(kafka, topic):
    kafka.create(topic, partitions=2)
    kafka.produce(topic, [("a", '{"n": 1}'), ("b", '{"n": 2}')], partition=0, timestamp=1_700_000_000_000)
    kafka.produce(topic, [("c", '{"n": 3}')], partition=1, timestamp=1_700_000_005_000)
    return KafkaSource.builder().set_topics(topic).build()


def run(asset: AssetsDefinition, instance: DagsterInstance, resources: Any, **config: Any) -> dict[str, Any]:
    """Runs one asset and gives the metadata of what it reports."""
    run_config = {"ops": {asset.op.name: {"config": config}}} if config else None
    return report(materialize([asset], instance=instance, resources=resources, run_config=run_config))


def test_a_schema_whose_names_match_nothing_is_reported_and_fails_a_check(spark, instance, resources, source, table):
    def land(schema, into=table):
        asset = build_kafka_delta_asset(name="numbers", source=source, table=into, value_format=JsonFormat(schema))
        result = materialize([asset], instance=instance, resources=resources)
        (check,) = result.get_asset_check_evaluations()
        assert (check.check_name, check.severity) == ("schema_fits", AssetCheckSeverity.WARN)
        return report(result), check

    metadata, check = land("number INT, m STRING")
    assert (metadata["kafka/fields_never_seen"], metadata["kafka/undeclared_fields"]) == ("number, m", "n")
    assert check.description == "none of 3 records has number, m; undeclared fields: n."
    assert not check.passed
    # A run that reads nothing has not found it right.
    again = land("number INT, m STRING")[1]
    assert (again.passed, again.metadata["unchanged"].value) == (False, True)

    spark.sql(f"RESTORE delta.`{table}` TO VERSION AS OF 0")
    metadata, check = land("n INT", DeltaTarget(table=table, schema_evolution=True))
    assert check.passed
    assert not [name for name in metadata if "fields" in name]
    assert landed.values(table, "n") == [1, 2, 3]


def test_metadata_of_the_first_the_second_and_the_idle_run(
    kafka, spark, instance, resources, source, topic, table, monkeypatch
):
    asset = build_kafka_delta_asset(name="numbers", source=source, table=table, value_format=JsonFormat("n INT"))

    first = run(asset, instance, resources)
    assert first["kafka/records_read"] == 3
    assert first["kafka/bytes_read"] == 3 * (1 + len('{"n": 1}'))
    assert (first["kafka/lag_before"], first["kafka/lag_after"]) == (3, 0)
    assert (first["dagster/row_count"], first["delta/rows_written"], first["delta/commits"]) == (3, 3, 1)
    assert first["delta/version"] == 1
    assert first["kafka/idle"] is False
    assert first["dagster/uri"] == f"file://{table}" or first["dagster/uri"].endswith(table)
    assert first["kafka/watermark"] == pytest.approx(1_700_000_000.0), "the lowest of the highest timestamps"
    assert first["kafka/checkpoint"]["state"]["position"] == {topic: [2, 1]}
    assert list(first)[:5] == [
        "kafka/records_read",
        "delta/rows_written",
        "kafka/rejected_records",
        "kafka/lag_after",
        "seconds/total",
    ], "what matters first, at the top of the page"
    assert [name for name in first if name != "dagster/column_lineage"][-1] == "kafka/checkpoint"
    assert {"seconds/plan", "seconds/read_and_write", "seconds/commit", "seconds/spark_start"} <= first.keys()
    assert [tuple(record.data.values()) for record in first["kafka/position"].records] == [
        (f"{topic}-0", 2, 2, 0),
        (f"{topic}-1", 1, 1, 0),
    ]
    schema = first["dagster/column_schema"]
    assert isinstance(schema, TableSchema)
    assert schema.columns[0] == TableColumn("n", "int")

    kafka.produce(topic, [("d", '{"n": 4}')], partition=1)
    second = run(asset, instance, resources)
    assert (second["kafka/records_read"], second["dagster/row_count"]) == (1, 4)

    monkeypatch.setattr(SparkResource, "session", lambda self: pytest.fail("an idle run started Spark"))
    idle = run(asset, instance, resources)
    assert idle["kafka/idle"] is True
    assert idle["spark/started"] is False
    assert (idle["kafka/records_read"], idle["delta/commits"], idle["delta/rows_written"]) == (0, 0, 0)
    assert {name for name in idle if name.startswith("seconds/")} == {"seconds/plan", "seconds/total"}
    assert "kafka/records_per_second" not in idle
    assert (idle["delta/version"], idle["dagster/row_count"]) == (second["delta/version"], 4)
    assert idle["dagster/column_schema"] == schema
    assert idle["kafka/checkpoint"] == second["kafka/checkpoint"]


def test_the_data_version_changes_with_the_position_alone(kafka, instance, resources, source, topic, table):
    asset = build_kafka_delta_asset(name="versions", source=source, table=table)

    def version():
        record = instance.get_latest_data_version_record(AssetKey("versions"))
        assert record is not None
        assert record.asset_materialization is not None
        return (record.asset_materialization.tags or {})["dagster/data_version"]

    run(asset, instance, resources)
    first = version()
    run(asset, instance, resources)
    assert version() == first
    kafka.produce(topic, [("k", "v")])
    run(asset, instance, resources)
    assert version() != first


def test_an_idle_run_sets_off_nothing_downstream_unless_it_is_to_materialize(
    kafka, topic, instance, resources, source, table
):
    def project(**options: Any) -> Any:
        made = build_kafka_delta_asset(name="landed", source=source, table=table, **options)

        @asset(deps=["landed"], automation_condition=AutomationCondition.eager())
        def downstream() -> None:
            pass

        return made, downstream

    cursor = None

    def run(landed: Any, downstream: Any, *, together: bool = False, **config: Any) -> tuple[bool, int]:
        """Whether the table was materialized, and how many runs of the asset downstream are then asked for."""
        nonlocal cursor
        result = materialize(
            [landed, downstream],
            instance=instance,
            resources=resources,
            selection=None if together else [landed.key],
            run_config={"ops": {"landed": {"config": config}}},
        )
        assert result.success
        defs = Definitions(assets=[landed, downstream], resources=resources)
        evaluated = evaluate_automation_conditions(defs, instance, cursor=cursor)
        cursor = evaluated.cursor
        keys = {event.asset_key for event in result.get_asset_materialization_events()}
        assert together or AssetKey("downstream") not in keys
        return landed.key in keys, evaluated.total_requested

    skipping = project()
    run(*skipping, together=True)
    assert [run(*skipping), run(*skipping, verify=True)] == [(False, 0), (False, 0)]
    assert run(*skipping, together=True) == (False, 0), "in one run, the asset downstream is skipped"
    (observed,) = instance.fetch_observations(landed_key := AssetKey("landed"), limit=1).records
    assert observed.asset_observation is not None
    assert observed.asset_observation.metadata["kafka/lag_after"].value == 0
    assert len(instance.fetch_materializations(landed_key, limit=9).records) == 1
    # What an idle run has looked up needs no other look.
    assert read_record(instance, landed_key).known is not None
    kafka.produce(topic, [("k", "v")])
    assert [run(*skipping), run(*skipping)] == [(True, 1), (False, 0)]
    assert run(*project(on_idle="materialize")) == (True, 1)


def test_verify_looks_at_the_table_even_if_nothing_seems_new(instance, resources, source, table):
    asset = build_kafka_delta_asset(name="verified", source=source, table=table)
    run(asset, instance, resources)
    verified = run(asset, instance, resources, verify=True)
    assert (verified["kafka/idle"], verified["spark/started"]) == (True, True)


def test_wiped_materializations_lose_nothing_and_double_nothing(spark, instance, resources, source, table):
    asset = build_kafka_delta_asset(name="wiped", source=source, table=table)
    run(asset, instance, resources)
    instance.wipe_assets([AssetKey("wiped")])
    again = run(asset, instance, resources)
    assert (again["kafka/idle"], again["spark/started"], again["dagster/row_count"]) == (True, True, 3)
    assert landed.count(table) == 3


def test_a_transform_gets_records_context_and_resources(spark, instance, resources, source, table):
    seen = {}

    @kafka_delta_asset(source=source, table=table, value_format=JsonFormat("n INT"), key_format=StringFormat())
    def greeted(context, records, greeting: Greeting):
        """Greets each number."""
        seen["key"] = context.asset_key
        return records.selectExpr("n", f"concat('{greeting.text} ', kafka_key) AS greeting", "kafka_offset").where(
            "n > 1"
        )

    metadata = run(greeted, instance, {**resources, "greeting": Greeting(text="hello")})
    assert (metadata["kafka/records_read"], metadata["delta/rows_written"]) == (3, 2)
    assert seen["key"] == AssetKey("greeted")
    assert landed.values(table, "greeting") == ["hello b", "hello c"]
    assert greeted.descriptions_by_key[AssetKey("greeted")] == "Greets each number."


def test_run_config_overrides_start_stop_and_limits_for_one_run(spark, instance, resources, source, topic, table):
    asset = build_kafka_delta_asset(name="overridden", source=source, table=table)
    part = run(asset, instance, resources, stop=f'offsets:{{"{topic}": {{"0": 1, "1": 0}}}}')
    assert part is not None
    assert (part["delta/rows_written"], part["kafka/lag_after"]) == (1, 2)
    small = run(asset, instance, resources, max_records_per_batch=1)
    assert small is not None
    assert (small["delta/rows_written"], small["delta/commits"]) == (2, 2)
    again = run(asset, instance, resources, start="earliest")
    assert (again["delta/rows_written"], again["kafka/start_overridden"]) == (3, True)
    assert again["dagster/row_count"] == 6


@pytest.mark.parametrize("is_undone", [False, True])
def test_a_retry_of_a_run_with_a_start_goes_on_where_it_stopped(spark, instance, resources, source, table, is_undone):
    """A RESTORE that undid what the first try landed has the start looked at again."""
    failures = [RuntimeError("once")]

    def fails_once(records):
        if failures and landed.count(table) == 4:
            if is_undone:
                spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {before}")
            raise failures.pop()
        return records

    options: dict[str, Any] = {"limits": Limits(max_records_per_batch=1), "retry_policy": RetryPolicy(max_retries=1)}
    run(build_kafka_delta_asset(name="retried", source=source, table=table), instance, resources)
    before = landed.version(table)
    asset = kafka_delta_asset(name="retried", source=source, table=table, **options)(fails_once)
    retried = run(asset, instance, resources, start="earliest")

    assert not failures
    assert retried is not None
    assert ("kafka/start_overridden" in retried) == is_undone
    assert retried["dagster/row_count"] == 6, "each record once more"


def test_lineage_kinds_and_table_metadata(source, topic, table):
    by_path = build_kafka_delta_asset(name="by_path", source=source, table=table)
    by_name = build_kafka_delta_asset(name="by_name", source=source, table="lake.numbers")
    spec = by_path.specs_by_key[AssetKey("by_path")]
    assert [dep.asset_key for dep in spec.deps] == [topic_asset_key(topic)]
    assert spec.kinds == {"deltalake", "spark"}
    assert spec.metadata["dagster/uri"] == f"file://{table}"
    named = by_name.specs_by_key[AssetKey("by_name")]
    assert [(each.metadata["dagster/storage_kind"], each.metadata["dagster/table_name"]) for each in (spec, named)] == [
        ("deltalake", f"delta.`{table}`"),
        ("deltalake", "lake.numbers"),
    ]
    topics = kafka_topic_asset(source)
    assert topics.specs_by_key[topic_asset_key(topic)].kinds == {"kafka"}


def test_a_source_of_a_named_cluster_is_read_from_there_and_its_topics_are_assets_of_their_own(
    broker, instance, source, topic, table
):
    clusters = {"eu": KafkaClusterConfig(bootstrap_servers=broker)}
    resources = {"kafka": KafkaResource(clusters=clusters), "spark": SparkResource()}
    of_eu = source.model_copy(update={"cluster": "eu"})
    asset = build_kafka_delta_asset(name="eu_numbers", source=of_eu, table=table)
    metadata = run(asset, instance, resources)
    assert metadata["delta/rows_written"] == 3
    topics = kafka_topic_asset(of_eu)
    assert asset.asset_deps[asset.key] == topics.keys == {AssetKey(["kafka", "eu", topic])}
    observed = observe([topics], instance=instance, resources=resources)
    (observation,) = observed.asset_observations_for_node(topics.op.name)
    assert observation.metadata["kafka/offset_span"].value == 3
    with pytest.raises(
        ConfigurationError, match="the source reads the cluster 'us', but the clusters of the KafkaResource are 'eu'"
    ):
        run(
            build_kafka_delta_asset(name="us", source=source.model_copy(update={"cluster": "us"}), table=table),
            instance,
            resources,
        )


def test_the_literal_metadata_keys_are_dagsters_own():
    from dagster._core.definitions.metadata.metadata_set import TableMetadataSet, UriMetadataSet

    def keys(metadata_set: Any):
        return {f"{metadata_set.namespace()}/{field}" for field in metadata_set.model_fields}

    assert {"dagster/row_count", "dagster/column_schema", "dagster/table_name", "dagster/storage_kind"} <= keys(
        TableMetadataSet
    )
    assert "dagster/uri" in keys(UriMetadataSet)


def test_a_pattern_is_one_topic_asset_upstream_and_its_runs_tell_what_came_and_went(
    kafka, instance, resources, topic, table
):
    source = KafkaSource(topic_pattern=rf"{topic}\.(eu|us)")
    kafka.create(f"{topic}.eu")
    kafka.produce(f"{topic}.eu", [("a", "1")] * 2)
    limits = Limits(max_bytes_per_batch=1000, max_records_per_batch=1)
    asset = build_kafka_delta_asset(name="orders", source=source, table=table, limits=limits)
    topics = kafka_topic_asset(source)
    (key,) = topics.keys
    assert key == AssetKey(["kafka", f"{topic}_._eu_us_"])
    assert asset.asset_deps[AssetKey("orders")] == {key}

    first = run(asset, instance, resources)
    assert (first["delta/rows_written"], first["delta/commits"], first["kafka/tasks"]) == (2, 2, 2)
    assert not {"kafka/discovered", "kafka/removed"} & first.keys()
    kafka.create(f"{topic}.us", partitions=2)
    kafka.produce(f"{topic}.us", [("a", "1")], partition=1)
    second = run(asset, instance, resources, max_records_per_batch=10, max_bytes_per_batch=10)
    assert second["kafka/discovered"] == f"{topic}.us-0, {topic}.us-1"
    kafka.delete(f"{topic}.us")
    third = run(asset, instance, resources)
    assert third is not None
    assert third["kafka/removed"] == f"{topic}.us-0, {topic}.us-1"

    observed = observe([topics], instance=instance, resources=resources)
    (observation,) = observed.asset_observations_for_node(topics.op.name)
    assert observation.metadata["kafka/topics"].value == 1
    assert observation.metadata["kafka/offset_span"].value == 2


def test_an_asset_is_in_the_pool_of_its_table_unless_it_names_another(source):
    def pool(**options):
        return build_kafka_delta_asset(name="pooled", source=source, **options).op.pool

    assert pool(table="warehouse/my flights") == f"delta:{os.path.realpath('warehouse')}/my_flights"
    assert pool(table="lake.flights", pool="lake") == "lake"
