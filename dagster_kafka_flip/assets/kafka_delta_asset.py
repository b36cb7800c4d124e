"""Dagster assets that land Kafka topics in Delta tables: a decorator, and the same as a plain factory."""

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
    from dagster._core.definitions.events import CoercibleToAssetKey
    from pyspark.sql import DataFrame

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
        partitions_def: Partitions of time, or of time and a static dimension that picks topics. Then a run lands the
            windows of its partitions, each in the place of what the table has of it. Default: a stream, which goes on
            from its position.
        backfill_policy: With partitions: how many of them one run lands. Default: all that were asked for.
        windows: With partitions: how records are put into them. Default: by their own time, up to an hour late.
        topics_of: With a static dimension: the topics of each of its keys. Default: the key is the topic.
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
        op_tags: Tags of the op, such as `dagster-k8s/config` for the resources of its pod.
        retry_policy: Dagster's retries of a failed step. Repeating is safe: nothing is landed twice.
        pool: Concurrency pool. Default: `delta:` and the table, so that an instance with a limit of 1 writes to a table
            with one run at a time. Nothing rests on it, except on stores that can't keep two writers apart.
        code_version: Version of the transform.

    Returns:
        A decorator that gives an AssetsDefinition.

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
        msg = "key is the whole key of the asset; leave name and key_prefix out, or key"
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
        msg = "backfill_policy is for an asset with partitions; give it a partitions_def"
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
    return kafka_delta_asset(source=source, table=table, name=name, **options)(_as_it_is)


def _as_it_is(records: DataFrame) -> DataFrame:
    return records


def _target(table: str | PathLike[str] | DeltaTarget, **settings: Any) -> DeltaTarget:
    if isinstance(table, DeltaTarget):
        given = sorted(name for name, value in settings.items() if value and (name, value) != ("stream", "main"))
        if given:
            msg = f"{', '.join(given)}: set it on the DeltaTarget, which is given as the table"
            raise ConfigurationError(msg)
        return table
    return DeltaTarget(table=DeltaTarget.of(table).table, **settings)


def _asset(ingestion: Ingestion, options: Mapping[str, Any]) -> AssetsDefinition:
    key = None if options["key"] is None else AssetKey.from_coercible(options["key"])
    asset_key = AssetKey([*_parts(options["key_prefix"]), options["name"] or ""]) if key is None else key
    named: dict[str, Any] = {**options, "key": key}
    with warnings.catch_warnings():
        # Backfill policies are in beta; whoever uses partitions gets one, and did not ask for it.
        warnings.simplefilter("ignore", BetaWarning)
        make_asset: Any = asset(
            check_specs=check_specs(ingestion.checks, asset_key),
            required_resource_keys={ingestion.kafka, ingestion.spark, *ingestion.transform_resources},
            config_schema=ingestion.config.to_config_schema(),
            output_required=ingestion.on_idle == "materialize",
            **named,
        )

    # Without types: Dagster looks at the annotations themselves, which are only text in this module.
    def land(context):  # noqa: ANN001, ANN202 # pyright: ignore[reportMissingParameterType]
        yield from short_traces(_run(context, ingestion))

    if inspect.isfunction(written := inspect.unwrap(ingestion.transform or land)):
        # Code references and stack traces lead to where an op's function says that it is written: to the user's own.
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
        msg = "windows and topics_of are for an asset with partitions; give it a partitions_def"
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
    # Dagster allows no blanks in a pool's name.
    return "_".join(f"delta:{target.identity}".split())


def _parts(key_prefix: str | Sequence[str] | None) -> Sequence[str]:
    return [key_prefix] if isinstance(key_prefix, str) else key_prefix or ()
