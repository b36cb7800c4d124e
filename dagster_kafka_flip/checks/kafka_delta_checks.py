"""Asset checks that run on their own: on the table, the topics and Dagster's record.

The checks of a run (run_checks.py) report that run's findings. These checks can run at any time.
"""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dagster import AssetChecksDefinition, AssetKey, AssetsDefinition, BetaWarning, build_column_schema_change_checks

from dagster_kafka_flip.assets.registry import ingestion_of
from dagster_kafka_flip.assets.resources import kafka_of, spark_of
from dagster_kafka_flip.assets.run_checks import (
    LAG_BELOW,
    NO_RECORDS_REJECTED,
    NO_RECORDS_REJECTED_LATELY,
    SAME_LOG,
    WATERMARK_FRESH,
)
from dagster_kafka_flip.checks.check_step import check_step, selected
from dagster_kafka_flip.checks.log_checks import Bounds, LogChecks
from dagster_kafka_flip.checks.table_checks import (
    KEYS_NOT_NULL,
    NO_DUPLICATE,
    NO_DUPLICATE_KEY,
    NO_GAP,
    NO_OVERLAP,
    TableChecks,
)
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.arguments import check_arguments
from dagster_kafka_flip.table.mode import Scd2

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dagster import AssetCheckResult

    from dagster_kafka_flip.assets.asset_ingestion import Ingestion
    from dagster_kafka_flip.assets.dagster_internals import CoercibleToAssetKey

DEFAULT_DUPLICATE_COMMITS = 10
DEFAULT_REJECTED_WITHIN = timedelta(days=1)

_OF_THE_TABLE = {
    NO_GAP: "Each commit of the stream begins at the offsets where the previous one ended.",
    NO_DUPLICATE: "No record (by topic, partition and offset) is in the table more than once.",
    NO_DUPLICATE_KEY: "No key of the table has more than one row, or more than one current row.",
    KEYS_NOT_NULL: "No row of the table has a null in its key.",
    NO_OVERLAP: "No row of a key's history overlaps with the next one.",
}
_OF_THE_LOG = {
    SAME_LOG: "The cluster and the topics are the ones that the stream's position belongs to.",
    LAG_BELOW: "The lag in offsets is within the limit.",
    WATERMARK_FRESH: "The table's watermark is recent enough, or the lag is 0.",
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
    op_tags: Mapping[str, Any] | None = None,
    pool: str | None = None,
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
        op_tags: Tags of the ops, such as `dagster-k8s/config`. Default: none.
        pool: Concurrency pool of the checks with Spark. Default: none.

    Raises:
        ConfigurationError: The asset is not from this package, a bound is invalid, or a check does not apply to the
        asset.
    """
    asset_key, ingestion = ingestion_of(asset, key, "kafka_delta_checks")
    bounds = Bounds(
        duplicate_commits=duplicate_commits,
        max_lag=max_lag,
        max_delay=max_delay,
        max_rejected=max_rejected,
        rejected_within=rejected_within,
    )
    has_key, is_stream = bool(ingestion.target.key), ingestion.partitions is None
    if duplicate_commits != DEFAULT_DUPLICATE_COMMITS and (has_key or not duplicates):
        raise ConfigurationError(
            f"duplicate_commits sets the range of no_duplicate, which the asset {asset_key.to_user_string()} does not "
            "have: its rows have a key, for which no_duplicate_key always looks at the whole table, or "
            "duplicates=False disables it"
        )
    if max_rejected is None and rejected_within != DEFAULT_REJECTED_WITHIN:
        msg = "rejected_within sets how far back records are counted, but max_rejected is not set; set both"
        raise ConfigurationError(msg)
    duplicates = duplicates and not has_key
    _check_fits(ingestion, asset_key, bounds, duplicates=duplicates)
    asked = {
        NO_GAP: gaps and is_stream,
        NO_DUPLICATE: duplicates,
        NO_DUPLICATE_KEY: keys and has_key,
        KEYS_NOT_NULL: keys and has_key,
        NO_OVERLAP: keys and isinstance(ingestion.target.mode, Scd2),
        SAME_LOG: identity and is_stream,
        LAG_BELOW: max_lag is not None,
        WATERMARK_FRESH: max_delay is not None,
        NO_RECORDS_REJECTED_LATELY: max_rejected is not None,
    }

    def look(context: Any, key: AssetKey) -> Iterator[AssetCheckResult]:
        # The bounds' own value: "10" is 10 there.
        table = TableChecks(ingestion, key, bounds.duplicate_commits)
        return table.results(selected(context), spark_of(context, ingestion.spark), context.instance)

    def compare(context: Any, key: AssetKey) -> Iterator[AssetCheckResult]:
        connection = kafka_of(context, ingestion.kafka, ingestion.source.cluster)
        return LogChecks(ingestion, key, bounds).results(selected(context), context.instance, connection)

    made: list[AssetChecksDefinition] = []
    for kind, questions, answers, resource in (
        ("table_checks", _OF_THE_TABLE, look, ingestion.spark),
        ("log_checks", _OF_THE_LOG, compare, ingestion.kafka),
    ):
        if wanted := {name: text for name, text in questions.items() if asked[name]}:
            waits = blocking and answers is look
            step = check_step(
                asset_key,
                kind,
                wanted,
                answers,
                resources={resource},
                blocking=waits,
                has_partitions=not is_stream,
                op_tags=op_tags,
                pool=pool if answers is look else None,
            )
            made.append(step)
    if schema and is_stream:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BetaWarning)
            made.extend(build_column_schema_change_checks(assets=[asset_key]))
    if not made:
        msg = f"kafka_delta_checks({asset_key.to_user_string()}): every check is disabled; remove the call"
        raise ConfigurationError(msg)
    return made


def _check_fits(ingestion: Ingestion, key: AssetKey, bounds: Bounds, *, duplicates: bool) -> None:
    name = key.to_user_string()
    if ingestion.partitions is not None:
        given = [option for option in ("max_lag", "max_delay") if getattr(bounds, option) is not None]
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
    if bounds.max_rejected is not None and NO_RECORDS_REJECTED not in ingestion.checks:
        raise ConfigurationError(
            f"max_rejected: an undecodable record fails a run of the asset {name}, so there is nothing to "
            'count; it is for on_error="null" and dead_letter'
        )
