"""Which assets land what: for whoever looks at definitions without a run, and against two that share a stream."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dagster import AssetKey, AssetsDefinition, OpDefinition
from dagster_shared.check import CheckError

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.subscription import PartitionSetSubscription, TopicPatternSubscription

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster import AssetExecutionContext

    from dagster_kafka_flip.assets.asset_ingestion import Ingestion
    from dagster_kafka_flip.source.subscription import Subscription

# By op: Dagster binds resources, adds tags and makes subsets in copies of an AssetsDefinition, which share their op.
# And by output: keys may get a prefix later.
_INGESTIONS: WeakKeyDictionary[OpDefinition, Mapping[str, Ingestion]] = WeakKeyDictionary()


def register(assets_def: AssetsDefinition, ingestions: Mapping[AssetKey, Ingestion]) -> AssetsDefinition:
    """Notes what a definition lands; gives it back.

    Args:
        assets_def: Just made here.
        ingestions: What each of its assets lands, and where.
    """
    _INGESTIONS[assets_def.op] = {
        output: ingestions[key] for output, key in assets_def.keys_by_output_name.items() if key in ingestions
    }
    return assets_def


def ingestions_of(assets_def: AssetsDefinition) -> dict[AssetKey, Ingestion]:
    """What the assets of a definition land, and where; nothing if it was not made here."""
    node = assets_def.node_def if assets_def.is_executable else None
    made = _INGESTIONS.get(node, {}) if isinstance(node, OpDefinition) else {}
    return {key: made[output] for output, key in assets_def.keys_by_output_name.items() if output in made}


def check_alone(context: AssetExecutionContext, ingestions: Mapping[AssetKey, Ingestion]) -> None:
    """Makes sure that no other asset gets in the way of these in the same table.

    Of two that feed the same stream, each would land a part of the records. Two with partitions would replace each
    other's rows, and a stream beside windows would land each record twice.

    Args:
        context: Of a run. Where Dagster knows no code location in it, as under `materialize()`, nothing can be told.
        ingestions: What the run's assets land, and where.

    Raises:
        ConfigurationError: Another asset of the code location does.
    """
    with contextlib.suppress(CheckError):
        check_streams(ingestions, context.repository_def.assets_defs_by_key)


def check_streams(ingestions: Mapping[AssetKey, Ingestion], definitions: Mapping[AssetKey, AssetsDefinition]) -> None:
    """As `check_alone`, of definitions that were loaded without a run.

    Args:
        ingestions: What they land, and where.
        definitions: All definitions that there are.

    Raises:
        ConfigurationError: Two assets get in each other's way in the same table.
    """
    landed = {
        other: made
        for other, definition in definitions.items()
        if (made := ingestions_of(definition).get(other)) is not None
    }
    for key, ingestion in ingestions.items():
        for other_key, other in landed.items():
            same = other.target.identity == ingestion.target.identity
            is_other = other is not ingestion and other_key != key and same
            if is_other and (what := _clash(ingestion, other)) is not None:
                msg = f"the assets {key.to_user_string()} and {other_key.to_user_string()} both {what}"
                raise ConfigurationError(msg)


def _clash(one: Ingestion, other: Ingestion) -> str | None:
    """Why two assets can't land in the same table; None if they can."""
    target = one.target
    # A repair lands what the stream has landed before.
    if any(each.partitions is not None and each.partitions.rules.repair for each in (one, other)):
        return None
    if (one.partitions is None) != (other.partitions is None):
        return (
            f"land in {target}, one of them as a stream and one by partitions, so that each record would be there "
            "twice. Give one of them another table; for partitions that only read again what the stream has landed, "
            "say Windows(repair=True)"
        )
    if other.target.stream != target.stream:
        return None
    if one.partitions is None:
        return (
            f"feed the stream {target.stream!r} of {target}, so that each would land a part of the records. Give one "
            "of them another table, or a stream of its own if it reads other topics"
        )
    if _are_apart(one.source.subscription, other.source.subscription):
        return None
    return (
        f"land windows in {target} under the stream {target.stream!r}, so that each would replace the rows that the "
        "other has landed of a topic. Give one of them another table, or a stream of its own if it reads other topics"
    )


def _are_apart(one: Subscription, other: Subscription) -> bool:
    """Whether it is certain that two subscriptions have no topic partition in common."""
    if isinstance(one, TopicPatternSubscription) or isinstance(other, TopicPatternSubscription):
        patterns = [each for each in (one, other) if isinstance(each, TopicPatternSubscription)]
        named = [
            topic for each in (one, other) if not isinstance(each, TopicPatternSubscription) for topic in each.topics
        ]
        return len(patterns) == 1 and not any(patterns[0].may_read(TopicPartition(topic, 0)) for topic in named)
    if isinstance(one, PartitionSetSubscription) and isinstance(other, PartitionSetSubscription):
        return not set(one.partitions) & set(other.partitions)
    return not set(one.topics) & set(other.topics)
