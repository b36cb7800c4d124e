"""One asset per topic of a source: a list of topics, or a pattern that is resolved when definitions are loaded."""

from __future__ import annotations

import contextlib
import json
import re
from typing import TYPE_CHECKING, Any, cast

from dagster import AssetKey

from dagster_kafka_flip.assets.dagster_internals import DefinitionsLoadContext, DefinitionsLoadType
from dagster_kafka_flip.assets.kafka_delta_asset import build_kafka_delta_asset
from dagster_kafka_flip.assets.registry import ingestions_of
from dagster_kafka_flip.assets.resources import KafkaResource
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.ingestion.dead_letters import DeadLetters
from dagster_kafka_flip.settings.arguments import check_arguments, expect
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.table.sql import quoted
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from os import PathLike

    from dagster import AssetsDefinition


TOPIC = "{topic}"
NAME = "{name}"
_TABLE_OPTIONS = frozenset({"table", "dead_letter"})
# Kafka's rule for topic names. A broker's topic names become parts of paths, and the broker may be untrusted.
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")


@check_arguments
def matching_topics(
    source: KafkaSource | str | Sequence[str], connection: KafkaConnection | KafkaResource | None = None
) -> tuple[str, ...]:
    """Returns the topics of a source, to create definitions from them.

    For a pattern, queries the cluster once, when the code location is loaded. The processes of a run reuse this result,
    so a new topic does not change their definitions. It appears when the code location is loaded the next time.

    Args:
        source: A list of topics, topic partitions, or a pattern.
        connection: Connection for a pattern; EnvVars of a resource are read at once. Default: the source's own.

    Returns:
        Topic names, sorted.

    Raises:
        ConfigurationError: The source has a pattern but no connection.
        TopicNotFoundError: No topic matches.
        ClusterUnreachableError: No broker answered.
    """
    source = KafkaSource.of(source)
    if connection is not None:
        expect(
            "connection", connection, (KafkaConnection, KafkaResource), 'KafkaConnection(bootstrap_servers="host:9092")'
        )
    subscription = source.subscription
    if subscription.pattern is None:
        return subscription.named_topics
    if isinstance(connection, KafkaResource):
        connection = cast("KafkaResource", connection.process_config_and_initialize()).connection(source.cluster)
    if connection is None and source.connection is None:
        raise ConfigurationError(
            f"the topics that match {subscription.pattern!r} are looked up when definitions are loaded: set "
            "connection=, or list the topics with topics="
        )
    connected = source.connected(connection)
    where = connected.required_connection()
    key = f"dagster-kafka-flip/topics/{subscription.pattern}@{where.bootstrap_servers}"
    # Like Dagster's state-backed definitions: the run gets what the code server found.
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
    source: KafkaSource | str | Sequence[str],
    table: str | PathLike[str] | DeltaTarget,
    topics: Sequence[str] | None = None,
    connection: KafkaConnection | KafkaResource | None = None,
    **options: Any,
) -> list[AssetsDefinition]:
    """Creates an asset for each topic of a source, with its records as decoded.

    In `table`, in the strings of a DeltaTarget and of DeadLetters, and in all string options, `{topic}` is replaced by
    the topic, and `{name}` by the topic with `_` instead of characters that asset names don't allow.

    Args:
        source: The source; each asset reads one of its topics.
        table: The table, such as `warehouse/{topic}`.
        topics: The topics. Default: all of the source (for a pattern: `matching_topics`).
        connection: Connection to look up a pattern's topics.
        **options: All other options of `kafka_delta_asset`. Default of `name`: `{name}`.

    Raises:
        ConfigurationError: Two topics would have the same asset or table, the source does not read one of `topics`, or
            the options contradict each other.
        TopicNotFoundError: No topic matches the pattern.
        ClusterUnreachableError: No broker answered.
    """
    source = KafkaSource.of(source)
    table = table if isinstance(table, DeltaTarget) else DeltaTarget.of(table).table
    wanted = matching_topics(source, connection) if topics is None else topics
    return assets_by_topic(build_kafka_delta_asset, source, wanted, {"table": table, **options})


def assets_by_topic(
    make: Callable[..., AssetsDefinition], source: KafkaSource, topics: Sequence[str], options: Mapping[str, Any]
) -> list[AssetsDefinition]:
    """Creates an asset for each topic."""
    for topic in topics:
        if not _TOPIC_NAME.fullmatch(topic) or topic in {".", ".."}:
            raise ConfigurationError(
                f"the topic {topic!r} has a name that Kafka does not allow, so it can't be part of a table's path or "
                "name",
                "Check where the name comes from: topics= or the broker",
            )
    named = {**options} if options.get("name") or options.get("key") else {**options, "name": NAME}
    made = {
        topic: make(source=source.only([topic]), **{name: _option(name, value, topic) for name, value in named.items()})
        for topic in dict.fromkeys(sorted(topics))
    }
    _check_distinct(made)
    return list(made.values())


def has_topic(value: Any) -> bool:
    """Whether an option contains a topic placeholder."""
    return any(place in text for text in _texts(value) for place in (TOPIC, NAME))


def _option(name: str, value: Any, topic: str) -> Any:
    return _filled_table(value, topic) if name in _TABLE_OPTIONS and isinstance(value, str) else filled(value, topic)


def filled(value: Any, topic: str) -> Any:
    """Returns an option with a topic instead of its placeholders."""
    if isinstance(value, str):
        return value.replace(TOPIC, topic).replace(NAME, re.sub(r"[^A-Za-z0-9_]", "_", topic))
    if isinstance(value, AssetKey):
        return AssetKey(filled(value.path, topic))
    if isinstance(value, (DeltaTarget, DeadLetters)):
        changed = {name: each for name, text in value if (each := filled(text, topic)) != text}
        if "table" in changed:
            changed["table"] = _filled_table(value.table, topic)
        given = {name: getattr(value, name) for name in value.model_fields_set}
        return type(value)(**{**given, **changed}) if changed else value
    if isinstance(value, dict):
        return {filled(key, topic): filled(each, topic) for key, each in value.items()}
    if type(value) in {list, tuple}:  # and not what Dagster derives of a tuple
        return type(value)(filled(each, topic) for each in value)
    return value


def _filled_table(table: str, topic: str) -> str:
    """Formats a table's name or path; quotes a topic with dots as one part of a catalog name."""
    target = DeltaTarget(table=table)
    if target.is_path or "." not in topic:
        return str(filled(table, topic))
    parts: list[str] = [filled(part, topic) for part in target.name_parts]
    return ".".join(quoted(part) if "." in part or "`" in part else part for part in parts)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, AssetKey):
        yield from value.path
    elif type(value) in {list, tuple}:  # and not what Dagster derives of a tuple
        yield from value
    elif isinstance(value, DeltaTarget):
        yield from (value.table, value.stream)


def _check_distinct(made: Mapping[str, AssetsDefinition]) -> None:
    seen: dict[tuple[str, str], str] = {}
    for topic, assets_def in made.items():
        for thing, remedy in _things(assets_def):
            first = seen.setdefault(thing, topic)
            if first != topic:
                msg = f"the topics {first} and {topic} would have the same {' '.join(thing)}; {remedy}"
                raise ConfigurationError(msg)


def _things(assets_def: AssetsDefinition) -> Iterator[tuple[tuple[str, str], str]]:
    """Properties that must be unique per asset, with the fix for a conflict."""
    # Dagster uses it as the op name, which must be unique.
    yield (
        ("asset", assets_def.key.to_python_identifier()),
        f"put {TOPIC} into name or key, or define a separate asset with another name for one of them",
    )
    ingestion = ingestions_of(assets_def).get(assets_def.key)
    if ingestion is None:
        return
    target = ingestion.target
    yield (
        ("table and stream", f"{target.identity} ({target.stream})"),
        f"put {TOPIC} into table, or into the stream of a DeltaTarget if one table should hold both",
    )
    if ingestion.dead_letter is not None:
        letters = ingestion.dead_letter.target(target)
        yield (
            ("dead-letter table and stream", f"{letters.identity} ({letters.stream})"),
            f"put {TOPIC} into the table or the stream of dead_letter",
        )
