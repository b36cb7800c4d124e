"""The base of everything that a user configures."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, ParamSpec, TypeVar, get_args
from urllib.parse import unquote

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from dagster_kafka_flip.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from pydantic.fields import FieldInfo

P = ParamSpec("P")
T = TypeVar("T")


def refuse_lookalike(field: FieldInfo, value: object) -> None:
    """Refuses what pydantic takes for something else: true for 1, and a number or a text for a duration.

    Args:
        field: Of a model.
        value: What was given for it.

    Raises:
        PydanticKnownError: It is of another type.
    """
    kinds = {field.annotation, *get_args(field.annotation)}
    if isinstance(value, bool) and bool not in kinds:
        for kind in {int, float} & kinds:
            raise PydanticKnownError("int_type" if kind is int else "float_type")
    if timedelta in kinds and value is not None and not isinstance(value, timedelta):
        raise PydanticKnownError("time_delta_type")


class CheckedModel(BaseModel):
    """A model that refuses unknown names and wrong values with a ConfigurationError that repeats no value.

    Raises:
        ConfigurationError: A value is missing, malformed, contradicts another, or has an unknown name.
    """

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    def __init__(self, *unnamed: NoReturn, **values: Any) -> None:
        refuse_unnamed(type(self).__name__, unnamed, type(self).model_fields)
        try:
            super().__init__(**values)
        except ValidationError as error:
            msg = f"invalid {type(self).__name__}: {describe(error, type(self).model_fields)}"
            raise ConfigurationError(msg) from None

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_lookalikes(cls, value: object, about: ValidationInfo) -> object:
        refuse_lookalike(cls.model_fields[str(about.field_name)], value)
        return value


class Settings(CheckedModel):
    """Immutable settings."""

    model_config = ConfigDict(frozen=True)


def refuse_unnamed(what: str, unnamed: Collection[object], names: Collection[str]) -> None:
    """Makes sure that all options are given by name.

    Args:
        what: What was called.
        unnamed: What was given without a name. Not repeated in the error: it may be a secret.
        names: The options that there are.

    Raises:
        ConfigurationError: An option has no name.
    """
    if unnamed:
        msg = f"{what} takes its options by name: write {what}({next(iter(names))}=...)"
        raise ConfigurationError(msg)


def near_names(name: str, names: Collection[str]) -> str:
    """What may have been meant by a name that there isn't; else all that there are.

    Args:
        name: As it was written.
        names: Those that there are.
    """
    near = meant_by(name, names, most=3)
    return f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names)}"


def meant_by(name: str, names: Iterable[str], *, most: int = 1, likeness: float = 0.6) -> list[str]:
    """The names that may have been meant by one that there isn't, the likeliest first; its case counts for nothing.

    Args:
        name: As it was written.
        names: Those that there are.
        most: How many to give at the most.
        likeness: How like the others have to be, from 0 to 1.
    """
    written = {each.lower(): each for each in names}
    return [written[each] for each in difflib.get_close_matches(name.lower(), written, most, likeness)]


def check_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Has a function refuse options that it doesn't have, and the lack of those that it needs, by name.

    Raises:
        ConfigurationError: By the function that is made: the call doesn't fit.
    """
    signature = inspect.signature(function)
    names = [name for name, each in signature.parameters.items() if each.kind in _NAMED and name != "self"]
    what = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*arguments: P.args, **options: P.kwargs) -> T:
        try:
            signature.bind(*arguments, **options)
        except TypeError:
            raise ConfigurationError(_misfit(what, signature, names, arguments, options)) from None
        return function(*arguments, **options)

    return checked


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _misfit(
    what: str, signature: inspect.Signature, names: Collection[str], given: Collection[object], options: Collection[str]
) -> str:
    parameters = signature.parameters.values()
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    unknown = [name for name in options if name not in names and not takes_any]
    if unknown:
        return "; ".join(f"{what}: there is no option {name}; {near_names(name, names)}" for name in unknown)
    unnamed = [each.name for each in parameters if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    if len(given) > len(unnamed):
        first = next((name for name in names if name not in unnamed and name not in options), "name")
        return f"{what}: an option is given without its name; write {what}({first}=...)"
    missing = [
        each.name
        for each in parameters
        if each.kind in _NAMED
        and each.default is inspect.Parameter.empty
        and each.name not in options
        and each.name not in unnamed[: len(given)]
    ]
    return f"{what}: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"


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


def describe(error: ValidationError, names: Collection[str] = ()) -> str:
    """What is wrong with each field, without the values: they may be secrets.

    Args:
        error: From pydantic.
        names: The fields that there are, for whoever has misspelt one.
    """
    return "; ".join(_describe(problem, names) for problem in error.errors(include_input=False, include_url=False))


# Pydantic's own words for these speak of its types.
_PLAIN = {
    "bool_parsing": "expected true or false",
    "bool_type": "expected true or false",
    "dict_type": "expected a mapping of names to values",
    "extra_forbidden": "there is no such field",
    "float_parsing": "expected a number",
    "float_type": "expected a number",
    "int_from_float": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_type": "expected a whole number",
    "list_type": 'expected a list, such as ["..."]',
    "mapping_type": "expected a mapping of names to values",
    "missing": "is missing",
    "string_too_short": "is empty",
    "string_type": "expected a text",
    "time_delta_parsing": "expected a timedelta, such as timedelta(hours=1)",
    "time_delta_type": "expected a timedelta, such as timedelta(hours=1)",
    "tuple_type": 'expected a list, such as ["..."]',
}


def plain_problem(problem: Any) -> str:
    """What is wrong with one field, in plain words.

    Args:
        problem: One of the errors of pydantic.
    """
    if problem["type"] == "model_type":
        return f"expected {problem['ctx']['class_name']}"
    text: str = _PLAIN.get(problem["type"]) or problem["msg"].removeprefix("Value error, ")
    return text.replace("Input should be", "has to be")


def _describe(problem: Any, names: Collection[str]) -> str:
    field = ".".join(str(part) for part in problem["loc"])
    text = plain_problem(problem)
    if problem["type"] == "extra_forbidden" and names:
        text = f"{text}; {near_names(str(problem['loc'][-1]), names)}"
    return f"{field}: {text}" if field and problem["type"] != "value_error" else text
