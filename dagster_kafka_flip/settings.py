"""The base of everything that a user configures."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from dagster_kafka_flip.errors import ConfigurationError


class Settings(BaseModel):
    """Immutable settings; unknown names and wrong values are a ConfigurationError that repeats no value.

    Raises:
        ConfigurationError: A value is missing, malformed, contradicts another, or has an unknown name.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            msg = f"this {type(self).__name__} can't be: {describe(error)}"
            raise ConfigurationError(msg) from None


def describe(error: ValidationError) -> str:
    """What is wrong with each field, without the values: they may be secrets."""
    return "; ".join(_describe(problem) for problem in error.errors(include_input=False, include_url=False))


def _describe(problem: Any) -> str:
    field = ".".join(str(part) for part in problem["loc"])
    text: str = problem["msg"].removeprefix("Value error, ")
    return f"{field}: {text}" if field and problem["type"] != "value_error" else text
