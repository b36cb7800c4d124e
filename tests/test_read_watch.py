"""A long read tells how far it is while it goes on; nothing of the telling is left behind."""

from __future__ import annotations

import logging
import re
import threading

import pytest

from dagster_kafka_flip.errors import WriteFailedError
from dagster_kafka_flip.ingestion import ingest
from dagster_kafka_flip.progress import ReadProgress
from dagster_kafka_flip.read_watch import read_watched
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.spark_status import ui_address
from tests.slow_read import ToldOnce, until_told

pytestmark = [pytest.mark.spark]


def _watchers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "dagster-kafka-flip-progress"]


@pytest.mark.kafka
def test_a_long_read_tells_how_far_it_is(kafka, connection, spark_of, topic, table, tmp_path):
    kafka.create(topic, partitions=2)
    # Fewer would be read by one task, and what a task has read is told when it is done.
    for partition in (0, 1):
        kafka.produce(topic, [(None, "x")] * 60_000, partition=partition)
    told = ToldOnce(tmp_path / "told")
    log = logging.getLogger(f"{__name__}.{topic}")
    log.setLevel(logging.INFO)
    log.addHandler(told)
    result = ingest(
        KafkaSource(topics=(topic,)),
        table,
        spark=spark_of,
        connection=connection,
        transform=until_told(tmp_path / "told", partition=1),
        logger=log,
    )
    assert result.rows == 120_000
    assert told.lines
    pattern = r"read 60,000 of at most 120,000 records \(50 %\), [\d,]+ records/s, about \d+ (s|min) left"
    assert re.fullmatch(pattern, told.lines[0]), told.lines
    assert _watchers() == []


def test_a_write_that_fails_leaves_no_thread_that_watches(spark):
    def write() -> None:
        assert _watchers() == ["dagster-kafka-flip-progress"]
        raise WriteFailedError

    with pytest.raises(WriteFailedError), read_watched(spark, "tag", ReadProgress(1), logging.getLogger(), 3600):
        write()
    assert _watchers() == []


def test_a_session_without_a_ui_has_no_address_of_one(spark):
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert ui_address(spark) is None
