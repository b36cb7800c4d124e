"""The definition of assets that land topics: of one table, or of several from one read."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from dagster_kafka_flip.assets.asset_options import dagsters_errors
from dagster_kafka_flip.assets.asset_step import step
from dagster_kafka_flip.assets.metadata import table_metadata
from dagster_kafka_flip.assets.registry import register, selected_ingestions
from dagster_kafka_flip.assets.run_checks import check_specs
from dagster_kafka_flip.assets.topic_asset import upstream_asset_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

    from dagster import AssetExecutionContext, AssetKey, AssetsDefinition, AssetSpec

    from dagster_kafka_flip.assets.asset_ingestion import Ingestion, StepEvent


def landed(
    name: str,
    tables: Sequence[tuple[AssetSpec, Ingestion]],
    options: dict[str, Any],
    run: Callable[[AssetExecutionContext, Mapping[AssetKey, Ingestion]], Iterator[StepEvent]],
) -> AssetsDefinition:
    """Creates the definition."""
    for _, ingestion in tables:
        ingestion.check_layout()
    with dagsters_errors(name):
        specs = [_spec(*table) for table in tables]
    ingestions = {spec.key: ingestion for spec, ingestion in tables}

    def land(context: AssetExecutionContext) -> Iterator[StepEvent]:
        if chosen := selected_ingestions(context):
            yield from run(context, chosen)

    first = tables[0][1]
    made = step(
        name,
        specs,
        land,
        options,
        resources=set[str]().union(*(ingestion.resource_keys for ingestion in ingestions.values())),
        config=first.config,
        checks=[spec for key, ingestion in ingestions.items() for spec in check_specs(ingestion.checks, key)],
        transform=first.transform if len(tables) == 1 else None,
        # Else Dagster's conditions would start the asset with an explicit list of the checks that it can't do without,
        # and leave out all others, of every asset in the run.
        can_subset=True,
    )
    return register(made, ingestions)


def _spec(spec: AssetSpec, ingestion: Ingestion) -> AssetSpec:
    described = None if ingestion.transform is None else inspect.getdoc(ingestion.transform)
    return spec.replace_attributes(
        deps=[*upstream_asset_keys(ingestion.source, ingestion.kafka), *spec.deps],
        kinds={"deltalake", "spark", *spec.kinds},
        metadata={**table_metadata(ingestion.target), **spec.metadata},
        description=spec.description or described or f"Unchanged records from Kafka: {ingestion.source}.",
    )
