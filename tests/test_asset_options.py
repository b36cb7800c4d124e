"""What is said of an asset reaches Dagster, and takes effect there."""

from __future__ import annotations

import inspect
import json
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import dagster
import pytest
from dagster import (
    AssetKey,
    AssetsDefinition,
    AutomationCondition,
    BackfillPolicy,
    BetaWarning,
    DailyPartitionsDefinition,
    Definitions,
    FreshnessPolicy,
    LocalFileCodeReference,
    RetryPolicy,
    with_source_code_references,
)

from dagster_kafka_flip import (
    AssetOptions,
    DeltaTarget,
    KafkaSource,
    Limits,
    build_kafka_delta_asset,
    kafka_delta_asset,
    topic_asset_key,
)
from dagster_kafka_flip.errors import ConfigurationError

SOURCE = KafkaSource.builder().set_topics("orders").build()


def test_dagsters_own_options_are_passed_on():
    condition, policy = AutomationCondition.eager(), FreshnessPolicy.time_window(fail_window=timedelta(hours=1))
    retries, partitions = RetryPolicy(max_retries=2), DailyPartitionsDefinition("2026-01-01")
    pod = {"dagster-k8s/config": {"container_config": {"resources": {"requests": {"cpu": "4"}}}}}
    backfills = BackfillPolicy.multi_run(max_partitions_per_run=7)
    made = build_kafka_delta_asset(
        source=SOURCE,
        table="lake.orders",
        name="orders",
        key_prefix=["lake", "bronze"],
        deps=["customers"],
        description="Orders as they come.",
        group_name="shop",
        owners=["team:data", "me@example.com"],
        tags={"tier": "1"},
        metadata={"sla": "1 h"},
        kinds={"bronze"},
        automation_condition=condition,
        freshness_policy=policy,
        retry_policy=retries,
        pool="lake",
        op_tags=pod,
        code_version="3",
        partitions_def=partitions,
        backfill_policy=backfills,
    )
    key = AssetKey(["lake", "bronze", "orders"])
    spec = Definitions(assets=[made]).get_assets_def(key).specs_by_key[key]
    assert {dep.asset_key for dep in spec.deps} == {topic_asset_key("orders"), AssetKey("customers")}
    assert (spec.description, spec.group_name, spec.code_version) == ("Orders as they come.", "shop", "3")
    assert spec.owners == ["team:data", "me@example.com"]
    assert spec.tags["tier"] == "1"
    assert spec.kinds == {"bronze", "deltalake", "spark"}
    assert spec.metadata["sla"] == "1 h"
    assert spec.automation_condition == condition
    assert spec.freshness_policy == policy
    assert spec.partitions_def == partitions
    assert made.backfill_policy == backfills
    assert (made.op.retry_policy, made.op.pool) == (retries, "lake")
    assert json.loads(made.op.tags["dagster-k8s/config"]) == pod["dagster-k8s/config"]


def test_the_decorator_has_few_parameters_of_its_own_and_those_of_dagsters_asset():
    own = set(inspect.signature(kafka_delta_asset).parameters) - {"asset_options"}
    dagsters = set(AssetOptions.__annotations__)
    assert len(own) <= 14
    assert not own & {*dagsters, *DeltaTarget.model_fields, *Limits.model_fields} - {"table"}
    assert dagsters - set(inspect.signature(dagster.asset).parameters) == set()


@pytest.mark.parametrize("option", sorted(AssetOptions.__annotations__))
def test_every_option_of_dagsters_is_checked_and_may_be_none(option):
    wrong: dict[str, Any] = {"name": "orders", option: 5}
    with pytest.raises(ConfigurationError, match=rf"Dagster can't create the asset|{option}|not supported"):
        build_kafka_delta_asset(source=SOURCE, table="lake.orders", **wrong)
    absent: dict[str, Any] = {"key" if option == "name" else "name": "orders", option: None}
    build_kafka_delta_asset(source=SOURCE, table="lake.orders", **absent)


def test_on_idle_has_two_values():
    with pytest.raises(ConfigurationError, match=r"^on_idle: 'nothing' is not materialize or skip$"):
        build_kafka_delta_asset(source=SOURCE, table="lake.orders", name="orders", on_idle=cast("Any", "nothing"))


def test_code_references_lead_to_the_users_own_function():
    @kafka_delta_asset(source=SOURCE, table="lake.orders")
    def orders(records):
        return records

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BetaWarning)
        (referenced,) = with_source_code_references([orders])
    assert isinstance(referenced, AssetsDefinition)
    metadata = referenced.metadata_by_key[AssetKey("orders")]["dagster/code_references"]
    (reference,) = metadata.code_references
    assert isinstance(reference, LocalFileCodeReference)
    assert Path(reference.file_path) == Path(__file__)
    first_lines, start = inspect.getsourcelines(test_code_references_lead_to_the_users_own_function)
    assert reference.line_number == start + next(
        number for number, line in enumerate(first_lines) if "@kafka_delta_asset" in line
    )
