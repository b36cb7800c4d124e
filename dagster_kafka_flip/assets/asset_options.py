"""Dagster's own options of an asset: their names, and a validation where they are set.

Dagster's own errors do not name the option.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from dagster import (
    AssetKey,
    AutomationCondition,
    BackfillPolicy,
    DagsterInvalidDefinitionError,
    FreshnessPolicy,
    PartitionsDefinition,
    RetryPolicy,
)

from dagster_kafka_flip.assets.dagster_internals import CheckError
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.arguments import expect

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from dagster_kafka_flip.assets.dagster_internals import CoercibleToAssetKey


class DescriptionOptions(TypedDict, total=False):
    """Dagster's options that describe an asset and when it is materialized.

    Attributes:
        description: Description. Default: the function's docstring.
        group_name: Asset group. Default: Dagster's default group.
        owners: Owners.
        tags: Tags.
        metadata: Additional definition metadata.
        automation_condition: Condition for automatic materialization, or for a topic's observation, such as
            `AutomationCondition.on_cron("0 3 * * *")`.
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


class AssetOptions(DescriptionOptions, OpOptions, total=False):
    """Dagster's options of an asset, as in Dagster's `@asset`.

    Attributes:
        name: The asset's name. Default: the function's.
        key: The whole asset key, instead of name and prefix.
        key_prefix: Prefix of the asset key.
        deps: Additional upstream assets, besides the topics.
        kinds: Additional kinds, besides `deltalake` and `spark`.
        freshness_policy: Required freshness.
        code_version: Version of the transform.
        partitions_def: Time partitions, perhaps with a static dimension for topics: a run replaces their rows. Default:
            a stream, which continues from its position.
        backfill_policy: With partitions: how many of them one run writes. Default: all requested partitions.
    """

    name: str | None
    key: CoercibleToAssetKey | None
    key_prefix: str | Sequence[str] | None
    deps: Iterable[CoercibleToAssetKey] | None
    kinds: Iterable[str] | None
    freshness_policy: FreshnessPolicy | None
    code_version: str | None
    partitions_def: PartitionsDefinition[Any] | None
    backfill_policy: BackfillPolicy | None


OPTIONS_OF_DAGSTER = (AssetOptions, DescriptionOptions, OpOptions)
"""The classes that describe the options of AssetOptions, each those that it adds."""

_LIST = "a list"
# Type and example of each option. A string is not accepted as a list, although Python could iterate over it.
_KINDS: Mapping[str, tuple[type | tuple[type, ...] | str, str]] = {
    "automation_condition": (AutomationCondition, "AutomationCondition.eager()"),
    "backfill_policy": (BackfillPolicy, "BackfillPolicy.single_run()"),
    "code_version": (str, '"1"'),
    "deps": (_LIST, '["lake/customers"]'),
    "description": (str, '"Orders, as they are."'),
    "freshness_policy": (FreshnessPolicy, "FreshnessPolicy.time_window(fail_window=timedelta(hours=1))"),
    "group_name": (str, '"sales"'),
    "kafka": (str, '"kafka", the key of the KafkaResource in Definitions(resources=...)'),
    "key": ((str, AssetKey, list, tuple), '["lake", "orders"]'),
    "key_prefix": ((str, list, tuple), '"lake"'),
    "kinds": (_LIST, '["gold"]'),
    "metadata": (Mapping, '{"runbook": "https://..."}'),
    "name": (str, '"orders"'),
    "op_tags": (Mapping, '{"dagster-k8s/config": {}}'),
    "owners": (_LIST, '["team:sales"]'),
    "partitions_def": (PartitionsDefinition, 'DailyPartitionsDefinition("2026-01-01")'),
    "pool": (str, '"writers"'),
    "retry_policy": (RetryPolicy, "RetryPolicy(max_retries=3)"),
    "spark": (str, '"spark", the key of the SparkResource in Definitions(resources=...)'),
    "tags": (Mapping, '{"tier": "1"}'),
    "topics_of": (Mapping, '{"sales": ["orders", "returns"]}'),
}
# Words in Dagster's errors that identify the option.
_DAGSTERS_WORDS = {
    "group name": "group_name",
    "owner": "owners",
    "pool": "pool",
    "kinds": "kinds",
    "tag ": "tags",
    "Tag ": "tags",
}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]+")
_REQUIRED = frozenset({"kafka", "spark"})


def check_asset_options(**options: Any) -> None:
    """Checks the types of options; Dagster validates the values."""
    for option, value in options.items():
        if value is None and option not in _REQUIRED:
            continue
        kind, example = _KINDS[option]
        if isinstance(kind, str):
            if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
                expect(option, value, list, example)
        else:
            expect(option, value, kind, example)
    name = options.get("name")
    if name is not None and not _PLAIN_NAME.fullmatch(name):
        raise ConfigurationError(f"name: invalid asset name {name!r}; use letters, digits and '_' only, or set key=")
    _check_topics_of(options.get("topics_of"))


def _check_topics_of(topics_of: Mapping[str, object] | None) -> None:
    for key, topics in (topics_of or {}).items():
        if isinstance(topics, (str, bytes)) or not isinstance(topics, Iterable):
            expect(f"topics_of[{key!r}]", topics, list, '["orders"]')


@contextlib.contextmanager
def dagsters_errors(name: str) -> Generator[None, None, None]:
    """Context manager: converts Dagster's definition errors to ConfigurationError."""
    try:
        yield
    except (CheckError, DagsterInvalidDefinitionError) as error:
        reason = (str(error).strip().splitlines() or ["no message"])[0]
        option = next((f"{each}: " for word, each in _DAGSTERS_WORDS.items() if word in reason), "")
        raise ConfigurationError(f"{option}Dagster can't create the asset {name}: {reason}") from error
