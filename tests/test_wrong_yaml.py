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
        ("value_format: {type: json}", "attributes.value_format: JsonFormat needs a schema, or a registry"),
        (
            "value_format: {type: json, schema: ''}",
            "attributes.value_format.schema: a JsonFormat needs a schema, such as 'carrier STRING NOT NULL,",
        ),
        (
            "value_format: {type: json, schema: {id: INT}}",
            "attributes.value_format.schema: the JsonFormat's JSON Schema: its values can't be columns: it is",
        ),
        (
            "value_format: {type: json, schema: 'id INT', on_error: skip}",
            "attributes.value_format.on_error: invalid JsonFormat: on_error: must be 'fail' or 'null'",
        ),
        (
            "value_format: {schema: 'id INT'}",
            "attributes.value_format.schema: invalid format {'schema': 'id INT'}; set its type (raw, string,",
        ),
        (
            "value_format: {type: string, encoding: latin1}",
            "attributes.value_format.encoding: invalid StringFormat: encoding: unknown field; valid names:",
        ),
        (
            "value_format: [json]",
            "attributes.value_format: invalid format ['json']; set its type (raw, string, json, csv, avro,",
        ),
        (
            "columns: {fields: [ofset]}",
            "attributes.columns.fields: invalid KafkaColumns: fields.0: must be 'key', 'value', 'topic',",
        ),
        (
            "columns: {fields: offset}",
            'attributes.columns.fields: invalid KafkaColumns: fields: expected a list, such as ["..."]',
        ),
        (
            "dead_letter: {table: x, max_share: 2}",
            "attributes.dead_letter.max_share: invalid DeadLetters: max_share: must be less than or equal to 1",
        ),
        (
            "limits: {max_records_per_batch: many}",
            "attributes.limits.max_records_per_batch: invalid Limits: max_records_per_batch: expected a whole",
        ),
        (
            "limits: {max_batches: -1}",
            "attributes.limits.max_batches: invalid Limits: max_batches: must be greater than or equal to 1",
        ),
        ("on_idle: sleep", "attributes.on_idle: 'sleep' is not materialize or skip"),
        ("verify_after: soon", "attributes.verify_after: invalid duration 'soon'"),
        # pydantic would take `true` for 1: a second, and a batch of one record.
        ("verify_after: true", "attributes.verify_after: invalid duration True"),
        ("verify_after: -5", "attributes.verify_after: -1 day, 23:59:55 is negative"),
        (
            "verify_after: 99999999999999",
            "attributes.verify_after: invalid duration 99999999999999; write PT1H (ISO 8601), 01:00:00, or",
        ),
        ("tolerate: [KafkaFlipError]", "attributes.tolerate: KafkaFlipError can't be tolerated; allowed"),
        ("tolerate: [5]", "attributes.tolerate.0: expected a string; write it in quotes"),
        ("partitions_def: daily", "attributes.partitions_def: invalid PartitionsDefinition 'daily'"),
        ("partitions_def: {type: daily, start_date: 'soon'}", "attributes.partitions_def: time data 'soon' does not"),
        (
            "partitions_def: {type: daily, start_date: '2026-01-01', timezone: Mars/One}",
            "attributes.partitions_def: 'No time zone found with key Mars/One'",
        ),
        ("partitions_def: {type: static, partition_keys: [a]}", "attributes.source.topics: StaticPartitionsDefinition"),
        (
            "partitions_def: {type: daily, start_date: '2026-01-01', strt: x}",
            "attributes.partitions_def.strt: daily.strt: unknown field",
        ),
        ("partitions_def: {type: multi, dimensions: {}}", "attributes.partitions_def.dimensions: Dagster currently"),
        (
            "partitions_def: {type: multi, dimensions: [a]}",
            "attributes.partitions_def.dimensions: multi.dimensions: expected a mapping of names to values",
        ),
        (
            "partitions_def: {type: multi, dimensions: {a: {type: daily, start_date: '2026-01-01'}, b: {type: static, partition_keys: [nope]}}}",  # noqa: E501
            "attributes.source: the source reads flights, not nope",
        ),
        (
            "partitions_def: {type: time_window, start_date: '2026-01-01', fmt: '%Y-%m-%d', cron_schedule: 'nope'}",
            "attributes.partitions_def: Found invalid cron schedule 'nope' for a TimeWindowPartitionsDefinition.",
        ),
        ("partitions_def: '{{ 5 }}'", "attributes.partitions_def: invalid PartitionsDefinition 5"),
        ("backfill_policy: single_run", "attributes.backfill_policy: invalid BackfillPolicy 'single_run'"),
        ("backfill_policy: {type: multi_run}", "attributes.backfill_policy: backfill_policy is for an asset with"),
        ("windows: exact", "attributes.windows: invalid Windows 'exact'; write its fields as a mapping"),
        (
            "windows: {max_latenes: PT1H}",
            "attributes.windows.max_latenes: invalid Windows: max_latenes: unknown field; did you mean",
        ),
        ("topics_of: {a: [b]}", "attributes.topics_of: windows and topics_of are for an asset with partitions; set"),
        ("name: 'a b'", "attributes.name: invalid asset name 'a b'; use letters, digits and '_' only, or set "),
        ("group_name: 'a b'", 'attributes.group_name: Dagster can\'t create the asset landed: "a b" is'),
        ("automation_condition: eager", "attributes.automation_condition: invalid AutomationCondition 'eager'; write "),
        ("freshness_policy: PT1H", "attributes.freshness_policy: invalid FreshnessPolicy 'PT1H'; write "),
        ("checks: {max_delay: -5}", "attributes.checks.max_delay: invalid Bounds: max_delay: must be greater than"),
        ("checks: {gaps: maybe}", "attributes.checks.gaps: expected true or false"),
        ("metadata: x", "attributes.metadata: expected Mapping, got str"),
        ("checks: {max_rejected: 5}", "attributes.checks.max_rejected: an undecodable record fails a"),
        ("observe_topics: maybe", "attributes.observe_topics: expected true, false, or options of the topics' assets"),
        ("connection: 'a:1'", "attributes.connection: invalid KafkaResource; write its fields as a mapping"),
        ("connection: {bootstrap_servers: a}", "attributes.connection: invalid KafkaConnection: invalid bootstrap"),
        ("limits: {max_batches: '{{ env.NOT_SET }}'}", "attributes.limits.max_batches: the environment variable"),
    ],
)
def test_a_wrong_attribute_is_reported_with_its_file_and_line(attribute, message):
    assert f"landed/defs.yaml:{3 if message.startswith('attributes.source') else 5}: {message}" in refusal(
        landed=f"{TABLE}{FLIGHTS}  {attribute}\n"
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("[a]", "attributes.table: expected a string, got ['a']"),
        ("", "attributes.table: empty; write a path or a name"),
        ("{}", "attributes.table: invalid DeltaTarget: table: missing"),
        (
            "{table: t, clusterby: [a]}",
            "attributes.table.clusterby: invalid DeltaTarget: clusterby: unknown field; did you mean cluster_by?",
        ),
        (
            "{table: t, stream: 'a b'}",
            "attributes.table.stream: invalid DeltaTarget: invalid stream id 'a b': use 1 to 100 letters,",
        ),
        ("{table: t, stream: [a]}", "attributes.table.stream: invalid DeltaTarget: stream: expected a string"),
        (
            "{table: t, partition_by: day}",
            'attributes.table.partition_by: invalid DeltaTarget: partition_by: expected a list, such as ["..."]',
        ),
        ("{table: t, cluster_by: [nope]}", "attributes.table.cluster_by: the rows of t have"),
        ("{table: t, properties: [a]}", "attributes.table.properties: expected a mapping of names to values"),
        (
            "{table: t, schema_evolution: maybe}",
            "attributes.table.schema_evolution: invalid DeltaTarget: schema_evolution: expected true or false",
        ),
    ],
)
def test_a_wrong_setting_of_a_table_is_reported_with_its_file_and_line(table, message):
    output = refusal(landed=f"{TABLE}  source: {{topics: [flights]}}\n  table: {table}\n")
    assert f"landed/defs.yaml:4: {message}" in output


@pytest.mark.parametrize(
    ("attributes", "line", "message"),
    [
        (
            "  source: flights\n  table: t\n",
            3,
            "attributes.source: invalid KafkaSource 'flights'; write its fields as a mapping",
        ),
        (
            "  source: [flights]\n  table: t\n",
            3,
            "attributes.source: invalid KafkaSource ['flights']; write its fields as a mapping",
        ),
        (
            "  source: {topic: [a]}\n  table: t\n",
            3,
            "attributes.source.topic: invalid KafkaSource: topic: unknown field; did you mean topics?",
        ),
        (
            "  source: {options: {topic: a}, topics: [a]}\n  table: t\n",
            3,
            "attributes.source.options: options replaces all other fields of a source: set it or topics, not",
        ),
        (
            "  source: {topics: [5]}\n  table: t\n",
            3,
            "attributes.source.topics.0: expected a string; write it in quotes",
        ),
        ("  source: {topics: []}\n  table: t\n", 3, "attributes.source: invalid KafkaSource: a source needs at least"),
        (
            "  source: {partitions: {a: 0}}\n  table: t\n",
            3,
            "attributes.source.partitions: map topics to partition numbers, such as {flights: [0, 1]}",
        ),
        (
            "  source: {partitions: {a: [x]}}\n  table: t\n",
            3,
            "attributes.source.partitions: map topics to partition numbers, such as {flights: [0, 1]}",
        ),
        (
            "  source: {topics: [a], starting_offsets: 2026-01-01}\n  table: t\n",
            3,
            "attributes.source.starting_offsets: invalid offsets '2026-01-01'; write earliest, latest, committed, com",
        ),
        (
            "  source: {topics: [a], max_drift: soon}\n  table: t\n",
            3,
            "attributes.source.max_drift: invalid duration 'soon'; write PT1H (ISO 8601), 01:00:00, or seconds",
        ),
        (
            "  source: {topics: [a], max_drift: [5]}\n  table: t\n",
            3,
            "attributes.source.max_drift: invalid duration [5]; write PT1H (ISO 8601), 01:00:00, or seconds",
        ),
        ("  source: {topics: [a], properties: [a]}\n  table: t\n", 3, "attributes.source.properties: expected a"),
        (
            "  source: {topics: [a], commit_offsets: maybe}\n  table: t\n",
            3,
            "attributes.source.commit_offsets: invalid KafkaSource: commit_offsets: expected true or false",
        ),
        (
            "  source: {topics: [a], connection: x}\n  table: t\n",
            3,
            "attributes.source.connection: invalid KafkaSource: connection: expected KafkaConnection",
        ),
        (
            "  source: null\n  table: t\n",
            3,
            "attributes.source: invalid KafkaSource None; write its fields as a mapping",
        ),
        (
            "  source: {topics: [a]}\n  table: '{{ env.NOT_SET }}/orders'\n",
            4,
            "attributes.table: the environment variable NOT_SET is not set; set it, or write a default",
        ),
        (
            "  source: {topics: [a]}\n  table: lake/{{ topic }}\n",
            4,
            "attributes.table: 'topic' is undefined; correct the name; for each topic, write {topic} in single braces",
        ),
        (
            "  source: {topics: ['{{ env.HOME.nothing }}-a']}\n  table: t\n",
            3,
            "attributes.source.topics.0: 'str object' has no attribute 'nothing'; correct the name",
        ),
        ("  source: {topics: [a]}\n  table: ''\n", 4, "attributes.table: invalid DeltaTarget: table: empty"),
        ("  source: {topics: [a]}\n  table: [a]\n", 4, "attributes.table: expected a string, got ['a']"),
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
        ("bootstrap_servers: localhost", "", "attributes.kafka: invalid KafkaConnection: invalid bootstrap"),
        (
            "bootstrap_servers: 5",
            "",
            "attributes.kafka.bootstrap_servers: invalid KafkaResource: bootstrap_servers: expected a string",
        ),
        ("", "", "attributes.kafka: KafkaResource: missing bootstrap_servers; set the cluster's addresses"),
        (
            'bootstrap_servers: "a:1", security_protocol: ssl',
            "",
            "attributes.kafka.security_protocol: invalid KafkaConnection: security_protocol: must be",
        ),
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
            'bootstrap_servers: "a:1", sasl_pasword: hunter2',
            "",
            "attributes.kafka.sasl_pasword: invalid KafkaResource: sasl_pasword: unknown field; did you mean",
        ),
        (
            'bootstrap_servers: "a:1", request_timeout: soon',
            "",
            "attributes.kafka.request_timeout: invalid KafkaResource: request_timeout: expected a number",
        ),
        (
            'bootstrap_servers: "a:1", request_timeout: -1',
            "",
            "attributes.kafka.request_timeout: invalid KafkaConnection: request_timeout: must be greater than 0",
        ),
        (
            'bootstrap_servers: "a:1", properties: [a]',
            "",
            "attributes.kafka.properties: invalid KafkaResource: properties: expected a mapping of names to",
        ),
        (
            'bootstrap_servers: "a:1", properties: {ssl.cipher.suites: a}',
            "",
            "attributes.kafka: invalid KafkaConnection: the property ssl.cipher.suites does not translate for li",
        ),
        (
            'bootstrap_servers: "a:1", clusters: {eu: "b:1"}',
            "",
            "attributes.kafka.clusters.eu: invalid KafkaClusterConfig; write its fields as a mapping",
        ),
        (
            'bootstrap_servers: "a:1", clusters: {eu: {bootstrap_servers: b}}',
            "",
            "attributes.kafka.clusters.eu: invalid KafkaConnection: invalid bootstrap server 'b': expected",
        ),
        (
            'bootstrap_servers: "a:1", clusters: {eu: {bootstrap_server: "b:1"}}',
            "",
            "attributes.kafka.clusters.eu.bootstrap_server: invalid KafkaClusterConfig: bootstrap_servers:",
        ),
        (
            'bootstrap_servers: "a:1"',
            "nonsense: 1",
            "attributes.spark.nonsense: invalid SparkResource: nonsense: unknown field; valid names: master,",
        ),
        (
            'bootstrap_servers: "a:1"',
            "master: lokal",
            "attributes.spark.master: invalid Spark master 'lokal'; write local[*], local[4],",
        ),
        (
            'bootstrap_servers: "a:1"',
            "master: 'local[2]', remote: 'sc://a:1'",
            "attributes.spark.master: master and remote are both set; a Spark Connect server has",
        ),
        (
            'bootstrap_servers: "a:1"',
            "remote: 'a:1'",
            "attributes.spark.remote: remote is not a Spark Connect address; write",
        ),
        (
            'bootstrap_servers: "a:1"',
            "packages: a",
            'attributes.spark.packages: invalid SparkResource: packages: expected a list, such as ["..."]',
        ),
        (
            'bootstrap_servers: "a:1"',
            "packages: [hadoop-aws]",
            "attributes.spark.packages: invalid Maven coordinate 'hadoop-aws'; write",
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "No components found in YAML file"),
        ("type: dagster_kafka_flip.KafkaDeltaComponnt\nattributes: {}\n", "no attribute `KafkaDeltaComponnt`"),
        ("type: dagster_kafka_flp.KafkaDeltaComponent\nattributes: {}\n", "No module named 'dagster_kafka_flp'"),
        ("type: dagster_kafka_flip.KafkaSource\nattributes: {}\n", "must be a subclass of dagster.Component"),
        ("type: x\n  bad: [\n", 'defs.yaml", line 2'),
        (f"{TABLE}{FLIGHTS}  kafka: kafak\n", "resource with key 'kafak' required"),
        (f"{TABLE}{FLIGHTS}  group_name: '{{{{ nope }}}}'\n", "defs.yaml:5 - attributes.group_name"),
        (
            f"{RESOURCES}  kafka: [a]\n",
            "defs.yaml:3: attributes.kafka: invalid KafkaResource; write its fields as a mapping",
        ),
        (f"{RESOURCES}  kafka: 'a:1'\n", "defs.yaml:3: attributes.kafka: invalid KafkaResource; write its fields"),
        (f"{RESOURCES}  spark: local\n", "defs.yaml:3: attributes.spark: invalid SparkResource; write its fields"),
    ],
)
def test_a_file_that_is_wrong_as_a_whole_says_so(text, message):
    assert message in refusal(landed=text)


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


def test_a_file_without_attributes_says_what_is_missing():
    output = refusal(landed="type: dagster_kafka_flip.KafkaDeltaComponent\n")
    assert output == "invalid KafkaDeltaComponent: source: missing; table: missing"
