"""Dagster assets that ingest Kafka topics into Delta tables: a decorator and a factory function."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dagster import AssetKey, AssetsDefinition, BackfillPolicy, BetaWarning

from dagster_kafka_flip.assets.asset_ingestion import Ingestion, OnIdle
from dagster_kafka_flip.assets.asset_options import AssetOptions, dagsters_errors, given_options
from dagster_kafka_flip.assets.asset_step import asset_spec, landed
from dagster_kafka_flip.assets.partitions import AssetPartitions
from dagster_kafka_flip.assets.transform_arguments import check_transform
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.ingestion.dead_letters import DeadLetters, dead_letters_of
from dagster_kafka_flip.ingestion.ingest import DEFAULT_VERIFY_AFTER, check_run_options
from dagster_kafka_flip.ingestion.tolerance import tolerated_errors
from dagster_kafka_flip.settings.arguments import check_arguments, check_options, expect, with_options_of
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.window import Windows
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import timedelta
    from os import PathLike

    from dagster import AssetExecutionContext
    from pyspark.sql import DataFrame
    from typing_extensions import Unpack

    from dagster_kafka_flip.assets.asset_ingestion import StepEvent
    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.formats.format import Format
    from dagster_kafka_flip.formats.kafka_columns import KafkaColumns

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]+")


@check_options(AssetOptions.__annotations__, inside={"table": DeltaTarget, "limits": Limits})
def kafka_delta_asset(
    *,
    source: KafkaSource | str | Sequence[str],
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
        source: What to read: topics, from the earliest offset, or a KafkaSource.
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
        windows: With `partitions_def`: which records a partition has. Default: by the record's timestamp, up to one
            hour late.
        topics_of: With a static dimension: the topics of each key. Default: the key is the topic.
        kafka: Key of the KafkaResource.
        spark: Key of the SparkResource.
        **asset_options: Dagster's own options, as in `@asset`.

    Returns:
        A decorator that returns an AssetsDefinition.

    Raises:
        ConfigurationError: The options contradict each other, or the function does not take `records`.
    """
    source = KafkaSource.of(source)
    options = given_options(kafka=kafka, spark=spark, **asset_options)
    check_run_options(limits=limits)
    if topics_of is not None:
        expect("topics_of", topics_of, Mapping, '{"sales": ["orders", "returns"]}')
    name, key, prefix = (options.pop(each, None) for each in ("name", "key", "key_prefix"))
    if key is not None and (name is not None or prefix is not None):
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
    # Dagster does not allow spaces in a pool's name.
    options.setdefault("pool", "_".join(f"delta:{target.identity}".split()))
    partitions_def = options.get("partitions_def")
    if partitions_def is not None:
        partitions = AssetPartitions(partitions_def, windows or Windows(), source, topics_of)
        ingestion = ingestion.with_partitions(partitions)
        options.setdefault("backfill_policy", _single_run())
    elif windows is not None or topics_of is not None:
        raise ConfigurationError("windows and topics_of are for an asset with partitions; set partitions_def")
    elif "backfill_policy" in options:
        raise ConfigurationError("backfill_policy is for an asset with partitions; set partitions_def")

    def decorate(transform: Callable[..., DataFrame]) -> AssetsDefinition:
        check_transform(transform)
        made = ingestion if transform is _as_it_is else replace(ingestion, transform=transform)
        own_name = name or transform.__name__
        if key is None and not (isinstance(own_name, str) and _PLAIN_NAME.fullmatch(own_name)):
            msg = f"name: invalid asset name {own_name!r}; use letters, digits and '_' only, or set key="
            raise ConfigurationError(msg)
        with dagsters_errors(own_name if key is None else str(key)):
            parts = [prefix] if isinstance(prefix, str) else prefix or ()
            spec = asset_spec(AssetKey([*parts, own_name]) if key is None else key, options, kinds=())
        return landed(spec.key.to_python_identifier(), [(spec, made)], options, _run)

    return decorate


@with_options_of(kafka_delta_asset)
@check_arguments
def build_kafka_delta_asset(
    *, source: KafkaSource | str | Sequence[str], table: str | PathLike[str] | DeltaTarget, **options: Any
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
    source = KafkaSource.of(source)
    options["description"] = options.get("description") or f"Unchanged records from Kafka: {source}."
    return kafka_delta_asset(source=source, table=table, **options)(_as_it_is)


def _as_it_is(records: DataFrame) -> DataFrame:
    return records


def _run(context: AssetExecutionContext, chosen: Mapping[AssetKey, Ingestion]) -> Iterator[StepEvent]:
    for ingestion in chosen.values():
        yield from ingestion.run(context, context.op_execution_context.op_config)


def _single_run() -> BackfillPolicy:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BetaWarning)
        return BackfillPolicy.single_run()
