"""build_delta_kafka_asset: the table upstream, the topic downstream."""

from __future__ import annotations

import json
import re
from types import ModuleType

import pytest
from click.testing import CliRunner
from dagster import AssetKey, AssetsDefinition, Definitions, load_assets_from_modules, materialize

from dagster_kafka_flip import (
    DeltaSource,
    JsonSerializer,
    KafkaDeltaTable,
    KafkaResource,
    KafkaSink,
    KafkaSource,
    Limits,
    PublishRunConfig,
    SparkResource,
    build_delta_kafka_asset,
    build_kafka_delta_asset,
    build_kafka_delta_multi_asset,
)
from dagster_kafka_flip.assets import delta_kafka_asset
from dagster_kafka_flip.assets.delta_kafka_asset import check_prefix, publishing_of
from dagster_kafka_flip.cli.app import main
from dagster_kafka_flip.cli.asset import find_asset
from dagster_kafka_flip.errors import ConfigurationError, SinkProgressError
from tests.reports import report

_KEY = JsonSerializer(columns=("id",))
_NOWHERE = {"kafka": KafkaResource(bootstrap_servers="127.0.0.1:1"), "spark": SparkResource()}


def _asset(topic="orders", table="lake/orders", prefix="orders", **options):
    sink = KafkaSink(topic=topic, transactional_id_prefix=prefix, key=_KEY)
    return build_delta_kafka_asset(source=DeltaSource(table=table), sink=sink, **options)


def _landing(table="lake/orders", topic="arrived", **options):
    source = KafkaSource(topics=(topic,))
    return build_kafka_delta_asset(name="orders", source=source, table=table, **options)


def test_lineage_joins_table_topic_and_the_readers_of_the_topic():
    published = _asset(topic="orders.v1-a", upstream=_landing(), group_name="out", metadata={"runbook": "wiki"})
    spec = published.get_asset_spec()
    assert published.key == AssetKey(["kafka", "orders.v1-a"])
    assert [each.asset_key for each in spec.deps] == [AssetKey("orders")]
    assert (spec.group_name, spec.kinds, spec.metadata["runbook"]) == ("out", {"kafka", "spark"}, "wiki")
    assert (published.op.pool, published.op.retry_policy) == ("kafka-sink:orders", None)
    again = _asset(deps=["given"], kinds=["json"], code_version="2", upstream=_landing()).get_asset_spec()
    assert [each.asset_key.to_user_string() for each in again.deps] == ["orders", "given"]
    assert (again.kinds, again.code_version, again.group_name) == ({"kafka", "spark", "json"}, "2", "default")
    reader = build_kafka_delta_asset(name="copy", source=KafkaSource(topics=("orders.v1-a",)), table="lake/copy")
    graph = Definitions(assets=[published, reader, _landing()], resources=_NOWHERE).resolve_asset_graph()
    assert graph.get(AssetKey("copy")).parent_keys == {published.key}
    # Names that differ only in what an op's name can't have.
    Definitions(
        assets=[published, _asset(topic="orders-v1.a", prefix="b")], resources=_NOWHERE
    ).resolve_implicit_global_asset_job_def()


def test_upstream_is_a_key_or_the_one_table_of_a_definition():
    several = build_kafka_delta_multi_asset(
        name="both",
        source=KafkaSource(topics=("a",)),
        tables=[KafkaDeltaTable(spec=name, table=f"lake/{name}") for name in ("customers", "orders")],
    )
    for upstream, key in ((several, "orders"), ("lake/x", ["lake", "x"]), (AssetKey("y"), "y")):
        (found,) = _asset(upstream=upstream).get_asset_spec().deps
        assert found.asset_key == AssetKey(key)
    with pytest.raises(ConfigurationError, match=r"upstream: the definition writes to \S+lake/other, not to \S+lake/o"):
        _asset(upstream=_landing("lake/other"))
    with pytest.raises(ConfigurationError, match=r"upstream: orders lands the topic kafka/back, .* without end"):
        _asset(topic="back", upstream=_landing(topic="back"))


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"upstream": 3}, "upstream"),
        ({"limits": 3}, r"limits.*Limits"),
        ({"cluster": 3}, "cluster"),
        ({"retry_policy": 3}, "retry_policy"),
        ({"owners": ["nobody"]}, "owners"),
        ({"group": "x"}, "unknown option group"),
        ({"lanes": 2}, r"lanes is not an option of its own; write sink=KafkaSink\("),
    ],
)
def test_wrong_options_are_named(options, reported):
    with pytest.raises(ConfigurationError, match=reported):
        _asset(**options)


@pytest.mark.parametrize(
    ("config", "reported"),
    [
        ({"stop": -1}, "stop: -1 is not a table version"),
        ({"max_batches": 0}, "max_batches"),
        ({"again_from": 1, "allow_doubles": True}, "again_from, again_to: set both"),
        ({"again_from": 2, "again_to": 1, "allow_doubles": True}, "again_to: version 1 is before"),
        ({"again_from": 1, "again_to": 2}, r"a second time.*allow_doubles: true"),
        ({"again_from": 1, "again_to": 2, "stop": 3, "allow_doubles": True}, "stop: not allowed"),
        ({"allow_doubles": True}, "allow_doubles: only"),
    ],
)
def test_a_wrong_run_config_is_named(config, reported):
    with pytest.raises(ConfigurationError, match=reported):
        PublishRunConfig(**config)


def test_two_assets_under_one_prefix_are_refused():
    one, two, other = _asset(topic="one"), _asset(topic="two"), _asset(topic="three", prefix="three")
    away = _asset(topic="one", cluster="away")
    publishing = publishing_of(one)
    assert publishing is not None
    check_prefix(one.key, publishing, {each.key: each for each in (one, other, away, _landing())})
    with pytest.raises(ConfigurationError, match=r"kafka/one and kafka/two both publish under.*prefix orders"):
        check_prefix(one.key, publishing, {each.key: each for each in (one, two)})


@pytest.mark.kafka
@pytest.mark.spark
def test_runs_publish_what_is_new_idle_and_again(published, kafka, instance, resources, monkeypatch):
    module = ModuleType("definitions")
    made = _asset(published.topic, published.table, published.topic, limits=Limits(max_records_per_batch=2))
    vars(module)["published"] = made
    (asset,) = load_assets_from_modules([module], key_prefix="lake")
    assert isinstance(asset, AssetsDefinition)
    assert asset.key == AssetKey(["lake", *made.key.path])

    def run(**config):
        ops = {asset.op.name: {"config": config}}
        result = materialize([asset], instance=instance, resources=resources, run_config={"ops": ops})
        events = result.get_asset_materialization_events()
        version = (events[0].materialization.tags or {})["dagster/data_version"] if events else None
        return report(result), version

    published.create()
    for number in range(1, 4):
        published.sql(f"INSERT INTO {{t}} VALUES ({number}, 'a')")
    first, first_version = run(stop=3, max_batches=1)
    assert (first["kafka/records_written"], first["delta/from_version"], first["delta/to_version"]) == (2, 3, 2)
    assert (first["delta/newest_version"], first["delta/lag_versions"], first["kafka/idle"]) == (3, 1, False)
    assert first["kafka/sink_progress"] == {"0": {"version": 2, "rows": 2}}

    second, second_version = run()
    assert (second["kafka/records_written"], second["delta/to_version"], second["delta/lag_versions"]) == (1, 3, 0)
    assert (second["kafka/transactions"], second["kafka/bytes_written"]) == (1, len('{"id":3}{"id":3,"v":"a"}'))

    with monkeypatch.context() as patch:
        patch.setattr(SparkResource, "session", lambda self: pytest.fail("an idle run started Spark"))
        idle, idle_version = run()
    assert (idle["kafka/idle"], idle["spark/started"], idle["kafka/records_written"]) == (True, False, 0)
    assert idle["kafka/sink_progress"] == second["kafka/sink_progress"]
    assert (idle_version, second_version != first_version) == (None, True), "nothing new is no materialization"
    assert published.texts() == {1: ["a"], 2: ["a"], 3: ["a"]}

    again, _ = run(again_from=2, again_to=3, allow_doubles=True)
    assert (again["kafka/published_again"], again["kafka/records_written"]) == (True, 2)
    assert published.texts() == {1: ["a"], 2: ["a", "a"], 3: ["a", "a"]}
    assert again["kafka/progress_topic"] == f"{again['kafka/sink']}-progress"
    assert run()[1] is None
    # As in a run that is executed again with other versions.
    monkeypatch.setattr(delta_kafka_asset, "_SHORT", 0)
    for version in (3, 2):
        one, _ = run(again_from=version, again_to=version, allow_doubles=True)
        assert one["kafka/records_written"] == 1

    # Without its progress the sink would publish the snapshot once more; Dagster's record knows.
    kafka.delete(published.sink.progress_name)
    with pytest.raises(SinkProgressError, match=r"reached table version 3 and 0 rows .* has no progress"):
        run()
    assert published.texts() == {1: ["a"], 2: ["a", "a", "a"], 3: ["a", "a", "a"]}
    instance.wipe_assets([asset.key])
    assert run()[0]["kafka/records_written"] == 3


_DEFINITIONS = """
from dagster import Definitions
from dagster_kafka_flip import DeltaSource, JsonSerializer, KafkaResource, KafkaSink, SparkResource
from dagster_kafka_flip import build_delta_kafka_asset

published = build_delta_kafka_asset(
    source=DeltaSource(table={table!r}),
    sink=KafkaSink(topic={topic!r}, transactional_id_prefix={topic!r}, key=JsonSerializer(columns=("id",)), lanes=2),
)
defs = Definitions(
    assets=[published],
    resources={{"kafka": KafkaResource(bootstrap_servers={broker!r}), "spark": SparkResource(remote="sc://127.0.0.1:1")}},
)
"""


@pytest.mark.kafka
@pytest.mark.spark
def test_the_command_line_shows_progress_and_the_next_run_without_spark(published, broker, tmp_path):
    file = tmp_path / "project.py"
    file.write_text(_DEFINITIONS.format(table=published.table, topic=published.topic, broker=broker))

    def shown(*arguments, asset=f"kafka/{published.topic}", code=0, command=("position", "show")):
        done = CliRunner().invoke(main, [*command, "-f", str(file), "--asset", asset, *arguments])
        assert done.exit_code == code, done.output
        return done.output if code else done.stdout

    def planned(*arguments, **options):
        return shown(*arguments, command=("plan",), **options)

    for output in (shown(code=1), planned(code=1)):
        assert f"the Delta table {published.table} does not exist" in " ".join(output.split())
    published.create()
    assert re.search(r"start +snapshot\nfrom_version +0\nto_version +0\n", shown())
    plan = json.loads(planned("--json"))
    assert (plan["from_version"], plan["to_version"], plan["snapshot"], plan["lag_versions"]) == (0, 0, True, None)
    assert plan["versions"] == [{"version": 0, "operation": None, "rows": None}]
    published.run(lanes=2)
    published.sql("INSERT INTO {t} VALUES (1, 'a')")
    reported = json.loads(shown("--json"))
    assert (reported["from_version"], reported["to_version"], reported["snapshot"]) == (1, 1, False)
    assert (reported["published_version"], reported["newest_version"], reported["lag_versions"]) == (0, 1, 1)
    assert reported["lanes"] == [{"lane": lane, "version": 0, "rows_of_the_next": 0} for lane in (0, 1)]
    assert re.search(r"from_version +1\nto_version +1\n", shown())
    published.sql("UPDATE {t} SET v = 'b'")
    published.sql("ALTER TABLE {t} SET TBLPROPERTIES ('note' = 'x')")
    published.sql("INSERT OVERWRITE {t} VALUES (1, 'c'), (2, 'd')")
    plan = json.loads(planned("--json"))
    reported = {each["version"]: (each["operation"], each["rows"]) for each in plan["versions"]}
    # What an overwrite deleted is not known.
    assert [*reported.values()] == [("WRITE", 1), ("UPDATE", 1), ("SET TBLPROPERTIES", 0), ("WRITE", None)]
    assert (plan["rows"], plan["versions_with_unknown_rows"], plan["lag_versions"]) == (2, 1, 4)
    assert [*reported] == [1, 2, 3, 4]
    text = planned("--limit-rows", "1")
    assert re.search(r"published_version +0\nnewest_version +4\nlag_versions +4\n", text)
    assert re.search(r"rows +2\nversions_with_unknown_rows +1\n", text)
    assert "... and 3 more" in text
    assert published.texts() == {}
    published.run()
    for output in (shown("--json"), planned("--json")):
        assert (json.loads(output)["from_version"], json.loads(output)["lag_versions"]) == (None, 0)
    assert "--start: only for an asset that lands topics" in planned("--start", "latest", code=2)
    assert "--stream: kafka" in shown("--stream", "main", code=2)
    assert f"assets of this package: kafka/{published.topic}" in planned(asset="other", code=1)


def test_a_command_for_the_other_kind_of_asset_is_named(tmp_path):
    file = tmp_path / "project.py"
    file.write_text(_DEFINITIONS.format(table="/nowhere/t", topic="t", broker="127.0.0.1:1"))
    with pytest.raises(
        ConfigurationError, match=rf"kafka/t publishes a table, .*`.*position show --asset kafka/t -f {file}`"
    ):
        find_asset("kafka/t", file)
