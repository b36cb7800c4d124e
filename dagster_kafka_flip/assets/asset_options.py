"""Checks the options of an asset that are Dagster's, where they are given: Dagster's own errors name no option."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetKey,
    AutomationCondition,
    BackfillPolicy,
    DagsterInvalidDefinitionError,
    FreshnessPolicy,
    RetryPolicy,
)
from dagster._check import CheckError

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings import expect

if TYPE_CHECKING:
    from collections.abc import Generator

_LIST = "a list"
# What an option may be, and how it is written. A text is no list, although Python takes it apart into letters.
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
    "pool": (str, '"writers"'),
    "retry_policy": (RetryPolicy, "RetryPolicy(max_retries=3)"),
    "spark": (str, '"spark", the key of the SparkResource in Definitions(resources=...)'),
    "tags": (Mapping, '{"tier": "1"}'),
    "topics_of": (Mapping, '{"sales": ["orders", "returns"]}'),
}
# By which its errors tell what they are about.
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
    """Checks what they are; what they say is checked by Dagster.

    Args:
        **options: By name; None for those that are not given.

    Raises:
        ConfigurationError: One of them is something else.
    """
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
        msg = f"name: {name!r} can't be the name of an asset; write letters, digits and '_' alone, or give key="
        raise ConfigurationError(msg)
    _check_topics_of(options.get("topics_of"))


def _check_topics_of(topics_of: Mapping[str, object] | None) -> None:
    for key, topics in (topics_of or {}).items():
        if isinstance(topics, (str, bytes)) or not isinstance(topics, Iterable):
            expect(f"topics_of[{key!r}]", topics, list, '["orders"]')


@contextlib.contextmanager
def dagsters_errors(name: str) -> Generator[None, None, None]:
    """Has what Dagster refuses in a definition told as an error of a configuration.

    Args:
        name: The asset.

    Raises:
        ConfigurationError: Dagster has refused it.
    """
    try:
        yield
    except (CheckError, DagsterInvalidDefinitionError) as error:
        said = (str(error).strip().splitlines() or ["no message"])[0]
        option = next((f"{each}: " for word, each in _DAGSTERS_WORDS.items() if word in said), "")
        msg = f"{option}Dagster can't make the asset {name}: {said}"
        raise ConfigurationError(msg) from error
