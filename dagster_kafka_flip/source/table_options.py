"""What a source reads, from the options of Flink's Kafka table (what its SQL sets in `WITH (...)`)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.names import near_names
from dagster_kafka_flip.settings.option_texts import check_texts, refused, texts_of, truth
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.properties import Client, check_properties
from dagster_kafka_flip.source.split import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PROPERTIES = "properties."

_BOUNDED_MODES = ("latest-offset", "group-offsets", "timestamp", "specific-offsets")
_MODES = {"startup": ("earliest-offset", *_BOUNDED_MODES), "bounded": _BOUNDED_MODES}

_NAMES = (
    "connector",
    "topic",
    "topic-pattern",
    *(
        f"scan.{side}.{name}"
        for side in ("startup", "bounded")
        for name in ("mode", "specific-offsets", "timestamp-millis")
    ),
)

# Options of the formats, which a source alone does not know.
_OF_FORMATS = ("format", "key.format", "key.fields", "key.fields-prefix", "value.format", "value.fields-include")

# Flink's grammar of specific offsets: one topic's, by partition.
_OFFSET = re.compile(r"partition:([0-9]{1,10}),offset:([0-9]{1,19})")


def source_fields(options: Mapping[str, str]) -> dict[str, Any]:
    check_texts(options)
    for name in options:
        _check_name(name)
    if (connector := options.get("connector", "kafka")) != "kafka":
        raise refused("connector", f"unsupported connector {connector!r}; use kafka")
    properties = {
        name.removeprefix(_PROPERTIES): value for name, value in options.items() if name.startswith(_PROPERTIES)
    }
    reset = properties.pop("auto.offset.reset", None)
    return {
        **_topics(options),
        **_property_fields(properties),
        "starting_offsets": _initializer(options, "startup", reset),
        "stopping_offsets": _initializer(options, "bounded"),
    }


def _check_name(name: str) -> None:
    if name in _NAMES or name.startswith(_PROPERTIES):
        return
    if name in _OF_FORMATS or name.startswith(("key.", "value.", "raw.", "json.", "csv.", "avro.", "avro-confluent.")):
        raise refused(
            name,
            "it sets how records are decoded: KafkaTableOptions.from_options takes it; "
            "else set value_format and key_format beside the source",
        )
    raise refused(name, f"unknown, or without a meaning here; {near_names(name, (*_NAMES, *_OF_FORMATS))}")


def _topics(options: Mapping[str, str]) -> dict[str, Any]:
    topic, pattern = options.get("topic"), options.get("topic-pattern")
    if topic is not None and pattern is not None:
        raise refused("topic", "set it or 'topic-pattern', not both")
    if topic is not None:
        return {"topics": texts_of("topic", topic)}
    if pattern is not None:
        return {"topic_pattern": pattern}
    raise refused("topic", "missing; set it, or 'topic-pattern'")


def _property_fields(properties: dict[str, str]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    others: dict[str, str] = {}
    for name, value in properties.items():
        option = _PROPERTIES + name
        if name in _FIELDS:
            field, read = _FIELDS[name]
            fields[field] = read(option, value)
        else:
            try:
                check_properties({name: value}, Client.BOTH)
            except ValueError as error:
                raise refused(option, str(error)) from None
            others[name] = value
    return {**fields, "properties": others}


def _as_is(option: str, value: str) -> str:
    if not value:
        raise refused(option, "empty")
    return value


def _connection(option: str, value: str) -> KafkaConnection:
    try:
        return KafkaConnection(bootstrap_servers=_as_is(option, value))
    except ConfigurationError as error:
        raise refused(option, str(error)) from None


# Properties that have their own field.
_FIELDS: Mapping[str, tuple[str, Callable[[str, str], Any]]] = {
    "bootstrap.servers": ("connection", _connection),
    "client.id.prefix": ("client_id_prefix", _as_is),
    "client.rack": ("client_rack", _as_is),
    "commit.offsets.on.checkpoint": ("commit_offsets", truth),
    "group.id": ("group_id", _as_is),
    "isolation.level": ("isolation_level", _as_is),
}


def _initializer(options: Mapping[str, str], side: str, reset: str | None = None) -> OffsetsInitializer:
    mode, is_start = _mode(options, side), side == "startup"
    # Flink's default, which is of use only where a group has committed.
    if mode is None and is_start and f"{_PROPERTIES}group.id" in options:
        mode = "group-offsets"
    name = f"{_PROPERTIES}auto.offset.reset"
    if reset is not None and mode != "group-offsets":
        raise refused(name, "it has no effect unless 'scan.startup.mode' is group-offsets: set that, or remove it")
    if mode == "group-offsets":
        try:
            return OffsetsInitializer.committed_offsets((reset or "none").lower())
        except ConfigurationError:
            raise refused(name, f"expected none, earliest or latest, not {reset!r}") from None
    if mode == "timestamp":
        return _timestamp(options, f"scan.{side}.timestamp-millis")
    if mode == "specific-offsets":
        return _specific_offsets(options, f"scan.{side}.specific-offsets")
    is_earliest = mode == "earliest-offset" or (mode is None and is_start)
    return OffsetsInitializer.earliest() if is_earliest else OffsetsInitializer.latest()


def _mode(options: Mapping[str, str], side: str) -> str | None:
    name, modes = f"scan.{side}.mode", _MODES[side]
    mode = options.get(name)
    mode = None if mode is None else mode.lower()
    if side == "bounded" and mode == "unbounded":
        raise refused(name, "a run is never unbounded; remove it, and each run reads to the latest offset")
    if mode is not None and mode not in modes:
        raise refused(name, f"unknown mode {mode!r}; {near_names(mode, modes)}")
    if mode == "group-offsets" and f"{_PROPERTIES}group.id" not in options:
        raise refused(name, "group-offsets needs 'properties.group.id'")
    for needed, of_mode in (("timestamp-millis", "timestamp"), ("specific-offsets", "specific-offsets")):
        option = f"scan.{side}.{needed}"
        if mode == of_mode and option not in options:
            raise refused(option, f"missing; {name!r} is {mode}")
        if mode != of_mode and option in options:
            raise refused(option, f"it has no effect unless {name!r} is {of_mode}: set that, or remove it")
    return mode


def _timestamp(options: Mapping[str, str], name: str) -> OffsetsInitializer:
    written = options[name].strip()
    if not re.fullmatch("[0-9]{1,19}", written):
        raise refused(name, f"expected milliseconds since 1970, not {written!r}")
    try:
        return OffsetsInitializer.timestamp(int(written))
    except ConfigurationError as error:
        raise refused(name, str(error)) from None


def _specific_offsets(options: Mapping[str, str], name: str) -> OffsetsInitializer:
    topics = texts_of("topic", options["topic"]) if "topic" in options else ()
    if len(topics) != 1:
        raise refused(
            name,
            f"it is for one topic, and the table has {f'{len(topics)} topics' if topics else 'a pattern'}; name one, "
            "or use OffsetsInitializer.specific_offsets",
        )
    offsets: dict[TopicPartition, int] = {}
    for pair in options[name].removesuffix(";").split(";"):
        match = _OFFSET.fullmatch(pair)
        if match is None:
            raise refused(name, f"write partition:0,offset:42;partition:1,offset:300, not {options[name]!r}")
        topic_partition = TopicPartition(topics[0], int(match[1]))
        if topic_partition in offsets:
            raise refused(name, f"partition {match[1]} is listed twice")
        offsets[topic_partition] = int(match[2])
    try:
        return OffsetsInitializer.specific_offsets(offsets)
    except ConfigurationError as error:
        raise refused(name, str(error)) from None
