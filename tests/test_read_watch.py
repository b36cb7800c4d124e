"""A long read tells how far it is while it goes on: the share, the rate and the time left."""

from __future__ import annotations

import logging
import re
import threading

import pytest

from dagster_kafka_flip.errors import WriteFailedError
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.ingestion.progress import ReadProgress, read_watched
from dagster_kafka_flip.source.kafka_source import KafkaSource
from tests.slow_read import ToldOnce, until_told


def _watchers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "dagster-kafka-flip-progress"]


@pytest.mark.spark
@pytest.mark.kafka
def test_a_long_read_reports_how_far_it_is_while_its_only_task_runs(
    kafka, connection, spark_of, topic, table, tmp_path
):
    kafka.create(topic)
    kafka.produce(topic, [(None, "x" * 1000)] * 30_000)
    reported = ToldOnce(tmp_path / "told")
    log = logging.getLogger(f"{__name__}.{topic}")
    log.setLevel(logging.INFO)
    log.addHandler(reported)
    result = ingest(
        KafkaSource(topics=(topic,)),
        table,
        spark=spark_of,
        connection=connection,
        transform=until_told(tmp_path / "told", offset=10_000),
        logger=log,
    )
    assert result.rows == 30_000
    assert result.batches[0].tasks == 1
    assert reported.lines
    # The first reading is where the rate begins to be measured, and so has none.
    line = re.fullmatch(r"read ([\d,]+) of at most 30,000 records \(\d+ %\)", reported.lines[0])
    assert line, reported.lines
    assert 0 < int(line[1].replace(",", "")) < 30_000
    assert _watchers() == []


@pytest.mark.spark
def test_a_write_that_reads_nothing_for_long_tells_that_it_goes_on(spark):
    told, lines = threading.Event(), []

    class Listener(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())
            told.set()

    log = logging.getLogger(f"{__name__}.silence")
    log.setLevel(logging.INFO)
    log.addHandler(Listener())
    with read_watched(spark, "tag", ReadProgress(1), log, 0.01, silence_seconds=0):
        assert told.wait(60)
    assert lines[0].startswith("the write has gone on for 0 s, and has read no record in the last 0 s")


@pytest.mark.spark
def test_a_write_that_fails_leaves_no_thread_that_watches(spark):
    def write() -> None:
        assert _watchers() == ["dagster-kafka-flip-progress"]
        raise WriteFailedError("the write failed")

    with pytest.raises(WriteFailedError), read_watched(spark, "tag", ReadProgress(1), logging.getLogger(), 3600):
        write()
    assert _watchers() == []


def test_a_line_shows_share_rate_and_time_left():
    progress = ReadProgress(5_000_000)
    progress.line(240_000, 1.2)
    assert progress.line(1_240_000, 6.2) == (
        "read 1,240,000 of at most 5,000,000 records (24 %), 200,000 records/s, about 19 s left"
    )


def test_a_reading_that_says_nothing_new_makes_no_line():
    progress = ReadProgress(100)
    assert progress.line(0, 5.0) is None
    assert progress.line(10, 10.0) is not None
    assert progress.line(10, 15.0) is None
    assert progress.line(11, 20.0) is not None


def test_progress_of_a_read_never_exceeds_100_percent():
    # A task that failed and was repeated has read its records twice.
    assert ReadProgress(100).line(130, 5.0) == "read 100 of at most 100 records (100 %)"
