"""Assets and resources defined in a defs.yaml, in a project on disk."""

from __future__ import annotations

import inspect
import json
import re
from datetime import timedelta
from typing import Any

import pytest
from dagster import (
    AssetKey,
    AssetSpec,
    AutomationCondition,
    Backoff,
    DailyPartitionsDefinition,
    Definitions,
    FreshnessPolicy,
    MultiPartitionsDefinition,
    RetryPolicy,
    StaticPartitionsDefinition,
)
from dagster.components.testing import create_defs_folder_sandbox

import dagster_kafka_flip
from dagster_kafka_flip import (
    Append,
    AssetOptions,
    CsvFormat,
    DeadLetters,
    DeltaTarget,
    JsonFormat,
    KafkaColumns,
    KafkaDeltaComponent,
    KafkaResource,
    KafkaSource,
    Limits,
    OffsetsInitializer,
    Scd2,
    StringFormat,
    TopicPartition,
    Upsert,
    Windows,
    build_kafka_delta_asset,
    kafka_delta_asset,
    kafka_delta_checks,
    kafka_delta_maintenance,
)
from dagster_kafka_flip.assets.asset_ingestion import Ingestion
from dagster_kafka_flip.assets.asset_options import MaterializedOptions
from dagster_kafka_flip.assets.registry import ingestions_of
from dagster_kafka_flip.errors import TopicNotFoundError

DELTA = "type: dagster_kafka_flip.KafkaDeltaComponent\nattributes:\n"
RESOURCES = """\
type: dagster_kafka_flip.KafkaResourcesComponent
attributes:
  kafka:
    bootstrap_servers: "{{ env.TEST_KAFKA }}"
  spark: {}
"""
SOURCE = "  source: {topics: [flights]}\n"
FLIGHTS = SOURCE + "  table: lake/flights\n"


def load(**files: str) -> Definitions:
    """The definitions of a project whose folders have these files."""
    with create_defs_folder_sandbox() as sandbox:
        for folder, text in files.items():
            (sandbox.defs_folder_path / folder).mkdir()
            (sandbox.defs_folder_path / folder / "defs.yaml").write_text(text)
        with sandbox.build_all_defs() as defs:
            return defs


@pytest.fixture(autouse=True)
def address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KAFKA", "127.0.0.1:1")


def landed(attributes: str) -> tuple[Ingestion, AssetSpec]:
    """What the only asset of a defs.yaml lands, and how it is described."""
    defs = load(resources=RESOURCES, landed=DELTA + "  observe_topics: false\n" + attributes)
    (spec,) = (spec for spec in defs.resolve_all_asset_specs() if "deltalake" in spec.kinds)
    return ingestions_of(defs.resolve_assets_def(spec.key))[spec.key], spec


def keys(defs: Definitions) -> set[str]:
    return {spec.key.to_user_string() for spec in defs.resolve_all_asset_specs()}


def refusal(attributes: str) -> str:
    """What is said of a defs.yaml that can't be."""
    return whole_refusal(landed=DELTA + attributes)


def whole_refusal(**files: str) -> str:
    """What is said of a project that can't be."""
    with pytest.raises(Exception, match="Error while") as caught:
        load(**files)
    error: BaseException = caught.value
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)


def test_the_attributes_are_the_options_of_the_decorator():
    attributes = set(KafkaDeltaComponent.model_fields)
    named = set(inspect.signature(kafka_delta_asset).parameters) - {"asset_options"}
    assert attributes - {"checks", "maintenance", "observe_topics", "connection"} == named | set(
        AssetOptions.__annotations__
    )
    schema = KafkaDeltaComponent.model().model_json_schema()
    assert [name for name, field in schema["properties"].items() if not field.get("description")] == []
    assert schema["required"] == ["source", "table"]


def test_the_settings_of_a_table_and_of_batches_are_those_of_the_classes():
    schemas = KafkaDeltaComponent.model().model_json_schema()["$defs"]
    for settings in (DeltaTarget, Limits):
        assert set(schemas[f"{settings.__name__}Attributes"]["properties"]) == set(settings.model_fields)


def test_the_attributes_of_a_source_are_its_fields():
    schema = KafkaDeltaComponent.model().model_json_schema()["$defs"]["KafkaSourceAttributes"]["properties"]
    assert set(KafkaSource.model_fields) - set(schema) == {"connection", "overrides_position"}


def test_a_mode_is_a_setting_of_the_table():
    def table(mode, path="lake/flights"):
        formats = "  value_format: {type: json, schema: 'id INT, b INT'}\n"
        return SOURCE + formats + f"  table:\n    table: '{path}'\n    properties: {{a: 1}}\n    mode: {mode}\n"

    target = DeltaTarget(table="lake/flights", properties={"a": "1"}, mode=Upsert(key=("id", "b")))
    assert landed(table("{type: upsert, key: [id, b]}"))[0].target == target
    assert landed(table("{type: upsert, key: [id, b]}", "lake/{topic}"))[0].target == target
    soft = Upsert(key=("id",), order_by="b", soft_delete=True)
    for mode, text in (
        (soft, "{type: upsert, key: [id], order_by: b, soft_delete: true}"),
        (Scd2(key=("id",)), "{type: scd2, key: [id]}"),
    ):
        assert landed(table(text))[0].target == target.model_copy(update={"mode": mode})
    assert landed(table("{type: append}"))[0].target == target.model_copy(update={"mode": Append()})
    for wrong, reported in (
        ("upsert", "mode"),
        ("{type: merge}", "set its type (append, upsert, scd2)"),
        ("{type: upsert, key: []}", "at least one"),
        ("{type: upsert, key: [id], order_by: b}", "order_by needs soft_delete"),
    ):
        assert reported in refusal(table(wrong))


def test_every_format_has_a_type():
    classes = (name.removesuffix("Format") for name in dagster_kafka_flip.__all__ if name.endswith("Format"))
    names = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in classes}
    schemas = KafkaDeltaComponent.model().model_json_schema()["$defs"]
    types = {one["properties"]["type"]["const"] for name, one in schemas.items() if name.endswith("FormatAttributes")}
    assert types == names - {""}
    # Of this one, the class has another name for the schema.
    assert "descriptor_set" in schemas["ProtobufFormatAttributes"]["properties"]


def test_omitted_options_have_the_decorators_defaults():
    ingestion, spec = landed(FLIGHTS)

    @kafka_delta_asset(source=KafkaSource(topics=("flights",)), table="lake/flights")
    def as_decorated(records: Any) -> Any:
        return records

    expected = ingestions_of(as_decorated)[as_decorated.key]
    names = ("source", "target", "limits", "on_idle", "verify_after", "kafka", "spark", "decoder", "dead_letter")
    assert {name: getattr(ingestion, name) for name in names} == {name: getattr(expected, name) for name in names}
    assert spec.key == AssetKey("landed"), "the folder's name"


def test_a_source_may_be_the_options_of_flinks_table():
    ingestion, _ = landed("""
  source:
    options:
      connector: kafka
      topic: flights
      properties.group.id: "007"
      properties.fetch.max.wait.ms: 250
      scan.startup.mode: specific-offsets
      scan.startup.specific-offsets: partition:0,offset:42
  table: lake/flights
  value_format: {type: csv, schema: "carrier STRING", delimiter: ";", quote: null, null_literal: ""}
""")
    assert ingestion.source == KafkaSource(
        topics=("flights",),
        group_id="007",
        properties={"fetch.max.wait.ms": "250"},
        starting_offsets=OffsetsInitializer.specific_offsets({("flights", 0): 42}),
    )
    assert ingestion.decoder.value_format == CsvFormat("carrier STRING", delimiter=";", quote=None, null_literal="")


def test_every_attribute_of_a_stream_takes_effect():
    ingestion, spec = landed("""
  source:
    partitions: {flights: [0, 2]}
    starting_offsets: 'offsets:{"flights": {"2": 17}}'
    stopping_offsets: timestamp:2026-01-31T00:00:00Z
    group_id: "007"
    commit_offsets: true
    max_drift: PT5M
    properties: {fetch.max.wait.ms: 250}
  table:
    table: lake/flights
    stream: flights
    cluster_by: [carrier]
    properties: {delta.checkpointInterval: 20, delta.appendOnly: true}
    schema_evolution: true
  key_format: {type: string}
  value_format: {type: json, schema: "carrier STRING NOT NULL"}
  columns: {prefix: k_, fields: [offset, timestamp]}
  dead_letter: {table: lake/rejected, max_share: 0.1}
  limits: {max_records_per_batch: 1000, max_batches: "{{ 1 + 1 }}"}
  on_idle: skip
  verify_after: 3600
  tolerate: [TopicNotFoundError]
  kafka: kafka
  key: [air, flights]
  deps: [other/table]
  description: Flights.
  group_name: air
  owners: ["team:air"]
  tags: {tier: 1}
  metadata: {runbook: "007"}
  kinds: [gold]
  automation_condition: "{{ dg.AutomationCondition.eager() }}"
  freshness_policy: "{{ dg.FreshnessPolicy.time_window(fail_window=datetime.timedelta(hours=1)) }}"
  retry_policy: {max_retries: 2, delay: 5, backoff: exponential}
  pool: writers
  code_version: "2"
""")

    assert ingestion.source == KafkaSource(
        partitions=(TopicPartition("flights", 0), TopicPartition("flights", 2)),
        starting_offsets=OffsetsInitializer.specific_offsets({("flights", 2): 17}),
        stopping_offsets=OffsetsInitializer.timestamp("2026-01-31T00:00:00Z"),
        group_id="007",
        commit_offsets=True,
        max_drift=timedelta(minutes=5),
        properties={"fetch.max.wait.ms": "250"},
    )
    assert ingestion.target.stream == "flights"
    assert ingestion.target.properties == {"delta.checkpointInterval": "20", "delta.appendOnly": "true"}
    assert (ingestion.target.cluster_by, ingestion.target.schema_evolution) == (("carrier",), True)
    assert ingestion.decoder.key_format == StringFormat()
    assert ingestion.decoder.value_format == JsonFormat("carrier STRING NOT NULL")
    assert ingestion.decoder.columns == KafkaColumns(prefix="k_", fields=("offset", "timestamp"))
    assert ingestion.dead_letter == DeadLetters(table="lake/rejected", max_share=0.1)
    assert (ingestion.limits.max_records_per_batch, ingestion.limits.max_batches) == (1000, 2)
    assert ingestion.on_idle == "skip"
    assert ingestion.verify_after == timedelta(hours=1)
    assert ingestion.tolerated == {TopicNotFoundError}
    assert spec.key == AssetKey(["air", "flights"])
    assert {dep.asset_key for dep in spec.deps} == {AssetKey(["kafka", "flights"]), AssetKey(["other", "table"])}
    assert (spec.description, spec.group_name, list(spec.owners)) == ("Flights.", "air", ["team:air"])
    assert (spec.tags["tier"], spec.code_version, spec.metadata["runbook"]) == ("1", "2", "007")
    assert {"gold", "deltalake"} <= set(spec.kinds)
    assert spec.automation_condition == AutomationCondition.eager()
    assert spec.freshness_policy == FreshnessPolicy.time_window(fail_window=timedelta(hours=1))


def test_retries_the_pool_and_tags_of_the_op_take_effect():
    retries = "  retry_policy: {max_retries: 2, delay: 5, backoff: exponential}\n  pool: writers\n"
    pod = "  op_tags: {dagster-k8s/config: {container_config: {resources: {requests: {cpu: '4'}}}}}\n"
    defs = load(resources=RESOURCES, landed=DELTA + FLIGHTS + retries + pod)
    op = defs.resolve_assets_def("landed").op
    assert op.retry_policy == RetryPolicy(max_retries=2, delay=5, backoff=Backoff.EXPONENTIAL)
    assert op.pool == "writers"
    assert json.loads(op.tags["dagster-k8s/config"])["container_config"]["resources"] == {"requests": {"cpu": "4"}}


def test_partitions_of_time_and_topics_with_their_windows_and_their_backfill_policy():
    ingestion, spec = landed("""
  source: {topics: [flights, arrivals]}
  table: lake/windows
  partitions_def:
    type: multi
    dimensions:
      day: {type: daily, start_date: "2026-01-01", timezone: Europe/Berlin}
      what: {type: static, partition_keys: [out, in]}
  topics_of: {out: [flights], in: [arrivals]}
  windows: {max_lateness: PT6H}
  backfill_policy: {type: multi_run, max_partitions_per_run: 7}
""")

    assert spec.partitions_def == MultiPartitionsDefinition(
        {
            "day": DailyPartitionsDefinition("2026-01-01", timezone="Europe/Berlin"),
            "what": StaticPartitionsDefinition(["out", "in"]),
        }
    )
    assert ingestion.partitions is not None
    assert ingestion.partitions.rules == Windows(max_lateness=timedelta(hours=6))


def test_a_topic_that_two_components_land_is_observed_once():
    first = DELTA + "  source: {topics: [a, b]}\n  table: lake/{topic}\n"
    second = DELTA + "  source: {topics: [b, c]}\n  table: lake/both\n"
    assert keys(load(resources=RESOURCES, first=first, second=second)) == {
        "kafka/a",
        "kafka/b",
        "kafka/c",
        "a",
        "b",
        "second",
    }


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(FLIGHTS, id="another-asset"),
        pytest.param("  source: {topics: [flights]}\n  table: lake/{topic}\n  name: late_{name}\n", id="by-topic"),
    ],
)
def test_two_components_on_one_table_and_stream_are_refused_when_they_are_loaded(second):
    output = whole_refusal(resources=RESOURCES, flights=DELTA + FLIGHTS, late=DELTA + second)
    assert re.search(r"the assets \w+ and \w+ both write to the stream 'main' of \S*lake/flights", output)
    assert re.search(r"defs/(flights|late)/defs\.yaml:4: attributes\.table: ", output)


def test_maintenance_has_the_options_of_kafka_delta_maintenance_and_makes_the_same_asset():
    schema = KafkaDeltaComponent.model().model_json_schema()["$defs"]["MaintenanceAttributes"]["properties"]
    assert set(schema) == {"vacuum_after"} | set(MaterializedOptions.__annotations__) - {"pool"}
    assert [name for name, field in schema.items() if not field.get("description")] == []
    table: dict[str, Any] = {"source": KafkaSource(topics=("flights",)), "table": "lake/flights", "pool": "writers"}
    upkeep: dict[str, Any] = {
        "vacuum_after": None,
        "group_name": "upkeep",
        "kinds": ["files"],
        "deps": [AssetKey("audit")],
        "tags": {"of": "flights"},
        "owners": ("team:lake",),
        "metadata": {"runbook": "wiki"},
        "op_tags": {"memory": "4g"},
        "retry_policy": RetryPolicy(max_retries=2),
        "automation_condition": AutomationCondition.on_cron("0 3 * * *"),
    }
    written = """
    vacuum_after: null
    group_name: upkeep
    kinds: [files]
    deps: [audit]
    tags: {of: "{topic}"}
    owners: ["team:lake"]
    metadata: {runbook: wiki}
    op_tags: {memory: 4g}
    retry_policy: {max_retries: 2}
    automation_condition: "{{ dg.AutomationCondition.on_cron('0 3 * * *') }}"
"""
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({}, " {}\n", FLIGHTS + "  key: lake/flights\n"),
        ({"vacuum_after": timedelta(days=9)}, " {vacuum_after: P9D}\n", FLIGHTS + "  key: lake/flights\n"),
        (upkeep, written, SOURCE + "  table: lake/{topic}\n  key: lake/{topic}\n"),
    ]
    for options, text, attributes in cases:
        common = f"{attributes}  pool: writers\n  group_name: lake\n  maintenance:{text}"
        defs = load(resources=RESOURCES, landed=DELTA + common)
        made = defs.resolve_assets_def(AssetKey(["lake", "flights_maintenance"]))
        asset = build_kafka_delta_asset(key=["lake", "flights"], group_name="lake", **table)
        expected = kafka_delta_maintenance(asset, **options)
        (spec,), (like,) = made.specs, expected.specs
        # Dagster adds where a component's assets are written.
        assert {name: spec.metadata[name] for name in like.metadata} == dict(like.metadata)
        assert spec.replace_attributes(metadata={}, tags={}) == like.replace_attributes(metadata={}, tags={})
        assert spec.tags.items() >= like.tags.items()
        assert (made.op.name, made.op.pool, made.op.tags) == (expected.op.name, "writers", expected.op.tags)
        assert made.op.retry_policy == expected.op.retry_policy
    assert keys(load(resources=RESOURCES, landed=DELTA + FLIGHTS)) == {"kafka/flights", "landed"}


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("true", "maintenance: invalid maintenance True; write {} for the default maintenance"),
        ("{vacuum_after: P1D}", "maintenance.vacuum_after: vacuum_after=1 day, 0:00:00: must be at least 7 days"),
        ("{vacuum_after: soon}", "maintenance.vacuum_after: invalid duration 'soon'"),
        ("{vacum_after: P9D}", "unknown option vacum_after; did you mean vacuum_after?"),
        ("{pool: other}", "pool: maintenance shares the pool of landed"),
    ],
)
def test_wrong_maintenance_is_refused_where_it_is_written(written, said):
    assert said in refusal(f"{FLIGHTS}  maintenance: {written}\n")


def test_checks_have_the_options_of_kafka_delta_checks():
    schema = KafkaDeltaComponent.model().model_json_schema()["$defs"]["ChecksAttributes"]["properties"]
    assert set(schema) == set(inspect.signature(kafka_delta_checks).parameters) - {"asset", "key"}
    checks = "  checks: {schema: false, max_lag: 10, max_delay: PT2H, duplicates: false}\n"

    defs = load(resources=RESOURCES, landed=DELTA + FLIGHTS + checks)

    found = {key.name for key in defs.resolve_asset_graph().asset_check_keys}
    assert found == {"no_gap", "same_log", "lag_below", "watermark_fresh"}
    assert "attributes.checks.max_lag: invalid Bounds: max_lag: must be" in refusal(
        FLIGHTS + "  checks: {max_lag: -1}\n"
    )


def test_topics_are_observed_only_if_they_are_to_be():
    defs = load(resources=RESOURCES, landed=DELTA + FLIGHTS + "  observe_topics: false\n")
    assert not defs.resolve_asset_graph().get(AssetKey(["kafka", "flights"])).is_observable


def test_values_of_environment_variables_are_not_in_definitions(monkeypatch):
    monkeypatch.setenv("TEST_PASSWORD", "hunter2")
    defs = load(
        resources="""\
type: dagster_kafka_flip.KafkaResourcesComponent
attributes:
  kafka:
    bootstrap_servers: "{{ env.TEST_KAFKA }}"
    security_protocol: SASL_SSL
    sasl_mechanism: PLAIN
    sasl_username: reader
    sasl_password: "{{ env('TEST_PASSWORD') }}"
    properties: {retry.backoff.ms: 250, reconnect.backoff.ms: "{{ env.TEST_BACKOFF }}"}
    clusters:
      eu: {bootstrap_servers: "{{ env.TEST_KAFKA }}", request_timeout: 5}
  spark: {master: "local[2]", config: {spark.hadoop.fs.s3a.secret.key: "{{ env.TEST_PASSWORD }}"}}
  kafka_key: streams
"""
    )
    monkeypatch.setenv("TEST_BACKOFF", "300")

    assert "hunter2" not in repr(defs.resources)
    kafka: Any = (defs.resources or {})["streams"]
    resolved = kafka.process_config_and_initialize()
    connection = resolved.connection()
    assert connection.sasl_password.get_secret_value() == "hunter2"
    assert {name: value.get_secret_value() for name, value in connection.properties.items()} == {
        "retry.backoff.ms": "250",
        "reconnect.backoff.ms": "300",
    }
    assert resolved.connection("eu").request_timeout == 5
    spark: Any = (defs.resources or {})["spark"]
    with spark.process_config_and_initialize_cm() as session:
        assert session.config == {"spark.hadoop.fs.s3a.secret.key": "hunter2"}


class Audited(KafkaDeltaComponent):
    """As a project would have it."""

    def get_asset_spec(self, spec: AssetSpec, source: KafkaSource) -> AssetSpec:
        return spec.replace_attributes(key=spec.key.with_prefix("audited"), owners=["team:audit"]).merge_attributes(
            metadata={"topics": list(source.topics or ())}
        )

    def transform(self, records: Any, greeting: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Rows with a greeting."""
        return records.limit(0) if greeting is None else records


def test_a_subclass_describes_its_assets_and_transforms_their_records():
    from dagster.components.testing.utils import component_defs

    component = Audited(source=KafkaSource(topics=("a", "b")), table="lake/{topic}")
    defs = component_defs(
        component=component,
        resources={"kafka": KafkaResource(bootstrap_servers="h:1"), "spark": None, "greeting": None},
    )

    assert keys(defs) == {"kafka/a", "kafka/b", "audited/a", "audited/b"}
    asset = defs.resolve_assets_def(AssetKey(["audited", "a"]))
    spec = asset.specs_by_key[asset.key]
    assert (list(spec.owners), spec.metadata["topics"]) == (["team:audit"], ["a"])
    assert spec.description == "Rows with a greeting."
    assert "greeting" in asset.required_resource_keys
    assert ingestions_of(asset)[asset.key].transform == component.transform


def test_records_that_no_subclass_transforms_are_landed_as_they_are_so_that_their_columns_have_a_lineage():
    ingestion, spec = landed("  source: {topics: [orders]}\n  table: lake/orders\n")
    assert ingestion.transform is None
    assert spec.description == "Unchanged records from Kafka: orders."


@pytest.mark.kafka
def test_the_topics_of_a_pattern_are_found_where_the_projects_resources_say(kafka, broker, topic, monkeypatch):
    monkeypatch.setenv("TEST_KAFKA", broker)
    kafka.create(f"{topic}-a")
    kafka.create(f"{topic}-b")
    one_each = DELTA + f'  source: {{topic_pattern: "{topic}-.*"}}\n  table: lake/{{topic}}\n  key: "{{topic}}"\n'

    assert keys(load(resources=RESOURCES, landed=one_each)) == {
        f"{prefix}{topic}-{which}" for prefix in ("", "kafka/") for which in ("a", "b")
    }
    with_an_address = one_each + f'  connection: {{bootstrap_servers: "{broker}"}}\n'
    monkeypatch.setenv("TEST_KAFKA", "127.0.0.1:1")
    assert len(keys(load(resources=RESOURCES, landed=with_an_address))) == 4
