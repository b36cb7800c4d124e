"""What users get wrong in the config of one run: an error that names the field, before Kafka or Spark is asked."""

# Every config here is wrong on purpose.
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import Any

import pytest
from dagster import AssetsDefinition, DagsterInstance, DailyPartitionsDefinition, EnvVar, RunConfig, materialize
from dagster._config.field_utils import IntEnvVar

from dagster_kafka_flip import (
    DeltaTarget,
    IngestRunConfig,
    KafkaDeltaTable,
    KafkaResource,
    KafkaSource,
    SparkResource,
    Upsert,
    WindowsRunConfig,
    build_kafka_delta_asset,
    build_kafka_delta_multi_asset,
)
from dagster_kafka_flip.errors import ClusterUnreachableError, ConfigurationError

_SOURCE = KafkaSource(topics=("orders",))
_STREAM = build_kafka_delta_asset(name="orders", source=_SOURCE, table="lake/orders")
_DAYS = build_kafka_delta_asset(
    name="orders", source=_SOURCE, table="lake/days", partitions_def=DailyPartitionsDefinition("2026-01-01")
)
_SEVERAL = build_kafka_delta_multi_asset(
    name="orders",
    source=_SOURCE,
    tables=[KafkaDeltaTable(spec="one", table="lake/one"), KafkaDeltaTable(spec="other", table="lake/other")],
)
_NEW_YEAR, _DAY_AFTER = "timestamp:2026-01-01T00:00:00Z", "timestamp:2026-01-02T00:00:00Z"
_REPLACE = {"mode": "replace", "start": _NEW_YEAR, "stop": _DAY_AFTER}


def run(asset: AssetsDefinition, config: Any, instance: DagsterInstance) -> None:
    """Materializes an asset. Nothing listens on port 1: whoever asked Kafka or Spark would fail by another error."""
    materialize(
        [asset],
        resources={
            "kafka": KafkaResource(bootstrap_servers="127.0.0.1:1", request_timeout=0.5),
            "spark": SparkResource(remote="sc://127.0.0.1:1"),
        },
        instance=instance,
        run_config=config if isinstance(config, RunConfig) else {"ops": {"orders": {"config": config}}},
        partition_key="2026-01-01" if asset is _DAYS else None,
    )


@pytest.mark.parametrize(("asset", "config"), [(_STREAM, {"start": "latest"}), (_SEVERAL, {}), (_DAYS, {})])
def test_a_right_config_gets_as_far_as_kafka(asset, config, instance):
    with pytest.raises(ClusterUnreachableError):
        run(asset, config, instance)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"start": ""}, "start: invalid offsets ''; write earliest, latest, committed, "),
        ({"start": 'offsets:{"payments": {"0": 1}}'}, "start: the offsets name payments-0, but the source reads"),
        ({"stop": "earliest"}, "stop: earliest is not a valid stop: nothing would ever be read"),
        ({"start": _DAY_AFTER, "stop": _NEW_YEAR}, "start: the start timestamp:1767312000000 is after the stop"),
        ({"max_records_per_batch": 0}, "max_records_per_batch: must be greater than or equal to 1"),
        ({"verify": None}, "invalid IngestRunConfig: verify: expected true or false"),
        ({"mode": "replace"}, "mode: replace needs start and stop as timestamps, such as timestamp:2026-01-31T"),
        ({**_REPLACE, "stop": _NEW_YEAR}, "ends at 2026-01-01T00:00:00Z, which is not after its start"),
        ({**_REPLACE, "max_batches": 5, "max_bytes_per_batch": 5}, "max_bytes_per_batch, max_batches: not allowed"),
        ({**_REPLACE, "time_column": ""}, "time_column: empty"),
        ({"time_column": "at"}, "time_column: only for mode: replace; remove it, or set the mode"),
        ({"tolerate": ["ConfigurationError"]}, "tolerate: ConfigurationError can't be tolerated; allowed: "),
    ],
)
def test_a_wrong_value_for_a_stream_is_reported_with_its_field(config, message, instance):
    with pytest.raises(ConfigurationError) as error:
        run(_STREAM, config, instance)
    assert message in str(error.value)


def test_a_run_of_a_table_with_a_key_tolerates_no_more_than_its_asset_could(instance):
    keyed = build_kafka_delta_asset(
        name="orders", source=_SOURCE, table=DeltaTarget(table="lake/keyed", mode=Upsert(key=("kafka_key",)))
    )
    with pytest.raises(ConfigurationError, match="TopicRecreatedError can't be tolerated with Upsert"):
        run(keyed, {"tolerate": ["TopicRecreatedError"]}, instance)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"tolerate": ["WindowBeyondRetentionEror"]}, "tolerate: unknown error 'WindowBeyondRetentionEror'; did you"),
        ({"tolerate": ["ConfigurationError"]}, "tolerate: ConfigurationError can't be tolerated; allowed: "),
    ],
)
def test_a_wrong_value_for_partitions_is_reported_with_its_field(config, message, instance):
    with pytest.raises(ConfigurationError) as error:
        run(_DAYS, config, instance)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        (IngestRunConfig, {"startt": "earliest"}, "startt: unknown field; did you mean start?"),
        (IngestRunConfig, {"start": 5}, "invalid IngestRunConfig: start: expected a string"),
        (IngestRunConfig, {"max_batches": True}, "invalid IngestRunConfig: max_batches: expected a whole number"),
        (IngestRunConfig, {"mode": "replce"}, "mode: must be 'append' or 'replace'"),
        (WindowsRunConfig, {"tolerate": "TopicNotFoundError"}, "invalid WindowsRunConfig: tolerate: expected a list"),
    ],
)
def test_a_wrong_run_config_in_python_is_reported_where_it_is_made(kind, config, message):
    with pytest.raises(ConfigurationError) as error:
        kind(**config)
    assert message in str(error.value)


def test_environment_variables_are_read_when_the_run_begins(instance, monkeypatch):
    variables = {"start": EnvVar("START"), "stop": EnvVar("STOP"), "max_records_per_batch": IntEnvVar.create("MOST")}
    config = RunConfig(ops={"orders": IngestRunConfig(mode="replace", **variables)})

    def failure(**values: str) -> str:
        for name, value in {"START": _NEW_YEAR, "STOP": _DAY_AFTER, "MOST": "5", **values}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises((ConfigurationError, ClusterUnreachableError)) as error:
            run(_STREAM, config, instance)
        return str(error.value)

    assert "start: invalid offsets 'earlest'" in failure(START="earlest")
    assert "which is not after its start" in failure(STOP=_NEW_YEAR)
    assert "max_records_per_batch: must be greater than or equal to 1" in failure(MOST="0")
    assert "did not return" in failure()
