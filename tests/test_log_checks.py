"""What Dagster's record tells of how far a table has got, and of its position."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from dagster import AssetKey, AssetMaterialization, MetadataValue

from dagster_kafka_flip.log_checks import reached_time
from dagster_kafka_flip.metadata import known_to_json
from dagster_kafka_flip.record import last_known_position, newest_materializations, void_record
from dagster_kafka_flip.result import KnownPosition
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState

KEY = AssetKey("some")


@pytest.fixture
def record(instance):
    """Records a materialization."""

    def recorded(**metadata):
        values = {name.replace("_", "/", 1): value for name, value in metadata.items()}
        instance.report_runless_asset_event(AssetMaterialization(KEY, metadata=values))

    return recorded


def at(seconds):
    return MetadataValue.timestamp(datetime.fromtimestamp(seconds, tz=timezone.utc))


def known(offset):
    state = EnumeratorState({TopicPartition("t", 0): offset})
    return KnownPosition("main", "/t", state, datetime.now(tz=timezone.utc), 1)


def test_the_newest_watermark_counts_and_a_run_without_one_is_passed_over(instance, record):
    def reached():
        return reached_time(newest_materializations(instance, KEY))

    assert reached() is None
    record(kafka_idle=False, kafka_watermark=at(100), kafka_lag_after=0)
    record(kafka_idle=False, kafka_watermark=at(50), kafka_lag_after=0)
    assert reached() == 50
    record(kafka_idle=False, kafka_lag_after=0)
    assert reached() == 50, "it read too many topic partitions to tell"
    record(kafka_idle=True, kafka_lag_after=7)
    assert reached() == 50, "it left something, under a maximum drift"


def test_an_idle_run_that_found_nothing_left_has_got_to_its_own_time(instance, record):
    record(kafka_idle=False, kafka_watermark=at(100), kafka_lag_after=0)
    before = datetime.now(tz=timezone.utc).timestamp()
    record(kafka_idle=True, kafka_lag_after=0, seconds_plan=0.5)
    reached = reached_time(newest_materializations(instance, KEY))
    assert reached is not None
    assert -0.5 <= reached - before < 60, "it looked before it planned"


def test_the_position_is_that_of_the_newest_materialization_that_has_one_unless_it_was_moved(instance, record):
    assert last_known_position(instance, KEY) is None
    record(kafka_position=MetadataValue.json(known_to_json(known(5))))
    record(kafka_position=MetadataValue.json(known_to_json(known(7))))
    record(delta_commits=1)
    found = last_known_position(instance, KEY)
    assert found is not None
    assert found.state.position == {TopicPartition("t", 0): 7}
    void_record(instance, KEY, "by hand", 3)
    assert last_known_position(instance, KEY) is None


def test_no_more_than_a_hundred_materializations_are_looked_at(instance, record):
    for _ in range(102):
        record(delta_commits=1)
    assert len(list(newest_materializations(instance, KEY))) == 100


def test_an_idle_run_behind_an_open_transaction_has_not_got_to_its_own_time(instance, record):
    record(kafka_idle=False, kafka_watermark=at(100), kafka_lag_after=0)
    record(kafka_idle=True, kafka_lag_after=0, kafka_held_back_offsets=4)
    assert reached_time(newest_materializations(instance, KEY)) == 100
