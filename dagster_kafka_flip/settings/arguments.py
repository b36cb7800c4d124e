"""Checks the arguments of a call: unknown, unnamed, of another type. Python names missing ones."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.names import meant_by

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from pydantic import BaseModel

P = ParamSpec("P")


T = TypeVar("T")


def refuse_unnamed(what: str, unnamed: Collection[object], names: Collection[str]) -> None:
    """Checks that all options are given by name. The error does not show the values: they may be secrets."""
    if unnamed:
        example = next((f"{name}=..." for name in names), "")
        raise ConfigurationError(f"{what} takes keyword arguments only: write {what}({example})")


def check_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Decorator: an unknown option raises an error that names it."""
    return _checked(function, None, {})


def check_methods(builder: type[T]) -> type[T]:
    """Class decorator: `check_arguments` for all setters."""
    for name in [name for name in vars(builder) if name.startswith("set_")]:
        setattr(builder, name, check_arguments(getattr(builder, name)))
    return builder


def check_options(
    options: Iterable[str] = (), *, inside: Mapping[str, type[BaseModel]] | None = None
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Also for a TypedDict's names, as `**options`. `inside` are parameters that take settings, for the error."""
    return lambda function: _checked(function, tuple(options), inside or {})


def with_options_of(function: Callable[P, object]) -> Callable[[Callable[..., T]], Callable[P, T]]:
    """Decorator for type checkers and editors: the function passes all its options to another one."""
    del function
    return lambda passing: passing


def _checked(
    function: Callable[P, T], options: Collection[str] | None, inside: Mapping[str, type[BaseModel]]
) -> Callable[P, T]:
    signature = inspect.signature(function)
    parameters = signature.parameters.items()
    names = [name for name, each in parameters if each.kind in _NAMED and name != "self"]
    in_order = [name for name, each in parameters if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    required = [name for name in names if signature.parameters[name].default is inspect.Parameter.empty]
    names += options or ()
    takes_any = options is None and any(each.kind is inspect.Parameter.VAR_KEYWORD for _, each in parameters)
    what = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def checked(*arguments: P.args, **given: P.kwargs) -> T:
        missing = [name for name in required if name not in given and name not in in_order[: len(arguments)]]
        # A function that passes other options on has not looked at their names yet.
        unknown = [name for name in given if name not in names and (not takes_any or meant_by(name, missing))]
        if unknown:
            raise ConfigurationError("; ".join(f"{what}: {_unknown(name, names, inside)}" for name in unknown))
        return function(*arguments, **given)

    return checked


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _unknown(name: str, names: Collection[str], inside: Mapping[str, type[BaseModel]]) -> str:
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


def expect(option: str, value: object, kinds: type | tuple[type, ...], example: str) -> None:
    """Checks an option that is not a field of Settings. The error does not show the value: it may be a secret."""
    if isinstance(value, kinds):
        return
    names = " or ".join(kind.__name__ for kind in (kinds if isinstance(kinds, tuple) else (kinds,)))
    given = f"the class {value.__name__} itself" if isinstance(value, type) else type(value).__name__
    given = "None" if value is None else given
    raise ConfigurationError(f"{option}: expected {names}, got {given}; for example {option}={example}")
