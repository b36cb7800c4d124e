"""Dagster assets that ingest Kafka topics into Delta tables: a decorator and a factory function."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dagster import AssetKey, AssetOut, AssetsDefinition, BackfillPolicy, BetaWarning, multi_asset

from dagster_kafka_flip.assets.asset_ingestion import Ingestion, OnIdle
from dagster_kafka_flip.assets.asset_options import AssetOptions, check_asset_options, dagsters_errors
from dagster_kafka_flip.assets.metadata import table_metadata
from dagster_kafka_flip.assets.partitions import AssetPartitions
from dagster_kafka_flip.assets.registry import register, selected_ingestions
from dagster_kafka_flip.assets.run_checks import check_specs
from dagster_kafka_flip.assets.step_events import step_events
from dagster_kafka_flip.assets.topic_asset import upstream_asset_keys
from dagster_kafka_flip.assets.transform_arguments import check_transform, located_at
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.ingestion.dead_letters import DeadLetters, dead_letters_of
from dagster_kafka_flip.ingestion.ingest import DEFAULT_VERIFY_AFTER, check_run_options
from dagster_kafka_flip.ingestion.tolerance import tolerated_errors
from dagster_kafka_flip.settings.arguments import check_arguments, check_options, with_options_of
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.window import Windows
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta
    from os import PathLike

    from dagster import AssetExecutionContext, PartitionsDefinition
    from pyspark.sql import DataFrame
    from typing_extensions import Unpack

    from dagster_kafka_flip.assets.asset_ingestion import StepEvent
    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.formats.format import Format
    from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
    from dagster_kafka_flip.source.kafka_source import KafkaSource

# The options that Dagster takes for the op, and not for its output.
_OF_OP = frozenset({"backfill_policy", "deps", "op_tags", "partitions_def", "pool", "retry_policy"})


@check_options(AssetOptions.__annotations__, inside={"table": DeltaTarget, "limits": Limits})
def kafka_delta_asset(
    *,
    source: KafkaSource,
    table: str | PathLike[str] | DeltaTarget,
    value_format: Format | None = None,
    key_format: Format | None = None,
    columns: KafkaColumns | None = None,
    dead_letter: DeadLetters | str | None = None,
    limits: Limits | None = None,
    tolerate: Iterable[type[KafkaFlipError]] = (),
    on_idle: OnIdle = "skip",
    verify_after: timedelta = DEFAULT_VERIFY_AFTER,
    windows: Windows | None = None,
    topics_of: Mapping[str, Sequence[str]] | None = None,
    kafka: str = "kafka",
    spark: str = "spark",
    **asset_options: Unpack[AssetOptions],
) -> Callable[[Callable[..., DataFrame]], AssetsDefinition]:
    """Creates an asset from a transform: writes the transformed records of a source to a Delta table, exactly once.

    The function takes `records`, a lazy Spark DataFrame of the run's records, and returns the rows to write. It may
    also take `context`, and any resource by its key. The position also advances past records that it filters out: use
    `limits` instead of `limit()`.

    Args:
        source: What to read.
        table: A path, a catalog name, or a DeltaTarget.
        value_format: Format of values. Default: RawFormat.
        key_format: Format of keys. Default: RawFormat.
        columns: The record fields to keep as columns. Default: all but the value.
        dead_letter: Table for records that can't be decoded. Default: the format's `on_error` decides.
        limits: Limits of batches and runs. Default: everything new in one commit.
        tolerate: Errors that don't fail a run: it reports them, and an asset check fails. Default: none.
        on_idle: What an idle run reports: `skip` (default) an observation, and downstream assets of the run are
            skipped; `materialize` a materialization with an unchanged data version.
        verify_after: How long an idle run trusts Dagster's record of the position. Default: 24 hours.
        windows: With `partitions_def`: the rules that assign records to partitions. Default: by the record's
            timestamp, up to one hour late.
        topics_of: With a static dimension: the topics of each key. Default: the key is the topic.
        kafka: Key of the KafkaResource.
        spark: Key of the SparkResource.
        **asset_options: Dagster's own options, as in `@asset`: see AssetOptions.

    Returns:
        A decorator that returns an AssetsDefinition.

    Raises:
        ConfigurationError: The options contradict each other, or the function does not take `records`.
    """
    check_asset_options(kafka=kafka, spark=spark, topics_of=topics_of, **asset_options)
    check_run_options(limits=limits)
    name, key = asset_options.get("name"), asset_options.get("key")
    if key is not None and (name is not None or asset_options.get("key_prefix") is not None):
        raise ConfigurationError("key is the whole asset key; remove name and key_prefix, or key")
    target = DeltaTarget.of(table)
    decoder = Decoder.of(key_format, value_format, columns)
    ingestion = Ingestion(
        source=source,
        target=target,
        decoder=decoder,
        dead_letter=dead_letters_of(dead_letter, target, decoder),
        limits=limits or Limits(),
        on_idle=on_idle,
        verify_after=verify_after,
        tolerated=tolerated_errors(tolerate),
        transform=None,
        kafka=kafka,
        spark=spark,
    )
    partitions = _partitions(asset_options.get("partitions_def"), windows, source, topics_of)
    if partitions is not None:
        ingestion = ingestion.with_partitions(partitions)
    elif asset_options.get("backfill_policy") is not None:
        raise ConfigurationError("backfill_policy is for an asset with partitions; set partitions_def")
    dagsters: dict[str, Any] = {
        **asset_options,
        "deps": [*upstream_asset_keys(source, kafka), *(asset_options.get("deps") or ())],
        "metadata": {**table_metadata(ingestion.target), **(asset_options.get("metadata") or {})},
        "kinds": {"deltalake", "spark", *(asset_options.get("kinds") or ())},
        "pool": asset_options.get("pool") or _pool(target),
    }
    if partitions is not None:
        dagsters["backfill_policy"] = asset_options.get("backfill_policy") or _single_run()

    def decorate(transform: Callable[..., DataFrame]) -> AssetsDefinition:
        check_transform(transform)
        made = ingestion if transform is _as_it_is else replace(ingestion, transform=transform)
        made.check_layout()
        own_name = name or (None if key is not None else transform.__name__)
        if own_name is not None:
            check_asset_options(name=own_name)
        with dagsters_errors(own_name or str(key)):
            described = asset_options.get("description") or inspect.getdoc(transform)
            return _asset(made, {**dagsters, "name": own_name, "description": described})

    return decorate


@with_options_of(kafka_delta_asset)
@check_arguments
def build_kafka_delta_asset(
    *, source: KafkaSource, table: str | PathLike[str] | DeltaTarget, **options: Any
) -> AssetsDefinition:
    """Creates an asset with a source's records as decoded, without a function.

    Args:
        source: What to read.
        table: A path, a catalog name, or a DeltaTarget.
        **options: All other options of `kafka_delta_asset`; `name` or `key` is required.

    Raises:
        ConfigurationError: Neither name nor key is set, or the options contradict each other.
    """
    if options.get("name") is None and options.get("key") is None:
        raise ConfigurationError("build_kafka_delta_asset needs a name or a key for the asset")
    options["description"] = options.get("description") or f"Unchanged records from Kafka: {source}."
    return kafka_delta_asset(source=source, table=table, **options)(_as_it_is)


def _as_it_is(records: DataFrame) -> DataFrame:
    return records


def _asset(ingestion: Ingestion, options: Mapping[str, Any]) -> AssetsDefinition:
    given = dict(options)
    name, key, prefix = (given.pop(each, None) for each in ("name", "key", "key_prefix"))
    asset_key = AssetKey([*_parts(prefix), name or ""]) if key is None else AssetKey.from_coercible(key)
    of_op = {each: given.pop(each) for each in _OF_OP & given.keys()}
    config: Any = ingestion.config.to_fields_dict()
    with warnings.catch_warnings():
        # Backfill policies are in beta; hides the warning for the default policy.
        warnings.simplefilter("ignore", BetaWarning)
        # With can_subset: Dagster's conditions would start the asset with an explicit list of the checks that it can't
        # do without, and leave out all others, of every asset in the run.
        make_asset: Any = multi_asset(
            name=asset_key.to_python_identifier(),
            outs={"result": AssetOut(key=asset_key, is_required=False, **given)},
            can_subset=True,
            check_specs=check_specs(ingestion.checks, asset_key),
            required_resource_keys=ingestion.resource_keys,
            config_schema=config,
            **of_op,
        )

    # Without annotations: Dagster inspects them, and in this module they are only strings.
    def land(context):  # noqa: ANN001, ANN202 # pyright: ignore[reportMissingParameterType]
        yield from step_events(context, _run(context, ingestion))

    return register(make_asset(located_at(ingestion.transform, land)), {asset_key: ingestion})


def _partitions(
    partitions_def: PartitionsDefinition[Any] | None,
    windows: Windows | None,
    source: KafkaSource,
    topics_of: Mapping[str, Sequence[str]] | None,
) -> AssetPartitions | None:
    if partitions_def is not None:
        return AssetPartitions(partitions_def, windows or Windows(), source, topics_of)
    if windows is not None or topics_of is not None:
        raise ConfigurationError("windows and topics_of are for an asset with partitions; set partitions_def")
    return None


def _run(context: AssetExecutionContext, ingestion: Ingestion) -> Iterator[StepEvent]:
    if selected_ingestions(context):
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
