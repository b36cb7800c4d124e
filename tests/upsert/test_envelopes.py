"""Debezium's events from a real topic: into a table that follows its keys, and into one that they are appended to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dagster import materialize

from dagster_kafka_flip.assets.kafka_delta_asset import build_kafka_delta_asset
from dagster_kafka_flip.errors import NullKeyError, TableTruncatedError
from dagster_kafka_flip.formats.debezium import DebeziumFormat
from dagster_kafka_flip.formats.ogg import OggFormat
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.table.commit import MergedRows
from dagster_kafka_flip.table.mode import Append
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

RECORDED = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "formats" / "golden" / "debezium_postgres.jsonl")
    .read_text("utf-8")
    .splitlines()
]
CUSTOMERS = DebeziumFormat("id INT NOT NULL, name STRING, amount STRING, big STRING, ts STRING")
EVENTS = {"key_format": None, "value_format": CUSTOMERS}


def text(value):
    return None if value is None else json.dumps(value)


def change(op, number, name=None, *, lsn=0, **more):
    row = {"id": number, "name": name}
    before, after = (row, None) if op == "d" else (None, row)
    return text({"id": number}), text({"before": before, "after": after, "op": op, "source": {"lsn": lsn}, **more})


def test_recorded_events_end_in_the_rows_of_the_database(kafka, follow, topic, table):
    kafka.create(topic)
    for each in RECORDED:
        kafka.produce(
            topic, [(text(each["key"]), text(each["value"]))], headers=[tuple(one) for one in each["headers"]]
        )
    # An insert, its update, its delete, a tombstone; a row with a large value that an update left out, and whose key
    # changed; its delete.
    first = follow(limits=Limits(max_records_per_batch=5), **EVENTS)
    assert landed.rows(table, "id") == []
    assert (first.records, first.events_without_row, first.rejected_records) == (11, 0, 0)
    assert not {"kafka_op", "kafka_deleted", "kafka_unavailable", "kafka_previous_key"} & set(dict(first.columns))

    changes = f"{table}-changes"
    appended = follow(target={"table": changes, "mode": Append()}, **EVENTS)
    assert (appended.records, appended.rows, appended.events_without_row) == (11, 8, 3)
    assert [(row[1], row[2], row[3]) for row in landed.rows(changes, "kafka_offset", "id", "name", "kafka_op")] == [
        (1, "Ada", "insert"),
        (1, "Ada L.", "update"),
        (1, "Ada L.", "delete"),
        (2, "Bob", "insert"),
        (2, "Bobby", "update"),
        (2, None, "delete"),
        (3, "Bobby", "insert"),
        (3, None, "delete"),
    ]
    assert landed.rows(changes, "kafka_offset", "kafka_unavailable", where="kafka_unavailable IS NOT NULL") == [
        (5, ["big"]),
        (8, ["big"]),
    ]
    assert landed.count(changes) == 8


def test_offsets_order_changes_and_log_positions_do_not(kafka, follow, topic, table):
    # Two transactions: the one that began first, with the lower position, commits last.
    kafka.create(topic)
    kafka.produce(topic, [change("r", 1, "a", lsn=30), change("u", 1, "b", lsn=10), change("r", 2, "c", lsn=20)])
    form = DebeziumFormat("id INT, name STRING", metadata=("source_lsn",))
    follow(value_format=form, key_format=None)
    assert landed.rows(table, "id", "name", "source_lsn") == [(1, "b", 10), (2, "c", 20)]
    # A compacted topic may have lost the delete before a tombstone, which deletes then.
    kafka.produce(topic, [(text({"schema": {}, "payload": {"id": 1}}), None), change("d", 2, "c", lsn=1)])
    assert follow(value_format=form, key_format=None).merged == MergedRows(0, 0, deleted=2, unchanged=0)
    assert landed.count(table) == 0

    kafka.produce(topic, [(None, None)])
    with pytest.raises(NullKeyError, match=rf"^the row of {topic}-0 offset 5 has no value in a column"):
        follow(value_format=form, key_format=None)


def test_a_truncate_ends_a_run_that_follows_keys_unless_it_is_left_out(kafka, follow, topic, table):
    truncate = text({"before": None, "after": None, "op": "t", "source": {}})
    kafka.create(topic)
    kafka.produce(topic, [change("c", 1, "a"), (None, truncate), change("c", 2, "b")])
    form = {"value_format": DebeziumFormat("id INT, name STRING"), "key_format": None}
    with pytest.raises(TableTruncatedError, match=rf"^the record {topic}-0 offset 1 says that the database's table"):
        follow(**form)
    assert landed.operations(table) == ["CREATE TABLE"]
    follow(target={"table": f"{table}-changes", "mode": Append()}, **form)
    assert landed.values(f"{table}-changes", "kafka_op") == ["insert", "insert", "truncate"]
    skipped = follow(value_format=DebeziumFormat("id INT, name STRING", on_truncate="skip"), key_format=None)
    assert (skipped.events_without_row, landed.rows(table, "id")) == (1, [(1,), (2,)])


def test_an_asset_reports_events_without_a_row_and_describes_the_columns(kafka, topic, table, resources, instance):
    kafka.create(topic)
    kafka.produce(topic, [change("c", 1, "a"), (None, text({"ts_ms": 5})), (text({"id": 1}), None)])
    asset = build_kafka_delta_asset(
        name="customers",
        source=KafkaSource(topics=(topic,)),
        table=DeltaTarget(table=table),
        value_format=DebeziumFormat("id INT, name STRING", metadata=("source_lsn",)),
    )
    result = materialize([asset], instance=instance, resources=resources)
    metadata: Any = result.asset_materializations_for_node("customers")[0].metadata
    assert metadata["kafka/events_without_row"].value == 2
    reported = {column.name: column.description for column in metadata["dagster/column_schema"].value.columns}
    assert (
        reported["kafka_op"] == "What the change does: insert, update, delete, read (a row of a snapshot) or truncate."
    )
    assert reported["kafka_unavailable"] == "The columns whose value the connector left out, and which are null for it."


def test_an_update_that_does_not_say_which_row_it_changed_lands_nothing(kafka, follow, topic, table):
    row = {"id": 1, "name": "b"}
    kafka.create(topic)
    kafka.produce(topic, [(None, text({"op_type": "U", "before": {}, "after": row}))])
    with pytest.raises(NullKeyError, match=rf"^the row of {topic}-0 offset 0 has no value in a column"):
        follow(value_format=OggFormat("id INT, name STRING"), key_format=None)
