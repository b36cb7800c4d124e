"""build_kafka_delta_multi_asset: several tables from one read of a source, each an asset with its own position."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster import AssetsDefinition, AssetSpec

from dagster_kafka_flip.assets.asset_ingestion import Ingestion, OnIdle
from dagster_kafka_flip.assets.asset_options import OpOptions, dagsters_errors, given_options
from dagster_kafka_flip.assets.asset_step import landed
from dagster_kafka_flip.assets.position_record import read_record
from dagster_kafka_flip.assets.run_config import IngestRunConfig
from dagster_kafka_flip.assets.transform_arguments import check_transform
from dagster_kafka_flip.errors import ConfigurationError, KafkaFlipError
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.ingestion.dead_letters import dead_letters_of
from dagster_kafka_flip.ingestion.ingest import DEFAULT_VERIFY_AFTER, check_run_options
from dagster_kafka_flip.ingestion.several_tables import TableRun, ingest_tables
from dagster_kafka_flip.ingestion.tolerance import tolerated_errors
from dagster_kafka_flip.settings.arguments import check_options, expect
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import timedelta
    from os import PathLike

    from dagster import AssetExecutionContext, AssetKey
    from pyspark.sql import DataFrame
    from typing_extensions import Unpack

    from dagster_kafka_flip.assets.asset_ingestion import StepEvent
    from dagster_kafka_flip.assets.position_record import Record
    from dagster_kafka_flip.formats.format import Format
    from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
    from dagster_kafka_flip.ingestion.dead_letters import DeadLetters


@dataclass(frozen=True)
class KafkaDeltaTable:
    """One table of `build_kafka_delta_multi_asset`, with its asset.

    Attributes:
        spec: The asset's spec, or its key.
        table: A path, a catalog name, or a DeltaTarget.
        transform: Function from the run's records to this table's rows. Default: the records as decoded.
        key_format: Format of keys. Default: RawFormat.
        value_format: Format of values. Default: RawFormat.
        columns: The record fields to keep as columns. Default: all but the value.
        dead_letter: Table for records that can't be decoded. Default: the format's `on_error` decides.
    """

    spec: AssetSpec | str
    table: str | PathLike[str] | DeltaTarget
    transform: Callable[..., DataFrame] | None = None
    key_format: Format | None = None
    value_format: Format | None = None
    columns: KafkaColumns | None = None
    dead_letter: DeadLetters | str | None = None

    @property
    def asset_spec(self) -> AssetSpec:
        """The spec as given."""
        return self.spec if isinstance(self.spec, AssetSpec) else AssetSpec(self.spec)


# Raises a ConfigurationError with a suggestion instead of a TypeError.
KafkaDeltaTable.__init__ = check_options(inside={"table": DeltaTarget})(KafkaDeltaTable.__init__)


@check_options(OpOptions.__annotations__, inside={"limits": Limits})
def build_kafka_delta_multi_asset(
    *,
    name: str,
    source: KafkaSource | str | Sequence[str],
    tables: Sequence[KafkaDeltaTable],
    limits: Limits | None = None,
    tolerate: Iterable[type[KafkaFlipError]] = (),
    on_idle: OnIdle = "skip",
    verify_after: timedelta = DEFAULT_VERIFY_AFTER,
    kafka: str = "kafka",
    spark: str = "spark",
    **op_options: Unpack[OpOptions],
) -> AssetsDefinition:
    """Creates an asset for each table; all tables share one read of a source.

    Each table has its own position. Tables at the same offsets share a read; one that is behind catches up first. If a
    table fails, the others are still written; then the run fails.

    Args:
        name: The op's name.
        source: What to read.
        tables: The tables, at least one.
        limits: Limits of batches and runs, for each table. Default: everything new in one commit.
        tolerate: Errors that don't fail a run: it reports them, and an asset check fails. Default: none.
        on_idle: What an idle run reports: `skip` (default) an observation, and downstream assets of the run are
            skipped; `materialize` a materialization with an unchanged data version.
        verify_after: How long an idle run trusts Dagster's record of the position. Default: 24 hours.
        kafka: Key of the KafkaResource.
        spark: Key of the SparkResource.
        **op_options: Dagster's options of the op: `op_tags`, `retry_policy` and `pool`. Those of an asset are in its
            `spec`.

    Raises:
        ConfigurationError: There is no table, two are the same, or the options contradict each other.
    """
    options = given_options(kafka=kafka, spark=spark, **op_options)
    check_run_options(limits=limits)
    expect("name", name, str, '"orders"')
    expect("tables", tables or (), Iterable, '[KafkaDeltaTable(spec="orders", table="lake/orders")]')
    if not tables:
        raise ConfigurationError(f"{name} has no table; add at least one KafkaDeltaTable")
    shared: dict[str, Any] = {
        "source": KafkaSource.of(source),
        "limits": limits or Limits(),
        "on_idle": on_idle,
        "verify_after": verify_after,
        "tolerated": tolerated_errors(tolerate),
        "kafka": kafka,
        "spark": spark,
    }
    made: dict[AssetKey, tuple[AssetSpec, Ingestion]] = {}
    tables_of: dict[str, AssetKey] = {}
    for table in tables:
        expect("tables", table, KafkaDeltaTable, 'KafkaDeltaTable(spec="orders", table="lake/orders")')
        expect("spec", table.spec, (str, AssetSpec), '"lake/orders", or AssetSpec("lake/orders")')
        with dagsters_errors(str(table.spec)):
            spec = table.asset_spec
        if spec.partitions_def is not None:
            raise ConfigurationError(
                f"spec: the asset {spec.key.to_user_string()} has partitions; several tables of one read must be "
                "streams"
            )
        if spec.key in made:
            raise ConfigurationError(f"{name} has two tables for the asset {spec.key.to_user_string()}")
        ingestion = _ingestion(table, shared)
        if (other := tables_of.setdefault(ingestion.target.identity, spec.key)) != spec.key:
            raise ConfigurationError(
                f"{name}: the assets {other.to_user_string()} and {spec.key.to_user_string()} both write to "
                f"{ingestion.target}; give each its own table"
            )
        made[spec.key] = spec, ingestion
    options.setdefault("pool", f"delta:{name}")
    return landed(name, [*made.values()], options, _land)


def _ingestion(table: KafkaDeltaTable, shared: Mapping[str, Any]) -> Ingestion:
    target = DeltaTarget.of(table.table)
    decoder = Decoder.of(table.key_format, table.value_format, table.columns)
    if table.transform is not None:
        check_transform(table.transform)
    return Ingestion(
        **shared,
        target=target,
        decoder=decoder,
        dead_letter=dead_letters_of(table.dead_letter, target, decoder),
        transform=table.transform,
    )


def _land(context: AssetExecutionContext, chosen: Mapping[AssetKey, Ingestion]) -> Iterator[StepEvent]:
    config = IngestRunConfig(**context.op_execution_context.op_config)
    if config.replaces:
        yield from _replace(context, chosen, config)
    else:
        yield from _go_on(context, chosen, config)


def _replace(
    context: AssetExecutionContext, chosen: Mapping[AssetKey, Ingestion], config: IngestRunConfig
) -> Iterator[StepEvent]:
    window = config.window()
    failures: dict[str, Exception] = {}
    for key, ingestion in chosen.items():
        try:
            events = tuple(ingestion.replace(context, key, window, config))
        except Exception as failure:  # noqa: BLE001, PERF203 - raised when the others are done
            failures[key.to_user_string()] = failure
        else:
            yield from events
    _raise(failures, context)


def _go_on(
    context: AssetExecutionContext, chosen: Mapping[AssetKey, Ingestion], config: IngestRunConfig
) -> Iterator[StepEvent]:
    first = next(iter(chosen.values()))
    records: dict[AssetKey, Record] = {}
    tables: dict[str, TableRun] = {}
    for key, ingestion in chosen.items():
        records[key] = read_record(context.instance, key)
        spec = ingestion.stream_spec(context, config)
        known = None if config.verify else records[key].known
        tables[key.to_user_string()] = TableRun(spec, known, records[key].reported(ingestion.target))
    done = ingest_tables(
        tables, verify_after=first.verify_after, log=context.log, starting_offsets=config.starting_offsets
    )
    for key, ingestion in chosen.items():
        if (result := done.results.get(key.to_user_string())) is not None:
            yield from ingestion.run_events(context, key, result, records[key])
    _raise(done.failures, context)


def _raise(failures: Mapping[str, Exception], context: AssetExecutionContext) -> None:
    """Logs all failed tables and raises one of the errors, if any: first one that may pass, so that it is retried."""
    for name, failure in failures.items():
        context.log.error("%s is behind the other tables: %s", name, failure)
    if failures:
        raise min(failures.values(), key=lambda failure: isinstance(failure, KafkaFlipError) and failure.is_lasting)
