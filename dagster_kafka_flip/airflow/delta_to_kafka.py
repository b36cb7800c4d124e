"""DeltaToKafkaOperator: one run of a sink as a task."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from dagster_kafka_flip.airflow.asset_uris import is_topic_asset, table_asset, topic_asset_in
from dagster_kafka_flip.airflow.event_extra import is_reported, last_progress
from dagster_kafka_flip.airflow.given import (
    check_absolute,
    check_conn_id,
    delta_source_of,
    is_template,
    rendered_source,
)
from dagster_kafka_flip.airflow.kafka_flip_hook import KafkaFlipHook
from dagster_kafka_flip.airflow.lineage import Lineage, table_names, topic_names
from dagster_kafka_flip.airflow.spark_task import OnIdle, SparkTask, add_to_events
from dagster_kafka_flip.settings.arguments import expect
from dagster_kafka_flip.sink.kafka_sink import KafkaSink
from dagster_kafka_flip.sink.publish import publish
from dagster_kafka_flip.source.plan import Limits

if TYPE_CHECKING:
    from collections.abc import Collection

    from airflow.sdk import Asset, Context

    from dagster_kafka_flip.runtime.spark_settings import SparkSettings
    from dagster_kafka_flip.sink.delta_source import DeltaSource


class DeltaToKafkaOperator(SparkTask):
    """Publishes the changes of a Delta table to a topic, exactly once: from the sink's progress to the newest version.

    The progress is in Kafka, in the transactions of the records, so that a retry, a cleared task or two tasks at once
    neither lose nor double records.

    Args:
        source: A DeltaSource, or the path or name of a table. A string is templated. A relative path is refused.
        sink: The topic, the guarantee, and how a row becomes a record.
        kafka_conn_id: Id of a connection of type `kafka` or `kafka_flip`. Templated. Default: `kafka_default`.
        spark: The Spark session, or the id of a connection of type `spark` or `spark_connect`. Default: a local one
            with all cores.
        limits: Limits of transactions and tasks. Default: everything new; a transaction ends after half of the sink's
            `transaction_timeout`.
        on_idle: Result of a task that finds nothing new: `succeed` (default), which adds an event of the topic, or
            `skip`.
        **options: Airflow's options of every task. `inlets` and `outlets` are in addition to the table and the topic;
            one that names the topic by a server takes the place of ours.

    Raises:
        ConfigurationError: An option is invalid: the DAG can't be imported.
    """

    template_fields: Collection[str] = ("source", "kafka_conn_id")
    ui_color = "#f3e6d3"

    def __init__(
        self,
        *,
        source: DeltaSource | str,
        sink: KafkaSink,
        kafka_conn_id: str = KafkaFlipHook.default_conn_name,
        spark: SparkSettings | str | None = None,
        limits: Limits | None = None,
        on_idle: OnIdle = "succeed",
        **options: Any,
    ) -> None:
        super().__init__(spark=spark, on_idle=on_idle, **options)
        self.source = source
        self.sink = sink
        self.kafka_conn_id = kafka_conn_id
        self.limits = limits
        check_conn_id(kafka_conn_id)
        expect("sink", sink, KafkaSink, 'KafkaSink(topic="orders", transactional_id_prefix="orders")')
        if limits is not None:
            expect("limits", limits, Limits, "Limits(max_records_per_batch=100_000)")
        described = delta_source_of(source)
        check_absolute(described.target)
        sink.check_content(described.content)
        self._varies = is_template(kafka_conn_id)
        self._add_assets(
            inlets=[] if is_template(described.table) else [table_asset(described.table)],
            outlets=[] if is_template(kafka_conn_id) else [self._topic_asset()],
        )

    def execute(self, context: Context) -> dict[str, Any]:
        """Publishes the changes; also returns the extra of the topic's event.

        Raises:
            KafkaFlipError: The run failed; transactions that were committed stay.
            AirflowSkipException: There was nothing new, and `on_idle` is `skip`.
        """
        source = rendered_source(self, self.source, context)
        asset = self._topic_asset()
        rejected = self.sink.dead_letter_topic and topic_asset_in(
            self.outlets, self.sink.dead_letter_topic, self.kafka_conn_id
        )
        assets = self._assets_of(context, asset, lambda each: is_topic_asset(each) and each != rejected)
        known = last_progress(asset, self.sink.transactional_id_prefix) if assets else {}
        connection = KafkaFlipHook(self.kafka_conn_id).get_conn()
        self._lineage = Lineage(table_names(source.target), topic_names(connection, [self.sink.topic]))
        with self._session(context) as spark:
            result = publish(source, self.sink, spark=spark, connection=connection, limits=self.limits, known=known)
        self._lineage = replace(self._lineage, rows=result.records)
        is_told = not assets or is_reported(result.progress, known)
        if result.first_version is None and is_told and self.on_idle == "skip":
            msg = f"nothing new in {source}: version {result.last_version} is published to {self.sink.topic}"
            raise AirflowSkipException(msg)
        add_to_events(context, assets, extra := result.metadata)
        return extra

    def _topic_asset(self) -> Asset:
        return topic_asset_in(self.outlets, self.sink.topic, self.kafka_conn_id)
