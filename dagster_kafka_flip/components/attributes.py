"""Attributes of a defs.yaml, and their conversion to options of kafka_delta_asset.

The schemas are derived from the settings classes, so they can't differ.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

from dagster import (
    AssetKey,
    AssetSpec,
    AutomationCondition,
    BackfillPolicy,
    Backoff,
    BetaWarning,
    EnvVar,
    FreshnessPolicy,
    Jitter,
    Model,
    MonthlyPartitionsDefinition,
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
from dagster_kafka_flip.assets.asset_per_topic import filled
from dagster_kafka_flip.assets.dagster_internals import CheckError
from dagster_kafka_flip.assets.kafka_cluster_config import KafkaClusterConfig
from dagster_kafka_flip.assets.resources import KafkaResource, SparkResource
from dagster_kafka_flip.assets.schema_registry_resource import SchemaRegistryResource
from dagster_kafka_flip.checks.delta_kafka_checks import delta_kafka_checks
from dagster_kafka_flip.checks.kafka_delta_checks import kafka_delta_checks
from dagster_kafka_flip.components.format_attributes import FORMATS, SERIALIZERS, format_of, serializer_of
from dagster_kafka_flip.components.schemas import (
    EMPTY,
    NUMERIC,
    Scalar,
    Template,
    create,
    create_of_type,
    entries,
    model_of,
    or_template,
    refused,
    rendered,
    typed,
)
from dagster_kafka_flip.errors import KafkaFlipError
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.ingestion.dead_letters import DeadLetters
from dagster_kafka_flip.ingestion.tolerance import named_errors
from dagster_kafka_flip.settings.hidden import hidden_parameters, is_credential
from dagster_kafka_flip.sink.delta_source import DeltaSource
from dagster_kafka_flip.sink.kafka_sink import TOLERABLE, KafkaSink
from dagster_kafka_flip.source.instants import nearest_time
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer, epoch_milliseconds
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.window import Windows
from dagster_kafka_flip.table.mode import Append, Mode, Scd2, Upsert
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from typing import TypeAlias

    from dagster_kafka_flip.formats.format import Format

T = TypeVar("T")

_Whole = Annotated[int, NUMERIC]
_Duration: Any = Annotated[str | float, NUMERIC]
_ENV = re.compile(r"""\{\{ *env(?:\.(\w+)|\( *['"](\w+)['"] *\)) *\}\}""")
# Passwords: never in a file; definitions only have the name of an environment variable.
_SECRETS = frozenset({"sasl_password", "ssl_key_password", "password", "bearer_token", "oauth_client_secret"})


def _text(context: ResolutionContext, value: Any) -> str | None:
    found = rendered(context, value)
    if found is None or isinstance(found, str):
        return found
    if isinstance(found, bool):
        return str(found).lower()
    if isinstance(found, (int, float)):
        return str(found)
    raise refused(context, f"expected a string, got {found!r}")


def _texts(context: ResolutionContext, value: Any) -> tuple[str, ...]:
    found = rendered(context, value)
    if found is None:
        raise refused(context, EMPTY)
    each = [found] if isinstance(found, str) else list(found)
    return tuple(_text(context.at_path(index), one) or "" for index, one in enumerate(each))


def _text_map(context: ResolutionContext, value: Any) -> dict[str, str]:
    found = rendered(context, value)
    if not isinstance(found, Mapping):
        raise refused(context, f"expected a mapping, got {found!r}")
    return {str(name): _text(context.at_path(name), each) or "" for name, each in found.items()}


def _prefix(context: ResolutionContext, value: Any) -> str | list[str]:
    found = rendered(context, value)
    return found if isinstance(found, str) else list(_texts(context, found))


def _key(context: ResolutionContext, value: Any) -> AssetKey:
    found = rendered(context, value)
    return AssetKey.from_user_string(found) if isinstance(found, str) else AssetKey.from_coercible(found)


def _keys(context: ResolutionContext, value: Any) -> list[AssetKey]:
    found = rendered(context, value)
    return [
        _key(context.at_path(index), each) for index, each in enumerate([found] if isinstance(found, str) else found)
    ]


def _duration(context: ResolutionContext, value: Any) -> timedelta | None:
    found = rendered(context, value)
    if found is None or isinstance(found, timedelta):
        return found
    try:
        return TypeAdapter(timedelta).validate_python(found)
    except ValidationError:
        raise refused(context, f"invalid duration {found!r}; write PT1H (ISO 8601), 01:00:00, or seconds") from None


# --- settings of this package -------------------------------------------------------------------------------------


def _of(settings: type[T], **fields: Callable[[ResolutionContext, Any], Any]) -> Callable[[ResolutionContext, Any], T]:
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


def _source(context: ResolutionContext, value: Any) -> KafkaSource:
    found = rendered(context, value)
    if not isinstance(found, (Mapping, KafkaSource)):
        raise refused(context, f"invalid source {found!r}; set topics, topic_pattern or partitions below it")
    if isinstance(found, Mapping) and "options" in found:
        return _source_of_options(context, found)
    return _of(KafkaSource, **_SOURCE_FIELDS)(context, found)


def _source_of_options(context: ResolutionContext, found: Mapping[str, Any]) -> KafkaSource:
    others = [name for name in found if name != "options"]
    if others:
        raise refused(
            context, f"options replaces all other fields of a source: set it or {' and '.join(others)}, not both"
        )
    at = context.at_path("options")
    return create(at, KafkaSource.from_options, {"options": _text_map(at, found["options"])})


def _offsets(context: ResolutionContext, value: Any) -> OffsetsInitializer:
    if isinstance(value, OffsetsInitializer):
        return value
    return create(context, OffsetsInitializer.parse, {"text": _text(context, value)})


def _topic_partitions(context: ResolutionContext, value: Any) -> tuple[TopicPartition, ...]:
    if not isinstance(value, Mapping):
        raise refused(context, "map topics to partition numbers, such as {flights: [0, 1]}")
    return tuple(TopicPartition(topic, number) for topic, numbers in value.items() for number in numbers)


_SOURCE_FIELDS: Mapping[str, Callable[[ResolutionContext, Any], Any]] = {
    **dict.fromkeys(("topic_pattern", "group_id", "client_id_prefix", "client_rack", "cluster"), _text),
    **dict.fromkeys(("properties", "librdkafka_properties", "java_properties"), _text_map),
    **dict.fromkeys(("starting_offsets", "stopping_offsets"), _offsets),
    "topics": _texts,
    "partitions": _topic_partitions,
    "max_drift": _duration,
}


def _dead_letter(context: ResolutionContext, value: Any) -> DeadLetters:
    found = rendered(context, value)
    return DeadLetters(table=found) if isinstance(found, str) else _of(DeadLetters)(context, found)


def _table(context: ResolutionContext, value: Any) -> str | DeltaTarget | None:
    found = rendered(context, value)
    if isinstance(found, (Mapping, DeltaTarget)):
        return _of(DeltaTarget, properties=_text_map, mode=_mode)(context, found)
    return _text(context, found)


def _errors(context: ResolutionContext, value: Any) -> list[type[KafkaFlipError]]:
    return create(context, named_errors, {"names": _texts(context, value)})


def _row_errors(context: ResolutionContext, value: Any) -> list[type[KafkaFlipError] | str]:
    """Classes by their names; KafkaSink rejects an unknown name."""
    classes = {each.__name__: each for each in TOLERABLE}
    return [classes.get(name, name) for name in _texts(context, value)]


def _start(context: ResolutionContext, value: Any) -> Any:
    found = rendered(context, value)
    if not isinstance(found, str) or found in ("snapshot", "latest"):
        return found
    return nearest_time(create(context, epoch_milliseconds, {"timestamp": found}))


# By name, as in the class.
_CHECK_TYPES: Mapping[str, Any] = {
    "bool": bool,
    "int | None": int | None,
    "timedelta": _Duration,
    "timedelta | None": _Duration | None,
}
_CHECKS = {
    name: each
    for name, each in inspect.signature(kafka_delta_checks).parameters.items()
    if name not in {"asset", "key"}
}
# With a suffix, because pydantic does not allow a field named `schema`.
ChecksAttributes: type[BaseModel] = create_model(
    "ChecksAttributes",
    __base__=Model,
    **cast(
        "Any",
        {
            f"{name}_": (
                or_template(_CHECK_TYPES[each.annotation]),
                Field(None, alias=name, description=entries(kafka_delta_checks)[name]),
            )
            for name, each in _CHECKS.items()
        },
    ),
)


def _checks(context: ResolutionContext, value: Any) -> dict[str, Any]:
    found = rendered(context, value)
    if not isinstance(found, Mapping):
        raise refused(context, f"invalid checks {found!r}; write {{}} for the default checks")
    values = {str(name).removesuffix("_"): each for name, each in found.items()}
    return {
        name: _duration(context.at_path(name), each) if "timedelta" in _CHECKS[name].annotation else each
        for name, each in values.items()
    }


class TopicsAttributes(Model):
    """Options of the topics' assets."""

    automation_condition: str | None = Field(
        default=None,
        description="Condition for automatic observation. Default, without a schedule: every five minutes, if the "
        "component's assets have a condition; at its ticks, if that is on_cron.",
    )
    schedule: str | None = Field(default=None, description="Cron schedule on which to observe them. Default: none.")
    group_name: str | Template | None = Field(default=None, description="Asset group. Default: the component's.")
    owners: list[str] | Template | None = Field(default=None, description="Owners.")
    tags: dict[str, Scalar] | Template | None = Field(default=None, description="Tags.")


def _topics(context: ResolutionContext, value: Any) -> bool | dict[str, Any]:
    found = value if isinstance(value, BaseModel) else rendered(context, value)
    if isinstance(found, bool):
        return found
    if not isinstance(found, BaseModel):
        raise refused(context, f"expected true, false, or options of the topics' assets, got {found!r}")
    options: dict[str, Any] = {}
    for name in found.model_fields_set:
        at = context.at_path(name)
        options[name] = _TOPIC_OPTIONS.get(name, _text)(at, getattr(found, name))
        if name != "schedule":
            # Refused here, where the line is known: another component may be the one that makes the topic's asset.
            create(at, AssetSpec, {"key": "topic", **filled({name: options[name]}, "topic")})
    return options


class SinkChecksAttributes(Model):
    """Options of delta_kafka_checks."""

    equals_table: bool | Template | None = Field(default=None, description=entries(delta_kafka_checks)["equals_table"])
    max_records: _Whole | Template | None = Field(default=None, description=entries(delta_kafka_checks)["max_records"])
    blocking: bool | Template | None = Field(default=None, description=entries(delta_kafka_checks)["blocking"])


_MODE_OF_TYPE: Mapping[str, type[Mode]] = {"append": Append, "upsert": Upsert, "scd2": Scd2}


def _mode(context: ResolutionContext, value: Any) -> Mode:
    return create_of_type(context, "mode", _MODE_OF_TYPE, value)


# --- things of Dagster --------------------------------------------------------------------------------------------


class MonthlyPartitionsAttributes(Model):
    """Partitions of a month each."""

    type: Literal["monthly"]
    start_date: str
    end_date: str | None = None
    timezone: str | None = None
    minute_offset: _Whole = 0
    hour_offset: _Whole = 0
    day_offset: _Whole = 1


_OneDimension = (
    HourlyPartitionsDefinitionModel
    | DailyPartitionsDefinitionModel
    | WeeklyPartitionsDefinitionModel
    | MonthlyPartitionsAttributes
    | TimeWindowPartitionsDefinitionModel
    | StaticPartitionsDefinitionModel
)


class MultiPartitionsAttributes(Model):
    """Time partitions with a static dimension that selects topics."""

    type: Literal["multi"]
    dimensions: dict[str, _OneDimension | str]


def _partitions(context: ResolutionContext, value: Any) -> PartitionsDefinition[Any]:
    if isinstance(value, MultiPartitionsAttributes):
        at = context.at_path("dimensions")
        dimensions = {name: _partitions(at.at_path(name), each) for name, each in value.dimensions.items()}
        return create(at, MultiPartitionsDefinition, {"partitions_defs": dimensions})
    if isinstance(value, BaseModel):
        value = value.model_copy(update=rendered(context, value))
        if isinstance(value, MonthlyPartitionsAttributes):
            return create(context, MonthlyPartitionsDefinition, value.model_dump(exclude={"type"}))
        made = create(context, resolve_partitions_def, {"context": context, "model": value})
        return cast("PartitionsDefinition[Any]", made)
    return _instance_of(PartitionsDefinition, "{{ dg.DailyPartitionsDefinition(start_date='2026-01-01') }}")(
        context, value
    )


def _backfill_policy(context: ResolutionContext, value: Any) -> BackfillPolicy:
    if not isinstance(value, BaseModel):
        return _instance_of(BackfillPolicy, "type: single_run, or multi_run, below it")(context, value)
    with warnings.catch_warnings():
        # In beta; hides the warning, because YAML users can't.
        warnings.simplefilter("ignore", BetaWarning)
        return cast("BackfillPolicy", resolve_backfill_policy(context, value))


class RetryPolicyAttributes(Model):
    """Dagster's retries of a failed step."""

    max_retries: _Whole = 1
    delay: Annotated[float | None, NUMERIC] = Field(None, description="Seconds before a retry.")
    backoff: Literal["linear", "exponential"] | None = None
    jitter: Literal["full", "plus_minus"] | None = None


def _retry_policy(context: ResolutionContext, value: Any) -> RetryPolicy:
    if not isinstance(value, RetryPolicyAttributes):
        return _instance_of(RetryPolicy, "max_retries and delay below it")(context, value)
    values: dict[str, Any] = {
        "max_retries": value.max_retries,
        "delay": value.delay,
        "backoff": None if value.backoff is None else Backoff[value.backoff.upper()],
        "jitter": None if value.jitter is None else Jitter[value.jitter.upper()],
    }
    return create(context, RetryPolicy, values)


def _instance_of(kind: type[T], example: str) -> Callable[[ResolutionContext, Any], T]:
    def resolve(context: ResolutionContext, value: Any) -> T:
        found = rendered(context, value)
        if not isinstance(found, kind):
            raise refused(context, f"invalid {kind.__name__} {found!r}; write {example}")
        return found

    return resolve


def _cron(context: ResolutionContext, value: Any) -> str:
    cron = str(_text(context, value))
    try:
        AutomationCondition.cron_tick_passed(cron)
    except CheckError:
        raise refused(context, f"invalid cron schedule {cron!r}; write one such as '*/5 * * * *'") from None
    return cron


_condition = _instance_of(AutomationCondition, '"{{ dg.AutomationCondition.eager() }}"')
_TOPIC_OPTIONS: Mapping[str, Callable[[ResolutionContext, Any], Any]] = {
    "automation_condition": _condition,
    "schedule": _cron,
    "owners": _texts,
    "tags": _text_map,
}


# --- resources ----------------------------------------------------------------------------------------------------


def _resource(kind: type[T]) -> Callable[[ResolutionContext, Any], T]:
    def resolve(context: ResolutionContext, value: Any) -> T:
        found = value if isinstance(value, BaseModel) else rendered(context, value)
        if isinstance(found, kind):
            return found
        if not isinstance(found, BaseModel):
            # Omits the value, which may be from the environment, with a password.
            raise refused(context, f"invalid {kind.__name__}; write its fields as a mapping")
        values = {
            name: _resource_value(context.at_path(name), name, getattr(found, name)) for name in found.model_fields_set
        }
        try:
            return kind(**values)
        except KafkaFlipError as error:
            raise refused(context, error) from None

    return resolve


def _resource_value(context: ResolutionContext, name: str, value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _resource(KafkaClusterConfig)(context, value)
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {each: _resource_value(context.at_path(each), each, one) for each, one in items}
    if isinstance(value, (int, float)) and name not in KafkaResource.model_fields:
        return _text(context, value)
    found = _ENV.fullmatch(value) if isinstance(value, str) else None
    if found is not None:
        return EnvVar(found[1] or found[2])
    if name in _SECRETS and value is not None:
        # Omits the value, which may be the password.
        raise refused(context, 'write a password as "{{ env.NAME }}", to keep it out of files and definitions')
    if isinstance(value, str) and "{{" in value and (is_credential(name) or hidden_parameters(value) != value):
        raise refused(
            context,
            'write all of it as "{{ env.NAME }}": the value of a variable in a longer text gets into definitions, and '
            "Dagster shows it",
        )
    return rendered(context, value)


# --- attributes ---------------------------------------------------------------------------------------------------


def _attribute(resolve: Callable[[ResolutionContext, Any], Any], schema: Any) -> Resolver:
    return Resolver(resolve, model_field_type=schema, inject_before_resolve=False)


_KafkaSourceFields = model_of(
    KafkaSource,
    without=("connection", "overrides_position"),
    topics=str | list[str] | None,
    partitions=dict[str, list[_Whole]] | None,
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

TopicsAttribute = Annotated[bool | Mapping[str, Any], _attribute(_topics, bool | TopicsAttributes | Template)]
# The asset's own error names the line.
OnIdleAttribute = Annotated[str, _attribute(rendered, OnIdle)]
TextAttribute = Annotated[str, _attribute(_text, Scalar)]
TextsAttribute = Annotated[tuple[str, ...], _attribute(_texts, list[str])]
TextMapAttribute = Annotated[Mapping[str, str], _attribute(_text_map, dict[str, Scalar])]
MapAttribute = Annotated[Mapping[str, Any], _attribute(rendered, dict[str, Any])]
TopicsOfAttribute = Annotated[Mapping[str, Any], _attribute(rendered, dict[str, list[str]])]
PrefixAttribute = Annotated[str | list[str], _attribute(_prefix, str | list[str])]
AssetKeyAttribute = Annotated[AssetKey, _attribute(_key, str | list[str])]
AssetKeysAttribute = Annotated[list[AssetKey], _attribute(_keys, list[str])]
DurationAttribute = Annotated[timedelta, _attribute(_duration, _Duration)]
ErrorsAttribute = Annotated[list[type[KafkaFlipError]], _attribute(_errors, list[str])]
PartitionsAttribute = Annotated[
    PartitionsDefinition[Any], _attribute(_partitions, _OneDimension | MultiPartitionsAttributes)
]
BackfillPolicyAttribute = Annotated[
    BackfillPolicy, _attribute(_backfill_policy, SingleRunBackfillPolicyModel | MultiRunBackfillPolicyModel)
]
ChecksAttribute = Annotated[dict[str, Any], _attribute(_checks, ChecksAttributes)]
SinkChecksAttribute = Annotated[dict[str, Any], _attribute(rendered, SinkChecksAttributes)]
RetryPolicyAttribute = Annotated[RetryPolicy, _attribute(_retry_policy, RetryPolicyAttributes)]
AutomationAttribute = Annotated[AutomationCondition[Any], _attribute(_condition, str)]
FreshnessAttribute = Annotated[
    FreshnessPolicy,
    _attribute(
        _instance_of(
            FreshnessPolicy, '"{{ dg.FreshnessPolicy.time_window(fail_window=datetime.timedelta(hours=1)) }}"'
        ),
        str,
    ),
]

if TYPE_CHECKING:
    SourceAttribute: TypeAlias = KafkaSource
    FormatAttribute: TypeAlias = Format
    ColumnsAttribute: TypeAlias = KafkaColumns
    DeadLetterAttribute: TypeAlias = DeadLetters
    TableAttribute: TypeAlias = str | DeltaTarget
    LimitsAttribute: TypeAlias = Limits
    WindowsAttribute: TypeAlias = Windows
    DeltaSourceAttribute: TypeAlias = DeltaSource
    SinkAttribute: TypeAlias = KafkaSink
    KafkaResourceAttribute: TypeAlias = KafkaResource
    SparkResourceAttribute: TypeAlias = SparkResource
    SchemaRegistryResourceAttribute: TypeAlias = SchemaRegistryResource
else:
    # Dagster would interpret a pydantic class in an annotation as a schema, and reject its fields that YAML does not
    # have.
    def _model_attribute(resolve, schema):  # noqa: ANN001, ANN202
        return Annotated[Any, _attribute(resolve, schema)]

    SourceAttribute = _model_attribute(_source, KafkaSourceModel)
    FormatAttribute = _model_attribute(format_of, FORMATS)
    ColumnsAttribute = _model_attribute(_of(KafkaColumns), model_of(KafkaColumns))
    DeadLetterAttribute = _model_attribute(_dead_letter, str | model_of(DeadLetters))
    TableAttribute = _model_attribute(_table, Scalar | model_of(DeltaTarget, mode=typed(_MODE_OF_TYPE) | None))
    LimitsAttribute = _model_attribute(_of(Limits), model_of(Limits))
    WindowsAttribute = _model_attribute(
        _of(Windows, max_lateness=_duration), model_of(Windows, max_lateness=_Duration | None)
    )
    _START = int | str
    DeltaSourceAttribute = _model_attribute(
        _of(DeltaSource, table=_text, start=_start), model_of(DeltaSource, start=_START)
    )
    SinkAttribute = _model_attribute(
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
    )
    _KAFKA = model_of(KafkaResource, clusters=dict[str, model_of(KafkaClusterConfig)])
    KafkaResourceAttribute = _model_attribute(_resource(KafkaResource), _KAFKA)
    SparkResourceAttribute = _model_attribute(_resource(SparkResource), model_of(SparkResource))
    SchemaRegistryResourceAttribute = _model_attribute(
        _resource(SchemaRegistryResource), model_of(SchemaRegistryResource)
    )
