"""Diagnoses failures of Spark's Kafka reader if planning works: ACLs, jars, unreachable brokers, or timestamps."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    ClusterAccessError,
    ClusterUnreachableError,
    KafkaFlipError,
    SparkSessionError,
    TimestampOutOfRangeError,
    WriteFailedError,
    error_text,
)
from dagster_kafka_flip.formats.learning import has_mark
from dagster_kafka_flip.runtime.spark_jars import jars_advice
from dagster_kafka_flip.source.instants import LAST_SPARK_TIMESTAMP_MS
from dagster_kafka_flip.source.next_step import set_position
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.table.retries import TRIES
from dagster_kafka_flip.table.spark_error import error_summary, is_sparks_own

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dagster_kafka_flip.source.api import SplitEnumeratorContext
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.table.target import DeltaTarget

# After the first failure a broker may have restarted; the next attempt shows this.
_FAILURES = 2
# Maximum duration of an attempt without a connection, in addition to the read timeout, and the number of attempts per
# task. A longer attempt had a connection and read records.
_OTHER_SECONDS = 45.0
_TRIES_OF_A_TASK = 4

# Messages of Kafka's Java client without a connection within its timeout.
_NO_CONNECTION = re.compile(r"\borg\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network)Exception\b")
# Its messages if it could not even start to connect; a retry does not help.
_NO_ADDRESS = re.compile(r"\bNo resolvable bootstrap urls\b|\bDNS resolution failed for url\b")
_NO_READER = re.compile(r"\bFailed to find (?:the )?data source: `?kafka\b")
_REFUSED = re.compile(
    r"\b(Topic|Group)AuthorizationException\)?:? Not authorized to access (?:topics|group): \[?([^\]\n]*)"
)


# Java's message, from Spark 4.2 on below Spark's own (KAFKA_MALFORMED_RECORD_TIMESTAMP). An overflow in a user's
# expression has another one (ARITHMETIC_OVERFLOW).
_OVERFLOW = "java.lang.ArithmeticException: long overflow"


def wild_timestamp(
    error: Exception,
    source: KafkaSource,
    context: SplitEnumeratorContext,
    splits: Sequence[KafkaPartitionSplit],
    target: DeltaTarget | None,
) -> TimestampOutOfRangeError | None:
    """Names the record whose timestamp made a read fail. Only a stream, which has a target here, can pass it over."""
    if not has_mark(error, _OVERFLOW):
        return None
    with contextlib.closing(source.create_enumerator(context)) as enumerator:
        found = enumerator.unreadable_record(splits)
    if found is None:
        return None
    tp, record = found
    if target is None:
        way_on = "The window is refused until the topic has lost the record: delete it, or wait for retention"
    else:
        behind = str(OffsetsInitializer.specific_offsets({tp: record.offset + 1}))
        way_on = (
            "To go on without the record, run once with stop set to its offset, then set the position behind it: "
            f"{set_position(str(target), target.stream, to=behind)}"
        )
    return TimestampOutOfRangeError(
        f"{tp}: the record at offset {record.offset} has the timestamp {record.timestamp_ms} ms. Spark can't read "
        f"timestamps more than {LAST_SPARK_TIMESTAMP_MS} ms before or after 1970",
        f"Correct the producer: it may write microseconds or nanoseconds instead of milliseconds. {way_on}",
    )


def check_reader(
    error: Exception,
    attempt: int,
    seconds: float,
    source: KafkaSource,
    context: SplitEnumeratorContext,
    splits: Iterable[KafkaPartitionSplit],
) -> None:
    """Raises the cause of a failed write if a retry can't help, after so many attempts, the last of so many seconds."""
    cause = error.__cause__ if isinstance(error, WriteFailedError) else error
    partitions = {split.topic_partition for split in splits}
    if cause is None or not partitions or not is_sparks_own(cause):
        return
    text = error_text(cause)
    if _NO_READER.search(text):
        raise SparkSessionError("Spark can't read Kafka: its jars are missing", jars_advice()) from error
    connection = source.required_connection()
    if (refused := _REFUSED.search(text)) is not None:
        kind, name = ("topic", refused[2]) if refused[1] == "Topic" else ("consumer group", refused[2])
        raise ClusterAccessError(
            f"Kafka at {connection.bootstrap_servers} refuses {connection.user} the right to read the {kind} "
            f"{name} in Spark's reader",
            f"Grant READ on the {kind} {name}, then run again",
        ) from error
    is_unknown = _NO_ADDRESS.search(text) is not None
    if not is_unknown and not (
        _NO_CONNECTION.search(text) is not None
        and attempt >= _FAILURES
        and (attempt >= TRIES or seconds <= _TRIES_OF_A_TASK * (connection.read_timeout + _OTHER_SECONDS))
    ):
        return
    try:
        with contextlib.closing(source.create_enumerator(context)) as enumerator:
            addresses = enumerator.reached_brokers(partitions)
    except KafkaFlipError:
        # This process can't reach them either.
        return
    raise ClusterUnreachableError(
        f"Spark's Kafka reader could not connect to the brokers, or lost the connection, in {attempt} "
        f"{'try' if attempt == 1 else 'tries'}, but this process is connected",
        f"The brokers' advertised.listeners are {', '.join(addresses)} (bootstrap_servers: "
        f"{connection.bootstrap_servers}): Spark's driver and executors must resolve and reach all of them. Check "
        "DNS, routes and firewalls on the machines where Spark runs, or change the advertised listeners, then run "
        f"again. Spark's error: {error_summary(cause)}",
    ) from error
