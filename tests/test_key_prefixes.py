"""Assets and checks work under the keys that they have in a code location, whatever they were defined with."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
from dagster import (
    AssetCheckKey,
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    AssetSelection,
    DagsterInstance,
    Definitions,
    TableColumn,
    TableSchema,
    define_asset_job,
    load_asset_checks_from_modules,
    load_assets_from_modules,
)
from dagster._core.definitions.observe import observe

from dagster_kafka_flip import (
    DeltaSource,
    JsonFormat,
    JsonSerializer,
    KafkaResource,
    KafkaSink,
    KafkaSource,
    SparkResource,
    build_delta_kafka_asset,
    build_kafka_delta_asset,
    delta_kafka_checks,
    kafka_delta_checks,
    kafka_topic_asset,
)
from dagster_kafka_flip.assets.registry import ingestions_of
from dagster_kafka_flip.errors import RowMisplacedError
from tests.kafka_topic import Kafka


def module(**definitions: Any) -> ModuleType:
    made = ModuleType("definitions")
    vars(made).update(definitions)
    return made


@pytest.mark.kafka
def test_topics_are_observed(kafka: Kafka, broker: str, instance: DagsterInstance, topic: str):
    kafka.create(topic)
    kafka.create(f"{topic}.eu")
    kafka.produce(topic, [("a", "1")])
    kafka.produce(f"{topic}.eu", [("a", "1")] * 2)
    named = kafka_topic_asset([topic, f"{topic}-missing"])
    pattern = kafka_topic_asset(KafkaSource(topic_pattern=rf"{topic}\.(eu|us)"))
    assets = load_assets_from_modules([module(named=named, pattern=pattern)], key_prefix="lake")
    resources = {"kafka": KafkaResource(bootstrap_servers=broker)}
    assert observe(cast("Any", assets), instance=instance, resources=resources).success

    def observed(name: str) -> dict[str, Any]:
        (record,) = instance.fetch_observations(AssetKey(["lake", "kafka", name]), limit=10).records
        assert record.asset_observation is not None
        return {name: value.value for name, value in record.asset_observation.metadata.items()}

    assert observed(topic)["kafka/offset_span"] == 1
    assert observed(f"{topic}-missing") == {"kafka/topics": 0}
    assert observed(f"{topic}_._eu_us_")["kafka/offset_span"] == 2


def test_checks_look_at_the_runs_of_their_asset(instance: DagsterInstance):
    landed = build_kafka_delta_asset(
        name="landed", source="orders", table="lake/landed", value_format=JsonFormat("n INT", on_error="null")
    )
    sink = KafkaSink(
        topic="out",
        transactional_id_prefix="out",
        key=JsonSerializer(columns=("id",)),
        tolerate=(RowMisplacedError,),
    )
    published = build_delta_kafka_asset(source=DeltaSource(table="lake/landed"), sink=sink)
    off: dict[str, Any] = dict.fromkeys(("gaps", "duplicates", "identity", "schema"), False)
    modules = [
        module(
            assets=[landed, published],
            checks=[
                *kafka_delta_checks(landed, **off, max_rejected=0),
                *delta_kafka_checks(published, equals_table=False),
            ],
        )
    ]
    names = {"no_records_rejected_lately": ["lake", "landed"], "no_rows_left_out": ["lake", "kafka", "out"]}
    metadata = {
        "kafka/rejected_records": 3,
        "kafka/idle": False,
        "kafka/sink": "out",
        "kafka/rows_left_out": 3,
        "kafka/rows_left_out_by_error": {"RowMisplacedError": 3},
    }
    for key in names.values():
        instance.report_runless_asset_event(AssetMaterialization(key, metadata=metadata))
    selection = AssetSelection.checks(*(AssetCheckKey(AssetKey(key), name) for name, key in names.items()))
    job = Definitions(
        assets=load_assets_from_modules(modules, key_prefix="lake"),
        asset_checks=load_asset_checks_from_modules(modules, asset_key_prefix="lake"),
        resources={"kafka": KafkaResource(bootstrap_servers="127.0.0.1:1"), "spark": SparkResource()},
        jobs=[define_asset_job("checks", selection)],
    ).resolve_job_def("checks")
    found = job.execute_in_process(instance=instance).get_asset_check_evaluations()
    assert {(each.check_name, each.asset_key, each.passed) for each in found} == {
        (name, AssetKey(key), False) for name, key in names.items()
    }
    numbers = {each.check_name: each.metadata for each in found}
    assert numbers["no_records_rejected_lately"]["rejected_records"].value == 3
    assert numbers["no_rows_left_out"]["rows_left_out"].value == 3


def test_columns_come_from_the_topics_of_the_code_location():
    landed = build_kafka_delta_asset(name="landed", source=["orders", "returns"], table="lake/landed")
    loaded = load_assets_from_modules([module(landed=landed, topic=kafka_topic_asset("orders"))], key_prefix="lake")
    (asset,) = (each for each in loaded if isinstance(each, AssetsDefinition) and ingestions_of(each))
    context: Any = SimpleNamespace(assets_def=asset)
    schema = TableSchema(columns=[TableColumn("kafka_key", "binary")])
    ingestion = ingestions_of(asset)[asset.key]
    lineage = ingestion._with_columns(context, asset.key, {"dagster/column_schema": schema})["dagster/column_lineage"]
    # The other topic has no asset here.
    assert {dep.asset_key.to_user_string() for dep in lineage.deps_by_column["kafka_key"]} == {
        "lake/kafka/orders",
        "kafka/returns",
    }
