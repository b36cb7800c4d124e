"""Asset checks that look at what stands in table, log and Dagster's record, whenever they are asked to.

Those that come with a run (checks.py) tell what that run met. These can be run by themselves, after anything.
"""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetChecksDefinition,
    AssetCheckSpec,
    AssetKey,
    AssetsDefinition,
    BetaWarning,
    build_column_schema_change_checks,
    multi_asset_check,
)

from dagster_kafka_flip.assets.registry import ingestions_of
from dagster_kafka_flip.assets.resources import kafka_of, spark_of
from dagster_kafka_flip.assets.run_checks import NO_RECORDS_REJECTED
from dagster_kafka_flip.checks.log_checks import (
    LAG_BELOW,
    NO_RECORDS_REJECTED_LATELY,
    SAME_LOG,
    WATERMARK_FRESH,
    LogChecks,
)
from dagster_kafka_flip.checks.table_checks import NO_DUPLICATE, NO_GAP, TableChecks
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings import check_arguments, expect

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster._core.definitions.events import CoercibleToAssetKey

    from dagster_kafka_flip.assets.asset_ingestion import Ingestion

DEFAULT_DUPLICATE_COMMITS = 10
DEFAULT_REJECTED_WITHIN = timedelta(days=1)

_DESCRIPTIONS = {
    NO_GAP: "Each commit of the stream in the table's history begins where the one before it ended.",
    NO_DUPLICATE: "No record, told by topic, topic partition and offset, is in the table more than once.",
    LAG_BELOW: "No more offsets than allowed are left to read.",
    WATERMARK_FRESH: "The table's watermark is not too old, or nothing is left to read.",
    SAME_LOG: "The cluster and the topics are those whose position the stream has.",
    NO_RECORDS_REJECTED_LATELY: "No more records than allowed could not be decoded lately.",
}


@check_arguments
def kafka_delta_checks(
    asset: AssetsDefinition,
    *,
    key: CoercibleToAssetKey | None = None,
    gaps: bool = True,
    duplicates: bool = True,
    duplicate_commits: int | None = DEFAULT_DUPLICATE_COMMITS,
    identity: bool = True,
    schema: bool = True,
    max_lag: int | None = None,
    max_delay: timedelta | None = None,
    max_rejected: int | None = None,
    rejected_within: timedelta = DEFAULT_REJECTED_WITHIN,
    blocking: bool = True,
) -> Sequence[AssetChecksDefinition]:
    """Makes asset checks of an asset that lands Kafka topics. Give them to `Definitions(asset_checks=...)`.

    `no_gap` and `no_duplicate` need Spark, unless they passed at the table's newest version. `lag_below`,
    `watermark_fresh`, `same_log`, `no_records_rejected_lately` and Dagster's own `column_schema_change` don't, and are
    steps of their own. An asset with partitions has no position, and so only those about duplicates and rejected
    records.

    Args:
        asset: The asset, as `kafka_delta_asset`, `build_kafka_delta_asset` or `build_kafka_delta_multi_asset` made it.
        key: Which of its assets, if they are several. Default: the only one.
        gaps: Whether to check that the stream's commits join (`no_gap`). Default: yes, for a stream.
        duplicates: Whether to check that no record is there twice (`no_duplicate`). Default: yes.
        duplicate_commits: How many of the last commits' offsets it looks for in the table; None for all rows. Default
            10.
        identity: Whether to check that cluster and topics are those of the position (`same_log`). Default: yes, for a
            stream.
        schema: Whether to check that the last materialization has the columns of the one before
            (`column_schema_change`). Default: yes, for a stream.
        max_lag: Most offsets that may be left to read (`lag_below`). Default: not checked.
        max_delay: How old the watermark may be while something is left to read (`watermark_fresh`). Default: not
            checked.
        max_rejected: Most records that runs could not decode and kept (`no_records_rejected_lately`). Default: not
            checked.
        rejected_within: How far back runs are asked for those. Default: a day.
        blocking: Whether assets downstream in the same run wait for `no_gap` and `no_duplicate`, and don't run if one
            of them fails. Default: yes.

    Raises:
        ConfigurationError: The asset was not made here, a bound can't be, or a check can't be made of this asset.
    """
    asset_key, ingestion = _ingestion(asset, key)
    _check_bounds(duplicates, duplicate_commits, max_lag, max_delay, max_rejected, rejected_within)
    _check_fits(
        ingestion, asset_key, duplicates=duplicates, max_lag=max_lag, max_delay=max_delay, max_rejected=max_rejected
    )
    is_stream = ingestion.partitions is None
    of_the_table = [name for name, asked in ((NO_GAP, gaps and is_stream), (NO_DUPLICATE, duplicates)) if asked]
    of_the_log = [
        name
        for name, asked in (
            (SAME_LOG, identity and is_stream),
            (LAG_BELOW, max_lag is not None),
            (WATERMARK_FRESH, max_delay is not None),
            (NO_RECORDS_REJECTED_LATELY, max_rejected is not None),
        )
        if asked
    ]
    made: list[AssetChecksDefinition] = []
    if of_the_table:
        made.append(
            _table_checks(TableChecks(ingestion, asset_key, duplicate_commits), of_the_table, blocking=blocking)
        )
    if of_the_log:
        checks = LogChecks(ingestion, asset_key, max_lag, max_delay, max_rejected, rejected_within)
        made.append(_log_checks(checks, of_the_log))
    if schema and is_stream:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BetaWarning)
            made.extend(build_column_schema_change_checks(assets=[asset_key]))
    if not made:
        msg = f"kafka_delta_checks({asset_key.to_user_string()}): every check is switched off; leave the call out"
        raise ConfigurationError(msg)
    return made


def _table_checks(checks: TableChecks, names: Sequence[str], *, blocking: bool) -> AssetChecksDefinition:
    @multi_asset_check(
        name=checks.key.to_python_identifier("table_checks"),
        specs=[
            AssetCheckSpec(name, asset=checks.key, description=_DESCRIPTIONS[name], blocking=blocking) for name in names
        ],
        can_subset=True,
        required_resource_keys={checks.ingestion.spark},
    )
    # Without types: Dagster looks at the annotations themselves, which are only text in this module.
    def check_table(context):  # noqa: ANN001, ANN202 # pyright: ignore[reportMissingParameterType]
        spark = spark_of(context, checks.ingestion.spark)
        yield from checks.results(_selected(context), spark, context.instance)

    return check_table


def _log_checks(checks: LogChecks, names: Sequence[str]) -> AssetChecksDefinition:
    @multi_asset_check(
        name=checks.key.to_python_identifier("log_checks"),
        specs=[AssetCheckSpec(name, asset=checks.key, description=_DESCRIPTIONS[name]) for name in names],
        can_subset=True,
        required_resource_keys={checks.ingestion.kafka},
    )
    def check_log(context):  # noqa: ANN001, ANN202 # pyright: ignore[reportMissingParameterType] - as above
        source = checks.ingestion.source
        connection = kafka_of(context, checks.ingestion.kafka, source.cluster)
        yield from checks.results(_selected(context), context.instance, connection)

    return check_log


def _selected(context: Any) -> set[str]:
    return {key.name for key in context.selected_asset_check_keys}


def _ingestion(asset: Any, key: CoercibleToAssetKey | None) -> tuple[AssetKey, Ingestion]:
    landed = ingestions_of(asset) if isinstance(asset, AssetsDefinition) else {}
    if not landed:
        what = (
            asset.key.to_user_string() if isinstance(asset, AssetsDefinition) and len(asset.keys) == 1 else repr(asset)
        )
        msg = (
            f"kafka_delta_checks: {what} is no asset that lands a topic in a table; give it the one that "
            "kafka_delta_asset or build_kafka_delta_asset made, not its key"
        )
        raise ConfigurationError(msg)
    wanted = next(iter(landed)) if key is None and len(landed) == 1 else key and AssetKey.from_coercible(key)
    if wanted not in landed:
        which = "several assets" if key is None else f"no asset {AssetKey.from_coercible(key).to_user_string()}"
        names = ", ".join(sorted(one.to_user_string() for one in landed))
        msg = f"kafka_delta_checks: the definition has {which}; give key= one of {names}"
        raise ConfigurationError(msg)
    return wanted, landed[wanted]


def _check_bounds(
    duplicates: bool,
    duplicate_commits: int | None,
    max_lag: int | None,
    max_delay: timedelta | None,
    max_rejected: int | None,
    rejected_within: timedelta,
) -> None:
    for name, bound, least in (
        ("duplicate_commits", duplicate_commits, 1),
        ("max_lag", max_lag, 0),
        ("max_rejected", max_rejected, 0),
    ):
        if bound is not None and type(bound) is not int:
            expect(name, bound, int, "1000")
            msg = f"{name}: expected a whole number, got {bound}"
            raise ConfigurationError(msg)
        if bound is not None and bound < least:
            msg = f"{name}={bound}: at least {least}, or None"
            raise ConfigurationError(msg)
    for name, time in (("max_delay", max_delay), ("rejected_within", rejected_within)):
        if time is not None:
            expect(name, time, timedelta, "timedelta(hours=1)")
        if time is not None and time <= timedelta(0):
            msg = f"{name}={time}: give a time that is longer than nothing"
            raise ConfigurationError(msg)
    if not duplicates and duplicate_commits != DEFAULT_DUPLICATE_COMMITS:
        msg = (
            "duplicate_commits says how far no_duplicate looks, and duplicates=False leaves it out; give one of the two"
        )
        raise ConfigurationError(msg)
    if max_rejected is None and rejected_within != DEFAULT_REJECTED_WITHIN:
        msg = "rejected_within says how far back records are counted, and there is no max_rejected; give both"
        raise ConfigurationError(msg)


def _check_fits(
    ingestion: Ingestion,
    key: AssetKey,
    *,
    duplicates: bool,
    max_lag: int | None,
    max_delay: timedelta | None,
    max_rejected: int | None,
) -> None:
    name = key.to_user_string()
    if ingestion.partitions is not None:
        given = [option for option, bound in (("max_lag", max_lag), ("max_delay", max_delay)) if bound is not None]
        if given:
            msg = (
                f"{', '.join(given)}: the asset {name} has partitions, and so no position that could lag behind; "
                "Dagster shows which partitions are missing, and build_time_partition_freshness_checks checks it"
            )
            raise ConfigurationError(msg)
    dropped = sorted({"topic", "partition", "offset"} - set(ingestion.decoder.columns.fields))
    if duplicates and dropped:
        msg = (
            f"the asset {name} keeps no {', '.join(dropped)} (KafkaColumns), so that nothing tells a record from "
            "another: keep it, or say duplicates=False"
        )
        raise ConfigurationError(msg)
    if max_rejected is not None and NO_RECORDS_REJECTED not in ingestion.checks:
        msg = (
            f"max_rejected: a record that can't be decoded ends a run of the asset {name}, so that there is nothing to "
            'count; it is for on_error="null" and dead_letter'
        )
        raise ConfigurationError(msg)
