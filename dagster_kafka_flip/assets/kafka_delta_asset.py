"""Dagster assets that ingest Kafka topics into Delta tables: a decorator and a factory function."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from dagster import (
    AssetKey,
    AssetsDefinition,
    BackfillPolicy,
    BetaWarning,
    asset,
)

from dagster_kafka_flip.assets.asset_ingestion import Ingestion, OnIdle, check_transform
from dagster_kafka_flip.assets.asset_options import check_asset_options, dagsters_errors
from dagster_kafka_flip.assets.metadata import table_metadata
from dagster_kafka_flip.assets.partitions import AssetPartitions
from dagster_kafka_flip.assets.registry import check_alone, register
from dagster_kafka_flip.assets.run_checks import check_specs
from dagster_kafka_flip.assets.short_traces import short_traces
from dagster_kafka_flip.assets.topic_asset import upstream_asset_keys
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.ingestion.dead_letters import DeadLetters, dead_letters_of
from dagster_kafka_flip.ingestion.ingest import DEFAULT_VERIFY_AFTER
from dagster_kafka_flip.ingestion.tolerance import tolerated_errors
from dagster_kafka_flip.settings import check_arguments
from dagster_kafka_flip.source.limits import Limits, Spread
from dagster_kafka_flip.source.window import Windows
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta
    from os import PathLike

    from dagster import (
        AssetCheckResult,
        AssetExecutionContext,
        AutomationCondition,
        FreshnessPolicy,
        MaterializeResult,
        PartitionsDefinition,
        RetryPolicy,
    )
    from pyspark.sql import DataFrame

    from dagster_kafka_flip.assets.dagster_internals import CoercibleToAssetKey
    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.formats.format import Format
    from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
    from dagster_kafka_flip.source.kafka_source import KafkaSource


@check_arguments
def kafka_delta_asset(
    *,
    source: KafkaSource,
    table: str | PathLike[str] | DeltaTarget,
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
    partitions_def: PartitionsDefinition[Any] | None = None,
    backfill_policy: BackfillPolicy | None = None,
    windows: Windows | None = None,
    topics_of: Mapping[str, Sequence[str]] | None = None,
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
    op_tags: Mapping[str, Any] | None = None,
    retry_policy: RetryPolicy | None = None,
    pool: str | None = None,
    code_version: str | None = None,
) -> Callable[[Callable[..., DataFrame]], AssetsDefinition]:
    """Creates an asset from a transform: writes the transformed records of a source to a Delta table, exactly once.

    The function takes `records`, a lazy Spark DataFrame of the run's records, and returns the rows to write. It may
    also take `context`, and any resource by its key, as in Dagster's `@asset`. The position also advances past records
    that the function filters out, so use `max_records_per_batch` instead of `limit()`.

    Args:
        source: The source. The KafkaResource provides its connection.
        table: A path, a catalog name, or a DeltaTarget (which then contains `stream` and the table settings below).
        stream: Id of the stream; it stays the same if the asset is renamed. Default: `main`.
        key_format: Format of keys. Default: RawFormat.
        value_format: Format of values. Default: RawFormat.
        columns: The record fields to keep as columns. Default: all but the value.
        dead_letter: Table for records that can't be decoded: DeadLetters, or a path or name. Default: the format's
            `on_error` decides whether they fail the run or are kept.
        partition_by: Partition columns, when the table is created.
        cluster_by: Liquid clustering columns, when the table is created.
        properties: Delta table properties, when the table is created.
        schema_evolution: Whether to add new columns to the table, and to widen types if the table property
            `delta.enableTypeWidening` is `true`. Default: no; they are an error.
        single_writer: See DeltaTarget.
        max_records_per_batch: Maximum number of offsets in one commit. Default: no limit.
        max_bytes_per_batch: Approximate maximum number of bytes of keys and values in one commit, based on the average
            record size of earlier runs or of a sample. Default: no limit.
        max_batches: Maximum number of commits in one run. Default: no limit.
        spread: How a limited batch is distributed over the topic partitions: in proportion to their `backlog`
            (default), or up to the same `time` on each.
        on_idle: Result of a run without new records: `materialize` (default) records a materialization with an
            unchanged data version; `skip` records nothing, unless the run read the table to verify the position.
        verify_after: How long a run trusts Dagster's record of the position if it shows no new records. Default: 24
            hours.
        tolerate: Errors that don't fail a run, such as RetentionOvertookPositionError: the run continues, its metadata
            has the error and the number of lost records, and an asset check fails. Default: none.
        partitions_def: Time partitions, or time partitions with a static dimension that selects topics. A run then
            writes the windows of its partitions and replaces the table's rows of each. Default: a stream, which
            continues from its position.
        backfill_policy: With partitions: how many of them one run writes. Default: all requested partitions.
        windows: With partitions: the rules that assign records to them. Default: by the record's timestamp, up to one
            hour late.
        topics_of: With a static dimension: the topics of each of its keys. Default: the key is the topic.
        kafka: Key of the KafkaResource.
        spark: Key of the SparkResource.
        name: The asset's name. Default: the function's.
        key: The whole asset key, instead of name and prefix.
        key_prefix: Prefix of the asset key.
        deps: Additional upstream assets; the source's topics are always upstream.
        description: Default: the function's docstring.
        group_name: Asset group.
        owners: Owners.
        tags: Tags.
        metadata: Additional definition metadata.
        kinds: Additional kinds, besides `deltalake` and `spark`.
        automation_condition: Condition for automatic materialization.
        freshness_policy: Required freshness.
        op_tags: Tags of the op, such as `dagster-k8s/config` for the resources of its pod.
        retry_policy: Dagster's retries of a failed step. Retries are safe: they never duplicate rows.
        pool: Concurrency pool. Default: `delta:` and the table, so that an instance with a pool limit of 1 writes to a
            table with one run at a time. Correctness does not depend on it, except on stores that do not support
            concurrent writers.
        code_version: Version of the transform.

    Returns:
        A decorator that returns an AssetsDefinition.

    Raises:
        ConfigurationError: The options contradict each other, or the function does not take `records`.
    """
    dagsters: dict[str, Any] = {
        "name": name,
        "key": key,
        "key_prefix": key_prefix,
        "deps": deps,
        "description": description,
        "group_name": group_name,
        "owners": owners,
        "tags": tags,
        "metadata": metadata,
        "kinds": kinds,
        "automation_condition": automation_condition,
        "freshness_policy": freshness_policy,
        "op_tags": op_tags,
        "retry_policy": retry_policy,
        "pool": pool,
        "code_version": code_version,
    }
    check_asset_options(backfill_policy=backfill_policy, kafka=kafka, spark=spark, topics_of=topics_of, **dagsters)
    if key is not None and (name is not None or key_prefix is not None):
        msg = "key is the whole asset key; remove name and key_prefix, or key"
        raise ConfigurationError(msg)
    target = _target(
        table,
        stream=stream,
        partition_by=partition_by,
        cluster_by=cluster_by,
        properties=properties or {},
        schema_evolution=schema_evolution,
        single_writer=single_writer,
    )
    ingestion = Ingestion(
        source=source,
        target=target,
        decoder=Decoder.of(key_format, value_format, columns),
        dead_letter=dead_letters_of(dead_letter, target, key_format, value_format),
        limits=Limits(
            max_records_per_batch=max_records_per_batch,
            max_bytes_per_batch=max_bytes_per_batch,
            max_batches=max_batches,
            spread=spread,  # pyright: ignore[reportArgumentType] - pydantic takes its text as well
        ),
        on_idle=on_idle,
        verify_after=verify_after,
        tolerated=tolerated_errors(tolerate),
        transform=None,
        kafka=kafka,
        spark=spark,
    )
    partitions = _partitions(partitions_def, windows, source, topics_of)
    if partitions is not None:
        ingestion = ingestion.with_partitions(partitions)
    dagsters |= {
        "deps": [*upstream_asset_keys(source), *deps],
        "metadata": {**table_metadata(ingestion.target), **(metadata or {})},
        "kinds": {"deltalake", "spark", *kinds},
        "pool": pool or _pool(target),
    }
    if partitions is not None:
        dagsters |= {"partitions_def": partitions_def, "backfill_policy": backfill_policy or _single_run()}
    elif backfill_policy is not None:
        msg = "backfill_policy is for an asset with partitions; set partitions_def"
        raise ConfigurationError(msg)

    def decorate(transform: Callable[..., DataFrame]) -> AssetsDefinition:
        check_transform(transform)
        made = ingestion if transform is _as_it_is else replace(ingestion, transform=transform)
        made.check_layout()
        own_name = name or (None if key is not None else transform.__name__)
        if own_name is not None:
            check_asset_options(name=own_name)
        with dagsters_errors(own_name or str(key)):
            described = description or inspect.getdoc(transform)
            return _asset(made, {**dagsters, "name": own_name, "description": described})

    return decorate


@check_arguments
def build_kafka_delta_asset(
    *, source: KafkaSource, table: str | PathLike[str] | DeltaTarget, name: str | None = None, **options: Any
) -> AssetsDefinition:
    """Creates an asset with a source's records as decoded, without a function.

    Args:
        source: The source.
        table: The table.
        name: The asset's name; or set `key`.
        **options: All other options of `kafka_delta_asset`.

    Raises:
        ConfigurationError: Neither name nor key is set, or the options contradict each other.
    """
    if name is None and options.get("key") is None:
        msg = "build_kafka_delta_asset needs a name or a key for the asset"
        raise ConfigurationError(msg)
    options.setdefault("description", f"Unchanged records from Kafka: {source}.")
    return kafka_delta_asset(source=source, table=table, name=name, **options)(_as_it_is)


def _as_it_is(records: DataFrame) -> DataFrame:
    return records


def _target(table: str | PathLike[str] | DeltaTarget, **settings: Any) -> DeltaTarget:
    if isinstance(table, DeltaTarget):
        given = sorted(name for name, value in settings.items() if value and (name, value) != ("stream", "main"))
        if given:
            msg = f"{', '.join(given)}: set this on the DeltaTarget that is passed as table"
            raise ConfigurationError(msg)
        return table
    return DeltaTarget(table=DeltaTarget.of(table).table, **settings)


def _asset(ingestion: Ingestion, options: Mapping[str, Any]) -> AssetsDefinition:
    key = None if options["key"] is None else AssetKey.from_coercible(options["key"])
    asset_key = AssetKey([*_parts(options["key_prefix"]), options["name"] or ""]) if key is None else key
    named: dict[str, Any] = {**options, "key": key}
    with warnings.catch_warnings():
        # Backfill policies are in beta; hides the warning for the default policy.
        warnings.simplefilter("ignore", BetaWarning)
        make_asset: Any = asset(
            check_specs=check_specs(ingestion.checks, asset_key),
            required_resource_keys=ingestion.resource_keys,
            config_schema=ingestion.config.to_config_schema(),
            output_required=ingestion.on_idle == "materialize",
            **named,
        )

    # Without annotations: Dagster inspects them, and in this module they are only strings.
    def land(context):  # noqa: ANN001, ANN202 # pyright: ignore[reportMissingParameterType]
        yield from short_traces(_run(context, ingestion))

    if inspect.isfunction(written := inspect.unwrap(ingestion.transform or land)):
        # Code references and stack traces use the op function's location: the user's function.
        place = written.__code__
        land.__code__ = land.__code__.replace(co_filename=place.co_filename, co_firstlineno=place.co_firstlineno)
    return register(make_asset(land), {asset_key: ingestion})


def _partitions(
    partitions_def: PartitionsDefinition[Any] | None,
    windows: Windows | None,
    source: KafkaSource,
    topics_of: Mapping[str, Sequence[str]] | None,
) -> AssetPartitions | None:
    if partitions_def is not None:
        return AssetPartitions(partitions_def, windows or Windows(), source, topics_of)
    if windows is not None or topics_of is not None:
        msg = "windows and topics_of are for an asset with partitions; set partitions_def"
        raise ConfigurationError(msg)
    return None


def _run(context: AssetExecutionContext, ingestion: Ingestion) -> Iterator[MaterializeResult[Any] | AssetCheckResult]:
    check_alone(context, {context.asset_key: ingestion})
    yield from ingestion.run(context, context.op_execution_context.op_config)


def _single_run() -> BackfillPolicy:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BetaWarning)
        return BackfillPolicy.single_run()


def _pool(target: DeltaTarget) -> str:
    # Dagster does not allow spaces in a pool's name.
    return "_".join(f"delta:{target.identity}".split())


def _parts(key_prefix: str | Sequence[str] | None) -> Sequence[str]:
    return [key_prefix] if isinstance(key_prefix, str) else key_prefix or ()
