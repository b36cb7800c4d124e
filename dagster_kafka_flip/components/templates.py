"""Evaluates the templates of a defs.yaml, and says where in the file a value is wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dagster import DagsterError
from dagster.components.resolved.errors import ResolutionException
from pydantic import ValidationError

from dagster_kafka_flip.assets.dagster_internals import CheckError
from dagster_kafka_flip.errors import KafkaFlipError
from dagster_kafka_flip.settings.base import describe

if TYPE_CHECKING:
    from dagster import ComponentLoadContext, ResolutionContext

T = TypeVar("T")

TEMPLATE = re.compile(r"\{\{|\{%")
_EXPRESSION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_ENV = re.compile(r"\benv\.(\w+)")
# An expression with one of these says itself what to do about a variable that is not set.
_CARES = re.compile(r"\b(?:or|if|default|d)\b")


def rendered(context: ResolutionContext, value: Any) -> Any:
    """Evaluates a value's templates. Other text stays text: Dagster would convert `"007"` or `"1_0"` to a number."""
    if isinstance(value, str):
        return _evaluated(context, value) if TEMPLATE.search(value) else value
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {name: rendered(context.at_path(name), each) for name, each in items}
    if isinstance(value, list):
        return [rendered(context.at_path(index), each) for index, each in enumerate(cast("list[Any]", value))]
    return value


def _evaluated(context: ResolutionContext, template: str) -> Any:
    from jinja2 import StrictUndefined, Template, UndefinedError

    expressions = [each for each in _EXPRESSION.findall(template) if not _CARES.search(each)]
    # Dagster would write None: a table in the folder None, or the default in place of a setting.
    unset = [name for each in expressions for name in _ENV.findall(each) if name not in os.environ]
    if unset:
        default = f"{{{{ env('{unset[0]}', '...') }}}}"
        msg = f"the environment variable {unset[0]} is not set; set it, or write a default: {default}"
        raise refused(context, msg)
    found = context.resolve_value(template)
    if len(expressions) == len(_EXPRESSION.findall(template)):
        # In a longer text Dagster would write nothing for a name that it doesn't know: another table.
        try:
            Template(template, undefined=StrictUndefined).render(**context.scope)
        except UndefinedError as error:
            hint = "correct the name; for each topic, write {topic} in single braces"
            raise refused(context, f"{error.message}; {hint}") from None
    return found


def refused(context: ResolutionContext, problem: object) -> ResolutionException:
    """Creates the error for a value, with file, line and field."""
    return ResolutionException(located(context, str(problem)))


def located(context: ResolutionContext, problem: str) -> str:
    """Prefixes a problem with its location in the file: that of the first field in it, if the value has such fields."""
    tree = context.source_position_tree
    for part in context.path:
        tree = None if tree is None else tree.children.get(part)
    inside = {} if tree is None else {str(name): name for name in tree.children}
    name = next((inside[word] for word in re.findall(r"\w+", problem) if word in inside), None)
    at = context if name is None else context.at_path(name)
    field = ".".join(str(part) for part in at.path)
    # Where it begins with the option's name, the place has it already.
    problem = problem.removeprefix(f"{at.path[-1]}: ") if at.path else problem
    if at.source_position_tree is None:
        return f"{field}: {problem}"
    position, _ = at.source_position_tree.lookup_closest_and_path(at.path, trace=None)
    return f"{position}: {field}: {problem}"


def create(context: ResolutionContext, make: Callable[..., T], values: Mapping[str, Any] = {}) -> T:
    """Creates something from a value's options; an error names file, line and field."""
    try:
        return make(**values)
    except ValidationError as error:
        raise refused(context, describe(error)) from None
    except (KafkaFlipError, DagsterError, CheckError, ValueError, KeyError, TypeError) as error:
        raise refused(context, error) from None


def placed(error: KafkaFlipError, context: ComponentLoadContext) -> KafkaFlipError:
    """Adds the file, and the line of the first attribute in the message, to an error."""
    tree = getattr(getattr(context.component_decl, "source_tree", None), "source_position_tree", None)
    if tree is None:
        return error
    attributes = tree.children["attributes"].children if "attributes" in tree.children else {}
    places = {str(inner): name for name, each in attributes.items() for inner in each.children}
    places |= {str(name): name for name in attributes}
    place = [places[word] for word in re.findall(r"\w+", str(error)) if word in places][:1]
    resolution = context.resolution_context.with_source_position_tree(tree).at_path("attributes")
    for part in place:
        resolution = resolution.at_path(part)
    error.finding = located(resolution, error.finding)
    return error
