"""Dagster's own options of an asset: their names, and its errors about them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from dagster import DagsterInvalidDefinitionError

from dagster_kafka_flip.assets.dagster_internals import CheckError
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.arguments import expect

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from dagster import AutomationCondition, BackfillPolicy, FreshnessPolicy, PartitionsDefinition, RetryPolicy

    from dagster_kafka_flip.assets.dagster_internals import CoercibleToAssetKey


class DescriptionOptions(TypedDict, total=False):
    """Dagster's options that describe an asset and when it is materialized.

    Attributes:
        description: Description. Default: the function's docstring.
        group_name: Asset group.
        owners: Owners.
        tags: Tags.
        metadata: Additional definition metadata.
        automation_condition: Condition for materializations, or for a topic's observations.
    """

    description: str | None
    group_name: str | None
    owners: Sequence[str] | None
    tags: Mapping[str, str] | None
    metadata: Mapping[str, Any] | None
    automation_condition: AutomationCondition[Any] | None


class OpOptions(TypedDict, total=False):
    """Dagster's options of the op that materializes assets.

    Attributes:
        op_tags: Tags of the op, such as `dagster-k8s/config` for the resources of its pod.
        retry_policy: Dagster's retries of a failed step. They never duplicate rows.
        pool: Concurrency pool. Default: `delta:` and the table (of several tables: and the name).
    """

    op_tags: Mapping[str, Any] | None
    retry_policy: RetryPolicy | None
    pool: str | None


class MaterializedOptions(DescriptionOptions, OpOptions, total=False):
    """Dagster's options of an asset that a step materializes, whatever its key.

    Attributes:
        deps: Additional upstream assets.
        kinds: Additional kinds.
        freshness_policy: Required freshness.
        code_version: Version of the transform.
    """

    deps: Iterable[CoercibleToAssetKey] | None
    kinds: Iterable[str] | None
    freshness_policy: FreshnessPolicy | None
    code_version: str | None


class AssetOptions(MaterializedOptions, total=False):
    """Dagster's options of an asset, as in Dagster's `@asset`.

    Attributes:
        name: The asset's name. Default: the function's.
        key: The whole asset key, instead of name and prefix.
        key_prefix: Prefix of the asset key.
        partitions_def: Time partitions, perhaps with a static dimension for topics: a run replaces their rows. Default:
            a stream, which continues from its position.
        backfill_policy: How many partitions one run writes. Default: all requested.
    """

    name: str | None
    key: CoercibleToAssetKey | None
    key_prefix: str | Sequence[str] | None
    partitions_def: PartitionsDefinition[Any] | None
    backfill_policy: BackfillPolicy | None


OPTIONS_OF_DAGSTER = (AssetOptions, MaterializedOptions, DescriptionOptions, OpOptions)
"""The classes that describe the options of AssetOptions, each those that it adds."""

# Words in Dagster's errors that identify the option.
_DAGSTERS_WORDS = {
    "group name": "group_name",
    "owner": "owners",
    "pool": "pool",
    "kinds": "kinds",
    "tag ": "tags",
    "Tag ": "tags",
}


def given_options(**options: Any) -> dict[str, Any]:
    """Returns the options that are set. Dagster validates them, but would take a string for a list of letters.

    Those that ours are added to are looked at first: Python's error would not name the option.
    """
    for option in ("deps", "kinds", "owners"):
        value = options.get(option)
        if isinstance(value, (str, bytes)) or not (value is None or isinstance(value, Iterable)):
            expect(option, value, list, '["..."]')
    for option in ("metadata", "op_tags", "tags"):
        if options.get(option) is not None:
            expect(option, options[option], Mapping, '{"...": "..."}')
    for option in ("kafka", "spark"):
        if option in options:
            expect(option, options.pop(option), str, f'"{option}", the key of a resource in Definitions(resources=...)')
    return {name: value for name, value in options.items() if value is not None}


@contextlib.contextmanager
def dagsters_errors(name: str) -> Generator[None, None, None]:
    """Context manager: converts Dagster's definition errors to ConfigurationError."""
    try:
        yield
    except (CheckError, DagsterInvalidDefinitionError, TypeError) as error:
        reason = (str(error).strip().splitlines() or ["no message"])[0]
        option = next((f"{each}: " for word, each in _DAGSTERS_WORDS.items() if word in reason), "")
        raise ConfigurationError(f"{option}Dagster can't create the asset {name}: {reason}") from error
