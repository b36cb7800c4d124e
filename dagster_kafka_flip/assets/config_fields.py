"""Fields of Dagster's config, derived from a class of settings, so that they can't differ."""

# Without `from __future__ import annotations`, because Dagster inspects the types of the fields.

from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin

from dagster import Config, EnvVar
from pydantic import Field, SecretStr, create_model

from dagster_kafka_flip.assets.dagster_internals import IntEnvVar
from dagster_kafka_flip.settings.base import CheckedModel, Settings
from dagster_kafka_flip.settings.docstrings import entries


def config_of(settings: type[Settings], **own_texts: str) -> Any:
    """Derives a base class with a config field for each field of settings; some may have texts of their own."""
    texts = entries(settings)
    fields: dict[str, Any] = {}
    for name, field in settings.model_fields.items():
        kinds = {field.annotation, *get_args(field.annotation)}
        default: Any = ... if field.is_required() else field.get_default(call_default_factory=True)
        text = own_texts.get(name, texts[name])
        # Dagster shows what is written as text.
        if get_origin(field.annotation) is Mapping:
            text += " Give credentials as EnvVars."
        elif SecretStr in kinds:
            text += " Give it as an EnvVar."
        default = list(default) if isinstance(default, tuple) else default
        fields[name] = (_kind(field.annotation), Field(default, description=text, repr=SecretStr not in kinds))
    return create_model(f"{settings.__name__}Config", __base__=(CheckedModel, Config), __module__=__name__, **fields)


def _kind(annotation: Any) -> Any:
    """The type that config has for a field's; its value is checked by the settings."""
    if annotation in {SecretStr, SecretStr | None} or get_origin(annotation) is Literal:
        return str if type(None) not in get_args(annotation) else str | None
    if type(None) in get_args(annotation):
        return _kind(get_args(annotation)[0]) | None
    return {Mapping: dict[str, str], tuple: list[str]}.get(get_origin(annotation), annotation)


def check_known(settings: type[Settings], values: Mapping[str, Any], **stand_ins: str) -> None:
    """Checks values as settings, as far as they are known before the environment is."""
    given = {name: value for name, value in values.items() if name in settings.model_fields}
    unknown = {name for name, value in given.items() if is_env_var(value)}
    texts = ({settings.model_fields[name].annotation} & {str, str | None, SecretStr | None} for name in unknown)
    if all(texts):
        settings(**{**given, **{name: stand_ins.get(name, name) for name in unknown}})


def is_env_var(value: object) -> bool:
    """Whether a value is read from the environment later, so that it is not known yet."""
    return isinstance(value, (EnvVar, IntEnvVar))
