"""publish(): one bounded run of one sink, from its progress to the table's newest version. Independent of Dagster."""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError, outcome
from dagster_kafka_flip.runtime.interrupts import keep_interrupts
from dagster_kafka_flip.runtime.session import check_alive
from dagster_kafka_flip.runtime.spark_status import watch_executors
from dagster_kafka_flip.settings.arguments import check_options, expect
from dagster_kafka_flip.sink.delta_source import DeltaSource
from dagster_kafka_flip.sink.kafka_sink import KafkaSink
from dagster_kafka_flip.sink.lane_failures import unseen
from dagster_kafka_flip.sink.progress import are_even, check_sink, check_table, lanes_behind
from dagster_kafka_flip.sink.progress_topic import ProgressTopic
from dagster_kafka_flip.sink.publication import Publication
from dagster_kafka_flip.sink.record_router import topic_not_found
from dagster_kafka_flip.sink.result import PublishResult
from dagster_kafka_flip.sink.row_transform import RowTransform
from dagster_kafka_flip.sink.table_versions import TableVersions, local_version, mark_of
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.table.local_log import commits_between
from dagster_kafka_flip.table.retries import retried
from dagster_kafka_flip.telemetry.log_fields import log_with_fields
from dagster_kafka_flip.telemetry.metrics import Metrics, measured_run

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.sink.progress import Progress

_logger = logging.getLogger(__name__)


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
        limits: Limits of transactions and runs, in rows and bytes. `spread` has no effect. Default: half of the sink's
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
    if limits is not None:
        expect("limits", limits, Limits, "Limits(max_records_per_batch=100_000)")
    if not callable(spark):
        msg = "spark: expected a function that returns a Spark session, such as spark=lambda: session"
        raise ConfigurationError(msg)
    if transform is not None and not callable(transform):
        msg = "transform: expected a function of a DataFrame, such as transform=lambda rows: rows.where(...)"
        raise ConfigurationError(msg)
    sink.check_content(source.content)
    with contextlib.closing(KafkaCluster(connection, log=logger)) as cluster:
        run = _Run(source, sink, connection, cluster, limits or Limits(), transform, logger or _logger)
        metrics = Metrics({"table": str(source), "topic": sink.topic, "sink": sink.transactional_id_prefix})
        with measured_run(metrics) as measured:
            try:
                with outcome(run.outcome):
                    result = run.run(spark, known or {})
            finally:
                # A failed run's commits stay, and the next run does not count them.
                records, size = run.published
                metrics.record("published_records", records)
                metrics.record("published_bytes", size)
            measured.outcome = "committed" if result.batches else "idle"
            metrics.record("lag_versions", result.lag_versions)
        return result


class _Run:
    def __init__(
        self,
        source: DeltaSource,
        sink: KafkaSink,
        connection: KafkaConnection,
        cluster: KafkaCluster,
        limits: Limits,
        transform: Callable[[DataFrame], DataFrame] | None,
        log: logging.Logger | logging.LoggerAdapter[Any],
    ) -> None:
        self._source, self._sink, self._connection = source, sink, connection
        self._cluster, self._limits, self._transform, self._log = cluster, limits, transform, log
        self._topic = ProgressTopic(cluster, sink)
        self._begun = time.monotonic()
        self._publication: Publication | None = None

    @property
    def published(self) -> tuple[int, int]:
        """Records that were committed so far, and bytes of their keys and values."""
        return (0, 0) if self._publication is None else self._publication.published

    def outcome(self) -> str:
        """What readers see of a run that fails now."""
        if self._publication is None or self._publication.first is None:
            return "Nothing was published"
        return unseen(self._sink, may_be_committed=self._publication.may_be_committed)

    def run(self, spark: Callable[[], SparkSession], known: Mapping[int, tuple[int, int]]) -> PublishResult:
        source, sink = self._source, self._sink
        topics = {"topic": sink.topic, "dead_letter_topic": sink.dead_letter_topic}
        wanted = {option: name for option, name in topics.items() if name is not None}
        described = self._cluster.describe_topics(list(wanted.values()), skip_missing=True)
        for option, name in wanted.items():
            if name not in described:
                raise topic_not_found(option, name)
        topic_id = described[sink.topic].topic_id
        self._topic.prepare(described[sink.topic].replicas, self._log)
        # Not yet the owner, so this may be outdated. It only shows that there is nothing to do: progress never goes
        # back.
        found = self._topic.read(settled=False)
        check_sink(found, sink.transactional_id_prefix, sink.lanes, sink.topic, topic_id)
        idle = None if lanes_behind(found, known) else self._idle(found)
        if idle is not None:
            return idle
        keep_interrupts()
        self._log.info("starting Spark")
        begun = time.monotonic()
        session = spark()
        # An earlier run in this process may have crashed its JVM, and anybody may have ended a Connect server.
        check_alive(session)
        spark_seconds = time.monotonic() - begun
        watch_executors(session, self._log)
        versions = TableVersions(session, source)
        check_table(found, sink.transactional_id_prefix, str(source), versions.table_id)
        if topic_id in versions.fed_by:
            self._log.warning(
                "%s is fed by the topic %s, which this sink publishes to: what is published is landed, and published "
                "again by the next run, unless a function between table and topic leaves it out",
                source,
                sink.topic,
            )
        last = versions.last()
        publication = self._publication = Publication(
            session,
            source,
            sink,
            topic_id,
            known,
            self._connection,
            self._topic,
            versions,
            self._limits,
            self._log,
            None if self._transform is None else RowTransform(session, self._transform).of,
        )
        tag = f"dagster-kafka-flip-{uuid.uuid4().hex}"
        retried(self._log, "publishing", lambda: publication.run(last, self._cluster, tag))
        result = publication.result(last, spark_seconds, time.monotonic() - self._begun)
        log_with_fields(
            self._log,
            "published",
            table=str(source),
            topic=sink.topic,
            first_version=result.first_version,
            last_version=result.last_version,
            lag_versions=result.lag_versions,
            records=result.records,
            left_out=sum(result.left_out.values()),
            bytes=result.bytes,
            batches=result.batches,
            seconds=result.seconds,
        )
        return result

    def _idle(self, found: dict[int, Progress]) -> PublishResult | None:
        """The result, if all lanes have published everything, as far as that can be determined without Spark."""
        lanes = [found[number] for number in sorted(found)]
        local = local_version(self._source)
        if local is None or len(lanes) < self._sink.lanes or not are_even(lanes):
            return None
        newest, table_id = local
        if any(progress.table_id != table_id for progress in lanes):
            return None
        stop = self._source.stop
        wanted = newest if stop is None else stop
        # A progress beyond the table, or a stop beyond it, is an error that is found with Spark.
        version = lanes[0].version
        if not wanted <= version <= newest:
            return None
        there = commits_between(self._source.target.location, version, version)
        mark = mark_of(there[0]) if there else None
        if mark is not None and any(progress.commit not in {None, mark} for progress in lanes):
            return None
        self._log.info("nothing new in %s: version %d is published", self._source, version)
        return PublishResult(
            table=str(self._source),
            table_id=table_id,
            topic=self._sink.topic,
            first_version=None,
            last_version=version,
            newest_version=newest,
            seconds=time.monotonic() - self._begun,
            progress=tuple(lanes),
            sink=self._sink.transactional_id_prefix,
            progress_topic=self._sink.progress_name,
        )
