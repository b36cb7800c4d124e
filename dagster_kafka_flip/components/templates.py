"""Values in a defs.yaml: templates, and errors with file and line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar, cast

from dagster import ComponentLoadContext, DagsterError, ResolutionContext
from dagster.components.resolved.errors import ResolutionException
from pydantic import BaseModel, Field

from dagster_kafka_flip.assets.dagster_internals import CheckError
from dagster_kafka_flip.errors import KafkaFlipError

T = TypeVar("T")

EMPTY = "empty; write a value, or remove the attribute"

_TEMPLATE = re.compile(r"\{\{|\{%")
_EXPRESSION = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_ENV = re.compile(r"\benv\.(\w+)")
# An expression with one of these says itself what to do about a variable that is not set.
_CARES = re.compile(r"\b(?:or|if|default|d)\b")
# Validated by the schema, so `dg check yaml` finds values that are neither of a field's type nor a template.
Template = Annotated[str, Field(pattern=_TEMPLATE.pattern)]


def rendered(context: ResolutionContext, value: Any) -> Any:
    """Evaluates a value's templates. Other text stays text: Dagster would convert `"007"` or `"1_0"` to a number."""
    if isinstance(value, str):
        _refuse_unset(context, value)
        return context.resolve_value(value) if _TEMPLATE.search(value) else value
    if isinstance(value, BaseModel):
        return {name: rendered(context.at_path(name), getattr(value, name)) for name in value.model_fields_set}
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {name: rendered(context.at_path(name), each) for name, each in items}
    if isinstance(value, (list, tuple)):
        return [rendered(context.at_path(index), each) for index, each in enumerate(cast("list[Any]", value))]
    return value


def _refuse_unset(context: ResolutionContext, template: str) -> None:
    # Dagster would write None: a table in the folder None, or the default in place of a setting.
    names = [name for each in _EXPRESSION.findall(template) if not _CARES.search(each) for name in _ENV.findall(each)]
    for name in names:
        if name not in os.environ:
            default = f"{{{{ env('{name}', '...') }}}}"
            raise refused(context, f"the environment variable {name} is not set; set it, or write a default: {default}")


def refused(context: ResolutionContext, problem: object) -> ResolutionException:
    """Creates the error for a value, with file, line and field."""
    return ResolutionException(located(context, str(problem)))


def located(context: ResolutionContext, problem: str) -> str:
    """Prefixes a problem with its location in the file."""
    tree = context.source_position_tree
    field = ".".join(str(part) for part in context.path)
    if tree is None:
        return f"{field}: {problem}"
    position, _ = tree.lookup_closest_and_path(context.path, trace=None)
    return f"{position}: {field}: {problem}"


def create(context: ResolutionContext, make: Callable[..., T], values: Mapping[str, Any]) -> T:
    """Creates something from a value's options; an error names file, line and field."""
    try:
        return make(**values)
    except (KafkaFlipError, DagsterError, CheckError, ValueError, KeyError) as error:
        raise refused(context, error) from None


def create_of_type(
    context: ResolutionContext, what: str, types: Mapping[str, type[T]], value: Any, base: type[T] | None = None
) -> T:
    """Creates something whose class is given by the field `type`, unless a template has made it.

    Args:
        context: Location in the file.
        what: What it is, for errors.
        types: The class of each type.
        value: The value in the file. Its field `declared` is an option `schema`: pydantic has a method of that name.
        base: What a template may make. Default: one of these classes.
    """
    found = rendered(context, value)
    if isinstance(found, tuple(types.values()) if base is None else base):
        return found
    fields = cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}
    make = types.get(str(fields.get("type")))
    if make is None:
        problem = f"invalid {what} {found!r}; set its type ({', '.join(types)}) below it"
        raise refused(context, problem)
    options = {"schema" if name == "declared" else name: each for name, each in fields.items() if name != "type"}
    return create(context, make, options)


def placed(error: KafkaFlipError, context: ComponentLoadContext) -> KafkaFlipError:
    """Adds the file, and the line of the first attribute in the message, to an error."""
    tree = getattr(getattr(context.component_decl, "source_tree", None), "source_position_tree", None)
    if tree is None:
        return error
    attributes = tree.children["attributes"].children if "attributes" in tree.children else {}
    places = {str(inner): (name, inner) for name, each in attributes.items() for inner in each.children}
    places |= {str(name): (name,) for name in attributes}
    place = next((places[word] for word in re.findall(r"\w+", str(error)) if word in places), ())
    resolution = context.resolution_context.with_source_position_tree(tree).at_path("attributes")
    for part in place:
        resolution = resolution.at_path(part)
    return type(error)(located(resolution, str(error)))
