"""An asset whose table follows its keys: what Dagster shows of its runs, and its checks."""

from __future__ import annotations

from typing import Any

import pytest
from dagster import AssetSelection, materialize

from dagster_kafka_flip import DeltaTarget, KafkaSource, Scd2, Upsert, build_kafka_delta_asset, kafka_delta_checks
from dagster_kafka_flip.errors import ConfigurationError
from tests.upsert.conftest import KEY, VALUE, change


def _asset(topic: str, table: str, mode: Upsert | Scd2 = Upsert(key=("id",))) -> Any:  # noqa: B008 - it is frozen
    return build_kafka_delta_asset(
        name="customers",
        source=KafkaSource(topics=(topic,)),
        table=DeltaTarget(table=table, mode=mode),
        key_format=KEY,
        value_format=VALUE,
    )


def test_a_table_with_a_key_has_checks_of_its_own():
    def names(*mode, **options):
        return {
            spec.name
            for checks in kafka_delta_checks(_asset("customers", "lake/customers", *mode), schema=False, **options)
            for spec in checks.check_specs
        }

    assert names() == {"no_gap", "same_log", "no_duplicate_key", "keys_not_null"}
    assert names(Scd2(key=("id",))) == {"no_gap", "same_log", "no_duplicate_key", "keys_not_null", "no_overlap"}
    assert names(keys=False) == {"no_gap", "same_log"}
    with pytest.raises(ConfigurationError, match="no_duplicate_key always looks at the whole table"):
        names(duplicate_commits=5)


@pytest.mark.kafka
@pytest.mark.spark
def test_a_run_reports_its_changes_and_the_checks_find_changes_by_others(
    kafka, spark, instance, resources, topic, table
):
    asset = _asset(topic, table)
    checks = kafka_delta_checks(asset, schema=False)
    kafka.create(topic)
    kafka.produce(topic, [change(1, "a"), change(2, "b"), change(1, "c")])

    def run():
        done = materialize([asset, *checks], instance=instance, resources=resources, raise_on_error=False)
        (event,) = done.asset_materializations_for_node("customers")
        passed = {each.check_name: (each.passed, each.description or "") for each in done.get_asset_check_evaluations()}
        reported: dict[str, Any] = {name: value.value for name, value in event.metadata.items()}
        return reported, passed

    reported, passed = run()
    assert reported["dagster/row_count"] == reported["delta/rows_written"] == reported["delta/rows_inserted"] == 2
    assert reported["delta/rows_updated"] == reported["delta/rows_deleted"] == reported["delta/rows_unchanged"] == 0
    assert reported["kafka/records_read"] == 3
    assert {column.name for column in reported["dagster/column_schema"].columns} >= {"id", "name", "kafka_offset"}
    assert {name: each for name, (each, _) in passed.items()} == dict.fromkeys(passed, True)
    assert passed["no_duplicate_key"][1] == "No key has several rows in 2 rows by id."

    spark.sql(f"INSERT INTO delta.`{table}` SELECT * FROM delta.`{table}` WHERE id = 1")
    spark.sql(f"INSERT INTO delta.`{table}` (name) VALUES ('no key')")
    kafka.produce(topic, [change(2), change(3, "d")])
    reported, passed = run()
    assert reported["dagster/row_count"] == 4
    assert not passed["no_duplicate_key"][0]
    assert (
        f"1 key with several rows, 1 row too many in 4 rows by id, such as those of {topic}-0 offset 2 and"
        in (passed["no_duplicate_key"][1])
    )
    assert not passed["keys_not_null"][0]
    assert "1 row without a value in id" in passed["keys_not_null"][1]
    assert passed["no_gap"][0]


@pytest.mark.nightly
@pytest.mark.kafka
@pytest.mark.spark
def test_the_checks_of_a_history_look_at_current_rows_and_at_overlaps(kafka, spark, instance, resources, topic, table):
    asset = _asset(topic, table, Scd2(key=("id",)))
    checks = kafka_delta_checks(asset, schema=False, identity=False, gaps=False)
    kafka.create(topic)
    kafka.produce(topic, [change(1, "a"), change(1, "b"), change(2, "c"), change(2), change(2, "d")])

    def run(**selected):
        done = materialize([asset, *checks], instance=instance, resources=resources, raise_on_error=False, **selected)
        return {each.check_name: (each.passed, each.description or "") for each in done.get_asset_check_evaluations()}

    before = run()
    assert all(before[name][0] for name in ("no_duplicate_key", "keys_not_null", "no_overlap"))
    spark.sql(f"UPDATE delta.`{table}` SET valid_to = valid_from + INTERVAL 1 DAY WHERE kafka_offset = 2")
    spark.sql(f"UPDATE delta.`{table}` SET valid_to = NULL, is_current = true WHERE kafka_offset = 0")
    # Nothing is new, so a run of the asset would leave its checks as they are.
    found = run(selection=AssetSelection.checks(*checks))
    assert not found["no_overlap"][0]
    assert found["no_overlap"][1].startswith(
        "2 rows whose validity overlaps with that of the key's next row, or whose valid_from"
    )
    assert f"in 4 rows by id, such as that of {topic}-0 offset 0" in found["no_overlap"][1]
    assert not found["no_duplicate_key"][0]
    assert found["keys_not_null"][0]
