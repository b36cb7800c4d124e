"""What a task may be given as source, table and connection, with templates, and how a trigger keeps a source."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.ingestion.dead_letters import DeadLetters
from dagster_kafka_flip.settings.arguments import expect
from dagster_kafka_flip.sink.delta_source import DeltaSource
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import BaseOperator, Connection, Context

_JINJA = re.compile(r"\{[{%]")

# The fields that comparing a log's end needs. None holds a secret.
_KEPT = ("topics", "topic_pattern", "isolation_level", "client_id_prefix", "properties", "librdkafka_properties")


def check_conn_id(kafka_conn_id: str) -> None:
    """Checks the id of a Kafka connection, which may be a template."""
    expect("kafka_conn_id", kafka_conn_id, str, '"kafka_default"')
    if not kafka_conn_id:
        msg = 'kafka_conn_id is empty; write the id of a connection, such as kafka_conn_id="kafka_default"'
        raise ConfigurationError(msg)


def check_min_lag(min_lag: int) -> None:
    """Checks how many offsets are worth a run."""
    expect("min_lag", min_lag, int, "1000")
    if min_lag < 1:
        raise ConfigurationError(f"min_lag: {min_lag} is always reached; the minimum is 1")


def source_to_json(source: KafkaSource) -> dict[str, Any]:
    """Serializes what a look at the end of a source's log needs."""
    kept = {name: getattr(source, name) for name in _KEPT}
    if source.partitions is not None:
        kept["partitions"] = [str(topic_partition) for topic_partition in source.partitions]
    return {name: list(value) if isinstance(value, tuple) else value for name, value in kept.items() if value}


def source_from_json(kept: Mapping[str, Any]) -> KafkaSource:
    """Reads the result of `source_to_json`."""
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}
    if "partitions" in values:
        values["partitions"] = tuple(TopicPartition.parse(text) for text in values["partitions"])
    return KafkaSource(**values)


_Settings = TypeVar("_Settings", DeltaTarget, DeadLetters, DeltaSource)


def _rendered(task: BaseOperator, given: _Settings, context: Context) -> _Settings:
    """Renders the table of settings. Airflow renders a string, but not one inside of them."""
    return given.changed(table=task.render_template(given.table, context)) if is_template(given.table) else given


def rendered_target(task: BaseOperator, table: DeltaTarget | str, context: Context) -> DeltaTarget:
    """Returns the table of a run."""
    target = _rendered(task, DeltaTarget.of(table), context)
    check_absolute(target)
    return target


def rendered_letters(
    task: BaseOperator, dead_letter: DeadLetters | str | None, target: DeltaTarget, context: Context
) -> DeadLetters | None:
    """Returns where a run's dead letters go."""
    if dead_letter is None:
        return None
    given = dead_letter if isinstance(dead_letter, DeadLetters) else DeadLetters(table=os.fspath(dead_letter))
    letters = _rendered(task, given, context)
    check_absolute(letters.target(target))
    return letters


def rendered_source(task: BaseOperator, source: DeltaSource | str, context: Context) -> DeltaSource:
    """Returns what a run publishes."""
    described = _rendered(task, delta_source_of(source), context)
    check_absolute(described.target)
    return described


def delta_source_of(source: DeltaSource | str) -> DeltaSource:
    """Returns what to publish; a table is one with defaults."""
    if isinstance(source, DeltaSource):
        return source
    expect("source", source, str, 'DeltaSource(table="/data/lake/orders"), or "/data/lake/orders"')
    return DeltaSource(table=source)


def is_template(text: str) -> bool:
    """Whether a string has Jinja's braces, so that its value is only known in a run."""
    return _JINJA.search(text) is not None


def check_absolute(target: DeltaTarget) -> None:
    """Checks that a table does not depend on the working directory."""
    place = target.table
    if target.local_path is not None and not place.startswith(("/", "file:", "delta.`/", "{")):
        raise ConfigurationError(
            f"the table {place!r} is a relative path, and Airflow's processes have no common working directory: each "
            "would write to another table",
            f"Write an absolute path, such as /data/{place}",
        )


def extra_of(connection: Connection) -> dict[str, Any]:
    """The extra of a connection. One that is no JSON object is refused: Airflow would run without the login in it."""
    try:
        found = json.loads(connection.extra or "{}")
    except ValueError as error:
        # The parser's message has the place, but none of the text, which may be a secret.
        raise ConfigurationError(f"the connection {connection.conn_id!r}: its extra is not JSON: {error}") from None
    if not isinstance(found, dict):
        msg = f'the connection {connection.conn_id!r}: its extra is not a JSON object: write {{"name": "value"}}'
        raise ConfigurationError(msg)
    return connection.extra_dejson
