"""Base classes of all settings: what they reject, and how they say so."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.arguments import refuse_unnamed
from dagster_kafka_flip.settings.names import near_names

if TYPE_CHECKING:
    from collections.abc import Collection

    from pydantic.fields import FieldInfo
    from typing_extensions import Self


def refuse_lookalike(field: FieldInfo, value: object) -> None:
    """Rejects values that pydantic would convert: true for 1, and a number or a string for a duration."""
    kinds = {field.annotation, *get_args(field.annotation)}
    if isinstance(value, bool) and bool not in kinds:
        for kind in {int, float} & kinds:
            raise PydanticKnownError("int_type" if kind is int else "float_type")
    if timedelta in kinds and value is not None and not isinstance(value, timedelta):
        raise PydanticKnownError("time_delta_type")


class CheckedModel(BaseModel):
    """A model that rejects unknown names and wrong values with a ConfigurationError; the error shows no values.

    Raises:
        ConfigurationError: A value is missing, malformed, contradicts another, or has an unknown name.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    def __init__(self, *unnamed: NoReturn, **values: Any) -> None:
        fields = type(self).model_fields
        names = [field.alias or name for name, field in fields.items()]
        # Fields that are not `kw_only` need no name.
        first = [field.alias or name for name, field in fields.items() if field.kw_only is False]
        refuse_unnamed(type(self).__name__, unnamed[len(first) :], names)
        try:
            super().__init__(**dict(zip(first, unnamed, strict=False)), **values)
        except ValidationError as error:
            msg = f"invalid {type(self).__name__}: {describe(error, names)}"
            raise ConfigurationError(msg) from None

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_lookalikes(cls, value: object, about: ValidationInfo) -> object:
        refuse_lookalike(cls.model_fields[str(about.field_name)], value)
        return value


class Settings(CheckedModel):
    """Base class of immutable settings."""

    model_config = ConfigDict(frozen=True)

    def changed(self, **values: Any) -> Self:
        """Returns the settings with other values, validated again."""
        return type(self)(**{**dict(self), **values})


def describe(error: ValidationError, names: Collection[str] = ()) -> str:
    """Describes the problem of each field, without the values: they may be secrets."""
    return "; ".join(_describe(problem, names) for problem in error.errors(include_input=False, include_url=False))


# Pydantic's own messages for these mention pydantic types.
_PLAIN = {
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "dict_type": "expected a mapping of names to values",
    "extra_forbidden": "unknown field",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "int_from_float": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_type": "expected a whole number",
    "list_type": 'expected a list, such as ["..."]',
    "mapping_type": "expected a mapping of names to values",
    "missing": "missing",
    "sequence_str": 'expected a list, such as ["..."]',
    "string_too_short": "empty",
    "string_type": "expected a string",
    "time_delta_parsing": "expected a timedelta, such as timedelta(hours=1)",
    "time_delta_type": "expected a timedelta, such as timedelta(hours=1)",
    "tuple_type": 'expected a list, such as ["..."]',
}


def plain_problem(problem: Any) -> str:
    if problem["type"] == "model_type":
        return f"expected {problem['ctx']['class_name']}"
    text: str = _PLAIN.get(problem["type"]) or problem["msg"].removeprefix("Value error, ")
    return text.replace("Input should be", "must be")


def _describe(problem: Any, names: Collection[str]) -> str:
    field = ".".join(str(part) for part in problem["loc"])
    text = plain_problem(problem)
    if problem["type"] == "extra_forbidden" and names:
        text = f"{text}; {near_names(str(problem['loc'][-1]), names)}"
    return f"{field}: {text}" if field and problem["type"] != "value_error" else text
