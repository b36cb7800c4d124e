"""Which assets land what: for whoever looks at definitions without a run, and against two that share a stream."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from dagster import AssetKey, AssetsDefinition, OpDefinition
from dagster_shared.check import CheckError

from dagster_kafka_flip.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster import AssetExecutionContext

    from dagster_kafka_flip.asset_ingestion import Ingestion

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
    """Makes sure that no other asset feeds the same stream of the same table: each would land a part of the records.

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
        ConfigurationError: Two assets feed the same stream of the same table.
    """
    landed = {
        other: made
        for other, definition in definitions.items()
        if (made := ingestions_of(definition).get(other)) is not None and made.partitions is None
    }
    for key, ingestion in ingestions.items():
        target = ingestion.target
        for other_key, other in landed.items():
            is_other = other is not ingestion and other_key != key and ingestion.partitions is None
            if is_other and (other.target.identity, other.target.stream) == (target.identity, target.stream):
                msg = (
                    f"the assets {key.to_user_string()} and {other_key.to_user_string()} both feed the stream "
                    f"{target.stream!r} of {target}, so that each would land a part of the records. Give one of them "
                    "another table, or a stream of its own if it reads other topics"
                )
                raise ConfigurationError(msg)
