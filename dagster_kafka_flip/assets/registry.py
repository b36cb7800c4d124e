"""Registry of the assets that this package defines, used without a run and to detect conflicting assets."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from dagster import AssetKey, AssetsDefinition, OpDefinition

from dagster_kafka_flip.assets.asset_ingestion import Ingestion
from dagster_kafka_flip.assets.dagster_internals import CheckError
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.source.split import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster import AssetExecutionContext, RepositoryDefinition

    from dagster_kafka_flip.assets.dagster_internals import CoercibleToAssetKey
    from dagster_kafka_flip.source.subscription import Subscription

T = TypeVar("T")

# By op: Dagster binds resources, adds tags and creates subsets in copies of an AssetsDefinition, which share their op.
# And by output: keys may get a prefix later.
_DESCRIBED: WeakKeyDictionary[OpDefinition, Mapping[str, Any]] = WeakKeyDictionary()


def register(assets_def: AssetsDefinition, described: Mapping[AssetKey, Any]) -> AssetsDefinition:
    """Registers what the assets of a definition do, and returns the definition."""
    _DESCRIBED[assets_def.op] = {output: described[key] for output, key in assets_def.keys_by_output_name.items()}
    return assets_def


def registered(assets_def: AssetsDefinition, kind: type[T]) -> dict[AssetKey, T]:
    """What a definition's assets do, of one kind; empty if this package did not create it."""
    node = assets_def.node_def if assets_def.is_executable else None
    made = _DESCRIBED.get(node, {}) if isinstance(node, OpDefinition) else {}
    found = {key: made.get(output) for output, key in assets_def.keys_by_output_name.items()}
    return {key: each for key, each in found.items() if isinstance(each, kind)}


def ingestions_of(assets_def: AssetsDefinition) -> dict[AssetKey, Ingestion]:
    """The ingestions of a definition's assets; empty if this package did not create it, or it lands nothing."""
    return registered(assets_def, Ingestion)


def ingestion_of(asset: Any, key: CoercibleToAssetKey | None, caller: str) -> tuple[AssetKey, Ingestion]:
    """Returns one asset of a definition and its ingestion."""
    landed = ingestions_of(asset) if isinstance(asset, AssetsDefinition) else {}
    if not landed:
        what = (
            asset.key.to_user_string() if isinstance(asset, AssetsDefinition) and len(asset.keys) == 1 else repr(asset)
        )
        raise ConfigurationError(
            f"{caller}: {what} is not a Kafka Delta asset; pass the definition that kafka_delta_asset or "
            "build_kafka_delta_asset returned, not its key"
        )
    wanted = next(iter(landed)) if key is None and len(landed) == 1 else key and AssetKey.from_coercible(key)
    if wanted not in landed:
        which = "several assets" if key is None else f"no asset {AssetKey.from_coercible(key).to_user_string()}"
        names = ", ".join(sorted(one.to_user_string() for one in landed))
        raise ConfigurationError(f"{caller}: the definition has {which}; set key= to one of {names}")
    return wanted, landed[wanted]


def selected_ingestions(context: AssetExecutionContext) -> dict[AssetKey, Ingestion]:
    """The ingestions of the assets that a step is to land; none if the run selects only checks of them."""
    selected = context.selected_asset_keys
    chosen = {key: made for key, made in ingestions_of(context.assets_def).items() if key in selected}
    if not chosen:
        checks = ", ".join(sorted(key.to_user_string() for key in context.selected_asset_check_keys))
        context.log.warning("%s: only a run that lands the asset evaluates it. Materialize the asset", checks)
    with contextlib.suppress(CheckError):
        check_streams(by_table(chosen), by_table(ingestions_in(context.repository_def)))
    return chosen


def ingestions_in(repository: RepositoryDefinition) -> dict[AssetKey, Ingestion]:
    """The ingestions of a code location's assets."""
    every = repository.assets_defs_by_key
    return {key: made for key, each in every.items() if (made := ingestions_of(each).get(key)) is not None}


def by_table(ingestions: Mapping[AssetKey, Ingestion]) -> dict[str, dict[AssetKey, Ingestion]]:
    """Ingestions by the identity of their table. To find that asks the file system, so it is done once for each."""
    found: dict[str, dict[AssetKey, Ingestion]] = {}
    for key, ingestion in ingestions.items():
        found.setdefault(ingestion.target.identity, {})[key] = ingestion
    return found


def check_streams(
    tables: Mapping[str, Mapping[AssetKey, Ingestion]], others: Mapping[str, Mapping[AssetKey, Ingestion]]
) -> None:
    """Checks that no other asset conflicts with these in the same table.

    Two assets of the same stream would each get only some of the records. Two assets with partitions would replace each
    other's rows, and a stream and windows in one table would duplicate every record.
    """
    for table, ingestions in tables.items():
        for (key, one), (other_key, other) in itertools.product(ingestions.items(), others.get(table, {}).items()):
            if one is not other and key != other_key and (what := _clash(one, other)) is not None:
                msg = f"the assets {key.to_user_string()} and {other_key.to_user_string()} both {what}"
                raise ConfigurationError(msg)


def _clash(one: Ingestion, other: Ingestion) -> str | None:
    """The reason why two assets can't write to the same table; None if they can."""
    target = one.target
    # A repair rewrites the stream's own rows.
    if any(each.partitions is not None and each.partitions.rules.repair for each in (one, other)):
        return None
    if (one.partitions is None) != (other.partitions is None):
        return (
            f"write to {target}, one as a stream and one by partitions, so each record would be duplicated. Give one "
            "of them another table; if the partitions only repair the stream's rows, set Windows(repair=True)"
        )
    if other.target.stream != target.stream:
        return None
    if one.partitions is None:
        return (
            f"write to the stream {target.stream!r} of {target}, so each would get only some of the records. Give one "
            "of them another table, or its own stream if it reads other topics"
        )
    if _are_apart(one.source.subscription, other.source.subscription):
        return None
    return (
        f"write windows to {target} with the stream {target.stream!r}, so each would replace the other's rows of a "
        "topic. Give one of them another table, or its own stream if it reads other topics"
    )


def _are_apart(one: Subscription, other: Subscription) -> bool:
    """Whether two subscriptions certainly share no topic partition."""
    if one.pattern is not None or other.pattern is not None:
        pattern, named = (other, one) if one.pattern is None else (one, other)
        return named.pattern is None and not any(
            pattern.may_read(TopicPartition(topic, 0)) for topic in named.named_topics
        )
    if one.partitions is not None and other.partitions is not None:
        return not set(one.partitions) & set(other.partitions)
    return not set(one.named_topics) & set(other.named_topics)
