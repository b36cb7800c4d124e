"""Runs that are refused: what they say, and that the table is as it was."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from dagster_kafka_flip.errors import (
    ClusterAccessError,
    ClusterRequestError,
    DocumentVersionError,
    EventTimeUnknownError,
    OffsetNotFoundError,
    OffsetOutOfRangeError,
    SchemaMismatchError,
    SparkSessionError,
    StreamOverlapError,
    TableError,
    TopicNotFoundError,
)
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.runtime.session import check_session
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.cluster_client import Asked
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed


class _PlainSession:
    """A session that was started without Delta."""

    class conf:  # noqa: N801 - as Spark calls it
        @staticmethod
        def get(key, default=None):
            return default


def test_a_session_that_can_not_write_delta_is_refused():
    with pytest.raises(SparkSessionError, match=r"was started without spark\.sql\.extensions=io\.delta\."):
        check_session(_PlainSession())  # type: ignore[arg-type]


def test_a_request_that_a_broker_refuses_is_named():
    # Nothing listens on port 1, and nothing is asked of it.
    cluster = KafkaCluster(KafkaConnection(bootstrap_servers="127.0.0.1:1"))
    asked = Asked("the end offsets")
    error = cluster._error(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED), asked)
    assert isinstance(error, ClusterAccessError)
    assert str(error) == (
        "Kafka at 127.0.0.1:1 refuses this client the end offsets: CLUSTER_AUTHORIZATION_FAILED. "
        "Grant DESCRIBE on the cluster, then run again"
    )
    error = cluster._error(KafkaError(KafkaError.INVALID_REQUEST), asked)
    assert isinstance(error, ClusterRequestError)
    assert not isinstance(error, ClusterAccessError)
    assert str(error).startswith("Kafka at 127.0.0.1:1 failed to return the end offsets: INVALID_REQUEST: ")


@pytest.mark.kafka
@pytest.mark.spark
def test_refused_options_change_no_table(kafka, spark, spark_of, connection, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [(None, "a")] * 3)
    source = KafkaSource(topics=(topic,), group_id=f"{topic}-nobody")

    def land(source=source, *, stream="main", **options):
        return ingest(source, DeltaTarget(table=table, stream=stream), spark=spark_of, connection=connection, **options)

    def history():
        return landed.operations(table)

    assert land().rows == 3
    # Its end is marked by the broker, at a time that is later than its records'.
    kafka.open_transaction(topic, [(None, "b")] * 2).commit()
    before = history()
    refusals: list[tuple[type[Exception], dict[str, Any], str, str]] = [
        (
            OffsetOutOfRangeError,
            {"starting_offsets": OffsetsInitializer.specific_offsets({(topic, 0): 99})},
            f"{topic}-0: the start offset 99 ",
            "the log, which holds offsets 0 to 6",
        ),
        (
            TopicNotFoundError,
            {"starting_offsets": OffsetsInitializer.specific_offsets({(topic, 7): 0})},
            f"the offsets name {topic}-7, which does not exist",
            "",
        ),
        (
            OffsetNotFoundError,
            {"starting_offsets": OffsetsInitializer.committed_offsets()},
            f"{topic}-0: the consumer group has no committed offset",
            "no reset strategy is set",
        ),
        (
            EventTimeUnknownError,
            {"source": source.model_copy(update={"max_drift": timedelta(seconds=1)})},
            f"{topic}-0: ",
            "Nothing was written",
        ),
        (StreamOverlapError, {"stream": "other"}, f"{topic}-0: the stream 'main' of the table {table} reads it", ""),
        (
            SchemaMismatchError,
            {"transform": lambda records: records.selectExpr("*", "1 AS extra")},
            f"the table {table} has no column extra (int). Nothing was written",
            "",
        ),
    ]
    for error, options, begin, more in refusals:
        with pytest.raises(error) as refused:
            land(**options)
        assert str(refused.value).startswith(begin)
        assert more in str(refused.value)
        assert history() == before, error
    assert land().rows == 2

    newer = json.dumps({"dagster-kafka-flip": 99})
    writer = spark.table(f"delta.`{table}`").limit(0).writeTo(f"delta.`{table}`")
    # Without a transaction's version, Delta makes no commit of nothing.
    writer.option("userMetadata", newer).option("txnAppId", "newer").option("txnVersion", 1).append()
    before = history()
    with pytest.raises(DocumentVersionError, match="document version 99; this version reads up to 1"):
        land()
    assert history() == before


@pytest.mark.kafka
@pytest.mark.spark
def test_a_table_that_goes_away_in_mid_run_and_a_file_in_its_place_are_reported(
    kafka, spark_of, connection, topic, table
):
    kafka.create(topic)
    kafka.produce(topic, [(None, "a")] * 3)
    source = KafkaSource(topics=(topic,))

    def land(transform=None, *, path=table):
        return ingest(source, path, spark=spark_of, connection=connection, transform=transform)

    def removing(records):
        shutil.rmtree(table)
        return records

    assert land().rows == 3
    kafka.produce(topic, [(None, "b")] * 2)
    with pytest.raises(TableError, match=r"disappeared during the run\. Nothing of this batch was written"):
        land(removing)
    assert not Path(table).exists()
    # What the message says of the next run.
    assert land().rows == 5

    occupied = Path(f"{table}-file")
    occupied.write_text("notes")
    with pytest.raises(TableError, match=r"is a file, but a Delta table is a folder\. Nothing was written"):
        land(path=str(occupied))
    assert occupied.read_text() == "notes"
