"""What Dagster's record tells of how far a table has got, and of its position."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest
from dagster import AssetKey, AssetMaterialization, AssetObservation, DagsterEvent, DagsterEventType, MetadataValue
from dagster._core.events import AssetObservationData
from dagster._core.events.log import EventLogEntry

from dagster_kafka_flip.assets.metadata import POSITION_SET
from dagster_kafka_flip.assets.position_record import (
    last_known_position,
    newest_materializations,
    read_record,
    void_record,
)
from dagster_kafka_flip.checks.log_checks import reached_time
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.table.known_position import KnownPosition

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


def test_a_watermark_from_the_future_does_not_count(instance, record):
    record(kafka_idle=False, kafka_watermark=at(50), kafka_lag_after=1)
    record(kafka_idle=False, kafka_watermark=at(datetime.now(tz=timezone.utc).timestamp() + 3600), kafka_lag_after=1)
    record(kafka_idle=False, kafka_watermark="56000000000000000 ms after 1970", kafka_lag_after=1)
    assert reached_time(newest_materializations(instance, KEY)) == 50


def test_an_idle_run_that_found_nothing_left_has_got_to_its_own_time(instance, record):
    record(kafka_idle=False, kafka_watermark=at(100), kafka_lag_after=0)
    before = datetime.now(tz=timezone.utc).timestamp()
    record(kafka_idle=True, kafka_lag_after=0, seconds_plan=0.5)
    reached = reached_time(newest_materializations(instance, KEY))
    assert reached is not None
    assert -0.5 <= reached - before < 60, "it looked before it planned"


# Earlier versions wrote it as kafka/position.
@pytest.mark.parametrize("key", ["kafka_checkpoint", "kafka_position"])
def test_the_position_is_that_of_the_newest_materialization_that_has_one_unless_it_was_moved(instance, record, key):
    assert last_known_position(instance, KEY) is None
    record(**{key: MetadataValue.json(known(5).to_json())})
    record(**{key: MetadataValue.json(known(7).to_json())})
    record(kafka_checkpoint="somebody's text")
    record(delta_commits=1)
    found = last_known_position(instance, KEY)
    assert found is not None
    assert found.state.position == {TopicPartition("t", 0): 7}
    void_record(instance, KEY, "by hand", 3)
    assert last_known_position(instance, KEY) is None


def test_a_position_is_found_behind_more_than_a_hundred_runs_that_only_replaced_a_range(instance, record):
    record(kafka_checkpoint=MetadataValue.json(known(7).to_json()))
    for _ in range(130):
        record(delta_commits=1)
    assert len(list(newest_materializations(instance, KEY))) == 131
    found = last_known_position(instance, KEY)
    assert found is not None
    assert dict(found.state.position) == {TopicPartition("t", 0): 7}
    assert read_record(instance, KEY).known is None, "the newest materialization has none, so a run asks the table"


def test_a_move_invalidates_the_record_whatever_follows(instance, record):
    record(kafka_checkpoint=MetadataValue.json(known(7).to_json()))
    # Stored later, and dated long before the materialization: by another machine's clock.
    entry = EventLogEntry(
        error_info=None,
        level=20,
        user_message="",
        run_id="",
        timestamp=1.0,
        dagster_event=DagsterEvent(
            event_type_value=DagsterEventType.ASSET_OBSERVATION.value,
            job_name="",
            event_specific_data=AssetObservationData(
                AssetObservation(KEY, metadata={POSITION_SET: "by hand", "delta/version": 3})
            ),
        ),
    )
    instance.store_event(entry)
    for number in range(130):
        instance.report_runless_asset_event(AssetObservation(KEY, metadata={"some/number": number}))
    assert read_record(instance, KEY).is_void
    assert last_known_position(instance, KEY) is None


def test_a_run_that_began_before_a_move_and_ended_after_it_does_not_bring_the_old_position_back(instance, record):
    record(kafka_checkpoint=MetadataValue.json(known(7).to_json()))
    before = read_record(instance, KEY)
    assert before.known is not None
    void_record(instance, KEY, "by hand", 3, moved=known(2))
    # It saw nothing new by the record from before, and reports what it knew.
    record(kafka_checkpoint=MetadataValue.json(before.known.to_json()))
    after = read_record(instance, KEY)
    assert after.is_void
    assert after.known is None
    assert after.moved is not None
    assert dict(after.moved.state.position) == {TopicPartition("t", 0): 2}
    # A run that looked at the table after the move.
    seen = replace(known(2), table_version=3, known_since=before.storage_id)
    record(kafka_checkpoint=MetadataValue.json(seen.to_json()))
    assert not read_record(instance, KEY).is_void


def test_an_idle_run_behind_an_open_transaction_has_not_got_to_its_own_time(instance, record):
    record(kafka_idle=False, kafka_watermark=at(100), kafka_lag_after=0)
    record(kafka_idle=True, kafka_lag_after=0, kafka_held_back_offsets=4)
    assert reached_time(newest_materializations(instance, KEY)) == 100
