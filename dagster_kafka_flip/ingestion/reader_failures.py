"""Why Spark's Kafka reader fails although planning works: it is not allowed to read, or can't reach the brokers."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ClusterAccessError, ClusterUnreachableError, KafkaFlipError, WriteFailedError
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.table.retries import TRIES, retries
from dagster_kafka_flip.table.spark_error import is_sparks_own, telling_line

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable

    import tenacity

    from dagster_kafka_flip.source.api import Source, SplitEnumeratorContext
    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.table.target import DeltaTarget

# After one failure a broker may have been restarted meanwhile; then the next try finds it.
_FAILURES = 2
# How long a try may take that finds no connection, beside the time for records, and in how many tries of one task.
# One that took longer had a connection, and has read something.
_OTHER_SECONDS = 45.0
_TRIES_OF_A_TASK = 4

# Kafka's Java client, when it got no connection for as long as it tried.
_NO_CONNECTION = re.compile(r"\borg\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network)Exception\b")
# The same, when it could not even begin to; trying again makes no difference.
_NO_ADDRESS = re.compile(r"\bNo resolvable bootstrap urls\b|\bDNS resolution failed for url\b")
_REFUSED = re.compile(
    r"\b(Topic|Group)AuthorizationException\)?:? Not authorized to access (?:topics|group): \[?([^\]\n]*)"
)


def write_retries(
    log: logging.Logger | logging.LoggerAdapter[Any],
    target: DeltaTarget,
    source: Source,
    context: SplitEnumeratorContext,
    splits: Iterable[KafkaPartitionSplit],
) -> tenacity.Retrying:
    """Repeats a write that failed for a reason that may pass, unless it is known to fail again.

    Args:
        log: Where to tell.
        target: What is written to.
        source: What is read.
        context: What the run knows.
        splits: What is read of it.
    """
    return retries(log, f"the write to {target}", reader_failures(source, context, splits))


def reader_failures(
    source: Source, context: SplitEnumeratorContext, splits: Iterable[KafkaPartitionSplit]
) -> Callable[[BaseException, int, float], None]:
    """What to ask of a write that failed, before it is tried again.

    It is told the error, the number of the try, and how many seconds it took. It raises
    ClusterAccessError or ClusterUnreachableError where it knows more, and that another try is of no use.

    Args:
        source: What is read.
        context: What the run knows.
        splits: What is read of it.
    """
    partitions = {split.topic_partition for split in splits}

    def check(error: BaseException, attempt: int, seconds: float) -> None:
        cause = error.__cause__ if isinstance(error, WriteFailedError) else error
        if not isinstance(source, KafkaSource) or cause is None or not partitions or not is_sparks_own(cause):
            return
        text = str(cause)
        connection = source.required_connection()
        if (refused := _REFUSED.search(text)) is not None:
            kind, name = ("topic", refused[2]) if refused[1] == "Topic" else ("consumer group", refused[2])
            msg = (
                f"Kafka at {connection.bootstrap_servers} refuses {connection.user} records of the {kind} {name}, when "
                f"Spark reads them. Nothing of the batch was written. Grant READ on the {kind} {name} and run again"
            )
            raise ClusterAccessError(msg) from error
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
            # Nobody reaches them.
            return
        msg = (
            f"Spark's Kafka reader found no connection to the brokers, or lost it, in {attempt} "
            f"{'try' if attempt == 1 else 'tries'}, and this process has one. "
            f"Nothing of the batch was written. The brokers tell clients to connect to {', '.join(addresses)} (their "
            f"advertised.listeners), after a first contact at {connection.bootstrap_servers}: Spark's driver and its "
            "executors have to find and reach all of these addresses. Check DNS, routes and firewalls on the machines "
            "where Spark runs, or have the brokers advertise addresses that can be reached from there, and run again. "
            f"Spark said: {telling_line(cause)}"
        )
        raise ClusterUnreachableError(msg) from error

    return check
