"""What users get wrong in a defs.yaml: the file, the line, the attribute, and what to write. Nothing is started."""

from __future__ import annotations

import re

import pytest
from dagster.components.testing import create_defs_folder_sandbox

from dagster_kafka_flip.errors import ConfigurationError

TABLE = """\
type: dagster_kafka_flip.KafkaDeltaComponent
attributes:
"""
FLIGHTS = "  source: {topics: [flights]}\n  table: lake/flights\n"
RESOURCES = "type: dagster_kafka_flip.KafkaResourcesComponent\nattributes:\n"


def refusal(**files: str) -> str:
    """What is said of a project that can't be loaded: the last cause, which is what Dagster shows at the end."""
    with create_defs_folder_sandbox() as sandbox:
        for folder, text in files.items():
            (sandbox.defs_folder_path / folder).mkdir()
            (sandbox.defs_folder_path / folder / "defs.yaml").write_text(text)
        with pytest.raises(Exception, match=r".") as caught, sandbox.build_all_defs() as defs:
            defs.resolve_all_asset_specs()
    error: BaseException = caught.value
    while error.__cause__ is not None:
        error = error.__cause__
    assert isinstance(error, ConfigurationError) or type(error).__name__ in {
        "CheckError",
        "DagsterInvalidDefinitionError",
        "DagsterUnresolvableSymbolError",
        "ModuleNotFoundError",
        "ResolutionException",
        "ScannerError",
        "ValidationError",
    }, type(error)
    return str(error)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("owners: ['a b']", "owners: Invalid owner 'a b'"),
        ("group_name: 'a b'", 'group_name: "a b" is not a valid asset group name'),
        ("tags: {'a b$': c}", "tags: Found invalid tag keys: ['a b$']"),
        ("schedule: '* * *'", "schedule: invalid cron schedule '* * *'; write one such as '*/5 * * * *'"),
    ],
)
def test_an_option_of_topics_is_refused_where_it_is_written_whoever_observes_the_topic(option, message):
    written = f"{TABLE}  source: {{topics: [flights]}}\n  table: lake/more\n  observe_topics: {{{option}}}\n"
    said = refusal(first=TABLE + FLIGHTS, second=written)
    assert f"/defs/second/defs.yaml:5: attributes.observe_topics.{message}" in said


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("value_format: orc", "attributes.value_format: invalid format 'orc'; set its type (raw, string, json, csv"),
        (
            "value_format: {type: json, schema: ''}",
            "attributes.value_format.schema: a JsonFormat needs a schema, such as 'carrier STRING NOT NULL,",
        ),
        (
            "limits: {max_records_per_batch: many}",
            "attributes.limits.max_records_per_batch: invalid Limits: max_records_per_batch: expected a whole",
        ),
        ("on_idle: sleep", "attributes.on_idle: 'sleep' is not materialize or skip"),
        ("verify_after: soon", "attributes.verify_after: invalid duration 'soon'"),
        # pydantic would take `true` for 1: a second, and a batch of one record.
        ("verify_after: true", "attributes.verify_after: invalid duration True"),
        ("verify_after: -5", "attributes.verify_after: -1 day, 23:59:55 is negative"),
        ("tolerate: [KafkaFlipError]", "attributes.tolerate: KafkaFlipError can't be tolerated; allowed"),
        ("partitions_def: daily", "attributes.partitions_def: invalid PartitionsDefinition 'daily'"),
        (
            "partitions_def: {type: daily, start_date: '2026-01-01', strt: x}",
            "attributes.partitions_def.strt: daily.strt: unknown field",
        ),
        (
            "partitions_def: {type: multi, dimensions: {a: {type: daily, start_date: '2026-01-01'}, b: {type: static, partition_keys: [nope]}}}",  # noqa: E501
            "attributes.source: the source reads flights, not nope",
        ),
        ("backfill_policy: single_run", "attributes.backfill_policy: invalid BackfillPolicy 'single_run'"),
        ("windows: exact", "attributes.windows: invalid Windows 'exact'; write its fields as a mapping"),
        (
            "windows: {max_latenes: PT1H}",
            "attributes.windows.max_latenes: invalid Windows: max_latenes: unknown field; did you mean",
        ),
        ("automation_condition: eager", "attributes.automation_condition: invalid AutomationCondition 'eager'; write "),
        ("observe_topics: maybe", "attributes.observe_topics: expected true, false, or options of the topics' assets"),
        ("limits: {max_batches: '{{ env.NOT_SET }}'}", "attributes.limits.max_batches: the environment variable"),
    ],
)
def test_a_wrong_attribute_is_reported_with_its_file_and_line(attribute, message):
    assert f"landed/defs.yaml:{3 if message.startswith('attributes.source') else 5}: {message}" in refusal(
        landed=f"{TABLE}{FLIGHTS}  {attribute}\n"
    )


@pytest.mark.parametrize(
    ("attributes", "line", "message"),
    [
        ("  source: flights\n  table: t\n", 3, "attributes.source: invalid KafkaSource 'flights'; write its fields"),
        ("  source: {topic: [a]}\n  table: t\n", 3, "attributes.source.topic: invalid KafkaSource: topic: unknown"),
        ("  source: {options: {topic: a}, topics: [a]}\n  table: t\n", 3, "attributes.source.options: options"),
        ("  source: {topics: [5]}\n  table: t\n", 3, "attributes.source.topics.0: expected a string; write it in"),
        ("  source: {partitions: {a: 0}}\n  table: t\n", 3, "attributes.source.partitions: map topics to partition"),
        (
            "  source: {topics: [a], starting_offsets: 2026-01-01}\n  table: t\n",
            3,
            "attributes.source.starting_offsets: invalid offsets '2026-01-01'; write earliest, latest, committed, com",
        ),
        ("  source: {topics: [a]}\n  table: '{{ env.NOT_SET }}/orders'\n", 4, "attributes.table: the environment"),
        ("  source: {topics: [a]}\n  table: lake/{{ topic }}\n", 4, "attributes.table: 'topic' is undefined; correct"),
    ],
)
def test_a_wrong_source_or_table_is_reported_with_its_file_and_line(attributes, line, message):
    assert f"landed/defs.yaml:{line}: {message}" in refusal(landed=TABLE + attributes)


@pytest.mark.parametrize(
    ("kafka", "spark", "message"),
    [
        (
            'bootstrap_server: "a:1"',
            "",
            "attributes.kafka.bootstrap_server: invalid KafkaResource: bootstrap_server: unknown field; did you",
        ),
        ("", "", "attributes.kafka: KafkaResource: missing bootstrap_servers; set the cluster's addresses"),
        (
            'bootstrap_servers: "a:1", sasl_username: ann',
            "",
            "attributes.kafka: SASL credentials are given, but security_protocol PLAINTEXT does not use them",
        ),
        (
            'bootstrap_servers: "a:1", sasl_password: hunter2',
            "",
            'attributes.kafka.sasl_password: write a password as "{{ env.NAME }}", to keep it out of',
        ),
        (
            'bootstrap_servers: "a:1"',
            "master: 'local[2]', remote: 'sc://a:1'",
            "attributes.spark.master: master and remote are both set; a Spark Connect server has",
        ),
        (
            'bootstrap_servers: "a:1"',
            'remote: "sc://a:1/;token={{ env.SECRET }}"',
            'attributes.spark.remote: write all of it as "{{ env.NAME }}": the value of a variable in a longer',
        ),
        (
            'bootstrap_servers: "a:1"',
            'config: {spark.hadoop.fs.s3a.secret.key: "{{ env.SECRET | trim }}"}',
            'attributes.spark.config.spark.hadoop.fs.s3a.secret.key: write all of it as "{{ env.NAME }}"',
        ),
        (
            'bootstrap_servers: "a:1", java_properties: {ssl.truststore.password: "{{ env.SECRET }}+"}',
            "",
            'attributes.kafka.java_properties.ssl.truststore.password: write all of it as "{{ env.NAME }}"',
        ),
    ],
)
def test_a_wrong_resource_is_reported_with_its_file_and_line_and_no_password(kafka, spark, message, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    output = refusal(resources=f"{RESOURCES}  kafka: {{{kafka}}}\n  spark: {{{spark}}}\n")
    assert f"resources/defs.yaml:{4 if 'attributes.spark' in message else 3}: {message}" in output
    assert "hunter2" not in output


def test_a_resource_that_is_all_in_a_variable_is_not_shown(monkeypatch):
    monkeypatch.setenv("WHOLE", '{"bootstrap_servers": "a:1", "sasl_password": "hunter2"}')
    output = refusal(resources=RESOURCES + '  kafka: "{{ env.WHOLE }}"\n  spark: {}\n')
    assert "defs.yaml:3: attributes.kafka: invalid KafkaResource; write its fields" in output
    assert "hunter2" not in output


def test_each_of_several_wrong_names_is_reported_with_its_line_and_without_its_value():
    output = refusal(landed=f"{TABLE}  source: {{topic: [a]}}\n  tabel: hunter2\n  stream: hunter2\n")
    assert re.findall(r"attributes\.(\w+) at \S+landed/defs\.yaml:(\d)`\n  ([^[]+) \[", output) == [
        ("table", "2", "Field required"),
        ("tabel", "4", "Value error, unknown attribute; did you mean table?"),
        ("stream", "5", "Value error, not an attribute of its own; write it below table"),
    ]
    assert "hunter2" not in output
