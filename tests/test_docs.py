"""The documents say what is so: snippets run, commands and links exist, and nothing public is left out."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import dagster_kafka_flip
from dagster_kafka_flip import errors
from dagster_kafka_flip.runtime.class_archive import archive_options
from dagster_kafka_flip.runtime.jars import CACHE_VARIABLE, default_cache_dir
from dagster_kafka_flip.runtime.spark_jars import fetch_jars
from tests.document_tests import ROOT, Block, blocks

NEEDS_A_BROKER = "needs a broker"
LANDS_WINDOWS = "lands windows"
PUBLISHES = "publishes a table"
PREPARES = "prepares a table"
DAGSTER_YAML = "dagster.yaml"
ON_A_LANDED_TABLE = "on a landed table"
AN_IMAGE = "an image"
A_FAILURE_SENSOR = "a failure sensor"
A_COMPONENT = "a component"
# Run by tests of their own: of docs/getting-started.md, formats.md, migration.md, changelogs.md, airflow.md and
# metadata.md.
ELSEWHERE = re.compile(
    r"getting started, .+|a registry, .+|runs on the migrated table|a connector( of MariaDB)?|a DAG|sets up metrics"
)

# Each kind of block, by its language and the marker above it, that a test looks at. A text is what a command prints, or
# a drawing.
TESTED = {
    ("python", ""),
    ("python", NEEDS_A_BROKER),
    ("python", LANDS_WINDOWS),
    ("python", PUBLISHES),
    ("python", PREPARES),
    ("python", A_FAILURE_SENSOR),
    ("console", ""),
    ("yaml", ""),
    ("yaml", DAGSTER_YAML),
    ("yaml", A_COMPONENT),
    ("json", ""),
    ("sql", ON_A_LANDED_TABLE),
    ("dockerfile", AN_IMAGE),
    ("text", ""),
}


def _documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _prose(document: Path) -> str:
    return re.sub(r"^ *```.*?^ *```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


DOCUMENTS = _documents()
BLOCKS = [block for document in DOCUMENTS for block in blocks(document)]
README_EXAMPLE = next(block for block in BLOCKS if block.language == "python" and block.document.name == "README.md")
# The pages in which people look up names. docs/troubleshooting.md has the errors (tests/test_troubleshooting.py).
REFERENCE_PAGES = ("reference", "formats", "automation", "metadata")
REFERENCE_TEXT = "\n".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in REFERENCE_PAGES)


def _run(block: Block) -> types.ModuleType:
    module = types.ModuleType("snippet")
    exec(compile(block.code, str(block), "exec"), vars(module))
    return module


_LOADER = """
import json, sys, traceback

failed = {}
for name, code in json.load(sys.stdin).items():
    try:
        exec(compile(code, name, "exec"), {"__name__": "snippet"})
    except BaseException:
        failed[name] = traceback.format_exc(limit=-2)
json.dump({"failed": failed, "pyspark": "pyspark" in sys.modules}, sys.stdout)
"""


def test_every_block_is_of_a_kind_that_a_test_looks_at():
    kinds = {str(block): (block.language, block.marker) for block in BLOCKS if not ELSEWHERE.fullmatch(block.marker)}
    assert {where: kind for where, kind in kinds.items() if kind not in TESTED} == {}


def test_every_definition_in_the_documents_loads_without_spark_and_without_a_broker(tmp_path):
    snippets = {
        str(block): block.code
        for block in BLOCKS
        if (block.language, block.marker) == ("python", "") or block.marker.endswith("definitions.py")
    }
    assert len(snippets) >= 7
    finished = subprocess.run(
        [sys.executable, "-c", _LOADER],
        input=json.dumps(snippets),
        # Nothing listens on port 1.
        env={
            **os.environ,
            "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
            "PYTHONPATH": str(ROOT),
            "_AIRFLOW__AS_LIBRARY": "1",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert json.loads(finished.stdout) == {"failed": {}, "pyspark": False}
    assert not list(tmp_path.iterdir())


@pytest.mark.kafka
@pytest.mark.spark
def test_the_readme_example_lands_the_rows_that_it_shows(kafka, named_topic, broker, spark, tmp_path, monkeypatch):
    from dagster import DagsterInstance, materialize

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", broker)
    defs = _run(README_EXAMPLE).defs
    values = ['{"carrier": "AA", "flight": 1, "dep_delay": 2}', '{"carrier": "XX", "flight": 9}', '{"carrier": "UA"}']
    kafka.produce(named_topic("flights"), [(None, value) for value in values])

    with DagsterInstance.ephemeral() as instance:
        for _ in range(2):
            assert materialize(defs.assets, resources=defs.resources, instance=instance).success

    rows = spark.read.format("delta").load(str(tmp_path / "warehouse" / "flights"))
    landed = rows.orderBy("kafka_offset").select("carrier", "flight", "dep_delay").collect()
    assert [tuple(row) for row in landed] == [("AA", 1, 2), ("UA", None, None)]


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("block", [block for block in BLOCKS if block.marker == NEEDS_A_BROKER], ids=str)
def test_a_snippet_that_reads_runs(kafka, named_topic, broker, spark, tmp_path, monkeypatch, block):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", broker)
    kafka.produce(named_topic("flights"), [(None, '{"carrier": "AA"}')])

    result = _run(block).result

    assert result.rows == result.known.table_rows == 1
    assert spark.read.format("delta").load(str(tmp_path / "warehouse" / "flights_raw")).count() == 1


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("block", [block for block in BLOCKS if block.marker == LANDS_WINDOWS], ids=str)
def test_a_snippet_that_lands_windows_runs(kafka, named_topic, broker, spark, tmp_path, monkeypatch, block):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", broker)
    # The first moment of 2026.
    kafka.produce(named_topic("flights"), [(None, "in January")], timestamp=1_767_225_600_000)

    (result,) = _run(block).results

    assert sum(result.rows.values()) == spark.read.format("delta").load(result.location).count() > 0


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("block", [block for block in BLOCKS if block.marker == PUBLISHES], ids=str)
def test_a_snippet_that_publishes_runs(kafka, named_topic, broker, spark, tmp_path, monkeypatch, block):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", broker)
    named_topic("order_changes")
    spark.range(3).write.format("delta").save(str(tmp_path / "warehouse" / "orders"))

    result = _run(block).result

    assert (result.records, result.lag_versions) == (3, 0)
    assert kafka.end_offset("order_changes") >= result.records


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("block", [block for block in BLOCKS if block.marker == PREPARES], ids=str)
def test_a_snippet_that_prepares_a_table_makes_the_topic_and_turns_the_feed_on(
    kafka, broker, spark, tmp_path, monkeypatch, block
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", broker)
    table = tmp_path / "warehouse" / "orders"
    spark.range(3).write.format("delta").save(str(table))

    try:
        _run(block)
        assert kafka.end_offset("order_changes") == 0
    finally:
        kafka.delete("order_changes")

    (details,) = spark.sql(f"DESCRIBE DETAIL delta.`{table}`").collect()
    assert details["properties"] == {"delta.enableChangeDataFeed": "true"}


def test_the_readme_example_is_short():
    assert len(README_EXAMPLE.code.splitlines()) <= 30


def test_the_run_configs_fit_the_readme_example(monkeypatch):
    from dagster import Definitions, validate_run_config

    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    defs = _run(README_EXAMPLE).defs
    configs = [
        (block.document, yaml.safe_load(block.code))
        for block in BLOCKS
        if (block.language, block.marker) == ("yaml", "")
    ]
    assert configs
    for document, config in configs:
        ((name, operation),) = config["ops"].items()
        assets = [*defs.assets]
        if name != "flights":
            defines = re.compile(rf"^{name} = ", re.MULTILINE)
            definition = next(block for block in BLOCKS if block.document == document and defines.search(block.code))
            assets = [getattr(_run(definition), name)]
        job = Definitions(assets=assets, resources=defs.resources).resolve_implicit_global_asset_job_def()
        validate_run_config(job, config)
        ends = operation["config"]
        # Of a topic; a stop that is a number is a table version.
        for end in (ends[which] for which in ("start", "stop") if isinstance(ends.get(which), str)):
            dagster_kafka_flip.OffsetsInitializer.parse(end)


def test_the_components_in_the_documents_are_a_project_that_loads():
    from dagster import Definitions
    from dagster.components.testing import create_defs_folder_sandbox

    components = [block for block in BLOCKS if block.marker == A_COMPONENT]
    assert len(components) >= 4
    with create_defs_folder_sandbox() as sandbox:
        for block in components:
            # Each may have the name of a topic, which others have as well.
            folder = sandbox.defs_folder_path / f"{block.document.stem}_{block.line}"
            folder.mkdir()
            (folder / "defs.yaml").write_text(block.code, encoding="utf-8")
        with sandbox.build_all_defs() as defs:
            Definitions.validate_loadable(defs)


def test_a_condition_that_a_template_cant_combine_comes_from_the_documents_python_file():
    from dagster import AssetKey
    from dagster.components.testing import create_defs_folder_sandbox

    ours = [block for block in BLOCKS if block.document.name == "reference.md"]
    python = next(block for block in ours if "@template_var" in block.code)
    components = [block.code for block in ours if block.marker == A_COMPONENT]
    yaml_, resources = components[0], next(code for code in components if "KafkaResourcesComponent" in code)
    (name,) = re.findall(r"def (\w+)", python.code)
    yaml_ = re.sub(r"automation_condition: .*", f'automation_condition: "{{{{ {name} }}}}"', yaml_)
    with create_defs_folder_sandbox() as sandbox:
        folder = sandbox.defs_folder_path / "orders"
        folder.mkdir()
        (sandbox.defs_folder_path / "resources").mkdir()
        (sandbox.defs_folder_path / "resources" / "defs.yaml").write_text(resources, encoding="utf-8")
        (folder / "template_vars.py").write_text(python.code, encoding="utf-8")
        (folder / "defs.yaml").write_text(f"template_vars_module: .template_vars\n{yaml_}", encoding="utf-8")
        with sandbox.build_all_defs() as defs:
            spec = defs.resolve_asset_graph().get(AssetKey("orders")).to_asset_spec()
    assert spec.automation_condition == getattr(_run(python), name)()


def test_the_commits_document_is_one():
    from dagster_kafka_flip.table.document import CommitDocument

    documents = [block.code for block in BLOCKS if (block.language, block.marker) == ("json", "")]
    assert documents
    for text in documents:
        document = CommitDocument.from_text(text)
        assert document is not None
        assert json.loads(document.to_text()) == json.loads(text)


def _command_lines() -> list[tuple[str, str]]:
    blocks_ = [block for block in BLOCKS if block.language == "console"]
    lines = [(str(block), line.strip()) for block in blocks_ for line in block.code.splitlines()]
    assert [line for line in lines if not line[1].startswith("$ ")] == []
    return [(where, line.removeprefix("$ ")) for where, line in lines]


def _inline_commands() -> list[tuple[str, str]]:
    """Commands with options that stand in a sentence."""
    return [
        (document.name, line)
        for document in DOCUMENTS
        for line in re.findall(r"`(dagster-kafka-flip [^`]*--[^`]+)`", _prose(document))
    ]


def test_every_command_is_one_that_a_test_looks_at():
    # What pip installs, what an operator's shell sets, a new project, and a snippet that a page made a file of.
    others = (
        r"pip install .+|export \w+=\S+|mkdir -p \S+|touch \S+|create-dagster project shop --no-uv-sync|cd shop"
        r"|python (produce|rows|prepare|registry|produce_avro)\.py|python -c .+"
    )
    known = re.compile(rf"dagster-kafka-flip .+|airflow .+|dagster .+|dg .+|make [\w-]+|{others}")
    assert [line for line in _command_lines() if not known.fullmatch(line[1])] == []


def test_every_extra_that_is_to_be_installed_exists():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = set(re.findall(r"^([\w-]+) = \[", project.partition("[project.optional-dependencies]")[2], re.MULTILINE))
    for document in DOCUMENTS:
        for named in re.findall(r"dagster-kafka-flip\[([\w,-]+)\]", document.read_text(encoding="utf-8")):
            assert set(named.split(",")) <= extras, document


@pytest.mark.parametrize(("where", "line"), [pair for pair in _command_lines() if pair[1].startswith("dagster ")])
def test_every_command_of_dagster_parses(where, line):
    from dagster._cli import create_dagster_cli

    answer = CliRunner().invoke(create_dagster_cli(), [*shlex.split(line)[1:], "--help"])
    assert answer.exit_code == 0, f"{where}: {answer.output}"


@pytest.mark.parametrize(("where", "line"), [pair for pair in _command_lines() if pair[1].startswith("dg ")])
def test_every_command_of_dg_is_one_of_its_own(where, line):
    from dagster_dg_cli.cli import create_dg_cli

    command: Any = create_dg_cli()
    for word in shlex.split(line)[1:]:
        command = getattr(command, "commands", {}).get(word, command)
    # What `dg scaffold defs` takes is found by dg in the environment, and tried out in tests/test_component.py.
    assert not getattr(command, "commands", {}) or line.startswith("dg scaffold defs dagster_kafka_flip."), where


# scripts/test_install.py runs the one of its page.
_LINES_OF_PYTHON = [
    pair for pair in _command_lines() if pair[1].startswith("python -c") and "getting-started" not in pair[0]
]


@pytest.mark.parametrize(("where", "line"), _LINES_OF_PYTHON)
def test_every_line_of_python_runs(where, line):
    subprocess.run([sys.executable, *shlex.split(line)[1:]], check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.marker == A_FAILURE_SENSOR], ids=str)
def test_a_failure_sensor_gets_the_class_of_the_error(block, instance):
    from dagster import DefaultSensorStatus, build_run_status_sensor_context, materialize

    from dagster_kafka_flip import KafkaResource, KafkaSource, SparkResource, build_kafka_delta_asset

    asset = build_kafka_delta_asset(name="flights", source=KafkaSource(topics=("flights",)), table="warehouse/flights")
    # Nothing listens on port 1.
    resources = {"kafka": KafkaResource(bootstrap_servers="127.0.0.1:1", request_timeout=1), "spark": SparkResource()}
    failed = materialize([asset], resources=resources, instance=instance, raise_on_error=False)
    (event,) = [event for event in failed.all_events if event.is_run_failure]
    context = build_run_status_sensor_context("tell_somebody", event, instance, failed.dagster_run)
    sensor = _run(block)

    assert "ClusterUnreachableError" in sensor.error_classes(context.for_run_failure())
    assert {name for name in sensor.AT_ONCE if name not in _error_classes()} == set()
    assert sensor.tell_somebody.default_status == DefaultSensorStatus.RUNNING
    sensor.tell_somebody(context.for_run_failure())


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.marker == DAGSTER_YAML], ids=str)
def test_a_dagster_yaml_limits_pools(block, tmp_path):
    from dagster import DagsterInstance

    (tmp_path / "dagster.yaml").write_text(block.code, encoding="utf-8")
    with DagsterInstance.from_config(str(tmp_path)) as instance:
        assert instance.get_concurrency_config().pool_config.default_pool_limit == 1
        # Else a run that was killed keeps its table's slot; half an hour is long enough for the others to wait.
        assert instance.run_monitoring_enabled
        assert 0 < instance.run_monitoring_max_runtime_seconds <= 1800
        assert instance.run_monitoring_settings["free_slots_after_run_end_seconds"] > 0
    example = yaml.safe_load((ROOT / "examples" / "compose" / "dagster.yaml").read_text(encoding="utf-8"))
    assert example["run_monitoring"] == yaml.safe_load(block.code)["run_monitoring"]


@pytest.mark.kafka
@pytest.mark.spark
def test_statements_on_a_landed_table_are_passed_over_by_the_next_run(
    kafka, connection, spark, spark_of, topic, tmp_path
):
    from dagster_kafka_flip import KafkaSource, ingest

    table = tmp_path / "warehouse" / "flights"
    kafka.create(topic)

    def land():
        kafka.produce(topic, [(None, "a record")])
        assert ingest(KafkaSource(topics=(topic,)), str(table), spark=spark_of, connection=connection).rows == 1

    land()
    for block in (block for block in BLOCKS if block.marker == ON_A_LANDED_TABLE):
        # Only an absolute path is replaced: Delta's SQL finds no table at a relative one.
        code = block.code.replace("/srv/warehouse/flights", str(table))
        answers = [spark.sql(statement) for statement in code.split(";") if statement.strip()]
        if "AS next" in code:
            assert [tuple(row) for row in answers[-1].collect()] == [(topic, 0, kafka.end_offset(topic))]
    land()


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.parametrize("block", [block for block in BLOCKS if block.marker == AN_IMAGE], ids=str)
def test_the_images_command_fills_a_cache_with_jars(block, tmp_path):
    (command,) = re.findall(r"^RUN (dagster-kafka-flip .+)$", block.code, re.MULTILINE)
    program, *arguments = shlex.split(command)
    subprocess.run([Path(sys.executable).with_name(program), *arguments], check=True, cwd=tmp_path)
    (variable,) = re.findall(r"^ENV (\w+)=\S+$", block.code, re.MULTILINE)
    assert variable == CACHE_VARIABLE
    assert default_cache_dir().joinpath("jars").is_dir()
    assert archive_options(fetch_jars(tuple(re.findall(r"--package (\S+)", command))))


def test_the_jars_for_s3_are_those_of_the_tests_and_fit_the_hadoop_of_pyspark():
    import pyspark

    from tests.stores.jars import S3_PACKAGES

    document = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    text = document.partition("\n## S3\n")[2].partition("\n## ")[0]
    (hadoop,) = set(re.findall(r"hadoop-aws:([\d.]+)", text))
    assert (Path(pyspark.__file__).parent / "jars" / f"hadoop-client-api-{hadoop}.jar").exists()
    named = re.findall(r'"((?:org\.apache\.hadoop|software\.amazon\.awssdk|com\.amazonaws):\S+)"', text)
    assert set(named) == set(S3_PACKAGES)


def test_every_make_target_in_the_documents_exists():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = {line.split()[1] for _, line in _command_lines() if line.startswith("make ")}
    for document in DOCUMENTS:
        named |= set(re.findall(r"`make ([\w-]+)`", _prose(document)))
    assert {"demo", "dev", "test"} <= named
    assert named <= targets


@pytest.mark.parametrize(
    ("where", "line"),
    [pair for pair in [*_command_lines(), *_inline_commands()] if pair[1].startswith("dagster-kafka-flip")],
)
def test_every_command_in_the_documents_parses(where, line):
    from dagster_kafka_flip.cli.app import main

    answer = CliRunner().invoke(main, [*shlex.split(line)[1:], "--help"])
    assert answer.exit_code == 0, f"{where}: {answer.output}"


def _anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", _prose(document), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(document):
    for link in re.findall(r"\]\(([^)\s]+)\)", _prose(document)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path) if path else document
        assert target.exists(), link
        if anchor:
            assert anchor in _anchors(target), link


def _error_classes() -> list[str]:
    return [name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)]


def _metadata_keys() -> set[str]:
    sources = (
        inspect.getsource(importlib.import_module(f"dagster_kafka_flip.assets.{name}"))
        for name in ("metadata", "topic_asset", "kafka_delta_asset", "delta_kafka_asset")
    )
    return {key for text in sources for key in re.findall(r'"((?:kafka|delta|dagster|spark|seconds)/[a-z_]+)"', text)}


def _options() -> set[str]:
    from dagster_kafka_flip import (
        DeltaTarget,
        IngestRunConfig,
        KafkaConnection,
        KafkaDeltaComponent,
        KafkaResource,
        KafkaResourcesComponent,
        KafkaSource,
        SchemaRegistryResource,
        SparkResource,
        Windows,
        WindowsRunConfig,
    )
    from dagster_kafka_flip.cli.app import broker

    names: set[str] = set()
    for function in (
        dagster_kafka_flip.kafka_delta_asset,
        dagster_kafka_flip.kafka_delta_checks,
        dagster_kafka_flip.build_kafka_delta_assets,
        dagster_kafka_flip.matching_topics,
        dagster_kafka_flip.kafka_topic_asset,
        dagster_kafka_flip.delta_kafka_asset,
        dagster_kafka_flip.publish,
        dagster_kafka_flip.rewrite_windows,
        dagster_kafka_flip.build_session,
        dagster_kafka_flip.LocalBroker.__init__,
    ):
        names |= set(inspect.signature(function).parameters)
    for model in (
        DeltaTarget,
        IngestRunConfig,
        KafkaConnection,
        KafkaDeltaComponent,
        KafkaResource,
        KafkaResourcesComponent,
        SchemaRegistryResource,
        SparkResource,
        Windows,
        WindowsRunConfig,
    ):
        names |= set(model.model_fields)
    names |= {name for name in dir(KafkaSource.builder()) if not name.startswith("_")}
    names |= {option for command in broker.commands.values() for found in command.params for option in found.opts}
    return names - {"self"}


def test_the_reference_names_everything_public():
    options = REFERENCE_TEXT + (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    missing = {
        "names": [name for name in dagster_kafka_flip.__all__ if not re.search(rf"`{name}\b", REFERENCE_TEXT)],
        "metadata keys": [key for key in _metadata_keys() if f"`{key}`" not in REFERENCE_TEXT],
        "options": [name for name in _options() if not re.search(rf"(?<![\w-]){re.escape(name)}\b", options)],
    }
    assert {what: names for what, names in missing.items() if names} == {}


def test_the_documents_name_only_existing_errors():
    known = {*_error_classes(), "ValidationError"}
    for document in DOCUMENTS:
        assert set(re.findall(r"`(\w+Error)`", document.read_text(encoding="utf-8"))) <= known, document
