"""Kafka topics as Dagster assets: the start of a table's lineage."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
import warnings
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetKey,
    AssetRecordsFilter,
    AssetsDefinition,
    AssetSpec,
    BetaWarning,
    DataVersion,
    ObserveResult,
    multi_observable_source_asset,
)

from dagster_kafka_flip.assets.asset_options import DescriptionOptions, dagsters_errors, given_options
from dagster_kafka_flip.assets.column_descriptions import record_schema
from dagster_kafka_flip.assets.metadata import COLUMN_SCHEMA
from dagster_kafka_flip.assets.resources import kafka_of
from dagster_kafka_flip.assets.step_events import step_events
from dagster_kafka_flip.errors import TopicNotFoundError
from dagster_kafka_flip.settings.arguments import check_options
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.state import position_from_json, position_to_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dagster import AssetExecutionContext, DagsterInstance
    from typing_extensions import Unpack

    from dagster_kafka_flip.source.split import Position, TopicMetadata, TopicSettings


# Maximum length of an op name, which is a column in Dagster's database and part of the run log.
_LONGEST_NAME = 60
_PLAIN = re.compile(rf"[A-Za-z0-9_]{{1,{_LONGEST_NAME}}}")

# For one request of an observation.
_SECONDS = 5.0


def topic_asset_key(topic: str, cluster: str | None = None, kafka: str = "kafka") -> AssetKey:
    """Returns the asset key of a topic: `kafka/<topic>`, or `kafka/<cluster>/<topic>` if the source names its cluster.

    Args:
        topic: The topic.
        cluster: The cluster from `set_cluster`. Default: none.
        kafka: Key of the KafkaResource, with which the asset key begins. Default: `kafka`.
    """
    return AssetKey([kafka, *([] if cluster is None else [cluster]), topic])


def upstream_asset_keys(source: KafkaSource, kafka: str) -> tuple[AssetKey, ...]:
    """The asset keys of a source: one per topic, or one for a pattern, whose topics may change."""
    subscription = source.subscription
    if subscription.pattern is not None:
        return (topic_asset_key(re.sub(r"[^A-Za-z0-9._-]+", "_", subscription.pattern), source.cluster, kafka),)
    return tuple(topic_asset_key(topic, source.cluster, kafka) for topic in subscription.named_topics)


@check_options(DescriptionOptions.__annotations__)
def kafka_topic_asset(
    source: KafkaSource | str | Sequence[str], *, kafka: str = "kafka", **asset_options: Unpack[DescriptionOptions]
) -> AssetsDefinition:
    """Creates an observable asset for each topic of a source; for a pattern, one asset for all matching topics.

    An observation reads the end offsets, which are the data version, so that downstream automation conditions see new
    records. The number of requests does not depend on the number of topics. A run can also observe a subset of the
    topics.

    If a topic is missing, its observation says so, and its data version changes, so that the assets downstream run and
    fail. If there is no other topic, the run fails.

    Args:
        source: The source; of topics, their names are enough. `source.only(topics)` makes assets of a pattern's topics.
        kafka: Key of the KafkaResource.
        **asset_options: Dagster's options `description`, `group_name`, `owners`, `tags`, `metadata` and
            `automation_condition`.
    """
    source = KafkaSource.of(source)
    options = given_options(kafka=kafka, **asset_options)
    return observable_topics(source, kafka, dict.fromkeys(upstream_asset_keys(source, kafka), options))


def observable_topics(
    source: KafkaSource, kafka: str, options: Mapping[AssetKey, Mapping[str, Any]]
) -> AssetsDefinition:
    """Like `kafka_topic_asset`, with Dagster's options of each asset."""
    keys = [*options]
    is_pattern = source.topic_pattern is not None
    with warnings.catch_warnings(), dagsters_errors(keys[0].to_user_string()):
        warnings.simplefilter("ignore", BetaWarning)

        @multi_observable_source_asset(
            name=op_name("observe", keys),
            specs=[_spec(key, f"The Kafka {source}." if is_pattern else None, given) for key, given in options.items()],
            can_subset=True,
            required_resource_keys={kafka},
        )
        # Without annotations: Dagster inspects them, and in this module they are only strings.
        def observe(context):  # noqa: ANN001, ANN202 # pyright: ignore[reportMissingParameterType]
            yield from step_events(context, _observe(context, source, kafka))

    return observe


def _observe(context: AssetExecutionContext, source: KafkaSource, kafka: str) -> Iterator[ObserveResult]:
    is_pattern = source.topic_pattern is not None
    # Those of the run: whoever loads definitions may put a prefix before their keys.
    keys = {key.path[-1]: key for key in context.selected_asset_keys}
    connection = kafka_of(context, kafka, source.cluster)
    # The next observation is soon.
    connection = connection.model_copy(update={"request_timeout": min(_SECONDS, connection.request_timeout)})
    wanted = source if is_pattern else source.only(keys)
    with contextlib.closing(KafkaCluster(connection, source.librdkafka_config(), context.log)) as cluster:
        described = wanted.subscription.describe(cluster, skip_missing=True)
        partitions = [tp for topic in described.values() for tp in topic.partitions]
        end = cluster.end_offsets(partitions, source.isolation_level)
        beginning = cluster.beginning_offsets(partitions)
        settings = cluster.topic_settings(described) if described else {}
    observed = (
        [(next(iter(keys.values())), tuple(described.values()))]
        if is_pattern
        else [(keys[topic.name], (topic,)) for topic in described.values()]
    )
    for key, topics in observed:
        last = _last_observation(context.instance, key)
        yield _observation(key, topics, (beginning, end), settings, last)
    missing = wanted.subscription.missing(described)
    if not missing:
        return
    msg = (
        f"topic does not exist on {connection.bootstrap_servers}, or this client may not describe it: "
        f"{', '.join(missing)}; {len(observed)} other topics were observed. Create it, or remove it from the source"
    )
    if is_pattern or not observed:
        raise TopicNotFoundError(msg)
    # Not an error of the step: it would also stop the tables of the other topics, if they are in the same run.
    context.log.error(msg)
    for topic, key in keys.items():
        if topic not in described:
            gone = _data_version({topic: None}, None)
            yield ObserveResult(asset_key=key, data_version=gone, metadata={"kafka/topics": 0})


def _spec(key: AssetKey, description: str | None, asset_options: Mapping[str, Any]) -> AssetSpec:
    given: dict[str, Any] = {**asset_options}
    given["description"] = given.get("description") or description or f"The Kafka topic {key.path[-1]}."
    given["metadata"] = {COLUMN_SCHEMA: record_schema(), **(given.get("metadata") or {})}
    return AssetSpec(key=key, kinds={"kafka"}, **given)


def op_name(verb: str, keys: Sequence[AssetKey]) -> str:
    """Returns a unique name, also of topics that differ only in characters that op names don't allow.

    A name from which one topic can be told again needs no hash.
    """
    names = ["/".join(key.path[1:] if key.path[:-1] == ["kafka"] else key.path) for key in keys]
    name = names[0].replace("-", "___").replace(".", "__")
    is_told = name.replace("___", "-").replace("__", ".") == names[0] and _PLAIN.fullmatch(name)
    if len(names) == 1 and is_told:
        return f"{verb}_{name}"
    name = re.sub(r"[^A-Za-z0-9_]", "_", names[0])[:_LONGEST_NAME]
    return f"{verb}_{name}_{hashlib.sha256(json.dumps(names).encode()).hexdigest()[:8]}"


def _observation(
    key: AssetKey,
    topics: Sequence[TopicMetadata],
    offsets: tuple[Position, Position],
    settings: Mapping[str, TopicSettings],
    last: tuple[float, Mapping[str, Any]] | None,
) -> ObserveResult:
    partitions = [tp for topic in topics for tp in topic.partitions]
    beginning_offsets, end_offsets = ({tp: each[tp] for tp in partitions} for each in offsets)
    topic_ids = {topic.name: topic.topic_id for topic in topics}
    ends = position_to_json(end_offsets)
    metadata: dict[str, Any] = {
        "kafka/topics": len(topics),
        "kafka/partitions": len(partitions),
        "kafka/offset_span": sum(end_offsets.values()) - sum(beginning_offsets.values()),
    }
    identity = ", ".join(topic_id or "unknown" for topic_id in topic_ids.values())
    rate = None if last is None else _rate(last, identity, end_offsets)
    if rate is not None:
        metadata["kafka/offsets_per_second"] = rate
    known = [settings[topic.name] for topic in topics if topic.name in settings]
    if known:
        metadata["kafka/timestamp_type"] = ", ".join(sorted({each.timestamp_type for each in known}))
    limits = [each.retention_ms for each in known if each.retention_ms is not None]
    if limits:
        metadata["kafka/retention_hours"] = round(min(limits) / 3_600_000, 3)
    # Long values come last on the page.
    metadata |= {
        "kafka/topic_id": identity,
        "kafka/end_offsets": ends,
        "kafka/beginning_offsets": position_to_json(beginning_offsets),
    }
    return ObserveResult(asset_key=key, data_version=_data_version(topic_ids, ends), metadata=metadata)


def _last_observation(instance: DagsterInstance, key: AssetKey) -> tuple[float, Mapping[str, Any]] | None:
    records = instance.fetch_observations(AssetRecordsFilter(asset_key=key), limit=1).records
    observation = records[0].asset_observation if records else None
    if observation is None:
        return None
    return records[0].timestamp, {name: value.value for name, value in observation.metadata.items()}


def _rate(last: tuple[float, Mapping[str, Any]], topic_ids: str, end_offsets: Position) -> float | None:
    """Offsets written per second since the last observation; None if the logs changed or no time passed."""
    then, known = last
    seconds = time.time() - then
    ends = known.get("kafka/end_offsets")
    if known.get("kafka/topic_id") != topic_ids or not isinstance(ends, dict) or seconds <= 0:
        return None
    before = position_from_json(ends)
    grown = [offset - before.get(tp, 0) for tp, offset in end_offsets.items()]
    # A log with a lower end offset is a different one, even without topic ids.
    if not grown or min(grown) < 0:
        return None
    return round(sum(grown) / seconds, 3)


def _data_version(topic_ids: Any, end_offsets: Any) -> DataVersion:
    return DataVersion(hashlib.sha256(json.dumps([topic_ids, end_offsets]).encode()).hexdigest()[:32])
