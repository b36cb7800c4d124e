"""Tables in a bucket, of one writer and of several through Delta's commit coordinator, and tables by name."""

from __future__ import annotations

import json
import signal

import pytest

from tests import landed
from tests.faults.ingesting import DELETES, KEYED, LETTERS, SOAK_START, WINDOW_MS, WINDOWS, WRITING
from tests.faults.ordered_process import PATIENCE_SECONDS
from tests.processes import wait_until
from tests.stores.s3 import EXPIRED, SECRET_KEY, SKEWED

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.nightly]

_DEFAULTS = "spark.databricks.delta.properties.defaults.coordinatedCommits"


def _produce(kafka, topic, begin, end, **more):
    for partition in (0, 1):
        kafka.produce(topic, [(None, f"{number:012d}") for number in range(begin, end)], partition=partition, **more)


def _offsets(table):
    return landed.rows(table, "kafka_partition", "kafka_offset")


def _records(end):
    return [(partition, offset) for partition in (0, 1) for offset in range(end)]


def _rows(lander, table):
    """Of a table with a coordinator, which only Spark reads."""
    query = f"SELECT kafka_topic, kafka_partition, kafka_offset FROM delta.`{table}`"
    rows = lander.do("sql", statements=[query])["rows"]
    return sorted((topic, int(partition), int(offset)) for topic, partition, offset in rows)


def test_each_kind_of_table_is_landed_in_a_bucket_and_equals_its_topic(kafka, first, topic):
    kafka.create(topic, partitions=2)
    for number in range(3):
        _produce(kafka, topic, 4 * number, 4 * (number + 1), timestamp=SOAK_START + number * WINDOW_MS)

    keyed = f"s3a://lake/{topic}-keyed"
    changes = [(0, number) for number in range(12) if number % DELETES]
    reported = first.do("land", topic=topic, table=keyed, kind=KEYED, single_writer=True)
    assert (reported["error"], reported["rows"]) == (None, 2 * len(changes)), reported
    first.do("sql", statements=[f"DELETE FROM delta.`{keyed}` WHERE slot > 5"])
    reported = first.do("rebuild", topic=topic, table=keyed, staging=f"{keyed}-staging")
    assert (reported["error"], reported["rows"]) == (None, 2 * len(changes)), reported
    assert landed.rows(keyed, "kafka_partition", "slot") == sorted(
        (partition, slot) for partition in (0, 1) for _, slot in changes
    )

    windows = f"s3a://lake/{topic}-windows"
    reported = first.do("land", topic=topic, table=windows, kind=WINDOWS, windows=2, single_writer=True)
    assert (reported["error"], reported["rows"]) == (None, 16), reported
    assert _offsets(windows) == _records(8)

    letters = f"s3a://lake/{topic}-letters"
    kafka.produce(topic, [(None, b"\xff")])
    reported = first.do("land", topic=topic, table=letters, kind=LETTERS, single_writer=True)
    assert (reported["error"], reported["rows"]) == (None, 24), reported
    assert _offsets(letters) == _records(12)
    assert _offsets(f"{letters}-letters") == [(0, 12)]


def test_an_asset_lands_in_a_bucket_and_its_idle_run_asks_no_store_and_no_secret_is_seen(kafka, s3, first, topic):
    kafka.create(topic, partitions=2)
    _produce(kafka, topic, 0, 2)
    order = {"topic": topic, "table": f"s3a://lake/{topic}", "name": "landed"}
    reported = first.do("asset", **order)
    assert reported["metadata"]["dagster/uri"] == f"s3a://lake/{topic}", reported
    assert reported["metadata"]["dagster/row_count"] == 4, reported
    requests = s3.requests
    reported = first.do("asset", **order)
    assert s3.requests == requests, "it trusts Dagster's record, which no log can confirm without Spark"
    assert "dagster/row_count" not in reported["metadata"], reported

    files = [file for file in first.folder.rglob("*") if file.is_file()]
    everything = b"".join(file.read_bytes() for file in files)
    for seen in (b"fs.s3a.endpoint.region", b"nothing new on", b"dagster/uri"):
        assert seen in everything, seen
    assert SECRET_KEY.encode() not in everything
    assert "SparkSubmit" in first.command
    assert SECRET_KEY not in first.command, "which everyone on the machine can read"


def _at(step, lander, **order):
    """Orders a run, and waits until it is at a step."""
    lander.order("land", **order)
    wait_until(lambda: step in (lander.folder / "step").read_text(encoding="ascii"), seconds=PATIENCE_SECONDS)


def test_a_store_that_is_too_busy_for_a_while_costs_a_run_no_record(kafka, s3, first, topic):
    kafka.create(topic, partitions=2)
    order = {"topic": topic, "table": f"s3a://lake/{topic}", "single_writer": True}
    _produce(kafka, topic, 0, 2)
    assert first.do("land", **order)["rows"] == 4
    _produce(kafka, topic, 2, 4)
    _at(WRITING, first, **order)
    s3.be_busy(True)
    # Several tries of several requests.
    before = s3.requests
    wait_until(lambda: s3.requests > before + 10, seconds=PATIENCE_SECONDS)
    s3.be_busy(False)
    reported = first.answer()
    assert (reported["error"], reported["rows"]) == (None, 4), reported
    assert _offsets(order["table"]) == _records(4)


def test_a_store_that_dies_during_a_write_ends_the_run_with_what_to_do_and_the_next_one_continues(
    kafka, far, first, topic
):
    kafka.create(topic, partitions=2)
    order = {"topic": topic, "table": f"s3a://far/{topic}", "single_writer": True}
    _produce(kafka, topic, 0, 2)
    assert first.do("land", **order)["rows"] == 4
    _produce(kafka, topic, 2, 4)
    _at(WRITING, first, **order)
    far.cut()
    try:
        reported = first.answer()
    finally:
        far.heal()
    assert reported["error"] == "CommitUnknownError", reported
    assert "Nothing answers at this endpoint" in reported["message"]
    assert "the next run finds it; otherwise it reads the batch again" in reported["message"]
    assert first.do("land", **order)["rows"] in (0, 4)
    assert _offsets(order["table"]) == _records(4)


def test_through_the_coordinator_two_processes_write_at_once_and_one_is_killed_and_nothing_is_lost(
    kafka, s3, landers, topic
):
    first, second = landers
    other = f"{topic}-other"
    for name in (topic, other):
        kafka.create(name, partitions=2)
        _produce(kafka, name, 0, 4)
    table = f"s3a://lake/{topic}"
    order = {"topic": topic, "table": table}
    coordinator = {
        "commitCoordinator-preview": "dynamodb",
        "commitCoordinatorConf-preview": json.dumps({"dynamoDBTableName": "commits", "dynamoDBEndpoint": s3.endpoint}),
    }
    for name, value in coordinator.items():
        first.do("conf", name=f"{_DEFAULTS}.{name}", value=value)
    reported = first.do("land", **order)
    assert (reported["error"], "does not exist yet" in reported["message"]) == ("UnsafeStoreError", True), reported
    assert first.do("land", **order, single_writer=True)["rows"] == 8
    # The table has it from now on.
    for name in coordinator:
        first.do("conf", name=f"{_DEFAULTS}.{name}", value=None)

    # One stream, started twice.
    _produce(kafka, topic, 4, 8)
    for lander in landers:
        lander.order("land", **order)
    outcomes = [lander.answer() or {} for lander in landers]
    assert sorted(reported["rows"] for reported in outcomes if reported.get("error") is None)[-1:] == [8], outcomes
    for reported in outcomes:
        assert reported.get("error") in (None, "ConcurrentIngestionError"), outcomes
    assert _rows(first, table) == [(topic, *offsets) for offsets in _records(8)]

    # Two streams, each with several commits.
    _produce(kafka, topic, 8, 12)
    first.order("land", **order, max_records=2)
    second.order("land", topic=other, table=table, stream="other", max_records=2)
    outcomes = [lander.answer() or {} for lander in landers]
    reported = [(answer.get("error"), answer.get("rows"), answer.get("batches")) for answer in outcomes]
    assert reported == [(None, 8, 4)] * 2, outcomes
    history = first.do("sql", statements=[f"DESCRIBE HISTORY delta.`{table}`"])["rows"]
    assert len(history) == 1 + 1 + 1 + 4 + 4

    _produce(kafka, other, 4, 6)
    second.order("land", topic=other, table=table, stream="other", is_killed=True)
    assert second.answer() is None
    assert second.process.wait(60) == -signal.SIGKILL
    assert first.do("land", topic=other, table=table, stream="other")["rows"] == 4
    assert _rows(first, table) == sorted(
        (name, *offsets) for name, end in ((topic, 12), (other, 6)) for offsets in _records(end)
    )


@pytest.mark.parametrize(
    ("bucket", "advice"),
    [
        ("no-such-bucket", "The bucket does not exist at this endpoint: create it"),
        ("wrong-key", "check the access key and its secret"),
        ("wrong-secret", "check the access key and its secret"),
        (EXPIRED, "A session token that has expired can look like this"),
        (SKEWED, "and the clock of Spark's machine"),
        ("wrong-region", "set spark.hadoop.fs.s3a.endpoint.region"),
        ("elsewhere", "Nothing answers at this endpoint: check spark.hadoop.fs.s3a.endpoint"),
    ],
)
def test_wrong_store_settings_give_one_line_with_advice(kafka, first, topic, bucket, advice):
    kafka.create(topic)
    reported = first.do("land", topic=topic, table=f"s3a://{bucket}/t", single_writer=True)
    assert reported["error"] == "TableError", reported
    assert advice in reported["message"]
    assert len(reported["message"].splitlines()) == 1


def test_a_table_by_name_is_the_catalogs_and_persists(kafka, first, topic, tmp_path):
    kafka.create(topic, partitions=2)
    _produce(kafka, topic, 0, 2)
    reported = first.do("land", topic=topic, table="nowhere.flights")
    assert reported["error"] == "TableError", reported
    assert "SCHEMA_NOT_FOUND" in reported["message"]
    assert "Create the schema (CREATE SCHEMA `spark_catalog`.`nowhere`)" in reported["message"]

    no_folder = tmp_path / "no-folder"
    first.do("sql", statements=["CREATE SCHEMA lake", f"CREATE SCHEMA full LOCATION '{no_folder.as_uri()}'"])
    # Rights that are missing would not stop root.
    no_folder.rmdir()
    no_folder.touch()
    assert first.do("land", topic=topic, table="lake.flights")["rows"] == 4
    reported = first.do("asset", topic=topic, table="spark_catalog.Lake.FLIGHTS", name="flights")
    assert reported["metadata"]["delta/rows_written"] == 0, "two names of one table"
    assert reported["metadata"]["dagster/table_name"] == "spark_catalog.lake.flights"
    ((_, path, _),) = [
        row
        for row in first.do("sql", statements=["DESCRIBE TABLE EXTENDED lake.flights"])["rows"]
        if row[0] == "Location"
    ]
    assert _offsets(path) == _records(2)

    first.do("sql", statements=["CREATE TABLE lake.made USING delta AS SELECT * FROM lake.flights LIMIT 0"])
    assert first.do("land", topic=topic, table="lake.made")["rows"] == 4, "a table that was there before"

    reported = first.do("land", topic=topic, table="full.flights")
    assert reported["error"] == "TableError", reported
    assert "the table spark_catalog.full.flights can't be created: " in reported["message"]


def test_a_table_by_name_in_a_bucket_is_not_even_created_by_two_writers(kafka, first, topic):
    kafka.create(topic, partitions=2)
    _produce(kafka, topic, 0, 2)
    first.do("sql", statements=["CREATE SCHEMA bucket LOCATION 's3a://lake/schema'"])
    reported = first.do("land", topic=topic, table="bucket.flights")
    assert reported["error"] == "UnsafeStoreError", reported
    assert first.do("sql", statements=["SHOW TABLES IN bucket"])["rows"] == []
    assert first.do("land", topic=topic, table="bucket.flights", single_writer=True)["rows"] == 4
    _produce(kafka, topic, 2, 4)
    assert first.do("land", topic=topic, table="bucket.flights")["error"] == "UnsafeStoreError"
    assert _offsets("s3a://lake/schema/flights") == _records(2)
