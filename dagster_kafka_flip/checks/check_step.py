"""The step of asset checks that run on their own: their names, what they ask, and how a run answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dagster import AssetCheckSpec, multi_asset_check

from dagster_kafka_flip.assets.asset_options import dagsters_errors, given_options
from dagster_kafka_flip.assets.run_checks import WITH_ITS_ASSET
from dagster_kafka_flip.assets.step_events import step_events

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from dagster import AssetCheckResult, AssetChecksDefinition, AssetKey


def check_step(
    key: AssetKey,
    kind: str,
    questions: Mapping[str, str],
    answers: Callable[[Any, AssetKey], Iterator[AssetCheckResult]],
    *,
    resources: Collection[str] = (),
    blocking: bool = False,
    has_partitions: bool = False,
    op_tags: Mapping[str, Any] | None = None,
    pool: str | None = None,
) -> AssetChecksDefinition:
    """Creates the checks."""
    condition = None if has_partitions else WITH_ITS_ASSET
    options = given_options(op_tags=op_tags, pool=pool)

    with dagsters_errors(key.to_user_string()):

        @multi_asset_check(
            name=key.to_python_identifier(kind),
            specs=[
                AssetCheckSpec(name, asset=key, description=text, blocking=blocking, automation_condition=condition)
                for name, text in questions.items()
            ],
            can_subset=True,
            required_resource_keys=set(resources),
            **options,
        )
        # Without annotations: Dagster inspects them, and in this module they are only strings.
        def check(context):  # noqa: ANN001, ANN202 # pyright: ignore[reportMissingParameterType]
            # Not the definition's: it may get a prefix later.
            of_run = next(iter(context.selected_asset_check_keys)).asset_key
            yield from step_events(context, answers(context, of_run))

    return check


def selected(context: Any) -> set[str]:
    """The names of the checks that a run has selected."""
    return {key.name for key in context.selected_asset_check_keys}
