"""KafkaToDeltaOperator: one run of a stream, or one window, as a task."""

from __future__ import annotations

import importlib
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from airflow.sdk import CronPartitionTimetable
from airflow.sdk.exceptions import AirflowSkipException

from dagster_kafka_flip.airflow.asset_uris import is_table_asset, known_topics, table_asset, topic_asset_in
from dagster_kafka_flip.airflow.event_extra import EVENTS_RETURN, LastKnown, as_json, last_known
from dagster_kafka_flip.airflow.given import (
    check_absolute,
    check_conn_id,
    is_template,
    rendered_letters,
    rendered_target,
)
from dagster_kafka_flip.airflow.kafka_flip_hook import KafkaFlipHook
from dagster_kafka_flip.airflow.lineage import Lineage, table_names, topic_names
from dagster_kafka_flip.airflow.run_window import run_window
from dagster_kafka_flip.airflow.spark_task import OnIdle, SparkTask, add_to_events, is_by_hand, run_name
from dagster_kafka_flip.errors import ConfigurationError, PositionLostError, outcome
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.ingestion.dead_letters import dead_letters_of
from dagster_kafka_flip.ingestion.facts import stream_facts, windows_facts
from dagster_kafka_flip.ingestion.ingest import DEFAULT_VERIFY_AFTER, ingest
from dagster_kafka_flip.ingestion.keyed_stream import OTHER_OFFSETS, check_keyed, check_without_windows
from dagster_kafka_flip.ingestion.rewrite_windows import rewrite_windows
from dagster_kafka_flip.ingestion.tolerance import check_errors, named_errors, tolerated_errors
from dagster_kafka_flip.settings.arguments import expect
from dagster_kafka_flip.source.kafka_source import KafkaSource, given_topics
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.window import Windows
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from airflow.sdk import Asset, Context
    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.formats.format import Format
    from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
    from dagster_kafka_flip.ingestion.dead_letters import DeadLetters
    from dagster_kafka_flip.runtime.spark_settings import SparkSettings
    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.source.split import TopicPartition


class KafkaToDeltaOperator(SparkTask):
    """Lands a Kafka source in a Delta table, exactly once: from the stream's position to the end of the log.

    The position is in the table's commits, so that a retry, a cleared task or two tasks at once neither lose nor double
    records. With `windows`, the task lands the window of its run instead, and replaces that window's rows.

    Args:
        source: A KafkaSource, or topics. Topics are templated.
        table: A DeltaTarget, or the path or name of a table. A string is templated. A relative path is refused.
        kafka_conn_id: Id of a connection of type `kafka` or `kafka_flip`. Templated. Default: `kafka_default`.
        spark: The Spark session, or the id of a connection of type `spark` or `spark_connect`. Default: a local one
            with all cores.
        key_format: Format of keys. Default: RawFormat.
        value_format: Format of values. Default: RawFormat.
        columns: The record fields to keep as columns. Default: all but the value.
        transform: Function from a batch's records to the rows to write, both lazy DataFrames; or its dotted path, such
            as `shop.orders.cleaned`. Default: none.
        dead_letter: Table for records that can't be decoded. A string is templated. A relative path is refused.
            Default: the format's `on_error` decides whether they fail the task or are kept.
        limits: Limits of commits and tasks. Default: everything in one commit.
        tolerate: Errors, or their names, that don't fail the task: they are logged, and in the event's extra. Default:
            none.
        windows: Rules of windows: the task lands the window of its run. Default: it continues the stream.
        partition_keys: With `windows`: the timetable that a partitioned run's keys come from. Default: the DAG's.
        on_idle: Result of a task that finds nothing new: `succeed` (default), which adds an event of the table, or
            `skip`, unless the newest event does not tell what it found.
        verify_after: How long a task trusts the position in the table's newest event, to find out without Spark that
            there is nothing new. Default: 24 hours.
        **options: Airflow's options of every task. `inlets` and `outlets` are in addition to the topics and the table;
            one that names the topic by a server takes the place of ours.

    Raises:
        ConfigurationError: An option is invalid: the DAG can't be imported.
    """

    template_fields: Collection[str] = ("source", "table", "kafka_conn_id", "dead_letter")
    ui_color = "#d9f0e3"

    def __init__(
        self,
        *,
        source: KafkaSource | str | Sequence[str],
        table: DeltaTarget | str,
        kafka_conn_id: str = KafkaFlipHook.default_conn_name,
        spark: SparkSettings | str | None = None,
        key_format: Format | None = None,
        value_format: Format | None = None,
        columns: KafkaColumns | None = None,
        transform: Callable[[DataFrame], DataFrame] | str | None = None,
        dead_letter: DeadLetters | str | None = None,
        limits: Limits | None = None,
        tolerate: Iterable[type[KafkaFlipError] | str] = (),
        windows: Windows | None = None,
        partition_keys: CronPartitionTimetable | None = None,
        on_idle: OnIdle = "succeed",
        verify_after: timedelta = DEFAULT_VERIFY_AFTER,
        **options: Any,
    ) -> None:
        super().__init__(spark=spark, on_idle=on_idle, **options)
        self.source = source
        self.table = table
        self.kafka_conn_id = kafka_conn_id
        self.key_format = key_format
        self.value_format = value_format
        self.columns = columns
        self.transform = transform
        self.dead_letter = dead_letter
        self.limits = limits
        check_errors(tolerate)
        self.tolerate = tuple(
            error for each in tolerate for error in (named_errors([each]) if isinstance(each, str) else [each])
        )
        self.windows = windows
        self.partition_keys = partition_keys
        self.verify_after = verify_after
        self._check()
        self._varies = is_template(DeltaTarget.of(table).table)
        self._add_assets(inlets=self._topic_assets(), outlets=self._table_assets())

    def _check(self) -> None:
        """Checks what is known before a run."""
        check_conn_id(self.kafka_conn_id)
        expect("verify_after", self.verify_after, timedelta, "timedelta(hours=1)")
        if self.limits is not None:
            expect("limits", self.limits, Limits, "Limits(max_records_per_batch=1_000_000)")
        if self.transform is not None and not callable(self.transform):
            expect("transform", self.transform, str, "a function, or its dotted path")
            _check_path(self.transform)
        target = DeltaTarget.of(self.table)
        check_absolute(target)
        if self.windows is not None:
            expect("windows", self.windows, Windows, "Windows(max_lateness=timedelta(hours=1))")
            check_without_windows(target)
            of_streams = {
                "dead_letter": self.dead_letter is not None and not self.windows.repair,
                "on_idle": self.on_idle != "succeed",
                "verify_after": self.verify_after != DEFAULT_VERIFY_AFTER,
            }
            if any(of_streams.values()):
                wrong = ", ".join(name for name, is_set in of_streams.items() if is_set)
                raise ConfigurationError(f"{wrong}: not allowed with windows", f"Remove {wrong}")
        self._tolerated = tolerated_errors(self.tolerate)
        decoder = Decoder.of(self.key_format, self.value_format, self.columns)
        check_keyed(target, decoder, self._tolerated, has_transform=self.transform is not None)
        if (letters := dead_letters_of(self.dead_letter, target, decoder)) is not None:
            check_absolute(letters.target(target))
        if self.partition_keys is not None:
            example = 'CronPartitionTimetable("@daily", timezone="UTC")'
            expect("partition_keys", self.partition_keys, CronPartitionTimetable, example)
        if self.windows is None and self.partition_keys is not None:
            raise ConfigurationError("partition_keys is for tasks that land windows: set `windows=Windows()` too")

    def _topic_assets(self) -> list[Asset]:
        if is_template(self.kafka_conn_id) or any(is_template(topic) for topic in given_topics(self.source)):
            return []
        topics = known_topics(KafkaSource.of(self.source))
        return [topic_asset_in(self.inlets, topic, self.kafka_conn_id) for topic in topics]

    def _table_assets(self) -> list[Asset]:
        target = DeltaTarget.of(self.table)
        return [] if is_template(target.table) else [table_asset(target)]

    def execute(self, context: Context) -> dict[str, Any]:
        """Lands the records; also returns the extra of the table's event.

        Raises:
            KafkaFlipError: The ingestion failed; commits that were made stay.
            AirflowSkipException: There was nothing new, and `on_idle` is `skip`.
        """
        source = KafkaSource.of(self.source)
        target = rendered_target(self, self.table, context)
        letters = rendered_letters(self, self.dead_letter, target, context)
        rejected = None if letters is None else table_asset(letters.target(target))
        assets = self._assets_of(context, table_asset(target), lambda each: is_table_asset(each) and each != rejected)
        connection = KafkaFlipHook(self.kafka_conn_id).get_conn()
        self._lineage = Lineage(topic_names(connection, known_topics(source)), table_names(target))
        with self._session(context) as spark:
            shared: dict[str, Any] = {
                "spark": spark,
                "connection": connection,
                "key_format": self.key_format,
                "value_format": self.value_format,
                "columns": self.columns,
                "transform": _function(self.transform),
                "dead_letter": letters,
                "limits": self.limits,
                "tolerate": self.tolerate,
                "run_id": run_name(context),
            }
            if self.windows is not None:
                extra = self._land_window(context, source, target, self.windows, shared)
            else:
                extra = self._continue_stream(context, source, target, assets, shared)
        self._lineage = replace(self._lineage, rows=extra.get("delta/rows_written"), version=extra.get("delta/version"))
        add_to_events(context, assets, extra)
        return extra

    def _continue_stream(
        self,
        context: Context,
        source: KafkaSource,
        target: DeltaTarget,
        assets: Sequence[Asset],
        shared: Mapping[str, Any],
    ) -> dict[str, Any]:
        known = last_known(assets[0], target) if assets else LastKnown()
        if known.problem is not None:
            self._check_begun(source, target, shared["spark"], known.problem)
        if assets and known.reported is None and (others := self._tolerated & set(OTHER_OFFSETS)):
            names = ", ".join(sorted(error.__name__ for error in others))
            self.log.warning(
                "%s not tolerated: it is unknown whether a run reported the last commit of %s. If not, it may have "
                "records of the other log, which would land twice",
                names,
                target,
            )
            shared = {**shared, "tolerate": self._tolerated - others}
        result = ingest(
            source,
            target,
            known=known.position,
            # Whoever starts a run by hand, or again, wants to have the table looked at.
            verify_after=timedelta() if is_by_hand(context) else self.verify_after,
            reported=known.reported,
            **shared,
        )
        self._has_read(shared["connection"], result.state.position)
        position = known.position
        # An idle run that read the table has an event, too: else every later one would read it again.
        is_new = result.started_spark and not is_by_hand(context)
        is_told = position is not None and position.state == result.state and result.unreported is None and not is_new
        if result.is_idle and self.on_idle == "skip" and (is_told or not assets):
            raise AirflowSkipException(f"nothing new in {source} for {target}; its lag is {result.lag_after}")
        return as_json(stream_facts(result))

    def _check_begun(
        self, source: KafkaSource, target: DeltaTarget, spark: Callable[[], SparkSession], problem: str
    ) -> None:
        """Refuses to begin a stream that may skip records of an earlier one: only an event tells that there was one."""
        if source.starting_offsets == OffsetsInitializer.earliest():
            return
        with outcome("Nothing was written"):
            anchor = DeltaTable(spark(), target, self._tolerated).anchor()
            if anchor is None or (anchor.state is None and anchor.undone_start is None):
                raise PositionLostError(
                    f"{target} holds no position of the stream {target.stream!r}, and it is unknown whether an earlier "
                    f"run had one: {problem}. If the table was dropped or recreated, a new stream that starts at "
                    f"{source.starting_offsets} would skip records that were never written",
                    f"Run it again. {EVENTS_RETURN}",
                )

    def _land_window(
        self, context: Context, source: KafkaSource, target: DeltaTarget, rules: Windows, shared: Mapping[str, Any]
    ) -> dict[str, Any]:
        found = run_window(context, self.partition_keys)
        if not (target.partition_by or target.cluster_by or rules.repair):
            # A window is replaced by its files alone, and not by rewriting those of others.
            target = target.model_copy(update={"partition_by": (rules.column,)})
        results = list(
            rewrite_windows(source, target, [found.window], rules=rules, definition=found.definition, **shared)
        )
        read = (split.topic_partition for result in results for split in result.plan.splits)
        self._has_read(shared["connection"], read)
        windows = [str(window.window) for result in results for window in result.plan.windows]
        return {**as_json(windows_facts(results)), "kafka/windows": windows}

    def _has_read(self, connection: KafkaConnection, read: Iterable[TopicPartition]) -> None:
        """Completes the lineage of a source with a pattern."""
        if not self._lineage.inputs:
            topics = sorted({topic_partition.topic for topic_partition in read})
            self._lineage = replace(self._lineage, inputs=topic_names(connection, topics))


def _check_path(transform: str) -> None:
    """Checks that a dotted path may be one; only a run imports it."""
    module, _, name = transform.rpartition(".")
    if not module or not all(part.isidentifier() for part in (*module.split("."), name)):
        raise ConfigurationError(
            f"transform: {transform!r} is not the dotted path of a function", "Write module.function"
        )


def _function(transform: Callable[[DataFrame], DataFrame] | str | None) -> Callable[[DataFrame], DataFrame] | None:
    """The function, also by its dotted path."""
    if not isinstance(transform, str):
        return transform
    module, _, name = transform.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(
            f"transform: {transform!r} can't be imported: {error}", "Write module.function"
        ) from error
    if not callable(found):
        raise ConfigurationError(f"transform: {transform!r} is not a function")
    return cast("Callable[[DataFrame], DataFrame]", found)
