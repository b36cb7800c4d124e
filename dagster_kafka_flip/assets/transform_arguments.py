"""The arguments of a user's transform: the rows and, if it has such parameters, `context` and resources."""

from __future__ import annotations

import inspect
from types import FunctionType
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.arguments import expect

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

RECORDS = "records"
"""The argument of an asset that lands topics."""
ROWS = "rows"
"""The argument of an asset that publishes a table."""

_WHAT = {RECORDS: "the DataFrame of the run's records", ROWS: "the DataFrame of the rows that a run publishes"}


def check_transform(transform: Callable[..., DataFrame], argument: str = RECORDS) -> None:
    """Checks that a function accepts the rows."""
    if not callable(transform):
        expect("transform", transform, FunctionType, f"a function of `{argument}`")
    names = _parameters(transform)
    name = getattr(transform, "__name__", "the transform")
    if inspect.iscoroutinefunction(transform) or inspect.isgeneratorfunction(transform):
        kind, word = ("async", "async") if inspect.iscoroutinefunction(transform) else ("a generator", "yield")
        raise ConfigurationError(f"{name}() is {kind}, but must return a Spark DataFrame; remove {word} and use return")
    if argument not in names:
        raise ConfigurationError(
            f"{name}() must take an argument `{argument}`, {_WHAT[argument]}; its arguments are "
            f"{', '.join(names) or 'none'}"
        )


def resources_of(transform: Callable[..., DataFrame] | None, argument: str) -> tuple[str, ...]:
    """The keys of the resources that a function asks for; none without a function."""
    names = () if transform is None else _parameters(transform)
    return tuple(name for name in names if name not in {"context", argument})


def bound(
    transform: Callable[..., DataFrame] | None, argument: str, context: Any
) -> Callable[[DataFrame], DataFrame] | None:
    """Binds context and resources to a function, if there is one."""
    if transform is None:
        return None
    given: dict[str, Any] = {name: getattr(context.resources, name) for name in resources_of(transform, argument)}
    if "context" in _parameters(transform):
        given["context"] = context
    return lambda rows: transform(**{argument: rows}, **given)


def located_at(transform: Callable[..., DataFrame] | None, compute: FunctionType) -> FunctionType:
    """Gives an op's function the location of the user's, which code references and stack traces then show."""
    if inspect.isfunction(written := inspect.unwrap(transform or compute)):
        place = written.__code__
        compute.__code__ = compute.__code__.replace(co_filename=place.co_filename, co_firstlineno=place.co_firstlineno)
    return compute


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except ValueError:
        # A built-in type, such as int.
        return ()
