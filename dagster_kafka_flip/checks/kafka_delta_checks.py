"""Asset checks that run on their own: on the table, the topics and Dagster's record.

The checks of a run (run_checks.py) report that run's findings. These checks can run at any time.
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

from dagster_kafka_flip.assets.registry import ingestion_of
from dagster_kafka_flip.assets.resources import kafka_of, spark_of
from dagster_kafka_flip.assets.run_checks import (
    LAG_BELOW,
    NO_RECORDS_REJECTED,
    NO_RECORDS_REJECTED_LATELY,
    SAME_LOG,
    WATERMARK_FRESH,
    WITH_ITS_ASSET,
)
from dagster_kafka_flip.assets.step_events import step_events
from dagster_kafka_flip.checks.log_checks import LogChecks
from dagster_kafka_flip.checks.table_checks import (
    KEYS_NOT_NULL,
    NO_DUPLICATE,
    NO_DUPLICATE_KEY,
    NO_GAP,
    NO_OVERLAP,
    TableChecks,
)
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.arguments import check_arguments, expect
from dagster_kafka_flip.table.mode import Scd2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dagster import AssetCheckResult

    from dagster_kafka_flip.assets.asset_ingestion import Ingestion
    from dagster_kafka_flip.assets.dagster_internals import CoercibleToAssetKey

DEFAULT_DUPLICATE_COMMITS = 10
DEFAULT_REJECTED_WITHIN = timedelta(days=1)

_DESCRIPTIONS = {
    NO_GAP: "Each commit of the stream begins at the offsets where the previous one ended.",
    NO_DUPLICATE: "No record (by topic, partition and offset) is in the table more than once.",
    NO_DUPLICATE_KEY: "No key of the table has more than one row, or more than one current row.",
    KEYS_NOT_NULL: "No row of the table has a null in its key.",
    NO_OVERLAP: "No row of a key's history overlaps with the next one.",
    LAG_BELOW: "The lag in offsets is within the limit.",
    WATERMARK_FRESH: "The table's watermark is recent enough, or the lag is 0.",
    SAME_LOG: "The cluster and the topics are the ones that the stream's position belongs to.",
    NO_RECORDS_REJECTED_LATELY: "The number of recently rejected records is within the limit.",
}


@check_arguments
def kafka_delta_checks(
    asset: AssetsDefinition,
    *,
    key: CoercibleToAssetKey | None = None,
    gaps: bool = True,
    duplicates: bool = True,
    duplicate_commits: int | None = DEFAULT_DUPLICATE_COMMITS,
    keys: bool = True,
    identity: bool = True,
    schema: bool = True,
    max_lag: int | None = None,
    max_delay: timedelta | None = None,
    max_rejected: int | None = None,
    rejected_within: timedelta = DEFAULT_REJECTED_WITHIN,
    blocking: bool = True,
) -> Sequence[AssetChecksDefinition]:
    """Creates asset checks for a Kafka Delta asset. Pass them to `Definitions(asset_checks=...)`.

    `no_gap`, `no_duplicate`, `no_duplicate_key`, `keys_not_null` and `no_overlap` need Spark, unless they already
    passed at the table's newest version. `lag_below`, `watermark_fresh`, `same_log`, `no_records_rejected_lately`
    and Dagster's `column_schema_change` do not need Spark and are separate steps. An asset with partitions has no
    position, so it only has the checks for duplicates and rejected records.

    Args:
        asset: The asset that lands the topics.
        key: Key of one of its assets, if there are several. Default: the only one.
        gaps: `no_gap`. Default: yes, for a stream.
        duplicates: `no_duplicate`. Default: yes, unless the rows have a key.
        duplicate_commits: How many of the latest commits `no_duplicate` checks; None for all rows. Default: 10.
        keys: `no_duplicate_key`, `keys_not_null` and with Scd2 `no_overlap`. Default: yes, for a table with a key.
        identity: `same_log`. Default: yes, for a stream.
        schema: `column_schema_change`. Default: yes, for a stream.
        max_lag: `lag_below`: maximum lag in offsets. Default: not checked.
        max_delay: `watermark_fresh`: maximum age of the watermark. Default: not checked.
        max_rejected: `no_records_rejected_lately`: maximum of rejected records. Default: not checked.
        rejected_within: Period for `max_rejected`. Default: one day.
        blocking: Whether downstream assets of the run wait for the checks with Spark, and are skipped if one fails.
            Default: yes.

    Raises:
        ConfigurationError: The asset is not from this package, a bound is invalid, or a check does not apply to the
        asset.
    """
    asset_key, ingestion = ingestion_of(asset, key, "kafka_delta_checks")
    _check_bounds(duplicates, duplicate_commits, max_lag, max_delay, max_rejected, rejected_within)
    has_key = bool(ingestion.target.key)
    if has_key and duplicate_commits != DEFAULT_DUPLICATE_COMMITS:
        raise ConfigurationError(
            f"duplicate_commits sets the range of no_duplicate, but the rows of the asset {asset_key.to_user_string()} "
            "have a key: no_duplicate_key always looks at the whole table"
        )
    duplicates = duplicates and not has_key
    _check_fits(
        ingestion, asset_key, duplicates=duplicates, max_lag=max_lag, max_delay=max_delay, max_rejected=max_rejected
    )
    is_stream = ingestion.partitions is None
    of_the_table = [name for name, asked in ((NO_GAP, gaps and is_stream), (NO_DUPLICATE, duplicates)) if asked]
    if keys and has_key:
        of_the_table += [NO_DUPLICATE_KEY, KEYS_NOT_NULL]
        of_the_table += [NO_OVERLAP] if isinstance(ingestion.target.mode, Scd2) else []
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
        table, spark = TableChecks(ingestion, asset_key, duplicate_commits), ingestion.spark

        def look(context: Any) -> Iterator[AssetCheckResult]:
            return table.results(_selected(context), spark_of(context, spark), context.instance)

        made.append(_step(table, "table_checks", of_the_table, spark, look, blocking=blocking))
    if of_the_log:
        log, kafka = LogChecks(ingestion, asset_key, max_lag, max_delay, max_rejected, rejected_within), ingestion.kafka

        def compare(context: Any) -> Iterator[AssetCheckResult]:
            connection = kafka_of(context, kafka, ingestion.source.cluster)
            return log.results(_selected(context), context.instance, connection)

        made.append(_step(log, "log_checks", of_the_log, kafka, compare))
    if schema and is_stream:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BetaWarning)
            made.extend(build_column_schema_change_checks(assets=[asset_key]))
    if not made:
        msg = f"kafka_delta_checks({asset_key.to_user_string()}): every check is disabled; remove the call"
        raise ConfigurationError(msg)
    return made


def _step(
    checks: TableChecks | LogChecks,
    kind: str,
    names: Sequence[str],
    resource: str,
    results: Callable[[Any], Iterator[AssetCheckResult]],
    *,
    blocking: bool = False,
) -> AssetChecksDefinition:
    @multi_asset_check(
        name=checks.key.to_python_identifier(kind),
        specs=[
            AssetCheckSpec(
                name,
                asset=checks.key,
                description=_DESCRIPTIONS[name],
                blocking=blocking,
                automation_condition=_condition(checks.ingestion),
            )
            for name in names
        ],
        can_subset=True,
        required_resource_keys={resource},
    )
    # Without annotations: Dagster inspects them, and in this module they are only strings.
    def check(context):  # noqa: ANN001, ANN202 # pyright: ignore[reportMissingParameterType]
        yield from step_events(context, results(context))

    return check


def _condition(ingestion: Ingestion) -> Any:
    # For Dagster, a check without partitions is never requested with a partition of its asset.
    return WITH_ITS_ASSET if ingestion.partitions is None else None


def _selected(context: Any) -> set[str]:
    return {key.name for key in context.selected_asset_check_keys}


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
            raise ConfigurationError(f"{name}: expected a whole number, got {bound}")
        if bound is not None and bound < least:
            raise ConfigurationError(f"{name}={bound}: must be at least {least}, or None")
    for name, time in (("max_delay", max_delay), ("rejected_within", rejected_within)):
        if time is not None:
            expect(name, time, timedelta, "timedelta(hours=1)")
        if time is not None and time <= timedelta(0):
            raise ConfigurationError(f"{name}={time}: must be greater than 0")
    if not duplicates and duplicate_commits != DEFAULT_DUPLICATE_COMMITS:
        raise ConfigurationError(
            "duplicate_commits sets the range of no_duplicate, but duplicates=False disables the check; set only one "
            "of the two"
        )
    if max_rejected is None and rejected_within != DEFAULT_REJECTED_WITHIN:
        msg = "rejected_within sets how far back records are counted, but max_rejected is not set; set both"
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
            raise ConfigurationError(
                f"{', '.join(given)}: the asset {name} has partitions, so it has no position and no lag; Dagster "
                "shows missing partitions, and build_time_partition_freshness_checks checks them"
            )
    dropped = sorted({"topic", "partition", "offset"} - set(ingestion.decoder.columns.fields))
    if duplicates and dropped:
        raise ConfigurationError(
            f"the asset {name} has no column {', '.join(dropped)} (KafkaColumns), so records can't be identified: "
            "keep it, or set duplicates=False"
        )
    if max_rejected is not None and NO_RECORDS_REJECTED not in ingestion.checks:
        raise ConfigurationError(
            f"max_rejected: an undecodable record fails a run of the asset {name}, so there is nothing to "
            'count; it is for on_error="null" and dead_letter'
        )
