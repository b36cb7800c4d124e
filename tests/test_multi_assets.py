"""Several tables from one read of a topic, on a real broker, with real Spark and a real instance."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from dagster import AssetKey, AssetSpec, FreshnessPolicy, materialize
from dagster._cli.asset import asset_materialize_command
from dagster._core.definitions.assets.definition.assets_definition import AssetsDefinition

from dagster_kafka_flip import (
    DeltaTarget,
    JsonFormat,
    KafkaDeltaTable,
    KafkaSource,
    Limits,
    StringFormat,
    build_kafka_delta_multi_asset,
    topic_asset_key,
)
from dagster_kafka_flip.errors import ConfigurationError, RecordsRejectedError
from tests import landed
from tests.reports import reports

RAW, TYPED = AssetKey("raw"), AssetKey("typed")
REPLACE_ALL = {"mode": "replace", "start": "timestamp:2020-01-01T00:00:00Z", "stop": "timestamp:2100-01-01T00:00:00Z"}


def _tables(table: str, **typed: Any) -> list[KafkaDeltaTable]:
    return [
        KafkaDeltaTable("raw", table=f"{table}/raw"),
        KafkaDeltaTable("typed", table=f"{table}/typed", value_format=JsonFormat("n INT NOT NULL"), **typed),
    ]


def _run(assets: AssetsDefinition, instance, resources, *, selection=None, **config) -> Any:
    run_config = {"ops": {assets.op.name: {"config": config}}} if config else None
    return materialize(
        [assets],
        instance=instance,
        resources=resources,
        selection=selection,
        run_config=run_config,
        raise_on_error=False,
    )


def _offsets(path: str) -> list[tuple[Any, ...]]:
    return landed.rows(path, "kafka_partition", "kafka_offset")


@pytest.fixture
def source(kafka, topic):
    kafka.create(topic, partitions=2)
    kafka.produce(topic, [("a", '{"n": 1}'), ("b", '{"n": 2}')], partition=0)
    kafka.produce(topic, [("c", '{"n": 3}')], partition=1)
    return KafkaSource.builder().set_topics(topic).build()


@pytest.mark.kafka
@pytest.mark.spark
def test_tables_share_a_read_and_one_that_is_behind_catches_up_first(
    kafka, spark, instance, resources, source, topic, table
):
    assets = build_kafka_delta_multi_asset(name="both", source=source, tables=_tables(table))
    first = reports(_run(assets, instance, resources))
    assert {key: reported["delta/rows_written"] for key, reported in first.items()} == {RAW: 3, TYPED: 3}
    assert {key: reported["delta/commits"] for key, reported in first.items()} == {RAW: 1, TYPED: 1}
    columns = first[TYPED]["dagster/column_lineage"].deps_by_column
    assert [dep.column_name for dep in columns["n"]] == ["value"]
    assert [(dep.asset_key, dep.column_name) for dep in columns["kafka_offset"]] == [(topic_asset_key(topic), "offset")]

    idle = reports(_run(assets, instance, resources))
    assert idle[TYPED]["dagster/column_lineage"].deps_by_column.keys() == columns.keys()
    assert {key: (reported["kafka/idle"], reported["spark/started"]) for key, reported in idle.items()} == {
        RAW: (True, False),
        TYPED: (True, False),
    }

    kafka.produce(topic, [("d", '{"n": 4}')] * 2, partition=0)
    alone = reports(_run(assets, instance, resources, selection=[RAW]))
    assert {key: reported["kafka/records_read"] for key, reported in alone.items()} == {RAW: 2}

    kafka.produce(topic, [("e", '{"n": 5}')] * 3, partition=1)
    result = _run(assets, instance, resources)
    lines = [event.user_message for event in instance.all_logs(result.run_id) if event.dagster_event is None]
    assert "typed: behind raw, catching up first" in lines
    assert [line for line in lines if line.startswith("typed: planned 2 splits of ")], lines
    both = reports(result)
    assert {key: (reported["kafka/records_read"], reported["delta/commits"]) for key, reported in both.items()} == {
        RAW: (3, 1),
        TYPED: (5, 2),
    }
    assert both[TYPED]["kafka/lag_before"] == 5
    everything = [(0, offset) for offset in range(4)] + [(1, offset) for offset in range(4)]
    assert _offsets(f"{table}/raw") == _offsets(f"{table}/typed") == everything


@pytest.mark.kafka
@pytest.mark.spark
def test_the_topic_is_read_once_for_all_tables(kafka, spark, instance, resources, source, topic, table):
    # Whoever read it once more for the second table would find that retention took everything meanwhile.
    def trimmed(records):
        raw = spark.read.format("delta").load(f"{table}/raw") if _is_there(spark, f"{table}/raw") else None
        if raw is not None and raw.count() == 3:
            kafka.trim(topic, 0, 2)
            kafka.trim(topic, 1, 1)
        return records

    assets = build_kafka_delta_multi_asset(name="once", source=source, tables=_tables(table, transform=trimmed))
    result = _run(assets, instance, resources)
    assert result.success
    assert _offsets(f"{table}/typed") == _offsets(f"{table}/raw") == [(0, 0), (0, 1), (1, 0)]
    # It was taken indeed: a table that begins now finds nothing.
    late = _tables(f"{table}/late")[:1]
    again = reports(
        _run(build_kafka_delta_multi_asset(name="late", source=source, tables=late), instance, resources, verify=True)
    )
    assert again[RAW]["kafka/records_read"] == 0


def _is_there(spark, path: str) -> bool:
    from delta import DeltaTable

    return DeltaTable.isDeltaTable(spark, path)


@pytest.mark.kafka
@pytest.mark.spark
def test_one_failed_table_fails_the_run_and_the_others_are_landed(
    kafka, spark, instance, resources, source, topic, table
):
    limits = Limits(max_records_per_batch=3)
    assets = build_kafka_delta_multi_asset(name="apart", source=source, tables=_tables(table), limits=limits)
    assert _run(assets, instance, resources).success
    kafka.produce(topic, [("bad", "no json"), ("f", '{"n": 6}')], partition=0)
    failed = _run(assets, instance, resources)
    assert not failed.success
    assert list(reports(failed)) == [RAW]
    (step,) = failed.get_step_failure_events()
    assert RecordsRejectedError.__name__ in str(step.step_failure_data.error)
    assert f"{topic}-0 offset 2" in str(step.step_failure_data.error)
    assert len(_offsets(f"{table}/raw")) == 5
    assert len(_offsets(f"{table}/typed")) == 3


def test_options_of_an_asset_spec_are_passed_on(source_of_no_topic):
    policy = FreshnessPolicy.cron(deadline_cron="0 9 * * *", lower_bound_delta=timedelta(minutes=30))
    spec = AssetSpec(
        ["lake", "typed"],
        group_name="orders",
        owners=["team:data"],
        tags={"tier": "1"},
        kinds={"json"},
        deps=["customers"],
        freshness_policy=policy,
        metadata={"sla": "1 h"},
    )

    def only_large(records):
        """Large orders alone."""
        return records

    assets = build_kafka_delta_multi_asset(
        name="shown",
        source=source_of_no_topic,
        tables=[
            KafkaDeltaTable("raw", table="lake.raw"),
            KafkaDeltaTable(spec, table="warehouse/typed", transform=only_large, key_format=StringFormat()),
        ],
    )
    typed = assets.specs_by_key[spec.key]
    assert typed.kinds == {"deltalake", "spark", "json"}
    assert (typed.group_name, typed.owners, typed.tags["tier"]) == ("orders", ["team:data"], "1")
    assert typed.freshness_policy == policy
    assert typed.description == "Large orders alone."
    assert {dep.asset_key for dep in typed.deps} == {topic_asset_key("orders"), AssetKey("customers")}
    assert typed.metadata["sla"] == "1 h"
    assert str(typed.metadata["dagster/uri"]).endswith("/warehouse/typed")
    assert assets.specs_by_key[RAW].metadata["dagster/table_name"] == "lake.raw"
    assert assets.can_subset
    assert assets.op.pool == "delta:shown"


@pytest.fixture
def source_of_no_topic():
    return KafkaSource.builder().set_topics("orders").build()


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ([], "many has no table; add at least one KafkaDeltaTable"),
        ([KafkaDeltaTable("a", table="w/a"), KafkaDeltaTable("a", table="w/b")], "many has two tables for the asset a"),
        (
            [KafkaDeltaTable("a", table="lake.a"), KafkaDeltaTable("b", table=DeltaTarget(table="lake.a", stream="2"))],
            "many: the assets a and b both write to lake.a; give each its own table",
        ),
        (
            [KafkaDeltaTable("a", table="lake.a"), KafkaDeltaTable("b", table="Lake.A")],
            "many: the assets a and b both write to Lake.A; give each its own table",
        ),
        (
            [KafkaDeltaTable("a", table="w/a", transform=lambda rows: rows)],
            ("<lambda>() must take an argument `records`, the DataFrame of the run's records; its arguments are rows"),
        ),
    ],
)
def test_tables_that_can_not_be_are_refused_when_they_are_defined(source_of_no_topic, tables, message):
    with pytest.raises(ConfigurationError) as error:
        build_kafka_delta_multi_asset(name="many", source=source_of_no_topic, tables=tables)
    assert str(error.value) == message


@pytest.mark.kafka
@pytest.mark.spark
def test_a_range_is_replaced_in_each_table_that_is_selected_and_positions_stay(
    spark, instance, resources, source, table
):
    assets = build_kafka_delta_multi_asset(name="mended", source=source, tables=_tables(table))
    assert _run(assets, instance, resources).success
    everything = [(0, 0), (0, 1), (1, 0)]
    for name in ("raw", "typed"):
        spark.sql(f"DELETE FROM delta.`{table}/{name}` WHERE kafka_offset = 0")

    reported = reports(_run(assets, instance, resources, selection=[TYPED], **REPLACE_ALL))
    assert {key: one["delta/rows_written"] for key, one in reported.items()} == {TYPED: 3}
    assert (_offsets(f"{table}/raw"), _offsets(f"{table}/typed")) == ([(0, 1)], everything)

    reported = reports(_run(assets, instance, resources, **REPLACE_ALL))
    assert {key: one["delta/rows_written"] for key, one in reported.items()} == {RAW: 3, TYPED: 3}
    assert _offsets(f"{table}/raw") == _offsets(f"{table}/typed") == everything


_TWO_OF_ONE_STREAM = """
from dagster import Definitions
from dagster_kafka_flip import *

source = KafkaSource.builder().set_topics("orders").build()
one = build_kafka_delta_asset(name="one", source=source, table="warehouse/shared")
two = KafkaDeltaTable("two", table="warehouse/shared")
many = build_kafka_delta_multi_asset(name="many", source=source, tables=[two])
# Nothing listens on port 1.
resources = {"kafka": KafkaResource(bootstrap_servers="127.0.0.1:1"), "spark": SparkResource()}
defs = Definitions(assets=[one, many], resources=resources)
"""


def test_two_assets_of_one_stream_of_one_table_are_refused_before_anything_runs(tmp_path, monkeypatch):
    (tmp_path / "shop.py").write_text(_TWO_OF_ONE_STREAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    done = CliRunner().invoke(asset_materialize_command, ["-f", "shop.py", "--select", "two"])
    assert done.exit_code == 1
    assert re.search(
        r"the assets (one and two|two and one) both write to the stream 'main' of /\S+/warehouse/shared",
        f"{done.output} {done.exception}",
    )
    assert "so each would get only some of the records" in f"{done.output} {done.exception}"
