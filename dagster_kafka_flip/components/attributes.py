"""Attributes of a defs.yaml: what may be written, and which option of kafka_delta_asset it becomes."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, TypeVar

from dagster import (
    AssetKey,
    AssetSpec,
    AutomationCondition,
    BackfillPolicy,
    Backoff,
    BetaWarning,
    FreshnessPolicy,
    Jitter,
    Model,
    MultiPartitionsDefinition,
    PartitionsDefinition,
    ResolutionContext,
    Resolver,
    RetryPolicy,
)
from dagster.components.resolved.core_models import (
    DailyPartitionsDefinitionModel,
    HourlyPartitionsDefinitionModel,
    MultiRunBackfillPolicyModel,
    SingleRunBackfillPolicyModel,
    StaticPartitionsDefinitionModel,
    TimeWindowPartitionsDefinitionModel,
    WeeklyPartitionsDefinitionModel,
    resolve_backfill_policy,
    resolve_partitions_def,
)
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, create_model

from dagster_kafka_flip.assets.asset_ingestion import OnIdle
from dagster_kafka_flip.assets.asset_options import MaterializedOptions
from dagster_kafka_flip.assets.asset_per_topic import filled
from dagster_kafka_flip.assets.dagster_internals import CheckError
from dagster_kafka_flip.assets.maintenance_asset import kafka_delta_maintenance
from dagster_kafka_flip.assets.topic_asset import kafka_topic_asset
from dagster_kafka_flip.checks.delta_kafka_checks import delta_kafka_checks
from dagster_kafka_flip.checks.kafka_delta_checks import kafka_delta_checks
from dagster_kafka_flip.components.format_attributes import (
    FORMATS,
    MODES,
    SERIALIZERS,
    format_of,
    mode_of,
    serializer_of,
)
from dagster_kafka_flip.components.schemas import Scalar, attribute, help_of, model_of, model_of_options, resolved
from dagster_kafka_flip.components.templates import create, refused, rendered
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.ingestion.dead_letters import DeadLetters
from dagster_kafka_flip.ingestion.tolerance import named_errors
from dagster_kafka_flip.sink.delta_source import DeltaSource
from dagster_kafka_flip.sink.kafka_sink import TOLERABLE, KafkaSink
from dagster_kafka_flip.source.instants import nearest_time
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer, epoch_milliseconds
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.window import Windows
from dagster_kafka_flip.table.target import DeltaTarget

T = TypeVar("T")
Resolve = Callable[[ResolutionContext, Any], Any]

_Duration = str | float


def _text(context: ResolutionContext, value: Any) -> str | None:
    found = rendered(context, value)
    if isinstance(found, (bool, int, float)):
        return str(found).lower()
    if found is not None and not isinstance(found, str):
        raise refused(context, f"expected a string, got {found!r}")
    return found


def _texts(context: ResolutionContext, value: Any) -> tuple[str, ...]:
    if not isinstance(value, (str, list)):
        raise refused(context, 'expected a list, such as ["..."]')
    given: list[Any] = value if isinstance(value, list) else []
    for index, each in enumerate(given):
        if not isinstance(each, str):
            # YAML has changed 007 and 1.10 before this looks at them.
            raise refused(context.at_path(index), "expected a string; write it in quotes")
    found = rendered(context, value)
    return tuple(_text(context, each) or "" for each in ([found] if isinstance(found, str) else found))


def _text_map(context: ResolutionContext, value: Any) -> dict[str, str]:
    found = rendered(context, value)
    if not isinstance(found, Mapping):
        raise refused(context, "expected a mapping of names to values")
    return {str(name): _text(context.at_path(name), each) or "" for name, each in found.items()}


def _prefix(context: ResolutionContext, value: Any) -> str | list[str]:
    return value if isinstance(value, str) else list(_texts(context, value))


def _key(context: ResolutionContext, value: Any) -> AssetKey:
    found = rendered(context, value)
    return AssetKey.from_user_string(found) if isinstance(found, str) else create(context, AssetKey, {"path": found})


def _keys(context: ResolutionContext, value: Any) -> list[AssetKey]:
    found = rendered(context, value)
    return [_key(context, each) for each in ([found] if isinstance(found, str) else found)]


def _duration(context: ResolutionContext, value: Any) -> timedelta | None:
    found = rendered(context, value)
    if found is None or isinstance(found, timedelta):
        return found
    try:
        if isinstance(found, bool):
            # pydantic takes `true` for 1.
            raise refused(context, f"invalid duration {found!r}")
        return TypeAdapter(timedelta).validate_python(found)
    except ValidationError:
        raise refused(context, f"invalid duration {found!r}; write PT1H (ISO 8601), 01:00:00, or seconds") from None


def _instance_of(kind: type[T], example: str) -> Callable[[ResolutionContext, Any], T]:
    def resolve(context: ResolutionContext, value: Any) -> T:
        found = rendered(context, value)
        if not isinstance(found, kind):
            raise refused(context, f"invalid {kind.__name__} {found!r}; write {example}")
        return found

    return resolve


# --- settings of this package -------------------------------------------------------------------------------------


def _of(settings: type[T], **fields: Resolve) -> Callable[[ResolutionContext, Any], T]:
    """Creates settings from a mapping; some fields are converted first."""

    def resolve(context: ResolutionContext, value: Any) -> T:
        found = rendered(context, value)
        if isinstance(found, settings):
            return found
        if not isinstance(found, Mapping):
            raise refused(context, f"invalid {settings.__name__} {found!r}; write its fields as a mapping")
        values = {
            str(name): fields[name](context.at_path(name), each) if name in fields else each
            for name, each in found.items()
        }
        return create(context, settings, values)

    return resolve


def _offsets(context: ResolutionContext, value: Any) -> OffsetsInitializer:
    if isinstance(value, OffsetsInitializer):
        return value
    return create(context, OffsetsInitializer.parse, {"text": _text(context, value)})


def _topic_partitions(context: ResolutionContext, value: Any) -> tuple[TopicPartition, ...]:
    try:
        return tuple(TopicPartition(topic, int(number)) for topic, numbers in value.items() for number in numbers)
    except (AttributeError, TypeError, ValueError):
        raise refused(context, "map topics to partition numbers, such as {flights: [0, 1]}") from None


_source_of_fields = _of(
    KafkaSource,
    **dict.fromkeys(("topic_pattern", "group_id", "client_id_prefix", "client_rack", "cluster"), _text),
    **dict.fromkeys(("properties", "librdkafka_properties", "java_properties"), _text_map),
    **dict.fromkeys(("starting_offsets", "stopping_offsets"), _offsets),
    topics=_texts,
    partitions=_topic_partitions,
    max_drift=_duration,
)


def _source(context: ResolutionContext, value: Any) -> KafkaSource:
    if not isinstance(value, Mapping) or "options" not in value:
        return _source_of_fields(context, value)
    others = [name for name in value if name != "options"]
    if others:
        raise refused(
            context, f"options replaces all other fields of a source: set it or {' and '.join(others)}, not both"
        )
    at = context.at_path("options")
    return create(at, KafkaSource.from_options, {"options": _text_map(at, value["options"])})


def _dead_letter(context: ResolutionContext, value: Any) -> DeadLetters:
    found = rendered(context, value)
    return (
        create(context, DeadLetters, {"table": found}) if isinstance(found, str) else _of(DeadLetters)(context, found)
    )


def _table(context: ResolutionContext, value: Any) -> str | DeltaTarget | None:
    found = rendered(context, value)
    if isinstance(found, (Mapping, DeltaTarget)):
        return _of(DeltaTarget, properties=_text_map, mode=mode_of)(context, found)
    if found is None:
        raise refused(context, "empty; write a path or a name")
    return _text(context, found)


def _errors(context: ResolutionContext, value: Any) -> Any:
    return create(context, named_errors, {"names": _texts(context, value)})


def _row_errors(context: ResolutionContext, value: Any) -> list[Any]:
    """Classes by their names; KafkaSink rejects an unknown name."""
    classes = {each.__name__: each for each in TOLERABLE}
    return [classes.get(name, name) for name in _texts(context, value)]


def _start(context: ResolutionContext, value: Any) -> Any:
    if not isinstance(value, str) or value in ("snapshot", "latest"):
        return value
    return nearest_time(create(context, epoch_milliseconds, {"timestamp": value}))


def _flag(context: ResolutionContext, value: Any) -> bool:
    return create(context, lambda: TypeAdapter(bool).validate_python(value))


# --- things of Dagster --------------------------------------------------------------------------------------------


class MultiPartitionsAttributes(Model):
    """Time partitions with a static dimension that selects topics."""

    type: Literal["multi"]
    dimensions: dict[str, Any]


_Partitions = Annotated[
    HourlyPartitionsDefinitionModel
    | DailyPartitionsDefinitionModel
    | WeeklyPartitionsDefinitionModel
    | TimeWindowPartitionsDefinitionModel
    | StaticPartitionsDefinitionModel
    | MultiPartitionsAttributes,
    Field(discriminator="type"),
]
_BackfillPolicy = Annotated[SingleRunBackfillPolicyModel | MultiRunBackfillPolicyModel, Field(discriminator="type")]


def _model(context: ResolutionContext, kind: Any, found: Mapping[str, Any]) -> Any:
    return create(context, lambda: TypeAdapter[Any](kind).validate_python(found))


def _partitions(context: ResolutionContext, value: Any) -> PartitionsDefinition[Any]:
    found = rendered(context, value)
    if not isinstance(found, Mapping):
        example = "{{ dg.DailyPartitionsDefinition(start_date='2026-01-01') }}"
        return _instance_of(PartitionsDefinition, example)(context, found)
    model = _model(context, _Partitions, found)
    if not isinstance(model, MultiPartitionsAttributes):
        return create(context, resolve_partitions_def, {"context": context, "model": model})  # pyright: ignore[reportReturnType]
    at = context.at_path("dimensions")
    dimensions = {name: _partitions(at.at_path(name), each) for name, each in model.dimensions.items()}
    return create(at, MultiPartitionsDefinition, {"partitions_defs": dimensions})


def _backfill_policy(context: ResolutionContext, value: Any) -> BackfillPolicy:
    found = rendered(context, value)
    if not isinstance(found, Mapping):
        return _instance_of(BackfillPolicy, "type: single_run, or multi_run, below it")(context, found)
    with warnings.catch_warnings():
        # In beta; hides the warning, because YAML users can't.
        warnings.simplefilter("ignore", BetaWarning)
        return resolve_backfill_policy(context, _model(context, _BackfillPolicy, found))  # pyright: ignore[reportReturnType]


class RetryPolicyAttributes(Model):
    """Dagster's retries of a failed step."""

    max_retries: int = 1
    delay: float | None = Field(None, description="Seconds before a retry.")
    backoff: Literal["linear", "exponential"] | None = None
    jitter: Literal["full", "plus_minus"] | None = None


def _retry_policy(context: ResolutionContext, value: Any) -> RetryPolicy:
    found = rendered(context, value)
    if not isinstance(found, Mapping):
        return _instance_of(RetryPolicy, "max_retries and delay below it")(context, found)
    values = dict(_model(context, RetryPolicyAttributes, found))
    values["backoff"] = values["backoff"] and Backoff[values["backoff"].upper()]
    values["jitter"] = values["jitter"] and Jitter[values["jitter"].upper()]
    return create(context, RetryPolicy, values)


def _cron(context: ResolutionContext, value: Any) -> str:
    cron = str(_text(context, value))
    try:
        AutomationCondition.cron_tick_passed(cron)
    except CheckError:
        raise refused(context, f"invalid cron schedule {cron!r}; write one such as '*/5 * * * *'") from None
    return cron


_condition = _instance_of(AutomationCondition, '"{{ dg.AutomationCondition.eager() }}"')


# --- attributes ---------------------------------------------------------------------------------------------------

_KafkaSourceFields = model_of(
    KafkaSource,
    without=("connection", "overrides_position"),
    topics=str | list[str] | None,
    partitions=dict[str, list[int]] | None,
    starting_offsets=str,
    stopping_offsets=str,
    max_drift=_Duration | None,
)
KafkaSourceModel: type[BaseModel] = create_model(
    _KafkaSourceFields.__name__,
    __base__=_KafkaSourceFields,
    options=(
        dict[str, Scalar] | None,
        Field(None, description="Options of Flink's Kafka table, instead of all other fields of the source."),
    ),
)
_TEXT = attribute(_text, Scalar)
_TEXTS = attribute(_texts, list[str])
_KEYS = attribute(_keys, list[str])
_KEY = attribute(_key, str | list[str])
_MAP = attribute(rendered, dict[str, Any])
_DURATION = attribute(_duration, _Duration)
_FORMAT = attribute(format_of, FORMATS)
_FRESHNESS = '"{{ dg.FreshnessPolicy.time_window(fail_window=datetime.timedelta(hours=1)) }}"'

# Any, because Dagster would interpret a pydantic class in an annotation as a schema.
TextAttribute = Annotated[Any, _TEXT]

OPTIONS: Mapping[str, Resolver] = {
    **dict.fromkeys(("description", "group_name", "code_version", "pool", "kafka", "spark", "cluster", "name"), _TEXT),
    "source": attribute(_source, KafkaSourceModel),
    "table": attribute(_table, Scalar | model_of(DeltaTarget, mode=MODES | None)),
    "value_format": _FORMAT,
    "key_format": _FORMAT,
    "columns": attribute(_of(KafkaColumns), model_of(KafkaColumns)),
    "dead_letter": attribute(_dead_letter, str | model_of(DeadLetters)),
    "limits": attribute(_of(Limits), model_of(Limits)),
    "tolerate": attribute(_errors, list[str]),
    # The asset's own error names the line.
    "on_idle": attribute(rendered, OnIdle),
    "verify_after": _DURATION,
    "windows": attribute(_of(Windows, max_lateness=_duration), model_of(Windows, max_lateness=_Duration | None)),
    "topics_of": attribute(rendered, dict[str, list[str]]),
    "key": _KEY,
    "key_prefix": attribute(_prefix, str | list[str]),
    "deps": _KEYS,
    "kinds": _TEXTS,
    "owners": _TEXTS,
    "tags": attribute(_text_map, dict[str, Scalar]),
    "metadata": _MAP,
    "automation_condition": attribute(_condition, str),
    "freshness_policy": attribute(_instance_of(FreshnessPolicy, _FRESHNESS), str),
    "partitions_def": attribute(_partitions, _Partitions),
    "backfill_policy": attribute(_backfill_policy, _BackfillPolicy),
    "op_tags": _MAP,
    "retry_policy": attribute(_retry_policy, RetryPolicyAttributes),
}
"""How each option of an asset is read."""

SINK_OPTIONS: Mapping[str, Resolver] = {
    **OPTIONS,
    "source": attribute(_of(DeltaSource, table=_text, start=_start), model_of(DeltaSource, start=int | str)),
    "sink": attribute(
        _of(
            KafkaSink,
            key=serializer_of,
            value=serializer_of,
            transaction_timeout=_duration,
            properties=_text_map,
            tolerate=_row_errors,
        ),
        model_of(
            KafkaSink,
            key=SERIALIZERS | None,
            value=SERIALIZERS | None,
            transaction_timeout=_Duration,
            tolerate=list[str],
            partitioner=Literal["default", "fixed", "round_robin"],
        ),
    ),
    "upstream": _KEY,
}
"""The same for an asset that publishes a table."""


_FLAG = attribute(_flag, bool)
_NUMBER = attribute(rendered, int | None)
_OF_CHECKS: Mapping[str, Resolver] = {
    **dict.fromkeys(("max_delay", "rejected_within"), _DURATION),
    # A text, such as "no" or from a template, would be true.
    **dict.fromkeys(("gaps", "duplicates", "keys", "identity", "schema", "blocking", "equals_table"), _FLAG),
    **dict.fromkeys(("duplicate_commits", "max_lag", "max_rejected", "max_records"), _NUMBER),
    "op_tags": _MAP,
    "pool": _TEXT,
}
_OF_TOPICS = {name: OPTIONS[name] for name in ("automation_condition", "group_name", "owners", "tags")} | {
    "schedule": attribute(_cron, str)
}
_OF_MAINTENANCE = {name: OPTIONS[name] for name in MaterializedOptions.__annotations__ if name != "pool"} | {
    "vacuum_after": attribute(_duration, _Duration | None)
}


def _of_checks(function: Callable[..., Any]) -> Mapping[str, Resolver]:
    return {name: _OF_CHECKS[name] for name in inspect.signature(function).parameters if name in _OF_CHECKS}


_CHECKS = model_of_options("ChecksAttributes", _of_checks(kafka_delta_checks), help_of(kafka_delta_checks))
_SINK_CHECKS = model_of_options("SinkChecksAttributes", _of_checks(delta_kafka_checks), help_of(delta_kafka_checks))
_MAINTENANCE = model_of_options(
    "MaintenanceAttributes",
    _OF_MAINTENANCE,
    help_of(kafka_delta_maintenance)
    | {"description": "The asset's description.", "group_name": "Asset group. Default: that of the table's asset."},
)
_TOPICS = model_of_options(
    "TopicsAttributes",
    _OF_TOPICS,
    help_of(kafka_topic_asset)
    | {
        "automation_condition": "Condition for automatic observation. Default, without a schedule: every five minutes, "
        "if the component's assets have a condition; at its ticks, if that is on_cron.",
        "schedule": "Cron schedule on which to observe them. Default: none.",
        "group_name": "Asset group. Default: the component's.",
    },
)


def _options(what: str, kinds: Mapping[str, Resolver]) -> Resolve:
    """The options of a function, which names an unknown one itself."""

    def resolve(context: ResolutionContext, value: Any) -> dict[str, Any]:
        found = rendered(context, value)
        if not isinstance(found, Mapping):
            raise refused(context, f"invalid {what} {found!r}; write {{}} for the default {what}")
        return {
            str(name): resolved(kinds[name], context.at_path(name), each) if name in kinds else each
            for name, each in found.items()
        }

    return resolve


def _topics(context: ResolutionContext, value: Any) -> bool | dict[str, Any]:
    found = rendered(context, value)
    if isinstance(found, bool):
        return found
    if not isinstance(found, Mapping):
        raise refused(context, f"expected true, false, or options of the topics' assets, got {found!r}")
    _model(context, _TOPICS, found)
    options = _options("topics", _OF_TOPICS)(context, found)
    for name in [name for name in options if name != "schedule"]:
        # Refused here, where the line is known: another component may be the one that makes the topic's asset.
        create(context.at_path(name), AssetSpec, {"key": "topic", **filled({name: options[name]}, "topic")})
    return options


TopicsAttribute = Annotated[Any, attribute(_topics, bool | _TOPICS)]
ChecksAttribute = Annotated[Any, attribute(_options("checks", _OF_CHECKS), _CHECKS)]
SinkChecksAttribute = Annotated[Any, attribute(_options("checks", _OF_CHECKS), _SINK_CHECKS)]
MaintenanceAttribute = Annotated[Any, attribute(_options("maintenance", _OF_MAINTENANCE), _MAINTENANCE)]
