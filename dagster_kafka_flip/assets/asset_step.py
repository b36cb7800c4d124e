"""The step of assets: what every definition of this package does alike."""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING, Any

from dagster import AssetsDefinition, AssetSpec, BetaWarning, multi_asset

from dagster_kafka_flip.assets.asset_options import OpOptions, dagsters_errors
from dagster_kafka_flip.assets.metadata import table_metadata
from dagster_kafka_flip.assets.registry import register, selected_ingestions
from dagster_kafka_flip.assets.run_checks import check_specs
from dagster_kafka_flip.assets.step_events import step_events
from dagster_kafka_flip.assets.topic_asset import upstream_asset_keys
from dagster_kafka_flip.assets.transform_arguments import located_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from dagster import AssetCheckSpec, AssetExecutionContext, AssetKey, Config

    from dagster_kafka_flip.assets.asset_ingestion import Ingestion, StepEvent

_OF_OP = (*OpOptions.__annotations__, "backfill_policy")


def step(
    name: str,
    specs: Sequence[AssetSpec],
    run: Callable[[AssetExecutionContext], Iterator[Any]],
    options: dict[str, Any],
    *,
    resources: Collection[str],
    config: type[Config] | None = None,
    checks: Sequence[AssetCheckSpec] = (),
    can_subset: bool = False,
    transform: Callable[..., Any] | None = None,
) -> AssetsDefinition:
    """Creates the definition of assets that one step materializes."""

    # Without annotations: Dagster inspects them, and in this module they are only strings.
    def materialize(context):  # noqa: ANN001, ANN202 # pyright: ignore[reportMissingParameterType]
        yield from step_events(context, run(context))

    # Backfill policies are in beta; hides the warning for the default policy.
    with dagsters_errors(name), warnings.catch_warnings():
        warnings.simplefilter("ignore", BetaWarning)
        make_assets: Any = multi_asset(
            name=name,
            specs=[spec.replace_attributes(skippable=True) for spec in specs],
            can_subset=can_subset,
            check_specs=checks,
            required_resource_keys=set(resources),
            config_schema=None if config is None else config.to_fields_dict(),
            **{option: options[option] for option in _OF_OP if option in options},
        )
        return make_assets(located_at(transform, materialize))


def asset_spec(key: Any, options: dict[str, Any], **ours: Any) -> AssetSpec:
    """The spec of an asset with Dagster's options; ours come first, where there may be several."""
    given: dict[str, Any] = {name: value for name, value in options.items() if name not in _OF_OP}
    merged: dict[str, Any] = {
        "deps": [*ours.pop("deps", ()), *given.pop("deps", ())],
        "kinds": {*ours.pop("kinds"), *given.pop("kinds", ())},
        "metadata": {**ours.pop("metadata", {}), **given.pop("metadata", {})},
    }
    return AssetSpec(key, **{**ours, **given, **merged})


def landed(
    name: str,
    tables: Sequence[tuple[AssetSpec, Ingestion]],
    options: dict[str, Any],
    run: Callable[[AssetExecutionContext, Mapping[AssetKey, Ingestion]], Iterator[StepEvent]],
) -> AssetsDefinition:
    """Creates the definition of assets that land topics: of one table, or of several from one read."""
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
