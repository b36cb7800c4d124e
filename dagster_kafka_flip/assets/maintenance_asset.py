"""A downstream asset that runs OPTIMIZE and VACUUM on a table."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dagster import AssetKey, AssetsDefinition, MaterializeResult

from dagster_kafka_flip.assets.asset_options import MaterializedOptions, dagsters_errors, given_options
from dagster_kafka_flip.assets.asset_step import asset_spec, step
from dagster_kafka_flip.assets.metadata import table_metadata
from dagster_kafka_flip.assets.registry import ingestion_of
from dagster_kafka_flip.assets.resources import spark_of
from dagster_kafka_flip.errors import ConfigurationError, PositionTooOldError
from dagster_kafka_flip.settings.arguments import check_options, expect
from dagster_kafka_flip.table.maintenance import SHORTEST_RETENTION, maintain

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dagster import AssetExecutionContext
    from typing_extensions import Unpack

    from dagster_kafka_flip.assets.asset_ingestion import Ingestion
    from dagster_kafka_flip.assets.dagster_internals import CoercibleToAssetKey
    from dagster_kafka_flip.table.maintenance import Maintained
    from dagster_kafka_flip.table.target import DeltaTarget


@check_options(MaterializedOptions.__annotations__)
def kafka_delta_maintenance(
    asset: AssetsDefinition,
    *,
    key: CoercibleToAssetKey | None = None,
    vacuum_after: timedelta | None = SHORTEST_RETENTION,
    **asset_options: Unpack[MaterializedOptions],
) -> AssetsDefinition:
    """Creates an asset that compacts a table's files. Pass it to `Definitions(assets=...)`.

    It runs OPTIMIZE and VACUUM on the asset's table and on its dead-letter table. Its key is that of the asset with
    `_maintenance` at the end. It shares the asset's group, pool and lock.

    If the stream did not run for half of `delta.logRetentionDuration`, it fails before it changes anything: Delta could
    delete the commit that holds the position.

    Args:
        asset: The asset that lands the topics.
        key: Key of one of its assets, if there are several. Default: the only one.
        vacuum_after: How long old versions stay, at least 7 days; None for no VACUUM. Default: 7 days.
        **asset_options: Dagster's options: those of AssetOptions without a key, partitions and pool.

    Raises:
        ConfigurationError: The asset is not from this package, or `vacuum_after` is shorter than 7 days.
    """
    asset_key, ingestion = ingestion_of(asset, key, "kafka_delta_maintenance")
    options = {"group_name": asset.specs_by_key[asset_key].group_name, **given_options(**asset_options)}
    if options.setdefault("pool", asset.op.pool) != asset.op.pool:
        raise ConfigurationError(
            f"pool: maintenance shares the pool of {asset_key.to_user_string()}, so that the two don't write at once",
            "Set that of the asset",
        )
    if vacuum_after is not None:
        expect("vacuum_after", vacuum_after, timedelta, "timedelta(days=7)")
        if vacuum_after < SHORTEST_RETENTION:
            raise ConfigurationError(
                f"vacuum_after={vacuum_after}: must be at least {SHORTEST_RETENTION.days} days, or None for no "
                "VACUUM; a run or a reader may still need recently replaced files"
            )
    own_key = AssetKey([*asset_key.path[:-1], f"{asset_key.path[-1]}_maintenance"])
    with dagsters_errors(own_key.to_user_string()):
        spec = asset_spec(
            own_key,
            options,
            deps=[asset_key],
            description=f"OPTIMIZE and VACUUM of the table {ingestion.target}.",
            metadata=table_metadata(ingestion.target),
            kinds={"deltalake", "spark"},
        )
    return step(
        own_key.to_python_identifier(),
        [spec],
        lambda context: _run(context, ingestion, vacuum_after),
        options,
        resources={ingestion.spark},
    )


def _run(
    context: AssetExecutionContext, ingestion: Ingestion, vacuum_after: timedelta | None
) -> Iterator[MaterializeResult[Any]]:
    session = spark_of(context, ingestion.spark)()
    has_position = ingestion.partitions is None or ingestion.partitions.rules.repair
    done = maintain(session, ingestion.target, vacuum_after, has_position=has_position)
    metadata = _maintained(context, done, ingestion.target, "delta")
    if ingestion.dead_letter is not None:
        target = ingestion.dead_letter.target(ingestion.target)
        try:
            metadata |= _maintained(context, maintain(session, target, vacuum_after), target, "dead_letter")
        except PositionTooOldError:
            # Nothing commits its position again before a record is rejected; until then no small files are added.
            context.log.info("no records were rejected recently; skipping the dead-letter table %s", target)
    yield MaterializeResult(metadata=metadata)


def _maintained(
    context: AssetExecutionContext, done: Maintained | None, target: DeltaTarget, prefix: str
) -> dict[str, int]:
    """Logs the result for a table, and returns its metadata; omits unknown values."""
    if done is None:
        context.log.info("the table %s does not exist yet; nothing to do", target)
        return {}
    context.log.info(
        "%s: OPTIMIZE replaced %d files by %d; version %d has %d files of %d bytes",
        target,
        done.files_removed,
        done.files_added,
        done.version,
        done.files,
        done.bytes,
    )
    numbers = {
        "version": done.version,
        "files": done.files,
        "bytes": done.bytes,
        "files_removed": done.files_removed,
        "files_added": done.files_added,
        "files_vacuumed": done.files_vacuumed,
    }
    return {f"{prefix}/{name}": number for name, number in numbers.items() if number is not None}
