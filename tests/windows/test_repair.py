"""One table fed both ways: a stream that appends, and windows of it that are read again."""

from __future__ import annotations

import contextlib
import json
import threading
from datetime import datetime, timedelta, timezone

import pytest

from dagster_kafka_flip.errors import ConfigurationError, TableChangedError
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.string import StringFormat
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.ingestion.move_position import commit_move, plan_move
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.window import Window, Windows
from dagster_kafka_flip.table import table_port
from dagster_kafka_flip.table.table_writer import TableWriter
from dagster_kafka_flip.table.target import DeltaTarget
from dagster_kafka_flip.table.windowed_table import RepairedTable
from tests import landed
from tests.windows.conftest import HOUR, START

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

DAY = Window("day", START, START + 24 * HOUR)
REPAIR = Windows(repair=True)


@pytest.fixture
def append(connection, spark_of, table, topic):
    """Lets the stream go on."""

    def run(**options):
        return ingest(
            KafkaSource(topics=(topic,)),
            table,
            spark=spark_of,
            connection=connection,
            value_format=StringFormat(),
            **options,
        )

    return run


@pytest.fixture
def offsets(table):
    """Topic partition and offset of all rows, in order: a double shows as a double."""

    def read():
        return landed.rows(table, "kafka_partition", "kafka_offset")

    return read


@pytest.fixture
def write(kafka, topic):
    kafka.create(topic, partitions=2)

    def run(count, hour=1):
        for partition in range(2):
            kafka.produce(
                topic,
                [(None, str(number)) for number in range(count)],
                partition=partition,
                timestamp=START + hour * HOUR,
            )

    return run


class Actor:
    """Runs something in a thread up to its write, and on from there when it is told to."""

    def __init__(self, monkeypatch, owner, method, work):
        self._work = work
        self._planned, self._may_write = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._failure = None
        write = getattr(owner, method)

        def wait_and_write(*args):
            if threading.current_thread() is self._thread and not self._planned.is_set():
                self._planned.set()
                assert self._may_write.wait(600)
            return write(*args)

        monkeypatch.setattr(owner, method, wait_and_write)

    def _run(self):
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - told by whoever joins
            self._failure = error
        finally:
            self._planned.set()

    def plan(self):
        self._thread.start()
        assert self._planned.wait(300)

    def write(self):
        self._may_write.set()
        self._thread.join(300)
        assert not self._thread.is_alive()
        if self._failure is not None:
            raise self._failure


def all_offsets(count):
    return [(partition, offset) for partition in range(2) for offset in range(count)]


def test_rows_that_others_changed_are_rewritten_and_nothing_else_is_touched(
    write, append, rewrite, offsets, spark, table
):
    write(5)
    write(5, hour=30)
    first = append()
    spark.sql(f"DELETE FROM delta.`{table}` WHERE kafka_offset IN (1, 7)")
    [result] = rewrite([DAY], rules=REPAIR)
    assert offsets() == [each for each in all_offsets(10) if each[1] != 7]
    assert result.committed.rows == 10
    # The stream neither knows nor minds.
    second = append()
    assert second.is_idle
    assert second.state == first.state
    write(1)
    append()
    assert offsets() == [each for each in all_offsets(11) if each[1] != 7]


def test_a_repair_that_can_not_find_its_rows_is_refused(kafka, write, append, rewrite, offsets, topic):
    write(1)
    with pytest.raises(ConfigurationError, match=r"the stream 'main' has no position in .* \(there is no table\)"):
        rewrite([DAY], rules=REPAIR)
    append()
    for column, message in (
        ("nope", "has no column nope, .*Set time_column to the table's column with the record's timestamp"),
        ("kafka_offset", "the column kafka_offset of the table .* has the type long, .*Set time_column"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            rewrite([DAY], rules=Windows(repair=True, time_column=column))
    with pytest.raises(ConfigurationError, match="the transform dropped the column kafka_timestamp"):
        rewrite([DAY], rules=REPAIR, transform=lambda records: records.drop("kafka_timestamp"))
    kafka.create(f"{topic}-other")
    with pytest.raises(ConfigurationError, match=r"has not read the topic \S+-other "):
        rewrite([DAY], rules=REPAIR, source=KafkaSource(topics=(topic, f"{topic}-other")))
    assert offsets() == all_offsets(1)


def test_a_corrected_time_moves_no_row_into_or_out_of_the_range_unless_the_range_has_both_times(
    kafka, connection, spark_of, rewrite, topic, table
):
    kafka.create(topic)
    for hour in range(4):
        value = json.dumps({"at": f"2013-03-01T{hour:02}:30:00Z"})
        kafka.produce(topic, [(None, value)], timestamp=START + hour * HOUR)
    values = JsonFormat("at TIMESTAMP")

    def later(hours):
        names = ("kafka_topic", "kafka_partition", "kafka_offset")
        return lambda rows: rows.selectExpr(*names, f"at + INTERVAL {hours} HOURS AS at")

    def repair(first, last):
        window = Window("repaired", START + first * HOUR, START + last * HOUR)
        rules = Windows(repair=True, event_time="at", max_lateness=timedelta(hours=6))
        return rewrite([window], rules=rules, value_format=values, transform=later(0))

    def hours():
        return landed.rows(table, "kafka_offset", "extract(hour FROM at)")

    source = KafkaSource(topics=(topic,))
    ingest(source, table, spark=spark_of, connection=connection, value_format=values, transform=later(2))
    # Offsets 0 and 1 would be there twice, and offset 3 no more.
    for first, last in ((0, 2), (5, 6)):
        with pytest.raises(ConfigurationError, match=r"has another time than in .* Repair a range that has both times"):
            repair(first, last)
    assert hours() == [(0, 2), (1, 3), (2, 4), (3, 5)]
    repair(0, 6)
    assert hours() == [(0, 0), (1, 1), (2, 2), (3, 3)]


def test_a_bound_that_the_clock_of_the_session_shows_twice_is_refused_before_a_row_is_deleted(
    kafka, append, rewrite, offsets, spark, topic
):
    zone, before = "spark.sql.session.timeZone", spark.conf.get("spark.sql.session.timeZone")
    # Then clocks in Berlin were set back from 3 to 2.
    set_back = int(datetime(2013, 10, 27, 1, tzinfo=timezone.utc).timestamp() * 1000)
    kafka.create(topic)
    for milliseconds in (set_back, set_back - 1000):
        kafka.produce(topic, [(None, "x")], timestamp=milliseconds)
    append()
    spark.conf.set(zone, "Europe/Berlin")
    try:
        for start, stop in ((0, 1), (-1, 0)):
            window = Window("hour", set_back + start * HOUR, set_back + stop * HOUR)
            with pytest.raises(ConfigurationError, match=rf"2013-10-27T01:00:00Z, .* {zone} to UTC, or choose another"):
                rewrite([window], rules=REPAIR)
            assert offsets() == [(0, 0), (0, 1)]
        rewrite([Window("hours", set_back - HOUR, set_back + HOUR)], rules=REPAIR)
        rewrite([Window("all", set_back - HOUR, (1 << 63) // 1000 + 1)], rules=REPAIR)
    finally:
        spark.conf.set(zone, before)
    rewrite([Window("hour", set_back, set_back + HOUR)], rules=REPAIR)
    assert offsets() == [(0, 0), (0, 1)]


# The stream's plan (S) and append (A), the repair's plan (p) and rewrite (r), where they cross.
ORDERS = ["SprA", "pSAr"]


def test_in_each_order_of_plan_append_and_rewrite_each_record_is_landed_once(
    write, append, rewrite, offsets, monkeypatch
):
    write(3)
    append()
    for number, order in enumerate(ORDERS, 1):
        write(2)
        with monkeypatch.context() as patch:
            stream = Actor(patch, TableWriter, "commit", append)
            repair = Actor(patch, RepairedTable, "rewrite", lambda: rewrite([DAY], rules=REPAIR))
            steps = {"S": stream.plan, "A": stream.write, "p": repair.plan, "r": repair.write}
            for step in order:
                steps[step]()
        assert offsets() == all_offsets(3 + 2 * number), order
    assert append().is_idle


@pytest.fixture
def set_back(spark, table, connection, topic):
    """Removes the last two rows of each topic partition, and moves the position back before them."""

    def run():
        source = KafkaSource(topics=(topic,)).connected(connection)
        start = OffsetsInitializer.specific_offsets({TopicPartition(topic, 0): 4, TopicPartition(topic, 1): 4})
        spark.sql(f"DELETE FROM delta.`{table}` WHERE kafka_offset >= 4")
        commit_move(plan_move(source, DeltaTarget(table=table), spark, start), DeltaTarget(table=table), spark, "test")

    return run


@pytest.mark.nightly
def test_a_restore_or_a_moved_position_between_plan_and_rewrite_leads_to_a_new_plan(
    write, append, rewrite, offsets, spark, table, monkeypatch, set_back
):
    def restore_and_append():
        spark.sql(f"RESTORE delta.`{table}` TO VERSION AS OF 1")
        append(limits=Limits(max_records_per_batch=2, max_batches=1))

    write(3)
    append()
    write(2)
    append()
    for number, meanwhile in enumerate((restore_and_append, set_back)):
        with monkeypatch.context() as patch:
            repair = Actor(patch, RepairedTable, "rewrite", lambda: rewrite([DAY], rules=REPAIR))
            repair.plan()
            meanwhile()
            repair.write()
        append()
        assert offsets() == all_offsets(5), number


@pytest.mark.nightly
def test_a_restore_while_a_repair_is_written_is_reported_by_this_run_and_every_later_one(
    write, append, rewrite, offsets, spark, table, monkeypatch
):
    # As on a store without locks: others come between the last look and the write.
    monkeypatch.setattr(table_port, "store_lock", lambda *_, **__: contextlib.nullcontext())
    write(3)
    append()
    write(2)
    append()
    with monkeypatch.context() as patch:
        # The last thing between the look and the write.
        repair = Actor(patch, table_port, "write_tag", lambda: rewrite([DAY], rules=REPAIR))
        repair.plan()
        spark.sql(f"RESTORE delta.`{table}` TO VERSION AS OF 1")
        restored = landed.version(table)
        append(limits=Limits(max_records_per_batch=2, max_batches=1))
        also = "RESTORE also undoes the windows and repairs of later versions"
        with pytest.raises(TableChangedError, match=rf"version {restored} of .* is a RESTORE between .*\. {also}"):
            repair.write()
    last = landed.version(table) - 1
    for _ in range(2):
        with pytest.raises(TableChangedError, match=rf"RESTORE the table to version {last}, .* all later repairs"):
            append()
    spark.sql(f"RESTORE delta.`{table}` TO VERSION AS OF {last}")
    append()
    assert offsets() == all_offsets(5)
