"""One asset for each topic of a source: of a list, or of a pattern, whose topics are those of the moment of loading."""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING, Any, cast

from dagster import AssetKey
from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext, DefinitionsLoadType

from dagster_kafka_flip.assets.kafka_delta_asset import build_kafka_delta_asset
from dagster_kafka_flip.assets.registry import ingestions_of
from dagster_kafka_flip.assets.resources import KafkaResource
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.ingestion.dead_letters import DeadLetters
from dagster_kafka_flip.settings import check_arguments, expect
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.subscription import TopicPatternSubscription
from dagster_kafka_flip.table.sql import quoted
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from os import PathLike

    from dagster import AssetsDefinition

TOPIC = "{topic}"
NAME = "{name}"
_TABLE_OPTIONS = frozenset({"table", "dead_letter"})
# What Kafka allows. A broker's word goes into paths, and it may be anybody's broker.
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


@check_arguments
def matching_topics(source: KafkaSource, connection: KafkaConnection | KafkaResource | None = None) -> tuple[str, ...]:
    """The topics of a source, for definitions that are made of them.

    For a pattern, the cluster is asked once, when the code location is loaded. The processes of a run load definitions
    again, and are told what was found then: a topic that comes up meanwhile does not change the definitions under them.
    It is seen when the code location is loaded the next time.

    Args:
        source: A list of topics, topic partitions, or a pattern.
        connection: Where Kafka is, for a pattern; EnvVars of a resource are read at once. Default: the source's own.

    Returns:
        The topics' names, sorted.

    Raises:
        ConfigurationError: It is a pattern, and nothing says where Kafka is.
        TopicNotFoundError: No topic matches.
        ClusterUnreachableError: No broker answered.
    """
    expect("source", source, KafkaSource, 'KafkaSource(topics=("orders",))')
    if connection is not None:
        expect(
            "connection", connection, (KafkaConnection, KafkaResource), 'KafkaConnection(bootstrap_servers="host:9092")'
        )
    subscription = source.subscription
    if not isinstance(subscription, TopicPatternSubscription):
        return subscription.topics
    if isinstance(connection, KafkaResource):
        connection = cast("KafkaResource", connection.process_config_and_initialize()).connection(source.cluster)
    if connection is None and source.connection is None:
        msg = (
            f"the topics that match {subscription.pattern!r} are asked for when definitions are loaded: say with "
            "connection= where Kafka is, or name them with topics="
        )
        raise ConfigurationError(msg)
    connected = source.connected(connection)
    where = connected.required_connection()
    key = f"dagster-kafka-flip/topics/{subscription.pattern}@{where.bootstrap_servers}"
    # As Dagster's own definitions from outside do it: what the code server found comes with the run.
    load = DefinitionsLoadContext.get()
    is_again = load.load_type is DefinitionsLoadType.RECONSTRUCTION
    known = (load.reconstruction_metadata if is_again else load.get_pending_reconstruction_metadata()).get(key)
    if known is None:
        with contextlib.closing(KafkaCluster(where, connected.librdkafka_config())) as cluster:
            known = json.dumps(sorted(subscription.describe(cluster)))
    load.add_to_pending_reconstruction_metadata(key, known)
    return tuple(json.loads(known))


@check_arguments
def build_kafka_delta_assets(
    *,
    source: KafkaSource,
    table: str | PathLike[str] | DeltaTarget,
    topics: Sequence[str] | None = None,
    connection: KafkaConnection | KafkaResource | None = None,
    **options: Any,
) -> list[AssetsDefinition]:
    """Makes an asset for each topic of a source, which lands the topic's records as they are decoded.

    In `table` and in every option that holds text, `{topic}` stands for the topic, and `{name}` for the topic with `_`
    for what no asset's name may have.

    Args:
        source: What to read; each asset reads one topic of it.
        table: Where to, such as `warehouse/{topic}`.
        topics: Which topics. Default: all that the source reads; those of a pattern are found as by `matching_topics`.
        connection: Where Kafka is, if topics of a pattern have to be found.
        **options: All others of `kafka_delta_asset`. Default name: `{name}`.

    Raises:
        ConfigurationError: Two topics would have the same asset or table, the source does not read one of `topics`, or
            the options contradict each other.
        TopicNotFoundError: No topic matches the pattern.
        ClusterUnreachableError: No broker answered.
    """
    expect("source", source, KafkaSource, 'KafkaSource(topics=("orders",))')
    table = table if isinstance(table, DeltaTarget) else DeltaTarget.of(table).table
    wanted = matching_topics(source, connection) if topics is None else topics
    return assets_by_topic(build_kafka_delta_asset, source, wanted, {"table": table, **options})


def assets_by_topic(
    make: Callable[..., AssetsDefinition], source: KafkaSource, topics: Sequence[str], options: Mapping[str, Any]
) -> list[AssetsDefinition]:
    """An asset for each topic.

    Args:
        make: Makes one, of the options of `kafka_delta_asset`.
        source: What to read.
        topics: Its topics.
        options: With `{topic}` and `{name}` in them.

    Raises:
        ConfigurationError: Two topics would have the same asset or table, or the source does not read a topic.
    """
    for topic in topics:
        if not _TOPIC_NAME.fullmatch(topic) or topic in {".", ".."}:
            msg = (
                f"the topic {topic!r} has a name that Kafka does not allow, and it is not put into the path or "
                "name of a table. Look where the name comes from: topics= or the broker"
            )
            raise ConfigurationError(msg)
    named = {**options} if options.get("name") or options.get("key") else {**options, "name": NAME}
    made = {
        topic: make(source=source.only([topic]), **_filled(named, topic)) for topic in dict.fromkeys(sorted(topics))
    }
    _check_distinct(made)
    return list(made.values())


def has_topic(value: Any) -> bool:
    """Whether an option has a place for the topic."""
    return any(place in text for text in _texts(value) for place in (TOPIC, NAME))


def _filled(value: Any, topic: str) -> Any:
    if isinstance(value, str):
        return value.replace(TOPIC, topic).replace(NAME, re.sub(r"[^A-Za-z0-9_]", "_", topic))
    if isinstance(value, AssetKey):
        return AssetKey(_filled(value.path, topic))
    if isinstance(value, (DeltaTarget, DeadLetters)):
        changed = {name: filled for name, text in value if (filled := _filled(text, topic)) != text}
        if "table" in changed:
            changed["table"] = _filled_table(value.table, topic)
        return type(value)(**{**value.model_dump(exclude_unset=True), **changed}) if changed else value
    if isinstance(value, dict):
        return {
            _filled(key, topic): (_filled_table if key in _TABLE_OPTIONS and isinstance(each, str) else _filled)(
                each, topic
            )
            for key, each in value.items()
        }
    if type(value) in {list, tuple}:  # and not what Dagster derives of a tuple
        return type(value)(_filled(each, topic) for each in value)
    return value


def _filled_table(table: str, topic: str) -> str:
    """A table's name or path; a topic stays within its part of a catalog name, whatever dots it has."""
    target = DeltaTarget(table=table)
    filled: str = _filled(table, topic)
    if target.is_path or "." not in topic:
        return filled
    parts: list[str] = [_filled(part, topic) for part in target.name_parts]
    return ".".join(quoted(part) if "." in part or "`" in part else part for part in parts)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, AssetKey):
        yield from value.path
    elif type(value) in {list, tuple}:  # and not what Dagster derives of a tuple
        yield from value
    elif isinstance(value, DeltaTarget):
        yield value.table


def _check_distinct(made: Mapping[str, AssetsDefinition]) -> None:
    seen: dict[tuple[str, str], str] = {}
    for topic, assets_def in made.items():
        for thing, remedy in _things(assets_def):
            first = seen.setdefault(thing, topic)
            if first != topic:
                msg = f"the topics {first} and {topic} would have the same {' '.join(thing)}; {remedy}"
                raise ConfigurationError(msg)


def _things(assets_def: AssetsDefinition) -> Iterator[tuple[tuple[str, str], str]]:
    """What no two assets may have in common, with what to do about it."""
    # Dagster names the op by it, and takes no two ops of one name.
    yield (
        ("asset", assets_def.key.to_python_identifier()),
        f"put {TOPIC} into name or key, or land one of them by an asset of its own with another name",
    )
    ingestion = ingestions_of(assets_def).get(assets_def.key)
    if ingestion is None:
        return
    target = ingestion.target
    yield (
        ("table and stream", f"{target.identity} ({target.stream})"),
        f"put {TOPIC} into table, or into stream if one table is to hold both",
    )
    if ingestion.dead_letter is not None:
        letters = ingestion.dead_letter.target(target)
        yield (
            ("dead-letter table and stream", f"{letters.identity} ({letters.stream})"),
            f"put {TOPIC} into the table or the stream of dead_letter",
        )
