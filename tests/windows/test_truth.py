"""What a window may not be told by: open transactions, markers, clocks, brokers' times, other runs."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import pytest

from dagster_kafka_flip.errors import (
    ConfigurationError,
    RecordsFromFutureError,
    TopicRecreatedError,
    WindowNotCompleteError,
    WindowsChangedError,
)
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.runtime.session_settings import SESSION_ZONE
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.window import Window, Windows
from dagster_kafka_flip.table.target import DeltaTarget
from dagster_kafka_flip.table.windowed_table import WindowedTable
from tests import landed
from tests.windows.conftest import HOUR, START, hours

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


def values(rows):
    return sorted(row[3] for row in rows)


def history(table):
    return len(landed.history(table))


def recent(key="recent", hours_ago=2):
    """A window of an hour that is over for long enough."""
    now = time.time_ns() // 1_000_000
    return Window(key, now - (hours_ago + 1) * HOUR, now - hours_ago * HOUR)


def test_an_open_transaction_makes_a_window_incomplete_only_if_it_reaches_into_it(kafka, rewrite, rows, topic):
    kafka.create(topic)
    window = recent()
    kafka.produce(topic, [(None, "in time")], timestamp=window.start_ms + 1)
    kafka.produce(topic, [(None, "now")])
    transaction = kafka.open_transaction(topic, [(None, "open")])
    # The record before the transaction is dated now, later than any that may be late: it ends the window.
    rewrite([window])
    assert values(rows()) == ["in time"]
    transaction.abort()

    producer = kafka.producer(**{"transactional.id": f"{topic}-old", "transaction.timeout.ms": 600_000})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "held back", partition=0, timestamp=window.start_ms + 2)
    producer.flush(30)
    with pytest.raises(
        WindowNotCompleteError, match=r"-0: an open transaction holds back 1 offsets from 4, .* the window recent"
    ):
        rewrite([window], rules=Windows(max_lateness=None))
    [result] = rewrite([window], rules=Windows(max_lateness=None), tolerate=(WindowNotCompleteError,))
    assert [planned.is_complete for planned in result.plan.windows] == [False]
    producer.commit_transaction(30)


def test_a_record_from_the_future_stops_the_run_or_the_log_is_read_to_its_end(
    kafka, rewrite, rows, spark, table, topic
):
    # Brokers since Kafka 4 refuse such records by default (KIP-937).
    kafka.create(topic, message_timestamp_after_max_ms=str(2**62))
    kafka.produce(topic, [(None, "before")], timestamp=START + 1)
    kafka.produce(topic, [(None, "of 2100")], timestamp=4_102_444_800_000)
    kafka.produce(topic, [(None, "behind")], timestamp=START + 2)
    with pytest.raises(
        RecordsFromFutureError,
        match=r"-0: the record at offset 1 has the timestamp 2100-01-01T00:00:00Z, but the "
        "time is",
    ):
        rewrite(hours(0, 1))
    [result] = rewrite(hours(0, 1), tolerate=(RecordsFromFutureError,))
    assert values(rows()) == ["before", "behind"]
    assert result.plan.incidents[0].error == "RecordsFromFutureError"


def test_a_time_in_the_value_decides_and_the_log_is_read_on_both_sides(kafka, rewrite, spark, table, topic):
    kafka.create(topic)
    # Written an hour before, within, and an hour after the hour that their values tell; and one without a time.
    for minutes in (-50, 20, 100):
        kafka.produce(
            topic, [(None, f'{{"at": "2013-03-01T00:30:00Z", "n": {minutes}}}')], timestamp=START + minutes * 60_000
        )
    kafka.produce(topic, [(None, '{"n": 0}')], timestamp=START + 101 * 60_000)
    kafka.produce(topic, [(None, '{"at": "2013-03-01T05:00:00Z", "n": 1}')], timestamp=START + 102 * 60_000)
    rules = Windows(event_time="at", max_lateness=timedelta(hours=2))
    [result] = rewrite(hours(0, 2), rules=rules, value_format=JsonFormat("at TIMESTAMP, n INT"))
    landed = spark.read.format("delta").load(table).select("kafka_window", "n").collect()
    assert sorted(tuple(row) for row in landed) == [("h000", -50), ("h000", 20), ("h000", 100)]
    assert result.observed.windows is not None
    assert result.observed.windows.timeless == 1
    # By another time, or in another zone, a record would be in another window: rows would be lost or doubled.
    with pytest.raises(WindowsChangedError, match="created for 'hours by at', but this run has 'hours'"):
        rewrite(hours(0, 1), value_format=JsonFormat("at TIMESTAMP, n INT"))
    spark.conf.set(SESSION_ZONE, "Europe/Berlin")
    try:
        with pytest.raises(WindowsChangedError, match="but this run has 'hours by at in Europe/Berlin'"):
            rewrite(hours(0, 1), rules=rules, value_format=JsonFormat("at TIMESTAMP, n INT"))
    finally:
        spark.conf.set(SESSION_ZONE, "UTC")


def test_columns_that_can_not_be_those_of_windows_leave_no_table(kafka, rewrite, table, topic):
    kafka.create(topic)
    kafka.produce(topic, [(None, "{}")], timestamp=START)
    with pytest.raises(ConfigurationError, match=r"event_time='n': the column is a int; use a TIMESTAMP column"):
        rewrite(hours(0, 1), rules=Windows(event_time="n"), value_format=JsonFormat("at TIMESTAMP, n INT"))
    with pytest.raises(ConfigurationError, match=r"event_time='n': the column is a timestamp_ntz; use a TIMESTAMP"):
        rewrite(hours(0, 1), rules=Windows(event_time="n"), value_format=JsonFormat("n TIMESTAMP_NTZ"))
    with pytest.raises(ConfigurationError, match="the records already have a column kafka_window"):
        rewrite(hours(0, 1), value_format=JsonFormat("kafka_window STRING"))
    assert not Path(table).exists()


def test_a_record_that_is_written_too_long_before_the_time_in_its_value_is_a_straggler(kafka, rewrite, table, topic):
    kafka.create(topic)
    # The second and the third are written longer than ten minutes before their windows, which begin behind them.
    for minute, at in enumerate(("00:30", "01:30", "02:30", "00:40")):
        kafka.produce(topic, [(None, f'{{"at": "2013-03-01T{at}:00Z"}}')], timestamp=START + minute * 60_000)
    kafka.produce(topic, [(None, '{"at": "2013-03-01T06:00:00Z"}')], timestamp=START + 360 * 60_000)
    rules = {
        "rules": Windows(event_time="at", max_lateness=timedelta(minutes=10)),
        "value_format": JsonFormat("at TIMESTAMP"),
    }
    [both] = rewrite(hours(0, 2), **rules)
    assert (landed.count(table), both.stragglers) == (2, 2)
    [first] = rewrite(hours(0, 1), **rules)
    assert (landed.count(table), first.stragglers) == (2, 2)


class _DiedError(BaseException):
    """What a kill looks like from inside: nothing of the package may handle it."""


def test_an_older_plan_is_not_written_over_a_newer_one_by_a_run_that_dies_behind_its_write(
    kafka, rewrite, rows, spark, table, topic, monkeypatch
):
    kafka.create(topic)
    kafka.produce(topic, [(None, "first")], timestamp=START + 1)
    original = WindowedTable.rewrite

    def somebody_else():
        kafka.produce(topic, [(None, "second")], timestamp=START + 2)
        rewrite(hours(0, 1))

    def die(*_):
        raise _DiedError

    # The second one takes the table back, with the record of the logs that its rows are of.
    for meanwhile in (somebody_else, lambda: spark.sql(f"RESTORE delta.`{table}` TO VERSION AS OF 0")):
        with monkeypatch.context() as patch:

            def first_the_others(table, *args, patch=patch, meanwhile=meanwhile):
                patch.setattr(WindowedTable, "rewrite", original)
                meanwhile()
                patch.setattr(WindowedTable, "_judge", die)
                return original(table, *args)

            patch.setattr(WindowedTable, "rewrite", first_the_others)
            with pytest.raises(_DiedError):
                rewrite(hours(0, 2))
        assert values(rows()) == ["first", "second"]


def test_a_table_is_not_mixed_with_other_windows_or_with_a_stream(
    kafka, rewrite, rows, spark, spark_of, connection, table, topic
):
    kafka.create(topic)
    rewrite(hours(0, 1))
    with pytest.raises(WindowsChangedError, match=r"is written in windows, and the stream 'main' would duplicate"):
        ingest(KafkaSource(topics=(topic,)), table, spark=spark_of, connection=connection)
    kafka.produce(topic, [(None, "x")], timestamp=START + 1)
    rewrite(hours(0, 1))
    before = history(table)
    with pytest.raises(WindowsChangedError, match=r"it was created for 'hours', but this run has 'days'"):
        rewrite(hours(0, 1), definition="days")
    (hour,) = hours(0, 1)
    with pytest.raises(WindowsChangedError, match=r"the window half .* overlaps the landed window h000 .*in it twice"):
        rewrite([Window("half", hour.start_ms, hour.stop_ms - 1)])
    with pytest.raises(WindowsChangedError, match=r"the window h000 .* has the same key as the landed window h000 \["):
        rewrite([Window(hour.key, hour.stop_ms, hour.stop_ms + 1)])
    with pytest.raises(WindowsChangedError, match=r"is written in windows \(version 1 wrote some\)"):
        ingest(KafkaSource(topics=(topic,)), table, spark=spark_of, connection=connection)
    spark.sql(f"CREATE TABLE delta.`{table}-of-others` USING delta AS SELECT * FROM delta.`{table}`")
    with pytest.raises(WindowsChangedError, match="has rows and is not written in windows"):
        rewrite(hours(0, 1), target=DeltaTarget(table=f"{table}-of-others"))
    kafka.delete(topic)
    kafka.create(topic)
    with pytest.raises(TopicRecreatedError, match=r"was deleted and recreated"):
        rewrite(hours(0, 1))
    assert (history(table), values(rows())) == (before, ["x"])


@pytest.mark.parametrize(
    ("column", "layout"),
    [
        # Names that have to be quoted, and other names in the log than in the table.
        ("the window's key", {"properties": {"delta.columnMapping.mode": "name"}}),
        # No file tells its rows.
        ("kafka_window", {"partition_by": ("kafka_topic",), "properties": {"delta.dataSkippingNumIndexedCols": "0"}}),
    ],
    ids=["column mapping", "no statistics"],
)
def test_the_rows_of_each_window_are_reported_however_the_table_is_laid_out(
    kafka, rewrite, topic, table, column, layout
):
    kafka.create(topic)
    for hour, records in ((0, 3), (2, 1)):
        kafka.produce(topic, [(None, "x")] * records, timestamp=START + hour * HOUR)
    kafka.produce(topic, [(None, "later")], timestamp=START + 9 * HOUR)
    # The second time, rows are replaced.
    for _ in range(2):
        [result] = rewrite(hours(0, 3), target=DeltaTarget(table=table, **layout), rules=Windows(column=column))
        assert result.rows is not None
        assert [result.rows_of(window) for window in result.plan.windows] == [3, 0, 1]
        assert result.committed is not None
        assert result.committed.rows == 4
