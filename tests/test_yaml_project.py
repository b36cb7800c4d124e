"""The example project of YAML only, and `dg` on it: as a user runs it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from dagster import AssetKey, Definitions, load_from_defs_folder
from dagster_dg_cli.cli import create_dg_cli

from dagster_kafka_flip.assets.registry import ingestions_of
from tests.reports import reports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "yaml_project"
LANDED = {"orders": 3, "payments": 2, "shipments": 1}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the example, as a user would have it."""
    return Path(shutil.copytree(EXAMPLE, tmp_path / "project", ignore=shutil.ignore_patterns("__pycache__")))


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch, project: Path) -> Any:
    """Loads the project's definitions."""
    monkeypatch.syspath_prepend(str(project))

    def defs() -> Definitions:
        return load_from_defs_folder(path_within_project=project)

    yield defs
    _forget()


def _forget() -> None:
    """The next test has a copy of its own, under the same name."""
    for name in [name for name in sys.modules if name.split(".")[0] == "yaml_project"]:
        del sys.modules[name]


@pytest.fixture
def dg(monkeypatch: pytest.MonkeyPatch, project: Path) -> Iterator[Callable[..., Result]]:
    """Runs a command of `dg` in the project: in this process, because each start of `dg` takes seconds."""
    monkeypatch.chdir(project)
    environment = {"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", "COLUMNS": "200", "PYTHONWARNINGS": "ignore"}

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(create_dg_cli(), arguments, env=environment)

    yield run
    _forget()


def test_the_example_defines_an_asset_for_each_topic_and_lineage_down_to_the_decoded_one(load, monkeypatch):
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")

    specs = {spec.key.to_user_string(): spec for spec in load().resolve_all_asset_specs()}

    topics = {f"kafka/{topic}" for topic in LANDED}
    assert set(specs) == topics | {f"landed/{topic}" for topic in LANDED} | {"orders_by_customer"}
    assert [dep.asset_key for dep in specs["landed/payments"].deps] == [AssetKey(["kafka", "payments"])]
    assert [dep.asset_key for dep in specs["orders_by_customer"].deps] == [AssetKey(["kafka", "orders"])]
    assert specs["landed/payments"].description == "The topic payments, as it is."


def test_dagsters_post_processing_changes_the_assets_of_a_component(load, project, monkeypatch):
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    file = project / "yaml_project" / "defs" / "orders_by_customer" / "defs.yaml"
    processed = """
  maintenance: {}
post_processing:
  assets:
    - target: "kind:deltalake"
      attributes: {tags: {tier: gold}, group_name: sales}
"""
    file.write_text(file.read_text() + processed)

    defs = load()

    changed = {spec.key.to_user_string(): spec for spec in defs.resolve_all_asset_specs() if "tier" in spec.tags}
    assert set(changed) == {"orders_by_customer", "orders_by_customer_maintenance"}
    assert {spec.group_name for spec in changed.values()} == {"sales"}
    asset = defs.resolve_assets_def(AssetKey("orders_by_customer"))
    assert list(ingestions_of(asset)) == [asset.key], "it still lands its topic"


@pytest.mark.kafka
@pytest.mark.spark
def test_the_example_lands_its_topics_and_the_second_run_is_idle(
    kafka, named_topic, broker, spark, instance, load, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", broker)
    for topic in LANDED:
        named_topic(topic)
    order = '{"customer": "Ada", "amount": 12.5}'
    kafka.produce("orders", [("1", order), ("2", order), ("3", "no JSON")])
    kafka.produce("payments", [(None, "a"), (None, "b")])
    kafka.produce("shipments", [(None, "c")])

    def run() -> dict[str, bool]:
        defs = load()
        keys = [AssetKey(["landed", topic]) for topic in LANDED] + [AssetKey("orders_by_customer")]
        result = defs.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=instance, asset_selection=keys
        )
        return {key.to_user_string(): told["kafka/idle"] for key, told in reports(result).items()}

    def rows(table: str) -> int:
        return spark.read.format("delta").load(str(tmp_path / "warehouse" / table)).count()

    assert set(run().values()) == {False}
    assert {topic: rows(f"landed/{topic}") for topic in LANDED} == LANDED
    assert (rows("orders_by_customer"), rows("orders_rejected")) == (2, 1)
    assert set(run().values()) == {True}


@pytest.mark.slow
def test_dg_knows_the_components_and_finds_the_example_right(dg):
    listed = dg("list", "components")
    assert listed.exit_code == 0, listed.output
    assert "dagster_kafka_flip.KafkaDeltaComponent" in listed.stdout
    assert "dagster_kafka_flip.KafkaResourcesComponent" in listed.stdout
    assert "dagster_kafka_flip.DeltaKafkaComponent" in listed.stdout
    checked = dg("check", "yaml", "--validate-requirements")
    assert checked.exit_code == 0, checked.stdout


@pytest.mark.slow
def test_dg_check_defs_names_the_file_the_line_and_the_field(dg, project):
    assert dg("check", "defs").exit_code == 0
    wrong = [
        # `dg check yaml` passes over this file, and `dg check defs` does not.
        ([], "landed", "table: ", "tabel: ", ":8", "unknown attribute; did you mean table?"),
        # Here it would stop `dg check defs`, and say less.
        (
            ["--no-check-yaml"],
            "orders_by_customer",
            "topics: ",
            "topic: ",
            ":6",
            "attributes.source.topic: invalid KafkaSource: topic: unknown field; did you mean topics?",
        ),
    ]
    for options, folder, right, broken, line, message in wrong:
        file = project / "yaml_project" / "defs" / folder / "defs.yaml"
        whole = file.read_text()
        file.write_text(whole.replace(right, broken))

        checked = dg("check", "defs", *options)

        assert checked.exit_code == 1
        assert f"{folder}/defs.yaml{line}" in checked.stdout
        assert message in checked.stdout
        file.write_text(whole)


@pytest.mark.slow
def test_the_scaffold_of_dg_loads_unchanged(dg, project, load, monkeypatch):
    defs = project / "yaml_project" / "defs"
    for name in ("landed", "orders_by_customer", "resources"):
        shutil.rmtree(defs / name)
    made = [
        dg("scaffold", "defs", "dagster_kafka_flip.KafkaResourcesComponent", "resources"),
        dg("scaffold", "defs", "dagster_kafka_flip.KafkaDeltaComponent", "orders"),
        dg("scaffold", "defs", "dagster_kafka_flip.KafkaDeltaComponent", "p", "--topic", "pay-ments"),
    ]
    assert [each.exit_code for each in made] == [0, 0, 0], made
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")

    found = load()

    Definitions.validate_loadable(found)
    keys = {spec.key.to_user_string(): spec for spec in found.resolve_all_asset_specs()}
    assert set(keys) == {"kafka/orders", "kafka/pay-ments", "orders", "p"}
    assert keys["p"].metadata["dagster/uri"].endswith("/warehouse/pay-ments")
