"""Dagster assets that land Kafka topics in Delta tables: a decorator, and the same as a plain factory."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakKeyDictionary

from dagster import (
    AssetCheckResult,
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    Config,
    MaterializeResult,
    OpDefinition,
    asset,
)
from pydantic import Field

from dagster_kafka_flip.checks import check_names, check_results, check_specs
from dagster_kafka_flip.dead_letters import DeadLetters, dead_letters_of
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.ingestion import DEFAULT_VERIFY_AFTER, ingest
from dagster_kafka_flip.metadata import data_version, result_metadata
from dagster_kafka_flip.record import last_record
from dagster_kafka_flip.source.limits import Limits, Spread
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.table.target import DeltaTarget
from dagster_kafka_flip.tolerance import tolerated_errors
from dagster_kafka_flip.topics import upstream_asset_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from dagster import AutomationCondition, FreshnessPolicy, RetryPolicy
    from dagster._core.definitions.events import CoercibleToAssetKey
    from pyspark.sql import DataFrame

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.formats.format import Format
    from dagster_kafka_flip.reader.columns import KafkaColumns
    from dagster_kafka_flip.source.kafka_source import KafkaSource

OnIdle = Literal["materialize", "skip"]


class IngestRunConfig(Config):
    """Overrides for one run, in Dagster's launchpad or a run's config.

    Attributes:
        start: Start here instead of at the position; records in between are read again or skipped.
        stop: Stop here instead of at the source's stop.
        max_records_per_batch: Largest number of offsets in one commit.
        max_bytes_per_batch: About the largest number of bytes of keys and values in one commit.
        max_batches: Largest number of commits.
        verify: Look at the table even if Dagster's record says that there is nothing new.
    """

    start: str | None = Field(
        default=None,
        description="earliest, latest, committed, timestamp:2026-01-31T00:00:00Z or offsets:{...}. Instead of the "
        "position, for this run: records in between are read again or skipped.",
    )
    stop: str | None = Field(default=None, description="latest, committed, timestamp:... or offsets:{...}.")
    max_records_per_batch: int | None = Field(default=None, description="Largest number of offsets in one commit.")
    max_bytes_per_batch: int | None = Field(
        default=None, description="About the largest number of bytes of keys and values in one commit; an estimate."
    )
    max_batches: int | None = Field(default=None, description="Largest number of commits in this run.")
    verify: bool = Field(default=False, description="Look at the table even if nothing seems to be new.")


@dataclass(frozen=True)
class Ingestion:
    """What an asset does when it is materialized."""

    source: KafkaSource
    target: DeltaTarget
    key_format: Format | None
    value_format: Format | None
    columns: KafkaColumns | None
    dead_letter: DeadLetters | None
    limits: Limits
    on_idle: OnIdle
    verify_after: timedelta
    tolerated: frozenset[type[KafkaFlipError]]
    transform: Callable[..., DataFrame] | None
    kafka: str
    spark: str

    @property
    def checks(self) -> tuple[str, ...]:
        """The checks that a run can fail."""
        formats = (self.key_format, self.value_format)
        keeps_rejected = self.dead_letter is not None or any(one and one.on_error == "null" for one in formats)
        return check_names(self.tolerated, keeps_rejected=keeps_rejected)

    def run(
        self, context: AssetExecutionContext, config: IngestRunConfig
    ) -> Iterator[MaterializeResult[Any] | AssetCheckResult]:
        """One materialization."""
        resources = context.resources
        event, known = last_record(context.instance, context.asset_key)
        previous = None if event is None else event.asset_materialization
        result = ingest(
            _overridden(self.source, config),
            self.target,
            spark=getattr(resources, self.spark).session,
            connection=getattr(resources, self.kafka).connection(),
            key_format=self.key_format,
            value_format=self.value_format,
            columns=self.columns,
            transform=self.bound_transform(context),
            dead_letter=self.dead_letter,
            limits=_limits(self.limits, config),
            starting_offsets=None if config.start is None else OffsetsInitializer.parse(config.start),
            known=None if config.verify else known,
            verify_after=self.verify_after,
            tolerate=self.tolerated,
            run_id=context.run_id,
            logger=context.log,
        )
        # A look at the table is worth a record even then: without one, every later idle run would have to look again.
        if not result.is_idle or result.started_spark or self.on_idle == "materialize":
            yield MaterializeResult(
                metadata=result_metadata(result, previous),
                data_version=data_version(result.state),
            )
        # After it: Dagster takes a check to be about the newest materialization.
        yield from check_results(self.checks, context.asset_key, result)

    @property
    def transform_resources(self) -> tuple[str, ...]:
        """Keys of the resources that the transform asks for."""
        return () if self.transform is None else _resource_names(_parameters(self.transform))

    def bound_transform(self, context: Any) -> Callable[[DataFrame], DataFrame] | None:
        """The transform as a function of the records alone.

        Args:
            context: With the resources that it asks for.
        """
        transform = self.transform
        if transform is None:
            return None
        arguments: dict[str, Any] = {name: getattr(context.resources, name) for name in self.transform_resources}
        if "context" in _parameters(transform):
            arguments["context"] = context
        return lambda records: transform(records=records, **arguments)


# By op: Dagster binds resources, adds tags and makes subsets in copies of an AssetsDefinition, which share their op.
_INGESTIONS: WeakKeyDictionary[OpDefinition, Ingestion] = WeakKeyDictionary()


def kafka_delta_asset(
    *,
    source: KafkaSource,
    table: str | DeltaTarget,
    stream: str = "main",
    key_format: Format | None = None,
    value_format: Format | None = None,
    columns: KafkaColumns | None = None,
    dead_letter: DeadLetters | str | None = None,
    partition_by: Sequence[str] = (),
    cluster_by: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    schema_evolution: bool = False,
    single_writer: bool = False,
    max_records_per_batch: int | None = None,
    max_bytes_per_batch: int | None = None,
    max_batches: int | None = None,
    spread: Spread | Literal["backlog", "time"] = Spread.BACKLOG,
    on_idle: OnIdle = "materialize",
    verify_after: timedelta = DEFAULT_VERIFY_AFTER,
    tolerate: Iterable[type[KafkaFlipError]] = (),
    kafka: str = "kafka",
    spark: str = "spark",
    name: str | None = None,
    key: CoercibleToAssetKey | None = None,
    key_prefix: str | Sequence[str] | None = None,
    deps: Iterable[CoercibleToAssetKey] = (),
    description: str | None = None,
    group_name: str | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    kinds: Iterable[str] = (),
    automation_condition: AutomationCondition[Any] | None = None,
    freshness_policy: FreshnessPolicy | None = None,
    retry_policy: RetryPolicy | None = None,
    pool: str | None = None,
    code_version: str | None = None,
) -> Callable[[Callable[..., DataFrame]], AssetsDefinition]:
    """Makes an asset of a transform: what a source holds, transformed, is landed in a Delta table exactly once.

    The function takes `records`, a lazy Spark DataFrame of the run's records, and returns the rows to land. It may also
    take `context`, and any resource by its key, as under Dagster's own `@asset`. What it filters away is not
    landed, and the position passes it all the same; so leave `limit()` to `max_records_per_batch`.

    Args:
        source: What to read. Holds no connection; the KafkaResource does.
        table: A path, a catalog name, or a DeltaTarget (then `stream` and the table's settings below are its own).
        stream: Id of the stream, kept when the asset is renamed. Default `main`.
        key_format: How to read keys. Default: RawFormat.
        value_format: How to read values. Default: RawFormat.
        columns: Which of the record's own fields are kept. Default: all but the value.
        dead_letter: Where records go that can't be decoded: DeadLetters, or the path or name of a table. Default: they
            stop the run, or are kept, as their format says.
        partition_by: Partition columns of the table, when it is created.
        cluster_by: Columns of liquid clustering, when it is created.
        properties: Delta table properties, when it is created.
        schema_evolution: Whether new columns may be added to the table. Default: an error.
        single_writer: See DeltaTarget.
        max_records_per_batch: Largest number of offsets in one commit. Default: no limit.
        max_bytes_per_batch: About the largest number of bytes of keys and values in one commit, by the average record
            of the runs before or of a sample. Default: no limit.
        max_batches: Largest number of commits in one run. Default: no limit.
        spread: How a batch that can't hold everything is spread over the topic partitions: in proportion to their
            `backlog` (default), or up to the same `time` on each.
        on_idle: What a run with nothing new leaves: `materialize` (default) a materialization with an unchanged data
            version, `skip` nothing, unless it looked at the table to verify the position.
        verify_after: How long Dagster's record of the position is believed when it says that nothing is new. Default
            24 hours.
        tolerate: Errors that don't end a run, such as RetentionOvertookPositionError: it goes on, its metadata say what
            was met and how many records are lost, and an asset check fails. Default: none.
        kafka: Key of the KafkaResource.
        spark: Key of the SparkResource.
        name: The asset's name. Default: the function's.
        key: The whole asset key, instead of name and prefix.
        key_prefix: Before the name.
        deps: Further assets upstream; the source's topics are upstream anyway.
        description: Default: the function's docstring.
        group_name: Asset group.
        owners: Owners.
        tags: Tags.
        metadata: Further definition metadata.
        kinds: Further kinds, besides `deltalake` and `spark`.
        automation_condition: When to materialize by itself.
        freshness_policy: How fresh it has to be.
        retry_policy: Dagster's retries of a failed step. Repeating is safe: nothing is landed twice.
        pool: Concurrency pool. Default: `delta:` and the table, so that an instance with a limit of 1 writes to a table
            with one run at a time. Nothing rests on it, except on stores that can't keep two writers apart.
        code_version: Version of the transform.

    Returns:
        A decorator that gives an AssetsDefinition.

    Raises:
        ConfigurationError: The options contradict each other, or the function does not take `records`.
    """
    target = _target(
        table,
        stream=stream,
        partition_by=tuple(partition_by),
        cluster_by=tuple(cluster_by),
        properties=dict(properties or {}),
        schema_evolution=schema_evolution,
        single_writer=single_writer,
    )
    ingestion_options: dict[str, Any] = {
        "source": source,
        "target": target,
        "key_format": key_format,
        "value_format": value_format,
        "columns": columns,
        "dead_letter": dead_letters_of(dead_letter, target, key_format, value_format),
        "limits": Limits(
            max_records_per_batch=max_records_per_batch,
            max_bytes_per_batch=max_bytes_per_batch,
            max_batches=max_batches,
            spread=spread,  # pyright: ignore[reportArgumentType] - pydantic takes its text as well
        ),
        "on_idle": on_idle,
        "verify_after": verify_after,
        "tolerated": tolerated_errors(tolerate),
        "kafka": kafka,
        "spark": spark,
    }
    asset_options: dict[str, Any] = {
        "deps": [*upstream_asset_keys(source), *deps],
        "group_name": group_name,
        "owners": owners,
        "tags": tags,
        "kinds": {"deltalake", "spark", *kinds},
        "automation_condition": automation_condition,
        "freshness_policy": freshness_policy,
        "retry_policy": retry_policy,
        "pool": pool or _pool(target),
        "code_version": code_version,
    }

    def decorate(transform: Callable[..., DataFrame]) -> AssetsDefinition:
        names = _parameters(transform)
        if "records" not in names:
            msg = (
                f"{transform.__name__}() has to take an argument `records`, the DataFrame of the run's records; it "
                f"takes {', '.join(names) or 'none'}"
            )
            raise ConfigurationError(msg)
        return _asset(
            Ingestion(**ingestion_options, transform=transform),
            name=name or (None if key is not None else transform.__name__),
            key=key,
            key_prefix=key_prefix,
            description=description or inspect.getdoc(transform),
            metadata=metadata,
            extra_resources=_resource_names(names),
            options=asset_options,
        )

    return decorate


def build_kafka_delta_asset(
    *, source: KafkaSource, table: str | DeltaTarget, name: str | None = None, **options: Any
) -> AssetsDefinition:
    """Makes an asset that lands a source's records as they are decoded, without a function.

    Args:
        source: What to read.
        table: Where to.
        name: The asset's name; or give `key`.
        **options: All others of `kafka_delta_asset`.

    Raises:
        ConfigurationError: There is neither a name nor a key, or the options contradict each other.
    """
    if name is None and options.get("key") is None:
        msg = "build_kafka_delta_asset needs a name or a key for the asset"
        raise ConfigurationError(msg)
    options.setdefault("description", f"Landed from Kafka as it is: {source}.")

    def as_it_is(records: DataFrame) -> DataFrame:
        return records

    return kafka_delta_asset(source=source, table=table, name=name, **options)(as_it_is)


def _target(table: str | DeltaTarget, **settings: Any) -> DeltaTarget:
    if isinstance(table, DeltaTarget):
        given = sorted(name for name, value in settings.items() if value and (name, value) != ("stream", "main"))
        if given:
            msg = f"{', '.join(given)}: set it on the DeltaTarget, which is given as the table"
            raise ConfigurationError(msg)
        return table
    return DeltaTarget(table=table, **settings)


def _asset(
    ingestion: Ingestion,
    *,
    name: str | None,
    key: CoercibleToAssetKey | None,
    key_prefix: str | Sequence[str] | None,
    description: str | None,
    metadata: Mapping[str, Any] | None,
    extra_resources: Iterable[str],
    options: Mapping[str, Any],
) -> AssetsDefinition:
    target = ingestion.target
    asset_key = AssetKey([*_parts(key_prefix), name or ""]) if key is None else AssetKey.from_coercible(key)
    table_metadata: dict[str, Any] = {"delta/stream": target.stream}
    if target.uri is not None:
        table_metadata["dagster/uri"] = target.uri
    else:
        table_metadata["dagster/table_name"] = target.table

    make_asset: Any = asset(
        name=name,
        key=None if key is None else asset_key,
        key_prefix=key_prefix,
        check_specs=check_specs(ingestion.checks, asset_key),
        description=description,
        metadata={**table_metadata, **(metadata or {})},
        required_resource_keys={ingestion.kafka, ingestion.spark, *extra_resources},
        config_schema=IngestRunConfig.to_config_schema(),
        output_required=ingestion.on_idle == "materialize",
        **options,
    )

    # Without types: Dagster looks at the annotations themselves, which are only text in this module.
    def land(context):  # noqa: ANN001, ANN202 # pyright: ignore[reportMissingParameterType]
        yield from ingestion.run(context, IngestRunConfig(**context.op_execution_context.op_config))

    assets_def: AssetsDefinition = make_asset(land)
    _INGESTIONS[assets_def.op] = ingestion
    return assets_def


def ingestion_of(assets_def: AssetsDefinition) -> Ingestion | None:
    """What an asset lands, and where; None if it was not made here. For whoever looks at an asset without a run."""
    node = assets_def.node_def if assets_def.is_executable else None
    return _INGESTIONS.get(node) if isinstance(node, OpDefinition) else None


def _overridden(source: KafkaSource, config: IngestRunConfig) -> KafkaSource:
    if config.stop is None:
        return source
    return source.with_overrides(stopping_offsets=OffsetsInitializer.parse(config.stop))


def _limits(limits: Limits, config: IngestRunConfig) -> Limits:
    names = ("max_records_per_batch", "max_bytes_per_batch", "max_batches")
    overrides = {name: value for name in names if (value := getattr(config, name)) is not None}
    return Limits(**{**limits.model_dump(), **overrides})


def _pool(target: DeltaTarget) -> str:
    # Dagster allows no blanks in a pool's name.
    return "_".join(f"delta:{target.table}".split())


def _parts(key_prefix: str | Sequence[str] | None) -> Sequence[str]:
    return [key_prefix] if isinstance(key_prefix, str) else key_prefix or ()


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def _resource_names(parameters: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in parameters if name not in {"context", "records"})
