"""Schemas of a defs.yaml, derived from classes of settings and their docstrings, so that they can't differ."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, cast, get_args

from dagster import ComponentLoadContext, DagsterError, Model, ResolutionContext
from dagster.components.resolved.errors import ResolutionException
from pydantic import BaseModel, BeforeValidator, Field, create_model
from pydantic_core import PydanticKnownError

from dagster_kafka_flip.assets.dagster_internals import CheckError
from dagster_kafka_flip.errors import KafkaFlipError

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

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
        if not _TEMPLATE.search(value):
            return value
        _refuse_unset(context, value)
        found = context.resolve_value(value)
        _refuse_undefined(context, value)
        return found
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


def _refuse_undefined(context: ResolutionContext, template: str) -> None:
    # In a longer text Dagster would write nothing for a name that it doesn't know: another table.
    from jinja2 import StrictUndefined, Template, UndefinedError

    if any(_CARES.search(each) for each in _EXPRESSION.findall(template)):
        return
    try:
        Template(template, undefined=StrictUndefined).render(**context.scope)
    except UndefinedError as error:
        hint = "correct the name; for each topic, write {topic} in single braces"
        raise refused(context, f"{error.message}; {hint}") from None


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
    error.finding = located(resolution, error.finding)
    return error


Scalar = str | int | float | bool


def _not_true_or_false(value: Any) -> Any:
    # pydantic takes `true` for 1.
    if isinstance(value, bool):
        raise PydanticKnownError("float_type")
    return value


NUMERIC = BeforeValidator(_not_true_or_false)


def entries(of: object) -> dict[str, str]:
    """Returns name and text of each entry in Args and Attributes."""
    # Python leaves out docstrings under -OO. Elsewhere one that is missing is an error.
    found: dict[str, str] = defaultdict(str) if sys.flags.optimize > 1 else {}
    for section in re.findall(r"^(?:Args|Attributes):\n((?:(?: .*)?\n?)*)", inspect.getdoc(of) or "", re.MULTILINE):
        for name, text in re.findall(r"^ {4}\*{0,2}(\w+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE):
            found[name] = " ".join(text.split())
    return found


def model_of(settings: type[BaseModel], *, without: Iterable[str] = (), **instead: Any) -> type[BaseModel]:
    """Derives the YAML schema of settings: their fields, each of which also accepts a template.

    Args:
        settings: A class of settings.
        without: Fields that YAML does not have.
        **instead: Other types for some fields.
    """
    texts = [each for base in reversed(settings.__mro__) for each in entries(base).items()]
    described = dict(texts) | {name: text for name, text in texts if not text.startswith("See ")}
    fields: dict[str, Any] = {
        name: (
            or_template(instead.get(name) or _written(field.annotation)),
            Field(
                ... if field.is_required() and type(None) not in get_args(instead.get(name)) else None,
                # Pydantic has a method `schema`.
                alias="schema" if name == "declared" else None,
                description=field.description or described.get("schema" if name == "declared" else name),
            ),
        )
        for name, field in settings.model_fields.items()
        if name not in without
    }
    return create_model(f"{settings.__name__}Attributes", __base__=Model, **fields)


def described(schema: type[BaseModel], fields: Mapping[str, FieldInfo]) -> type[BaseModel]:
    """Adds field descriptions to a schema, because Dagster omits them."""
    silent = [name for name, field in schema.model_fields.items() if field.description is None and name in fields]
    for name in silent:
        schema.model_fields[name].description = fields[name].description
    if silent:
        schema.model_rebuild(force=True)
    return schema


def _written(kind: Any) -> Any:
    # Accepts YAML's 10 and true as strings here.
    return dict[str, Scalar] if kind in {dict[str, str], Mapping[str, str]} else kind


def or_template(kind: Any) -> Any:
    """A type that may be written as a template, too."""
    accepted = kind if kind is str else kind | Template
    kinds = {kind, *get_args(kind)}
    return Annotated[accepted, NUMERIC] if kinds & {int, float} and bool not in kinds else accepted


def typed(classes: Mapping[str, Any], **instead: Any) -> Any:
    """Derives the YAML schema of settings whose class is given by the field `type`.

    Args:
        classes: The class of each type.
        **instead: Other types for some fields of all classes.
    """
    models: list[Any] = []
    for name, settings in classes.items():
        doc = (inspect.getdoc(settings) or "").partition("\n")[0]
        kind: Any = (Literal[name], ...)
        schema = model_of(settings, **instead)
        models.append(create_model(f"{settings.__name__}Attributes", __base__=schema, __doc__=doc, type=kind))
    return Annotated[Union[tuple(models)], Field(discriminator="type")]  # noqa: UP007 - made at run time
