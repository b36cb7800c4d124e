"""The maintenance asset: fewer files, the same rows, and a position that the next run goes on from."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from dagster import AssetKey, DailyPartitionsDefinition, materialize
from deltalake import DeltaTable

from dagster_kafka_flip import KafkaDeltaTable, KafkaSource
from dagster_kafka_flip.assets.kafka_delta_asset import build_kafka_delta_asset
from dagster_kafka_flip.assets.maintenance_asset import kafka_delta_maintenance
from dagster_kafka_flip.assets.multi_asset import build_kafka_delta_multi_asset
from dagster_kafka_flip.errors import ConfigurationError, PositionTooOldError
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.table.maintenance import maintain
from dagster_kafka_flip.table.target import DeltaTarget
from tests.reports import reports

_DAY = 24 * 3600


def _days_ago(days: int) -> tuple[float, float]:
    then = time.time() - days * _DAY
    return then, then


def _asset(table="/tmp/nowhere", topic="flights", **options):
    return build_kafka_delta_asset(
        key=["lake", "flights"], source=KafkaSource(topics=(topic,)), table=table, pool="lake_writers", **options
    )


def test_the_asset_is_downstream_of_the_table_and_in_its_pool():
    maintenance = kafka_delta_maintenance(_asset(), group_name="upkeep", metadata={"runbook": "wiki"})
    assert maintenance.key == AssetKey(["lake", "flights_maintenance"])
    spec = maintenance.get_asset_spec()
    assert [dependency.asset_key for dependency in spec.deps] == [AssetKey(["lake", "flights"])]
    assert maintenance.op.pool == "lake_writers"
    assert spec.group_name == "upkeep"
    grouped = kafka_delta_maintenance(_asset(group_name="lake"))
    assert grouped.get_asset_spec().group_name == "lake", "that of the table"
    tagged = kafka_delta_maintenance(_asset(), op_tags={"memory": "4g"}, kinds=["files"])
    assert tagged.op.tags["memory"] == "4g"
    assert tagged.get_asset_spec().kinds == {"deltalake", "spark", "files"}
    with pytest.raises(ConfigurationError, match="pool: maintenance shares the pool of lake/flights"):
        kafka_delta_maintenance(_asset(), pool="spark")
    assert spec.metadata["runbook"] == "wiki"
    assert spec.metadata["dagster/uri"].endswith("/tmp/nowhere")
    assert spec.kinds == {"deltalake", "spark"}


@pytest.mark.parametrize("kept", [timedelta(days=6, hours=23), timedelta(), timedelta(days=-7)])
def test_files_are_kept_for_a_week_at_least(kept):
    with pytest.raises(ConfigurationError, match=r"vacuum_after=.*at least 7 days"):
        kafka_delta_maintenance(_asset(), vacuum_after=kept)


@pytest.mark.spark
def test_files_are_not_deleted_earlier_than_asked_for(spark, table):
    spark.range(1).write.format("delta").save(table)
    left = {days: Path(table, f"part-of-{days}-days.parquet") for days in (8, 20, 31)}
    for days, file in left.items():
        file.touch()
        os.utime(file, _days_ago(days))
    maintain(spark, DeltaTarget(table=table), timedelta(days=30), has_position=False)
    assert {days for days, file in left.items() if not file.exists()} == {31}


def test_invalid_times_and_foreign_assets_are_named():
    with pytest.raises(ConfigurationError, match=r"vacuum_after.*timedelta"):
        kafka_delta_maintenance(_asset(), vacuum_after=168)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigurationError, match="kafka_delta_maintenance: lake/flights_maintenance is"):
        kafka_delta_maintenance(kafka_delta_maintenance(_asset()))


def test_one_of_several_tables_is_named():
    source = KafkaSource(topics=("flights",))
    several = build_kafka_delta_multi_asset(
        name="several",
        source=source,
        tables=[KafkaDeltaTable(name, table=f"/tmp/nowhere/{name}") for name in ("raw", "typed")],
    )
    with pytest.raises(ConfigurationError, match="several assets; set key= to one of raw, typed"):
        kafka_delta_maintenance(several)
    assert kafka_delta_maintenance(several, key="typed").key == AssetKey("typed_maintenance")


def _numbers(result, key) -> dict[str, object]:
    return reports(result)[key]


@pytest.fixture
def lake(kafka, instance, resources, topic, table):
    """Lands, and maintains."""
    kafka.create(topic, partitions=2)
    options = {"value_format": JsonFormat("n INT"), "dead_letter": f"{table}-rejected"}
    landing = _asset(table, topic, **options)
    maintenance = kafka_delta_maintenance(landing)

    class Lake:
        def land(self, *values: str, **config: object) -> dict[str, object]:
            for number, value in enumerate(values):
                kafka.produce(topic, [("k", value)], partition=number % 2)
            run_config = {"ops": {"lake__flights": {"config": config}}}
            result = materialize([landing], resources=resources, instance=instance, run_config=run_config)
            return _numbers(result, landing.key)

        def maintain(self, **options):
            return materialize([maintenance], resources=resources, instance=instance, **options)

        def maintained(self) -> dict[str, object]:
            return _numbers(self.maintain(), maintenance.key)

    return Lake()


@pytest.mark.kafka
@pytest.mark.spark
def test_a_table_of_windows_has_no_position(kafka, instance, resources, topic, table):
    kafka.create(topic)
    landing = build_kafka_delta_asset(
        name="daily",
        source=KafkaSource(topics=(topic,)),
        table=table,
        partitions_def=DailyPartitionsDefinition("2026-03-01", end_date="2026-03-03"),
    )
    maintenance = kafka_delta_maintenance(landing)
    noon = int(datetime(2026, 3, 1, 12, tzinfo=timezone.utc).timestamp() * 1000)
    for day in range(2):
        kafka.produce(topic, [("k", "v")], timestamp=noon + day * _DAY * 1000)

    def run(asset, **options):
        return materialize([asset], resources=resources, instance=instance, **options)

    assert _numbers(run(maintenance), maintenance.key) == {}, "there is no table yet"
    for day in ("2026-03-01", "2026-03-02"):
        assert run(landing, partition_key=day).success
    done = _numbers(run(maintenance), maintenance.key)
    # Each day is a partition of the table, with a file of its own.
    assert (done["delta/files"], done["delta/version"]) == (2, DeltaTable(table).version())
    assert run(landing, partition_key="2026-03-01").success
    assert DeltaTable(table).to_pyarrow_table(columns=["kafka_offset"]).num_rows == 2


def _rows(table) -> list[int]:
    return sorted(DeltaTable(table).to_pyarrow_table(columns=["n"]).column("n").to_pylist())


@pytest.mark.kafka
@pytest.mark.spark
def test_small_files_become_few_and_the_stream_goes_on_where_it_was(lake, table):
    assert lake.maintained() == {}, "there is no table yet"
    for number in range(2):
        lake.land(f'{{"n": {number}}}', f'{{"n": {number + 10}}}', "no json")
    before = len(DeltaTable(table).file_uris())
    old = Path(table, "part-00000-of-a-run-that-died.parquet")
    old.write_bytes(b"unfinished")
    os.utime(old, _days_ago(8))
    rows = _rows(table)

    done = lake.maintained()

    assert before > 1
    assert (done["delta/files_removed"], done["delta/files_added"], done["delta/files"]) == (before, 1, 1)
    assert done["delta/version"] == DeltaTable(table).version()
    assert done["delta/bytes"] == sum(Path(path).stat().st_size for path in DeltaTable(table).file_uris())
    assert done["delta/files_vacuumed"] == 1
    assert not old.exists()
    assert (done["dead_letter/files_removed"], done["dead_letter/files"]) == (2, 1)
    assert _rows(table) == rows

    idle = lake.land()
    assert (idle["kafka/idle"], idle["kafka/records_read"]) == (True, 0)
    after = lake.land('{"n": 99}')
    assert (after["kafka/records_read"], after["delta/rows_written"]) == (1, 1)
    assert _rows(table) == [*rows, 99]
    again = lake.maintained()
    assert (again["delta/files_removed"], again["delta/files_vacuumed"]) == (2, 0)


@pytest.mark.kafka
@pytest.mark.spark
def test_a_position_that_delta_could_forget_keeps_maintenance_away(lake, spark, table):
    lake.land('{"n": 1}', "no json")
    for file in Path(table, "_delta_log").glob("*.json"):
        os.utime(file, _days_ago(16))
    spark.catalog.clearCache()
    version = DeltaTable(table).version()
    with pytest.raises(PositionTooOldError, match=r"half of delta\.logRetentionDuration.*materialize the asset"):
        lake.maintain()
    assert DeltaTable(table).version() == version
    lake.land(verify=True)
    for file in Path(f"{table}-rejected", "_delta_log").glob("*.json"):
        os.utime(file, _days_ago(16))
    spark.catalog.clearCache()
    done = lake.maintained()
    assert done["delta/files"] == 1
    assert not [name for name in done if name.startswith("dead_letter/")], "its position may not be committed again"
