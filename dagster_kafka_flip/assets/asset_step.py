"""The step of assets: what every definition of this package does alike."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from dagster import AssetsDefinition, AssetSpec, BetaWarning, multi_asset

from dagster_kafka_flip.assets.asset_options import OpOptions, dagsters_errors
from dagster_kafka_flip.assets.step_events import step_events
from dagster_kafka_flip.assets.transform_arguments import located_at

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from dagster import AssetCheckSpec, AssetExecutionContext, Config

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
