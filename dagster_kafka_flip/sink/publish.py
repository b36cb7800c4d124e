"""publish(): one bounded run of one sink, from its progress to the table's newest version. Independent of Dagster."""

from __future__ import annotations

import contextlib
import logging
import time
from types import FunctionType
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import outcome
from dagster_kafka_flip.runtime.interrupts import keep_interrupts
from dagster_kafka_flip.runtime.session import check_alive
from dagster_kafka_flip.runtime.session_settings import hide_from_logs
from dagster_kafka_flip.runtime.spark_status import watch_executors
from dagster_kafka_flip.settings.arguments import check_options, expect
from dagster_kafka_flip.sink.delta_source import DeltaSource
from dagster_kafka_flip.sink.kafka_sink import KafkaSink
from dagster_kafka_flip.sink.progress import are_even, check_same_history, check_sink, check_table, lanes_behind
from dagster_kafka_flip.sink.publication import Publication
from dagster_kafka_flip.sink.record_router import topic_not_found
from dagster_kafka_flip.sink.table_versions import TableVersions, local_version, mark_of
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.table.interruptible import retried
from dagster_kafka_flip.table.local_log import commits_between
from dagster_kafka_flip.telemetry.log_fields import log_with_fields
from dagster_kafka_flip.telemetry.metrics import Metrics, measured_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.sink.progress import Progress
    from dagster_kafka_flip.sink.result import PublishResult

_logger = logging.getLogger(__name__)

_LOGGED = ("table", "topic", "first_version", "last_version", "lag_versions", "records", "bytes", "batches", "seconds")


@check_options(inside={"source": DeltaSource, "sink": KafkaSink, "limits": Limits})
def publish(
    source: DeltaSource,
    sink: KafkaSink,
    *,
    spark: Callable[[], SparkSession],
    connection: KafkaConnection,
    limits: Limits | None = None,
    known: Mapping[int, tuple[int, int]] | None = None,
    transform: Callable[[DataFrame], DataFrame] | None = None,
    logger: logging.Logger | logging.LoggerAdapter[Any] | None = None,
) -> PublishResult:
    """Publishes a Delta table's changes to a topic, from the sink's progress to the newest version, exactly once.

    Args:
        source: The table, and what to publish of it.
        sink: The topic, the guarantee, and how a row becomes a record.
        spark: Returns a Spark session; only called if something may be new.
        connection: Kafka connection.
        limits: Limits of transactions and runs, in rows and bytes. Default: half of the sink's
            transaction_timeout limits a transaction.
        known: `known` of the last run's result: if the sink's progress is behind it, the run fails instead of
            publishing again. Default: only the progress topic counts.
        transform: Function from changes to the rows to publish, each from one row alone. Default: all rows as they are.
        logger: Logger. Default: this module's.

    Returns:
        The run's result.

    Raises:
        KafkaFlipError: The run failed; see the classes in `dagster_kafka_flip.errors`.
    """
    expect("source", source, DeltaSource, 'DeltaSource(table="lake/orders")')
    expect("sink", sink, KafkaSink, 'KafkaSink(topic="orders", transactional_id_prefix="orders")')
    expect("connection", connection, KafkaConnection, 'KafkaConnection(bootstrap_servers="localhost:9092")')
    expect("limits", limits or Limits(), Limits, "Limits(max_records_per_batch=100_000)")
    if not callable(spark):
        expect("spark", spark, FunctionType, "a function that returns a Spark session")
    if transform is not None and not callable(transform):
        expect("transform", transform, FunctionType, "a function of a DataFrame, such as lambda rows: rows.where(...)")
    sink.check_content(source.content)
    with contextlib.closing(KafkaCluster(connection, log=logger)) as cluster:
        limits, known = limits or Limits(), known or {}
        run = Publication(source, sink, connection, cluster, limits, known, transform, logger or _logger)
        metrics = Metrics({"table": str(source), "topic": sink.topic, "sink": sink.transactional_id_prefix})
        with measured_run(metrics) as measured:
            try:
                with outcome(run.outcome):
                    result = _run(run, spark)
            finally:
                # A failed run's commits stay, and the next run does not count them.
                records, size = run.published
                metrics.record("published_records", records)
                metrics.record("published_bytes", size)
            measured.outcome = "committed" if result.batches else "idle"
            metrics.record("lag_versions", result.lag_versions)
        return result


def _run(run: Publication, spark: Callable[[], SparkSession]) -> PublishResult:
    source, sink, log, begun = run.source, run.sink, run.log, time.monotonic()
    topics = {option: name for option in ("topic", "dead_letter_topic") if (name := getattr(sink, option)) is not None}
    described = run.cluster.describe_topics(list(topics.values()), skip_missing=True)
    for option, name in topics.items():
        if name not in described:
            raise topic_not_found(option, name)
    topic_id = described[sink.topic].topic_id
    run.topic.prepare(described[sink.topic].replicas, log)
    # Not yet the owner, so this may be outdated. It only shows that there is nothing to do: progress never goes back.
    found = run.topic.read(settled=False)
    check_sink(found, sink.transactional_id_prefix, sink.lanes, sink.topic, topic_id)
    if not lanes_behind(found, run.known) and (local := _idle(source, sink, found)) is not None:
        log.info("nothing new in %s: version %d is published", source, found[0].version)
        run.committed = [found[lane] for lane in sorted(found)]
        return run.result(found[0].version, *local, time.monotonic() - begun)
    keep_interrupts()
    log.info("starting Spark")
    starting = time.monotonic()
    hide_from_logs()
    session = spark()
    # An earlier run in this process may have crashed its JVM, and anybody may have ended a Connect server.
    check_alive(session)
    spark_seconds = time.monotonic() - starting
    watch_executors(session, log)
    versions = TableVersions(session, source)
    check_table(found, sink.transactional_id_prefix, str(source), versions.table_id)
    if topic_id in versions.fed_by:
        log.warning(
            "%s is fed by the topic %s, which this sink publishes to: what is published is landed, and published "
            "again by the next run, unless a function between table and topic leaves it out",
            source,
            sink.topic,
        )
    last = versions.last()
    retried(log, "publishing", lambda: run.run(session, versions, topic_id, last))
    result = run.result(last, versions.newest, versions.table_id, time.monotonic() - begun, spark_seconds)
    facts = {name: getattr(result, name) for name in _LOGGED}
    log_with_fields(log, "published", **facts, left_out=sum(result.left_out.values()))
    return result


def _idle(source: DeltaSource, sink: KafkaSink, found: Mapping[int, Progress]) -> tuple[int, str] | None:
    """The table's newest version and its id, if all is published, as far as that shows without Spark."""
    local = local_version(source)
    if local is None or len(found) < sink.lanes or not are_even([*found.values()]):
        return None
    newest, table_id = local
    version = found[0].version
    # A progress beyond the table, or a stop beyond it, is an error that is found with Spark.
    if not (newest if source.stop is None else source.stop) <= version <= newest:
        return None
    check_table(found, sink.transactional_id_prefix, str(source), table_id)
    there = commits_between(source.target.location, version, version)
    mark = mark_of(there[0]) if there else None
    check_same_history(found, sink.transactional_id_prefix, newest, lambda _: mark)
    return local
