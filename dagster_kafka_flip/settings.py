"""Base classes and validation of options."""

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
    """Rejects values that pydantic would convert: true for 1, and a number or a text for a duration.

    Args:
        field: The model's field.
        value: The given value.

    Raises:
        PydanticKnownError: The value has another type.
    """
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
    """Base class of immutable settings."""

    model_config = ConfigDict(frozen=True)


def refuse_unnamed(what: str, unnamed: Collection[object], names: Collection[str]) -> None:
    """Checks that all options are given by name.

    Args:
        what: Name of the called function.
        unnamed: Values without a name. The error does not show them: they may be secrets.
        names: Names of the options.

    Raises:
        ConfigurationError: A value has no name.
    """
    if unnamed:
        msg = f"{what} takes keyword arguments only: write {what}({next(iter(names))}=...)"
        raise ConfigurationError(msg)


def near_names(name: str, names: Collection[str]) -> str:
    """Suggests names similar to an unknown one; lists all names if none is similar.

    Args:
        name: The unknown name.
        names: The valid names.
    """
    near = meant_by(name, names, most=3)
    return f"did you mean {' or '.join(near)}?" if near else f"valid names: {', '.join(names)}"


def meant_by(name: str, names: Iterable[str], *, most: int = 1, likeness: float = 0.6) -> list[str]:
    """Returns valid names similar to an unknown one, most similar first, ignoring case.

    Args:
        name: The unknown name.
        names: The valid names.
        most: Maximum number of names.
        likeness: Minimum similarity, from 0 to 1.
    """
    written = {each.lower(): each for each in names}
    return [written[each] for each in difflib.get_close_matches(name.lower(), written, most, likeness)]


def check_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator: an unknown or missing option raises an error that names it.

    Raises:
        ConfigurationError: Raised by the decorated function: an option is unknown or missing.
    """
    return _checked(function, None, {})


def check_options(
    options: Iterable[str] = (), *, inside: Mapping[str, type[BaseModel]] | None = None
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Like `check_arguments`, for a function that takes settings, or the names of a TypedDict as `**options`.

    Args:
        options: The names of the TypedDict.
        inside: Parameters that take settings, with the class of each: an error about an unknown option says which of
            them has it.
    """
    return lambda function: _checked(function, tuple(options), inside or {})


def with_options_of(function: Callable[P, object]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Decorator: tells type checkers and editors that a function passes all its options to another one.

    Args:
        function: The other function.
    """
    del function
    return lambda passing: passing


def _checked(
    function: Callable[P, T], options: Collection[str] | None, inside: Mapping[str, type[BaseModel]]
) -> Callable[P, T]:
    signature = inspect.signature(function)
    parameters = signature.parameters.items()
    names = [name for name, each in parameters if each.kind in _NAMED and name != "self"]
    names += options or ()
    takes_any = options is None and any(each.kind is inspect.Parameter.VAR_KEYWORD for _, each in parameters)
    what = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*arguments: P.args, **given: P.kwargs) -> T:
        unknown = [] if takes_any else [name for name in given if name not in names]
        if unknown:
            raise ConfigurationError("; ".join(f"{what}: {_unknown(name, names, inside)}" for name in unknown))
        try:
            signature.bind(*arguments, **given)
        except TypeError:
            raise ConfigurationError(_misfit(what, signature, names, arguments, given)) from None
        return function(*arguments, **given)

    return checked


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _unknown(name: str, names: Collection[str], inside: Mapping[str, type[BaseModel]]) -> str:
    """Describes an unknown option, and where it belongs if it is a setting."""
    settings: dict[str, str] = {}
    for parameter, model in inside.items():
        required = [f"{field}=..." for field, each in model.model_fields.items() if each.is_required()]
        for field in model.model_fields:
            if field not in names:
                settings.setdefault(
                    field, f"{parameter}={model.__name__}({', '.join(dict.fromkeys([*required, f'{field}=...']))})"
                )
    if name in settings:
        return f"{name} is not an option of its own; write {settings[name]}"
    near = meant_by(name, [*names, *settings], most=3)
    if near:
        return f"unknown option {name}; did you mean {' or '.join(settings.get(each, each) for each in near)}?"
    return f"unknown option {name}; valid names: {', '.join(names)}"


def _misfit(
    what: str, signature: inspect.Signature, names: Collection[str], given: Collection[object], options: Collection[str]
) -> str:
    parameters = signature.parameters.values()
    unnamed = [each.name for each in parameters if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    if len(given) > len(unnamed):
        first = next((name for name in names if name not in unnamed and name not in options), "name")
        return f"{what}: takes keyword arguments only; write {what}({first}=...)"
    missing = [
        each.name
        for each in parameters
        if each.kind in _NAMED
        and each.default is inspect.Parameter.empty
        and each.name not in options
        and each.name not in unnamed[: len(given)]
    ]
    return f"{what}: missing {' and '.join(missing)}"


def expect(option: str, value: object, kinds: type | tuple[type, ...], example: str) -> None:
    """Checks the type of an option that is not a field of Settings.

    Args:
        option: The option's name.
        value: The given value. The error does not show it: it may be a secret.
        kinds: The allowed types.
        example: An example of a valid value.

    Raises:
        ConfigurationError: The value has another type.
    """
    if isinstance(value, kinds):
        return
    names = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
    given = f"the class {value.__name__} itself" if isinstance(value, type) else type(value).__name__
    given = "None" if value is None else given
    msg = f"{option}: expected {names}, got {given}; for example {option}={example}"
    raise ConfigurationError(msg)


HIDDEN = "**********"
"""Replaces a value that may be a secret, as in pydantic."""


def hidden_values(values: Mapping[str, object]) -> dict[str, str]:
    """Returns the names of settings, without their values, for printing.

    Args:
        values: Settings by name.
    """
    return dict.fromkeys(values, HIDDEN)


def hidden_parameters(remote: str) -> str:
    """Returns a Spark Connect address without its parameter values, which may include a token or a user name.

    Args:
        remote: Such as `sc://host:15002/;token=...`.
    """
    address, *parameters = remote.split(";")
    # Userinfo before the @ may hold credentials.
    address = re.sub(r"//[^/@]*@", f"//{HIDDEN}@", address)
    return ";".join([address, *(f"{each.partition('=')[0]}={HIDDEN}" if "=" in each else each for each in parameters)])


def without_parameters(text: str, remote: str) -> str:
    """Removes from a text, such as an error message, what `hidden_parameters` hides of an address.

    Args:
        text: A text that may contain the address.
        remote: The address.
    """
    text = text.replace(remote, hidden_parameters(remote))
    for parameter in remote.split(";")[1:]:
        value = parameter.partition("=")[2]
        for form in {value, unquote(value)} - {""}:
            text = text.replace(form, HIDDEN)
    return text


def describe(error: ValidationError, names: Collection[str] = ()) -> str:
    """Describes the problem of each field, without the values: they may be secrets.

    Args:
        error: The error from pydantic.
        names: The valid field names, for suggestions.
    """
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
    "string_too_short": "empty",
    "string_type": "expected a string",
    "time_delta_parsing": "expected a timedelta, such as timedelta(hours=1)",
    "time_delta_type": "expected a timedelta, such as timedelta(hours=1)",
    "tuple_type": 'expected a list, such as ["..."]',
}


def plain_problem(problem: Any) -> str:
    """Describes the problem of one field, in plain words.

    Args:
        problem: One pydantic error.
    """
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
