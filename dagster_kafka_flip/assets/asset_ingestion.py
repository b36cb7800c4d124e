"""Implements an asset's materialization: continues a stream, writes partitions, or replaces a time range."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, get_args

from dagster import AssetMaterialization, AssetObservation, MaterializeResult, RunsFilter, TableSchemaMetadataValue

from dagster_kafka_flip.assets.column_descriptions import COLUMN_LINEAGE, column_lineage, described
from dagster_kafka_flip.assets.metadata import (
    COLUMN_SCHEMA,
    data_version,
    result_metadata,
    shared,
    window_metadata,
    windows_metadata,
)
from dagster_kafka_flip.assets.position_record import read_record
from dagster_kafka_flip.assets.resources import kafka_of, registries_of, spark_of
from dagster_kafka_flip.assets.run_checks import Findings, check_names, check_results, failed_checks
from dagster_kafka_flip.assets.run_config import IngestRunConfig, WindowsRunConfig
from dagster_kafka_flip.assets.topic_asset import upstream_asset_keys
from dagster_kafka_flip.assets.transform_arguments import RECORDS, bound, resources_of
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.ingestion.facts import fields, incidents, rejected_records, stragglers, unknown
from dagster_kafka_flip.ingestion.ingest import run_stream
from dagster_kafka_flip.ingestion.keyed_stream import check_keyed, check_without_windows
from dagster_kafka_flip.ingestion.rewrite_windows import run_windows
from dagster_kafka_flip.ingestion.run_spec import RunSpec
from dagster_kafka_flip.ingestion.tolerance import named_errors, tolerated_errors
from dagster_kafka_flip.settings.arguments import expect
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.window import Windows
from dagster_kafka_flip.table.layout import check_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import TypeAlias

    from dagster import AssetCheckResult, AssetExecutionContext, AssetKey
    from pyspark.sql import DataFrame

    from dagster_kafka_flip.assets.partitions import AssetPartitions, WindowGroup
    from dagster_kafka_flip.assets.position_record import Record
    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.formats.decode import Decoder
    from dagster_kafka_flip.ingestion.dead_letters import DeadLetters
    from dagster_kafka_flip.ingestion.result import IngestResult, WindowsResult
    from dagster_kafka_flip.source.kafka_source import KafkaSource
    from dagster_kafka_flip.source.plan import Limits
    from dagster_kafka_flip.source.window import Window
    from dagster_kafka_flip.table.target import DeltaTarget

    StepEvent: TypeAlias = MaterializeResult[Any] | AssetCheckResult | AssetObservation

OnIdle = Literal["materialize", "skip"]


@dataclass(frozen=True)
class Ingestion:
    """The source, target and options of an asset's ingestion."""

    source: KafkaSource
    target: DeltaTarget
    decoder: Decoder
    dead_letter: DeadLetters | None
    limits: Limits
    on_idle: OnIdle
    verify_after: timedelta
    tolerated: frozenset[type[KafkaFlipError]]
    transform: Callable[..., DataFrame] | None
    kafka: str
    spark: str
    partitions: AssetPartitions | None = None

    def __post_init__(self) -> None:
        """Validates values at run time."""
        expect("verify_after", self.verify_after, timedelta, "timedelta(hours=1)")
        if self.verify_after < timedelta():
            raise ConfigurationError(f"verify_after: {self.verify_after} is negative")
        if self.on_idle not in (choices := get_args(OnIdle)):
            raise ConfigurationError(f"on_idle: {self.on_idle!r} is not {' or '.join(choices)}")

    def check_layout(self) -> None:
        """Validates the table's mode and layout against the columns of its rows, if these are known before a run."""
        check_keyed(self.target, self.decoder, self.tolerated, has_transform=self.transform is not None)
        columns = self.decoder.landed_names
        if self.transform is not None or columns is None:
            return
        if self.partitions is not None and not self.partitions.rules.repair:
            columns.append(self.partitions.rules.column)
        target = self.target
        check_layout(str(target), columns, partition_by=target.partition_by, cluster_by=target.cluster_by)

    @property
    def resource_keys(self) -> set[str]:
        """The keys of all resources that a run needs."""
        return {self.kafka, self.spark, *self.transform_resources, *self.decoder.registry_keys}

    @property
    def config(self) -> type[IngestRunConfig | WindowsRunConfig]:
        """The run config class."""
        return IngestRunConfig if self.partitions is None else WindowsRunConfig

    @property
    def checks(self) -> tuple[str, ...]:
        """The asset checks that a run can fail."""
        formats = (self.decoder.key_format, self.decoder.value_format)
        keeps_rejected = self.dead_letter is not None or any(one.on_error == "null" for one in formats)
        rules = None if self.partitions is None else self.partitions.rules
        has_fields = any(one.declares_fields for one in formats)
        return check_names(self.tolerated, keeps_rejected=keeps_rejected, rules=rules, has_fields=has_fields)

    def spec(self, context: AssetExecutionContext, config: IngestRunConfig | WindowsRunConfig) -> RunSpec:
        """Creates the ingestion spec of a run."""
        tolerated = self.tolerated | tolerated_errors(named_errors(config.tolerate))
        check_keyed(self.target, self.decoder, tolerated, has_transform=self.transform is not None)
        return RunSpec(
            source=self.source.connected(kafka_of(context, self.kafka, self.source.cluster)),
            target=self.target,
            spark=spark_of(context, self.spark),
            decoder=self.decoder.with_registries(registries_of(context, self.decoder.registry_keys)),
            transform=self.bound_transform(context),
            dead_letters=self.dead_letter,
            limits=config.limited(self.limits),
            tolerated=tolerated,
            run_id=context.run_id,
            log=context.log,
        )

    def stream_spec(self, context: AssetExecutionContext, config: IngestRunConfig) -> RunSpec:
        """Like `spec`, for a stream with the run's start and stop."""
        spec = self.spec(context, config)
        tries = frozenset[str]() if config.starting_offsets is None else _tries(context)
        return replace(spec, source=config.overridden(spec.source), tries=tries)

    def run(self, context: AssetExecutionContext, values: dict[str, Any]) -> Iterator[StepEvent]:
        """Materializes the asset."""
        if self.partitions is not None:
            yield from self._land_partitions(context, self.partitions, WindowsRunConfig(**values))
            return
        config = IngestRunConfig(**values)
        if config.replaces:
            yield from self.replace(context, context.asset_key, config.window(), config)
        else:
            yield from self._go_on(context, config)

    def _go_on(self, context: AssetExecutionContext, config: IngestRunConfig) -> Iterator[StepEvent]:
        record = read_record(context.instance, context.asset_key)
        result = run_stream(
            self.stream_spec(context, config),
            starting_offsets=config.starting_offsets,
            known=None if config.verify else record.known,
            reported=record.reported(self.target),
            verify_after=self.verify_after,
        )
        yield from self.run_events(context, context.asset_key, result, record)

    def run_events(
        self, context: AssetExecutionContext, key: AssetKey, result: IngestResult, record: Record
    ) -> Iterator[StepEvent]:
        """Returns the Dagster events of a stream's run."""
        metadata = result_metadata(record.noted_in(result), record.materialization)
        metadata = self._with_columns(context, key, metadata)
        findings = Findings(result.all_incidents, result.rejected_records, unknown=result.unknown, fields=result.fields)
        if self.on_idle == "skip" and record.has_all_of(result):
            # Also an idle run that read the table records the position: else every later one would read it again.
            yield AssetObservation(key, description="Nothing new.", metadata=metadata)
            # A check is of the newest materialization, of which a run without records shows nothing better.
            yield from failed_checks(self.checks, key, findings)
            return
        yield MaterializeResult(asset_key=key, metadata=metadata, data_version=data_version(result.state))
        # After the materialization: Dagster attaches a check to the newest one.
        yield from check_results(self.checks, key, findings)

    def replace(
        self, context: AssetExecutionContext, key: AssetKey, window: Window, config: IngestRunConfig
    ) -> Iterator[StepEvent]:
        """Replaces a time range of a stream's table; the position does not change."""
        rules = Windows(repair=True, time_column=config.time_column)
        results = tuple(run_windows(self.spec(context, config), [window], rules))
        yield MaterializeResult(asset_key=key, metadata=self._with_columns(context, key, windows_metadata(results)))
        yield from check_results(self.checks, key, _findings(results))

    def _land_partitions(
        self, context: AssetExecutionContext, partitions: AssetPartitions, config: WindowsRunConfig
    ) -> Iterator[StepEvent]:
        spec = self.spec(context, config)
        groups = partitions.groups(context.partition_keys)
        for irregularity in partitions.irregularities([window for group in groups for window in group.windows]):
            context.log.warning(irregularity)
        left = sum(len(group.windows) for group in groups)
        results: list[WindowsResult] = []
        try:
            for group in groups:
                for result in run_windows(
                    spec,
                    group.windows,
                    partitions.rules,
                    definition=partitions.definition,
                    topics=group.topics,
                    commits=sum(result.committed is not None for result in results),
                ):
                    results.append(result)
                    left -= len(result.plan.windows)
                    # The run itself reports the last commit.
                    _report_partitions(context, group, result, at_once=left > 0)
        except GeneratorExit:
            raise
        except BaseException:
            # A failed run must still report incidents of the windows that it committed. It can't report that there were
            # none.
            if results:
                yield from failed_checks(self.checks, context.asset_key, _findings(results))
            raise
        # After each partition's own metadata, because the result's metadata would come first.
        of_the_run = self._with_columns(context, context.asset_key, windows_metadata(results))
        if len(context.partition_keys) > 1:
            of_the_run = shared(of_the_run)
        for partition_key in context.partition_keys:
            context.add_asset_metadata(of_the_run, partition_key=partition_key)
        yield MaterializeResult()
        yield from check_results(self.checks, context.asset_key, _findings(results))

    def _with_columns(self, context: AssetExecutionContext, key: AssetKey, metadata: dict[str, Any]) -> dict[str, Any]:
        """Adds column metadata; column lineage only without a transform."""
        schema = metadata.get(COLUMN_SCHEMA)
        if isinstance(schema, TableSchemaMetadataValue):
            schema = schema.schema
        if schema is None:
            return metadata
        columns = self.decoder.columns
        metadata = {**metadata, COLUMN_SCHEMA: described(schema, columns, self.target.mode)}
        if self.transform is not None:
            return metadata
        deps = context.assets_def.asset_deps[key]
        # As the run has them: keys may get a prefix.
        topics = [
            next((dep for dep in deps if dep.path[-len(topic.path) :] == topic.path), topic)
            for topic in upstream_asset_keys(self.source, self.kafka)
        ]
        lineage = column_lineage(schema, columns, self.target.mode, topics)
        return {**metadata, COLUMN_LINEAGE: lineage}

    @property
    def transform_resources(self) -> tuple[str, ...]:
        """Resource keys that the transform needs."""
        return resources_of(self.transform, RECORDS)

    def bound_transform(self, context: Any) -> Callable[[DataFrame], DataFrame] | None:
        """Binds context and resources to the transform."""
        return bound(self.transform, RECORDS, context)

    def with_partitions(self, partitions: AssetPartitions) -> Ingestion:
        """Returns the ingestion with partitions; a new table gets a matching layout."""
        check_without_windows(self.target)
        for_streams = {
            "dead_letter": self.dead_letter is not None,
            "on_idle": self.on_idle != "skip",
            "max_bytes_per_batch": self.limits.max_bytes_per_batch is not None,
            "max_batches": self.limits.max_batches is not None,
            "set_bounded": self.source.stopping_offsets != OffsetsInitializer.latest(),
        }
        wrong = [name for name, is_set in for_streams.items() if is_set]
        if wrong:
            raise ConfigurationError(
                f"{', '.join(wrong)}: not allowed for an asset with partitions, because the partitions select what "
                "is read"
            )
        target = self.target
        if not (target.partition_by or target.cluster_by or partitions.rules.repair):
            names = [partitions.rules.column]
            if partitions.has_topics:
                names.append(self.decoder.columns.name("topic"))
            target = target.model_copy(update={"partition_by": tuple(names)})
        return replace(self, target=target, partitions=partitions)


def _report_partitions(
    context: AssetExecutionContext, group: WindowGroup, result: WindowsResult, *, at_once: bool
) -> None:
    """Reports the partitions of a commit to Dagster at once if the run continues and may fail later."""
    for planned in result.plan.windows:
        for partition_key, topics in group.partition_keys[planned.window.key].items():
            metadata = window_metadata(result, planned, topics)
            context.add_asset_metadata(metadata, partition_key=partition_key)
            if at_once:
                context.log_event(AssetMaterialization(context.asset_key, partition=partition_key, metadata=metadata))


def _findings(results: Sequence[WindowsResult]) -> Findings:
    return Findings(
        incidents(results), rejected_records(results), stragglers(results), unknown(results), fields(results)
    )


def _tries(context: AssetExecutionContext) -> frozenset[str]:
    """The ids of the run, which its retried steps share, and of the runs that it re-executes."""
    root = context.run.root_run_id
    if root is None:
        return frozenset({context.run_id})
    again = context.instance.get_run_records(RunsFilter(tags={"dagster/root_run_id": root}))
    return frozenset({context.run_id, root, *(one.dagster_run.run_id for one in again)})
