"""What users get wrong in a defs.yaml: the file, the line, the attribute, and what to write. Nothing is started."""

from __future__ import annotations

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
    }, type(error)
    return str(error)


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("tabel: x", "attributes.tabel: there is no such attribute; did you mean table?"),
        (
            "stream: 'a b'",
            "attributes.stream: invalid DeltaTarget: the stream id 'a b' can't be: 1 to 100 letters, digits, '.', '_' ",
        ),
        ("stream: [a]", "attributes.stream: expected a text, and not a list"),
        (
            "value_format: avro",
            "attributes.value_format: 'avro' is no format; give its type (raw, string or json) below it",
        ),
        ("value_format: {type: json}", "attributes.value_format.schema: is missing"),
        (
            "value_format: {type: json, schema: 'id strin'}",
            "attributes.value_format: schema: id: 'strin' is not a type of Spark; did you mean STRING?",
        ),
        (
            "value_format: {type: json, schema: ''}",
            "attributes.value_format: a JsonFormat needs a schema, such as 'carrier STRING NOT NULL, flight INT'",
        ),
        (
            "value_format: {type: json, schema: {id: INT}}",
            "attributes.value_format.schema: expected a text, and not names with values",
        ),
        (
            "value_format: {type: json, schema: 'id INT', on_eror: fail}",
            "attributes.value_format.on_eror: there is no such attribute; did you mean on_error?",
        ),
        (
            "value_format: {type: json, schema: 'id INT', on_error: skip}",
            "attributes.value_format.on_error: expected 'fail' or 'null'",
        ),
        ("value_format: {schema: 'id INT'}", "attributes.value_format: type is missing"),
        (
            "value_format: {type: string, encoding: latin1}",
            "attributes.value_format.encoding: there is no such attribute; there are on_error, schema, show_values",
        ),
        ("value_format: [json]", "attributes.value_format: expected names with values below it, and not a list"),
        ("key_format: 5", "attributes.key_format: expected names with values below it, and not a number"),
        ("columns: [key]", "attributes.columns: expected names with values below it, and not a list"),
        ("columns: {prefx: k}", "attributes.columns.prefx: there is no such attribute; did you mean prefix?"),
        (
            "columns: {fields: [ofset]}",
            "attributes.columns.fields.0: expected 'key', 'value', 'topic', 'partition', 'offset', 'timestamp', 'times",
        ),
        ("columns: {fields: offset}", "attributes.columns.fields: expected a list, and not a text"),
        ("dead_letter: 5", "attributes.dead_letter: expected names with values below it, and not a number"),
        ("dead_letter: {}", "attributes.dead_letter.table: is missing"),
        (
            "dead_letter: {table: x, max_share: 2}",
            "attributes.dead_letter: invalid DeadLetters: max_share: has to be less than or equal to 1",
        ),
        ("partition_by: day", "attributes.partition_by: partition_by"),
        ("partition_by: {a: b}", "attributes.partition_by: expected a list, and not names with values"),
        ("partition_by: [5]", "attributes.partition_by.0: expected a text, and not a number"),
        ("cluster_by: 5", "attributes.cluster_by: expected a list, and not a number"),
        ("cluster_by: [nope]", "attributes.cluster_by: cluster_by"),
        ("properties: [a]", "attributes.properties: expected names with values below it, and not a list"),
        ("properties: {a: [b]}", "attributes.properties.a: expected a text, and not a list"),
        ("properties: text", "attributes.properties: names with values are needed here, and not 'text'"),
        ("schema_evolution: maybe", "attributes.schema_evolution: true or false is needed here, and not 'maybe'"),
        ("schema_evolution: 5", "attributes.schema_evolution: expected true or false, and not a number"),
        ("single_writer: {}", "attributes.single_writer: expected true or false, and not names with values"),
        (
            "max_records_per_batch: 0",
            "attributes.max_records_per_batch: invalid Limits: max_records_per_batch: has to be greater than or equal ",
        ),
        (
            "max_records_per_batch: many",
            "attributes.max_records_per_batch: a whole number is needed here, and not 'many'",
        ),
        ("max_records_per_batch: 1.5", "attributes.max_records_per_batch: expected a whole number, and not a number"),
        ("max_bytes_per_batch: 1GB", "attributes.max_bytes_per_batch: a whole number is needed here, and not '1GB'"),
        (
            "max_batches: -1",
            "attributes.max_batches: invalid Limits: max_batches: has to be greater than or equal to 1",
        ),
        ("max_batches: [1]", "attributes.max_batches: expected a whole number, and not a list"),
        ("spread: evenly", "attributes.spread: backlog or time is needed here, and not 'evenly'"),
        ("spread: 5", "attributes.spread: expected 'backlog' or 'time'"),
        ("on_idle: sleep", "attributes.on_idle: materialize or skip is needed here, and not 'sleep'"),
        ("on_idle: true", "attributes.on_idle: expected 'materialize' or 'skip'"),
        (
            "verify_after: soon",
            "attributes.verify_after: 'soon' is no duration; write it as PT1H (ISO 8601), 01:00:00, or in seconds",
        ),
        ("verify_after: -5", "attributes.verify_after: verify_after: -1 day, 23:59:55 is negative"),
        ("verify_after: [5]", "attributes.verify_after: expected a number, and not a list"),
        ("verify_after: {hours: 1}", "attributes.verify_after: expected a number, and not names with values"),
        (
            "verify_after: 99999999999999",
            "attributes.verify_after: 99999999999999.0 is no duration; write it as PT1H (ISO 8601), 01:00:00, or in se",
        ),
        (
            "tolerate: FooError",
            "attributes.tolerate: tolerate: there is no error 'FooError'; did you mean ForeignRowsError?",
        ),
        (
            "tolerate: [KafkaFlipError]",
            "attributes.tolerate: tolerate: KafkaFlipError can't be tolerated; those that can are ClusterChangedError,",
        ),
        ("tolerate: {a: b}", "attributes.tolerate: expected a list, and not names with values"),
        ("tolerate: [5]", "attributes.tolerate.0: expected a text, and not a number"),
        (
            "tolerate: [TableError]",
            "attributes.tolerate: tolerate: TableError can't be tolerated; those that can are ClusterChangedError, Con",
        ),
        (
            "partitions_def: daily",
            "attributes.partitions_def: 'daily' is no PartitionsDefinition; write {{ dg.DailyPartitionsDefinition(star",
        ),
        ("partitions_def: {type: daily}", "attributes.partitions_def.start_date: is missing"),
        (
            "partitions_def: {type: yearly, start_date: '2026-01-01'}",
            "attributes.partitions_def.type: expected 'hourly', 'daily', 'weekly', 'monthly', 'time_window', 'static',",
        ),
        (
            "partitions_def: {type: daily, start_date: 'soon'}",
            "attributes.partitions_def: time data 'soon' does not match format '%Y-%m-%d%z'",
        ),
        (
            "partitions_def: {type: daily, start_date: '2026-01-01', timezone: Mars/One}",
            "attributes.partitions_def: 'No time zone found with key Mars/One'",
        ),
        (
            "partitions_def: {type: static, partition_keys: [a]}",
            "attributes.source.topics: StaticPartitionsDefinition: an asset that lands a topic has partitions of time ",
        ),
        (
            "partitions_def: {type: daily, start_date: '2026-01-01', strt: x}",
            "attributes.partitions_def.strt: there is no such attribute; there are cron_schedule, day_offset, dimensio",
        ),
        (
            "partitions_def: {type: multi, dimensions: {}}",
            "attributes.partitions_def.dimensions: Dagster currently only supports multi-partitions definitions with 2",
        ),
        (
            "partitions_def: {type: multi, dimensions: [a]}",
            "attributes.partitions_def.dimensions: expected names with values below it, and not a list",
        ),
        (
            "partitions_def: {type: multi, dimensions: {a: {type: daily, start_date: '2026-01-01'}, b: {type: static, partition_keys: [nope]}}}",  # noqa: E501
            "attributes.source: the source reads flights, and not nope",
        ),
        (
            "partitions_def: {type: time_window, start_date: '2026-01-01', fmt: '%Y-%m-%d', cron_schedule: 'nope'}",
            "attributes.partitions_def: Found invalid cron schedule 'nope' for a TimeWindowPartitionsDefinition.",
        ),
        (
            "partitions_def: '{{ 5 }}'",
            "attributes.partitions_def: 5 is no PartitionsDefinition; write {{ dg.DailyPartitionsDefinition(start_date",
        ),
        (
            "backfill_policy: single_run",
            "attributes.backfill_policy: 'single_run' is no BackfillPolicy; write type: single_run, or multi_run, belo",
        ),
        ("backfill_policy: {type: single}", "attributes.backfill_policy.type: expected 'single_run', 'multi_run'"),
        (
            "backfill_policy: {type: multi_run}",
            "attributes.backfill_policy: backfill_policy is for an asset with partitions; give it a partitions_def",
        ),
        ("windows: exact", "attributes.windows: 'exact' is no Windows; give its fields below it"),
        ("windows: {mode: fuzzy}", "attributes.windows.mode: expected 'exact' or 'offset'"),
        (
            "windows: {max_latenes: PT1H}",
            "attributes.windows.max_latenes: there is no such attribute; did you mean max_lateness?",
        ),
        (
            "windows: {max_lateness: soon}",
            "attributes.windows.max_lateness: 'soon' is no duration; write it as PT1H (ISO 8601), 01:00:00, or in seco",
        ),
        (
            "topics_of: {a: [b]}",
            "attributes.topics_of: windows and topics_of are for an asset with partitions; give it a partitions_def",
        ),
        ("topics_of: [a]", "attributes.topics_of: expected names with values below it, and not a list"),
        ("kafka: [a]", "attributes.kafka: expected a text, and not a list"),
        ("kafka: {bootstrap_servers: a}", "attributes.kafka: expected a text, and not names with values"),
        (
            "name: 'a b'",
            "attributes.name: name: 'a b' can't be the name of an asset; write letters, digits and '_' alone, or give ",
        ),
        ("name: [a]", "attributes.name: expected a text, and not a list"),
        ("key: [a, 5]", "attributes.key.1: expected a text, and not a number"),
        ("key: {a: b}", "attributes.key: expected a list, and not names with values"),
        ("key: 5", "attributes.key: expected a list, and not a number"),
        ("key_prefix: 5", "attributes.key_prefix: expected a list, and not a number"),
        ("key_prefix: {a: b}", "attributes.key_prefix: expected a list, and not names with values"),
        ("deps: 5", "attributes.deps: expected a list, and not a number"),
        ("deps: {a: b}", "attributes.deps: expected a list, and not names with values"),
        ("deps: [5]", "attributes.deps.0: expected a text, and not a number"),
        ("deps: [[a, b]]", "attributes.deps.0: expected a text, and not a list"),
        ("description: [a]", "attributes.description: expected a text, and not a list"),
        (
            "group_name: 'a b'",
            'attributes.group_name: group_name: Dagster can\'t make the asset landed: "a b" is not a valid asset',
        ),
        (
            "owners: me",
            "attributes.owners: owners: Dagster can't make the asset landed: Invalid owner 'me' for asset 'AssetKey(['",
        ),
        (
            "owners: [nobody]",
            "attributes.owners: owners: Dagster can't make the asset landed: Invalid owner 'nobody' for asset 'AssetKe",
        ),
        ("owners: {a: b}", "attributes.owners: expected a list, and not names with values"),
        ("owners: 5", "attributes.owners: expected a list, and not a number"),
        ("tags: [a]", "attributes.tags: expected names with values below it, and not a list"),
        (
            "tags: {'a b c': x}",
            "attributes.tags: tags: Dagster can't make the asset landed: Found invalid tag keys: ['a b c']. Allowed ch",
        ),
        ("tags: {a: [b]}", "attributes.tags.a: expected a text, and not a list"),
        ("metadata: [a]", "attributes.metadata: expected names with values below it, and not a list"),
        ("kinds: 5", "attributes.kinds: expected a list, and not a number"),
        ("kinds: {a: b}", "attributes.kinds: expected a list, and not names with values"),
        (
            "automation_condition: eager",
            "attributes.automation_condition: 'eager' is no AutomationCondition; write ",
        ),
        ("automation_condition: 5", "attributes.automation_condition: expected a text, and not a number"),
        (
            "freshness_policy: PT1H",
            "attributes.freshness_policy: 'PT1H' is no FreshnessPolicy; write ",
        ),
        ("op_tags: [a]", "attributes.op_tags: expected names with values below it, and not a list"),
        ("retry_policy: 3", "attributes.retry_policy: expected names with values below it, and not a number"),
        (
            "retry_policy: {max_retrys: 3}",
            "attributes.retry_policy.max_retrys: there is no such attribute; did you mean max_retries?",
        ),
        (
            "retry_policy: {max_retries: many}",
            "attributes.retry_policy.max_retries: expected a whole number, and not a text",
        ),
        ("retry_policy: {backoff: slow}", "attributes.retry_policy.backoff: expected 'linear' or 'exponential'"),
        (
            "pool: 'a b'",
            'attributes.pool: pool: Dagster can\'t make the asset landed: Pool "a b" is not a valid pool name',
        ),
        ("pool: [a]", "attributes.pool: expected a text, and not a list"),
        ("code_version: [1]", "attributes.code_version: expected a text, and not a list"),
        ("checks: true", "attributes.checks: expected names with values below it, and not true or false"),
        (
            "checks: {max_lagg: 5}",
            "attributes.checks.max_lagg: there is no such attribute; did you mean max_lag or max_delay?",
        ),
        ("checks: {max_lag: many}", "attributes.checks.max_lag: expected a whole number, and not a text"),
        (
            "checks: {max_delay: soon}",
            "attributes.checks.max_delay: 'soon' is no duration; write it as PT1H (ISO 8601), 01:00:00, or in seconds",
        ),
        (
            "checks: {max_delay: -5}",
            "attributes.checks.max_delay: max_delay=-1 day, 23:59:55: give a time that is longer than nothing",
        ),
        (
            "checks: {max_rejected: 5}",
            "attributes.checks.max_rejected: max_rejected: a record that can't be decoded ends a run of the asset land",
        ),
        ("checks: {gaps: 5}", "attributes.checks.gaps: expected true or false, and not a number"),
        ("observe_topics: maybe", "attributes.observe_topics: true or false is needed here, and not 'maybe'"),
        ("connection: 'a:1'", "attributes.connection: 'a:1' is no KafkaResource"),
        (
            "connection: {bootstrap_servers: a}",
            "attributes.connection: invalid KafkaConnection: 'a' is no address: bootstrap servers are host:port, sever",
        ),
        (
            "connection: {bootstrap_server: 'a:1'}",
            "attributes.connection.bootstrap_server: there is no such attribute; did you mean bootstrap_servers?",
        ),
        ("max_batches: '{{ \"a\" }}'", "attributes.max_batches: a whole number is needed here, and not 'a'"),
    ],
)
def test_a_wrong_attribute_is_told_with_its_file_and_line(attribute, message):
    assert f"landed/defs.yaml:{3 if message.startswith('attributes.source') else 5}: {message}" in refusal(
        landed=f"{TABLE}{FLIGHTS}  {attribute}\n"
    )


@pytest.mark.parametrize(
    ("attributes", "line", "message"),
    [
        ("", 2, "attributes.source: is missing"),
        (
            "  source: flights\n  table: t\n",
            3,
            "attributes.source: 'flights' is no source; name its topics, topic_pattern or partitions below it",
        ),
        (
            "  source: [flights]\n  table: t\n",
            3,
            "attributes.source: expected names with values below it, and not a list",
        ),
        (
            "  source: {topic: [a]}\n  table: t\n",
            3,
            "attributes.source.topic: there is no such attribute; did you mean topics?",
        ),
        (
            "  source: {topics: {a: b}}\n  table: t\n",
            3,
            "attributes.source.topics: expected a list, and not names with values",
        ),
        ("  source: {topics: [5]}\n  table: t\n", 3, "attributes.source.topics.0: expected a text, and not a number"),
        ("  source: {topics: 5}\n  table: t\n", 3, "attributes.source.topics: expected a list, and not a number"),
        (
            "  source: {topics: [null]}\n  table: t\n",
            3,
            "attributes.source.topics.0: is empty; write a value, or leave it out",
        ),
        (
            "  source: {topics: []}\n  table: t\n",
            3,
            "attributes.source: invalid KafkaSource: a source needs at least one topic",
        ),
        (
            "  source: {topics: ['a b']}\n  table: t\n",
            3,
            "attributes.source: invalid KafkaSource: 'a b' can't be a topic's name: Kafka allows 1 to 249 letters, dig",
        ),
        (
            "  source: {topic_pattern: '['}\n  table: t\n",
            3,
            "attributes.source: invalid KafkaSource: the topic pattern '[' is no regular expression: unterminated char",
        ),
        (
            "  source: {partitions: [a-0]}\n  table: t\n",
            3,
            "attributes.source.partitions: expected names with values below it, and not a list",
        ),
        (
            "  source: {partitions: {a: 0}}\n  table: t\n",
            3,
            "attributes.source.partitions.a: expected a list, and not a number",
        ),
        (
            "  source: {partitions: {a: [x]}}\n  table: t\n",
            3,
            "attributes.source.partitions.a.0: expected a whole number, and not a text",
        ),
        (
            "  source: {partitions: {a: [-1]}}\n  table: t\n",
            3,
            "attributes.source: invalid KafkaSource: a: partitions are numbered from 0, not -1",
        ),
        (
            "  source: {topics: [a], starting_offsets: {a: 5}}\n  table: t\n",
            3,
            "attributes.source.starting_offsets: expected a text, and not names with values",
        ),
        (
            "  source: {topics: [a], starting_offsets: 5}\n  table: t\n",
            3,
            "attributes.source.starting_offsets: expected a text, and not a number",
        ),
        (
            "  source: {topics: [a], starting_offsets: committed}\n  table: t\n",
            3,
            "attributes.source: invalid KafkaSource: committed offsets are asked for, but the source has no group id; ",
        ),
        (
            "  source: {topics: [a], starting_offsets: 'timestamp:2026-01-01'}\n  table: t\n",
            3,
            "attributes.source.starting_offsets: the time 2026-01-01T00:00:00 has no offset from UTC; write one, such ",
        ),
        (
            "  source: {topics: [a], starting_offsets: 'offsets:{'}\n  table: t\n",
            3,
            'attributes.source.starting_offsets: \'{\' is no map of offsets, such as {"flights": {"0": 17, "1": 23}}',
        ),
        (
            "  source: {topics: [a], stopping_offsets: earliest}\n  table: t\n",
            3,
            "attributes.source: invalid KafkaSource: earliest can't be a stop: nothing would ever be read",
        ),
        (
            "  source: {topics: [a], starting_offsets: 2026-01-01}\n  table: t\n",
            3,
            "attributes.source.starting_offsets: '2026-01-01' names no offsets; write earliest, latest, committed, com",
        ),
        (
            "  source: {topics: [a], max_drift: soon}\n  table: t\n",
            3,
            "attributes.source.max_drift: 'soon' is no duration; write it as PT1H (ISO 8601), 01:00:00, or in seconds",
        ),
        (
            "  source: {topics: [a], max_drift: [5]}\n  table: t\n",
            3,
            "attributes.source.max_drift: expected a number, and not a list",
        ),
        (
            "  source: {topics: [a], max_drift: -5}\n  table: t\n",
            3,
            "attributes.source: invalid KafkaSource: the maximum drift is -1 day, 23:59:55; it is at least a milliseco",
        ),
        (
            "  source: {topics: [a], properties: [a]}\n  table: t\n",
            3,
            "attributes.source.properties: expected names with values below it, and not a list",
        ),
        (
            "  source: {topics: [a], properties: {fetch.min.bytess: 5}}\n  table: t\n",
            3,
            "attributes.source: invalid KafkaSource: the property fetch.min.bytess is known to neither client; did you",
        ),
        (
            "  source: {topics: [a], properties: {sasl.password: hunter2}}\n  table: t\n",
            3,
            "attributes.source: invalid KafkaSource: the property sasl.password belongs to the connection: use the fie",
        ),
        (
            "  source: {topics: [a], properties: {fetch.min.bytes: [5]}}\n  table: t\n",
            3,
            "attributes.source.properties.fetch.min.bytes: expected a text, and not a list",
        ),
        (
            "  source: {topics: [a], isolation_level: committed}\n  table: t\n",
            3,
            "attributes.source.isolation_level: expected 'read_committed' or 'read_uncommitted'",
        ),
        (
            "  source: {topics: [a], commit_offsets: maybe}\n  table: t\n",
            3,
            "attributes.source.commit_offsets: expected true or false, and not a text",
        ),
        (
            "  source: {topics: [a], commit_offsets: true}\n  table: t\n",
            3,
            "attributes.source: invalid KafkaSource: offsets are to be committed, but the source has no group id; call",
        ),
        (
            "  source: {topics: [a], connection: x}\n  table: t\n",
            3,
            "attributes.source.connection: there is no such attribute; there are client_id_prefix, client_rack, cluste",
        ),
        (
            "  source: {topics: [a], cluster: 'a b'}\n  table: t\n",
            3,
            "attributes.source: invalid KafkaSource: the cluster's name 'a b' can't be: letters, digits, '.', '_' and ",
        ),
        ("  source: {topics: [a]}\n", 2, "attributes.table: is missing"),
        ("  table: t\n", 2, "attributes.source: is missing"),
        ("  source: null\n  table: t\n", 3, "attributes.source: is empty; write a value, or leave it out"),
        ("  source: {topics: [a]}\n  table: null\n", 4, "attributes.table: is empty; write a value, or leave it out"),
        ("  source: {topics: [a]}\n  table: ''\n", 4, "attributes.table: invalid DeltaTarget: table: is empty"),
        ("  source: {topics: [a]}\n  table: [a]\n", 4, "attributes.table: expected a text, and not a list"),
        (
            "  source: {topics: [a]}\n  table: {a: b}\n",
            4,
            "attributes.table: expected a text, and not names with values",
        ),
    ],
)
def test_a_wrong_source_or_table_is_told_with_its_file_and_line(attributes, line, message):
    assert f"landed/defs.yaml:{line}: {message}" in refusal(landed=TABLE + attributes)


@pytest.mark.parametrize(
    ("kafka", "spark", "message"),
    [
        (
            'bootstrap_server: "a:1"',
            "",
            "attributes.kafka.bootstrap_server: there is no such attribute; did you mean bootstrap_servers?",
        ),
        (
            "bootstrap_servers: localhost",
            "",
            "attributes.kafka: invalid KafkaConnection: 'localhost' is no address: bootstrap servers are host:port, se",
        ),
        ("bootstrap_servers: 5", "", "attributes.kafka.bootstrap_servers: expected a text, and not a number"),
        ("bootstrap_servers: [a]", "", "attributes.kafka.bootstrap_servers: expected a text, and not a list"),
        (
            "",
            "",
            "attributes.kafka: KafkaResource: bootstrap_servers is missing; give the addresses of the cluster, or `clu",
        ),
        (
            'bootstrap_servers: "a:1", security_protocol: ssl',
            "",
            "attributes.kafka: invalid KafkaConnection: security_protocol: has to be 'PLAINTEXT', 'SSL', 'SASL_PLAINTE",
        ),
        (
            'bootstrap_servers: "a:1", sasl_username: ann',
            "",
            "attributes.kafka: SASL credentials are given but security_protocol is PLAINTEXT, which would not use them",
        ),
        (
            'bootstrap_servers: "a:1", sasl_password: hunter2',
            "",
            'attributes.kafka.sasl_password: a password is written as "{{ env.NAME }}", so that it stands in no file a',
        ),
        (
            'bootstrap_servers: "a:1", sasl_pasword: hunter2',
            "",
            "attributes.kafka.sasl_pasword: there is no such attribute; did you mean sasl_password or ssl_key_password",
        ),
        (
            'bootstrap_servers: "a:1", request_timeout: soon',
            "",
            "attributes.kafka.request_timeout: expected a number, and not a text",
        ),
        (
            'bootstrap_servers: "a:1", request_timeout: -1',
            "",
            "attributes.kafka: invalid KafkaConnection: request_timeout: has to be greater than 0",
        ),
        (
            'bootstrap_servers: "a:1", properties: [a]',
            "",
            "attributes.kafka.properties: expected names with values below it, and not a list",
        ),
        (
            'bootstrap_servers: "a:1", properties: {fetch.min.bytess: 1}',
            "",
            "attributes.kafka: invalid KafkaConnection: the property fetch.min.bytess is known to neither client; did ",
        ),
        (
            'bootstrap_servers: "a:1", clusters: [eu]',
            "",
            "attributes.kafka.clusters: expected names with values below it, and not a list",
        ),
        (
            'bootstrap_servers: "a:1", clusters: {eu: "b:1"}',
            "",
            "attributes.kafka.clusters.eu: expected names with values below it, and not a text",
        ),
        (
            'bootstrap_servers: "a:1", clusters: {eu: {bootstrap_servers: b}}',
            "",
            "attributes.kafka.clusters.eu: invalid KafkaConnection: 'b' is no address: bootstrap servers are host:port",
        ),
        (
            'bootstrap_servers: "a:1", clusters: {eu: {bootstrap_server: "b:1"}}',
            "",
            "attributes.kafka.clusters.eu.bootstrap_servers: is missing",
        ),
        (
            'bootstrap_servers: "a:1"',
            "nonsense: 1",
            "attributes.spark.nonsense: there is no such attribute; there are app_name, config, master, packages, remo",
        ),
        (
            'bootstrap_servers: "a:1"',
            "masster: local",
            "attributes.spark.masster: there is no such attribute; did you mean master?",
        ),
        (
            'bootstrap_servers: "a:1"',
            "master: lokal",
            "attributes.spark: SparkResource: master 'lokal' is no master of Spark; write local[*], local[4], spark://",
        ),
        ('bootstrap_servers: "a:1"', "master: [a]", "attributes.spark.master: expected a text, and not a list"),
        (
            'bootstrap_servers: "a:1"',
            "master: 'local[2]', remote: 'sc://a:1'",
            "attributes.spark: SparkResource: master and remote are both given; a Spark Connect server has its own mas",
        ),
        (
            'bootstrap_servers: "a:1"',
            "remote: 'a:1'",
            "attributes.spark: SparkResource: remote is no address of a Spark Connect server; write sc://host:15002",
        ),
        (
            'bootstrap_servers: "a:1"',
            "config: [a]",
            "attributes.spark.config: expected names with values below it, and not a list",
        ),
        ('bootstrap_servers: "a:1"', "config: {a: [b]}", "attributes.spark.config.a: expected a text, and not a list"),
        (
            'bootstrap_servers: "a:1"',
            "config: text",
            "attributes.spark.config: expected names with values below it, and not a text",
        ),
        ('bootstrap_servers: "a:1"', "packages: a", "attributes.spark.packages: expected a list, and not a text"),
        ('bootstrap_servers: "a:1"', "packages: [5]", "attributes.spark.packages.0: expected a text, and not a number"),
        (
            'bootstrap_servers: "a:1"',
            "packages: [hadoop-aws]",
            "attributes.spark: SparkResource: packages: 'hadoop-aws' names no Maven artifact; write it as group:name:v",
        ),
        ('bootstrap_servers: "a:1"', "app_name: [a]", "attributes.spark.app_name: expected a text, and not a list"),
    ],
)
def test_a_wrong_resource_is_told_with_its_file_and_line_and_no_password(kafka, spark, message):
    said = refusal(resources=f"{RESOURCES}  kafka: {{{kafka}}}\n  spark: {{{spark}}}\n")
    assert f"resources/defs.yaml:{4 if 'attributes.spark' in message else 3}: {message}" in said
    assert "hunter2" not in said


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "No components found in YAML file"),
        ("# nothing\n", "No components found in YAML file"),
        ("type: dagster_kafka_flip.KafkaDeltaComponent\n", "defs.yaml:1: attributes.source: is missing"),
        ("type: dagster_kafka_flip.KafkaDeltaComponnt\nattributes: {}\n", "no attribute `KafkaDeltaComponnt`"),
        ("type: dagster_kafka_flp.KafkaDeltaComponent\nattributes: {}\n", "No module named 'dagster_kafka_flp'"),
        ("type: dagster_kafka_flip.KafkaSource\nattributes: {}\n", "must be a subclass of dagster.Component"),
        ("type: x\n  bad: [\n", 'defs.yaml", line 2'),
        ("\tx: 5\n", 'defs.yaml", line 1'),
        (f"{TABLE}{FLIGHTS}  kafka: kafak\n", "resource with key 'kafak' required"),
        (f"{TABLE}{FLIGHTS}  stream: '{{{{ nope }}}}'\n", "defs.yaml:5 - attributes.stream"),
        (
            f"{TABLE}{FLIGHTS}  automation_condition: '{{{{ dg.nope }}}}'\n",
            "defs.yaml:5 - attributes.automation_condition",
        ),
        (f"{RESOURCES}  kafka: [a]\n", "defs.yaml:3: attributes.kafka: expected names with values below it"),
        (f"{RESOURCES}  kafka: 'a:1'\n", "defs.yaml:3: attributes.kafka: 'a:1' is no KafkaResource"),
        (f"{RESOURCES}  spark: local\n", "defs.yaml:3: attributes.spark: 'local' is no SparkResource"),
        (f"{RESOURCES}  kafak: {{}}\n", "attributes.kafak: there is no such attribute; did you mean kafka?"),
    ],
)
def test_a_file_that_is_wrong_as_a_whole_says_so(text, message):
    assert message in refusal(landed=text)


def test_each_of_several_wrong_attributes_is_told():
    said = refusal(landed=f"{TABLE}  source: {{topic: [a]}}\n  tabel: x\n").splitlines()
    assert [line.partition("defs.yaml:")[2] for line in said] == [
        "3: attributes.source.topic: there is no such attribute; did you mean topics?",
        "2: attributes.table: is missing",
        "4: attributes.tabel: there is no such attribute; did you mean table?",
    ]
