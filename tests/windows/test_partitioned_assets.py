"""Assets with partitions of time: what Dagster asks for is landed, and each partition is told of by itself."""

from __future__ import annotations

from typing import Any

import pytest
from dagster import (
    AssetKey,
    AssetRecordsFilter,
    BackfillPolicy,
    DailyPartitionsDefinition,
    HourlyPartitionsDefinition,
    MultiPartitionKey,
    MultiPartitionsDefinition,
    StaticPartitionsDefinition,
    materialize,
)

from dagster_kafka_flip import KafkaSource, Limits, StringFormat, build_kafka_delta_asset
from dagster_kafka_flip.errors import WindowBeyondRetentionError, WindowNotCompleteError
from tests import landed
from tests.windows.conftest import DAY, HOUR, START

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


@pytest.fixture
def run(instance, resources):
    """Materializes an asset for one partition or for a range of them, as a backfill does."""

    def materialized(asset, first, last=None, **options):
        tags = (
            {}
            if last is None
            else {"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last}
        )
        key = {} if last is not None or first is None else {"partition_key": first}
        return materialize([asset], instance=instance, resources=resources, tags=tags, **key, **options)

    return materialized


def events(instance, key) -> dict[str, dict[str, Any]]:
    """Metadata of each partition's last materialization."""
    found: dict[str, dict[str, Any]] = {}
    records = instance.fetch_materializations(AssetRecordsFilter(asset_key=AssetKey(key)), limit=1000).records
    for record in reversed(records):
        values = {name: value.value for name, value in record.asset_materialization.metadata.items()}
        found[record.partition_key] = values
    return found


def produce(kafka, topic, hours, **config):
    kafka.create(topic, **config)
    for hour in hours:
        kafka.produce(topic, [(None, str(hour))], timestamp=START + hour * HOUR)


def daily(topic, table, **options):
    partitions = DailyPartitionsDefinition("2013-03-01")
    given: dict[str, Any] = {"partitions_def": partitions, "value_format": StringFormat(), **options}
    return build_kafka_delta_asset(name="daily", source=KafkaSource(topics=(topic,)), table=table, **given)


def by_letter(names, table):
    """An asset whose second dimension picks topics."""
    return build_kafka_delta_asset(
        name="multi",
        source=KafkaSource(topics=names),
        table=table,
        value_format=StringFormat(),
        partitions_def=MultiPartitionsDefinition(
            {"day": DailyPartitionsDefinition("2013-03-01"), "letter": StaticPartitionsDefinition(["a", "b"])}
        ),
        topics_of={"a": (names[0],), "b": (names[1],)},
    )


def test_a_range_is_one_run_and_one_commit_and_reports_each_partition(kafka, run, instance, spark, topic, table):
    produce(kafka, topic, [*range(0, 24, 6), 30, 31])
    asset, several = daily(topic, table), BackfillPolicy.multi_run(3)
    assert asset.backfill_policy == BackfillPolicy.single_run()
    assert daily(topic, table, backfill_policy=several).backfill_policy == several
    assert run(asset, "2013-03-01", "2013-03-03").success
    assert landed.rows(table, "kafka_window", "kafka_value") == sorted(
        [("2013-03-01", str(hour)) for hour in range(0, 24, 6)] + [("2013-03-02", "30"), ("2013-03-02", "31")]
    )
    reported = events(instance, "daily")
    assert {key: values["dagster/partition_row_count"] for key, values in reported.items()} == {
        "2013-03-01": 4,
        "2013-03-02": 2,
        "2013-03-03": 0,
    }
    first = reported["2013-03-01"]
    assert first["kafka/complete"] is True
    assert first["kafka/watermark"] * 1000 == START + DAY
    assert [(split.data["start"], split.data["stop"]) for split in first["kafka/splits"].records] == [(0, 4)]
    assert (first["run/delta/commits"], first["run/delta/rows_written"], first["run/kafka/stragglers"]) == (1, 6, 0)
    assert not {"delta/commits", "delta/rows_written", "kafka/records_read", "seconds/total"} & set(first)
    assert landed.operations(table) == ["CREATE TABLE", "WRITE"]


@pytest.mark.nightly
def test_a_static_dimension_picks_topics_and_only_their_rows_are_replaced(kafka, run, instance, spark, topic, table):
    names = (f"{topic}-a", f"{topic}-b")
    for name in names:
        produce(kafka, name, [1, 2, 25])
    asset = by_letter(names, table)
    for letter in "ab":
        assert run(asset, MultiPartitionKey({"day": "2013-03-01", "letter": letter})).success
    kafka.produce(names[0], [(None, "late")], timestamp=START + 3 * HOUR)
    assert run(asset, MultiPartitionKey({"day": "2013-03-01", "letter": "b"})).success
    assert run(asset, MultiPartitionKey({"day": "2013-03-01", "letter": "a"})).success
    assert landed.rows(table, "kafka_topic", "kafka_value") == [
        (names[0], "1"),
        (names[0], "2"),
        (names[1], "1"),
        (names[1], "2"),
    ], "the late one is more than an hour late"
    # Both in one run, and each is reported by itself.
    assert run(asset, "2013-03-01|a", "2013-03-02|b").success
    found = {key: values["dagster/partition_row_count"] for key, values in events(instance, "multi").items()}
    assert found == {"2013-03-01|a": 2, "2013-03-01|b": 2, "2013-03-02|a": 1, "2013-03-02|b": 1}


def test_landed_windows_stay_and_are_reported_when_the_run_fails_later(kafka, run, instance, topic, table):
    produce(kafka, topic, range(0, 72, 6))
    kafka.produce(topic, [(None, b"\xff\xfe")], timestamp=START + 70 * HOUR)
    kafka.trim(topic, 0, 1)
    asset = daily(topic, table, limits=Limits(max_records_per_batch=4), tolerate=(WindowBeyondRetentionError,))
    result = run(asset, "2013-03-01", "2013-03-03", raise_on_error=False)
    assert not result.success
    reported = events(instance, "daily")
    assert {key: values["dagster/partition_row_count"] for key, values in reported.items()} == {
        "2013-03-01": 3,
        "2013-03-02": 4,
    }
    assert {key for (key,) in landed.rows(table, "kafka_window")} == set(reported)
    # That nothing else was wrong, a run that failed can't say.
    checks = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    assert checks == {"no_records_lost": False}


def test_a_window_that_is_not_over_is_refused_or_tolerated_with_a_failing_check(
    kafka, run, instance, spark, topic, table
):
    kafka.create(topic)
    kafka.produce(topic, [(None, "now")])
    hourly = HourlyPartitionsDefinition("2026-01-01-00:00", end_offset=1)
    key = str(hourly.get_last_partition_key())
    with pytest.raises(
        WindowNotCompleteError, match=r"is not over: the time is .*late records may arrive for another 1:00:00"
    ):
        run(daily(topic, table, partitions_def=hourly), key)
    asset = daily(topic, table, partitions_def=hourly, tolerate=(WindowNotCompleteError,))
    result = run(asset, key)
    assert events(instance, "daily")[key]["kafka/complete"] is False
    checks = {evaluation.check_name: evaluation.passed for evaluation in result.get_asset_check_evaluations()}
    assert checks == {"windows_complete": False, "no_stragglers": True}


def test_a_window_beyond_retention_is_refused_unless_that_run_may_go_on(kafka, run, instance, spark, topic, table):
    produce(kafka, topic, range(0, 48, 6))
    asset = daily(topic, table)
    run(asset, "2013-03-01", "2013-03-02")
    kafka.trim(topic, 0, 2)
    with pytest.raises(
        WindowBeyondRetentionError,
        match=r"-0: records of the window 2013-03-01 \[2013-03-01T00:00:00Z, 2013-03-02T00:00:00Z\) may be gone: the "
        r"log begins at offset 2, and the earliest remaining record has the timestamp 2013-03-01T12:00:00Z",
    ):
        run(asset, "2013-03-01", "2013-03-02")
    assert len(landed.rows(table, "kafka_value")) == 8, "the rows stay"
    config = {"ops": {"daily": {"config": {"tolerate": ["WindowBeyondRetentionError"]}}}}
    run(asset, "2013-03-01", "2013-03-02", run_config=config)
    assert len(landed.rows(table, "kafka_value")) == 6
    assert events(instance, "daily")["2013-03-02"]["kafka/incidents"][0]["error"] == "WindowBeyondRetentionError"
