"""The base of everything that a user configures."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, ValidationError

from dagster_kafka_flip.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping


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
            msg = f"invalid {type(self).__name__}: {describe(error)}"
            raise ConfigurationError(msg) from None


def expect(option: str, value: object, kinds: type | tuple[type, ...], example: str) -> None:
    """Checks the type of an option that is no field of Settings.

    Args:
        option: Its name.
        value: What was given. Not repeated in the error: it may be a secret.
        kinds: What it may be.
        example: What it may be, written out.

    Raises:
        ConfigurationError: It is something else.
    """
    if isinstance(value, kinds):
        return
    names = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
    given = f"the class {value.__name__} itself" if isinstance(value, type) else type(value).__name__
    given = "None" if value is None else given
    msg = f"{option}: expected {names}, got {given}; for example {option}={example}"
    raise ConfigurationError(msg)


HIDDEN = "**********"
"""What is shown in the place of a value that may be a secret, as by pydantic."""


def hidden_values(values: Mapping[str, object]) -> dict[str, str]:
    """The names of settings, without their values: for whoever prints them.

    Args:
        values: Settings by name.
    """
    return dict.fromkeys(values, HIDDEN)


def hidden_parameters(remote: str) -> str:
    """A Spark Connect address without the values of its parameters: a token may be among them, or a user's name.

    Args:
        remote: Such as `sc://host:15002/;token=...`.
    """
    address, *parameters = remote.split(";")
    # The host is all that tells which server it is; what stands before an @ is nobody's business.
    address = re.sub(r"//[^/@]*@", f"//{HIDDEN}@", address)
    return ";".join([address, *(f"{each.partition('=')[0]}={HIDDEN}" if "=" in each else each for each in parameters)])


def without_parameters(text: str, remote: str) -> str:
    """A text, such as an error's, without what `hidden_parameters` hides of an address.

    Args:
        text: What may repeat it.
        remote: The address.
    """
    text = text.replace(remote, hidden_parameters(remote))
    for parameter in remote.split(";")[1:]:
        value = parameter.partition("=")[2]
        for form in {value, unquote(value)} - {""}:
            text = text.replace(form, HIDDEN)
    return text


def describe(error: ValidationError) -> str:
    """What is wrong with each field, without the values: they may be secrets."""
    return "; ".join(_describe(problem) for problem in error.errors(include_input=False, include_url=False))


# Pydantic's own words for these speak of its types.
_PLAIN = {
    "extra_forbidden": "there is no such field",
    "missing": "is missing",
    "string_type": "expected a text",
    "string_too_short": "is empty",
    "tuple_type": 'expected a list, such as ["..."]',
    "mapping_type": "expected a mapping of names to values",
    "dict_type": "expected a mapping of names to values",
}


def _describe(problem: Any) -> str:
    field = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "model_type":
        return f"{field}: expected {problem['ctx']['class_name']}"
    text: str = _PLAIN.get(problem["type"]) or problem["msg"].removeprefix("Value error, ")
    return f"{field}: {text}" if field and problem["type"] != "value_error" else text
