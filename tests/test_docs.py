"""The documents say what is so: snippets run, commands and links exist, and nothing public is left out."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dagster_kafka_flip
from dagster_kafka_flip import errors

ROOT = Path(__file__).parent.parent
NEEDS_A_BROKER = "<!-- test: needs a broker -->"
LANDS_WINDOWS = "<!-- test: lands windows -->"
SHELL = {"console", "bash", "sh"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a document."""

    document: Path
    line: int
    language: str
    code: str
    needs_a_broker: bool
    lands_windows: bool

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def _documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def _blocks(document: Path) -> list[Block]:
    lines = document.read_text(encoding="utf-8").splitlines()
    fences = [index for index, line in enumerate(lines) if line.lstrip().startswith("```")]
    assert len(fences) % 2 == 0, f"{document}: a fence is not closed"
    return [
        Block(
            document=document,
            line=start + 1,
            language=lines[start].strip().removeprefix("```"),
            code="\n".join(lines[start + 1 : end]) + "\n",
            needs_a_broker=start > 0 and lines[start - 1].strip() == NEEDS_A_BROKER,
            lands_windows=start > 0 and lines[start - 1].strip() == LANDS_WINDOWS,
        )
        for start, end in zip(fences[::2], fences[1::2], strict=True)
    ]


def _prose(document: Path) -> str:
    return re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


DOCUMENTS = _documents()
BLOCKS = [block for document in DOCUMENTS for block in _blocks(document)]
README_EXAMPLE = next(block for block in BLOCKS if block.language == "python" and block.document.name == "README.md")
REFERENCE = ROOT / "docs" / "reference.md"
REFERENCE_TEXT = REFERENCE.read_text(encoding="utf-8")


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


def test_every_definition_in_the_documents_loads_without_spark_and_without_a_broker(tmp_path):
    snippets = {
        str(block): block.code
        for block in BLOCKS
        if block.language == "python" and not (block.needs_a_broker or block.lands_windows)
    }
    assert len(snippets) >= 7
    finished = subprocess.run(
        [sys.executable, "-c", _LOADER],
        input=json.dumps(snippets),
        # Nothing listens on port 1.
        env={**os.environ, "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert json.loads(finished.stdout) == {"failed": {}, "pyspark": False}
    assert not list(tmp_path.iterdir())


def _flights(kafka: Any, values: list[str]) -> int:
    """Adds records to the topic of the documents' examples, and says where they begin."""
    if "flights" in kafka.admin.list_topics(timeout=20).topics:
        begin = kafka.end_offset("flights")
    else:
        kafka.create("flights")
        begin = 0
    kafka.produce("flights", [(None, value) for value in values])
    return begin


@pytest.mark.kafka
@pytest.mark.spark
def test_the_readme_example_lands_what_it_says(kafka, broker, spark, tmp_path, monkeypatch):
    from dagster import DagsterInstance, materialize

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", broker)
    defs = _run(README_EXAMPLE).defs
    values = ['{"carrier": "AA", "flight": 1, "dep_delay": 2}', '{"carrier": "XX", "flight": 9}', '{"carrier": "UA"}']
    begin = _flights(kafka, values)

    with DagsterInstance.ephemeral() as instance:
        for _ in range(2):
            assert materialize(defs.assets, resources=defs.resources, instance=instance).success

    rows = spark.read.format("delta").load(str(tmp_path / "warehouse" / "flights")).where(f"kafka_offset >= {begin}")
    landed = rows.orderBy("kafka_offset").select("carrier", "flight", "dep_delay").collect()
    assert [tuple(row) for row in landed] == [("AA", 1, 2), ("UA", None, None)]


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("block", [block for block in BLOCKS if block.needs_a_broker], ids=str)
def test_a_snippet_that_reads_runs(kafka, broker, spark, tmp_path, monkeypatch, block):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", broker)
    _flights(kafka, ['{"carrier": "AA"}'])

    result = _run(block).result

    assert result.rows == kafka.end_offset("flights") == result.known.table_rows
    assert spark.read.format("delta").load(str(tmp_path / "warehouse" / "flights_raw")).count() == result.rows


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("block", [block for block in BLOCKS if block.lands_windows], ids=str)
def test_a_snippet_that_lands_windows_runs(kafka, broker, spark, tmp_path, monkeypatch, block):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", broker)
    # Behind records of today, one of January would be late.
    if "flights" in kafka.admin.list_topics(timeout=20).topics:
        kafka.delete("flights")
    kafka.create("flights")
    # The first moment of 2026.
    kafka.produce("flights", [(None, "in January")], timestamp=1_767_225_600_000)

    (result,) = _run(block).results

    assert sum(result.rows.values()) == spark.read.format("delta").load(result.location).count() > 0


def test_the_readme_example_is_short():
    assert len(README_EXAMPLE.code.splitlines()) <= 30


def test_the_run_configs_fit_the_readme_example(monkeypatch):
    import yaml
    from dagster import Definitions, validate_run_config

    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    defs = _run(README_EXAMPLE).defs
    configs = [(block.document, yaml.safe_load(block.code)) for block in BLOCKS if block.language == "yaml"]
    assert configs
    for document, config in configs:
        ((name, operation),) = config["ops"].items()
        assets = [*defs.assets]
        if name != "flights":
            first = next(block for block in BLOCKS if block.document == document and block.language == "python")
            assets = [getattr(_run(first), name)]
        job = Definitions(assets=assets, resources=defs.resources).resolve_implicit_global_asset_job_def()
        validate_run_config(job, config)
        ends = operation["config"]
        for end in (ends[which] for which in ("start", "stop") if which in ends):
            dagster_kafka_flip.OffsetsInitializer.parse(end)


def test_the_commits_document_is_one():
    from dagster_kafka_flip.table.document import CommitDocument

    documents = [block.code for block in BLOCKS if block.language == "json"]
    assert documents
    for text in documents:
        document = CommitDocument.from_text(text)
        assert document is not None
        assert json.loads(document.to_text()) == json.loads(text)


def _command_lines() -> list[tuple[str, str]]:
    return [
        (str(block), line.strip().removeprefix("$ "))
        for block in BLOCKS
        if block.language in SHELL
        for line in block.code.splitlines()
    ]


def test_every_make_target_in_the_documents_exists():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    named = {line.split()[1] for _, line in _command_lines() if line.startswith("make ")}
    for document in DOCUMENTS:
        named |= set(re.findall(r"`make ([\w-]+)`", _prose(document)))
    assert {"demo", "dev", "test"} <= named
    assert named <= targets


@pytest.mark.parametrize(
    ("where", "line"), [pair for pair in _command_lines() if pair[1].startswith("dagster-kafka-flip")]
)
def test_every_command_in_the_documents_parses(where, line):
    from dagster_kafka_flip.cli import main

    answer = CliRunner().invoke(main, [*line.split()[1:], "--help"])
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
        inspect.getsource(__import__(f"dagster_kafka_flip.{name}", fromlist=["_"]))
        for name in ("metadata", "window_metadata", "topics", "assets")
    )
    return {key for text in sources for key in re.findall(r'"((?:kafka|delta|dagster|spark|seconds)/[a-z_]+)"', text)}


def _options() -> set[str]:
    from dagster_kafka_flip import (
        DeltaTarget,
        IngestRunConfig,
        KafkaConnection,
        KafkaResource,
        KafkaSource,
        SparkResource,
        Windows,
        WindowsRunConfig,
    )
    from dagster_kafka_flip.cli import broker

    names: set[str] = set()
    for function in (
        dagster_kafka_flip.kafka_delta_asset,
        dagster_kafka_flip.kafka_delta_checks,
        dagster_kafka_flip.kafka_topic_asset,
        dagster_kafka_flip.rewrite_windows,
        dagster_kafka_flip.build_session,
        dagster_kafka_flip.LocalBroker.__init__,
    ):
        names |= set(inspect.signature(function).parameters)
    for model in (
        DeltaTarget,
        IngestRunConfig,
        KafkaConnection,
        KafkaResource,
        SparkResource,
        Windows,
        WindowsRunConfig,
    ):
        names |= set(model.model_fields)
    names |= {name for name in dir(KafkaSource.builder()) if not name.startswith("_")}
    names |= {option for command in broker.commands.values() for found in command.params for option in found.opts}
    return names - {"self"}


def test_the_reference_names_everything_public():
    missing = {
        "names": [name for name in dagster_kafka_flip.__all__ if not re.search(rf"`{name}\b", REFERENCE_TEXT)],
        "errors": [name for name in _error_classes() if f"| `{name}` |" not in REFERENCE_TEXT],
        "metadata keys": [key for key in _metadata_keys() if f"`{key}`" not in REFERENCE_TEXT],
        "options": [name for name in _options() if not re.search(rf"(?<![\w-]){re.escape(name)}\b", REFERENCE_TEXT)],
    }
    assert {what: names for what, names in missing.items() if names} == {}


def test_the_documents_name_no_error_that_is_not_there():
    known = {*_error_classes(), "ValidationError"}
    for document in DOCUMENTS:
        assert set(re.findall(r"`(\w+Error)`", document.read_text(encoding="utf-8"))) <= known, document
