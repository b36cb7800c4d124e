"""Schemas of a defs.yaml, derived from classes of settings and their docstrings, so that they can't differ.

Editors and `dg check yaml` use them. When definitions load, templates are evaluated first, and then the settings check
their values themselves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args

from dagster import Model, Resolver
from pydantic import BaseModel, Field, create_model
from pydantic_core import CoreSchema, core_schema

from dagster_kafka_flip.assets.asset_options import OPTIONS_OF_DAGSTER
from dagster_kafka_flip.components.templates import TEMPLATE
from dagster_kafka_flip.settings.docstrings import entries

if TYPE_CHECKING:
    from dagster import ResolutionContext

Scalar = str | int | float | bool
_Template = Annotated[str, Field(pattern=TEMPLATE.pattern)]


class _ForEditors:
    """Marks a type that takes any value in Python: only its JSON schema is used."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], CoreSchema]) -> CoreSchema:
        return core_schema.json_or_python_schema(handler(source), core_schema.any_schema())


def attribute(resolve: Callable[[ResolutionContext, Any], Any], schema: Any) -> Resolver:
    """How Dagster reads an attribute, and the type of which editors have the schema."""
    kind: Any = Annotated[schema, _ForEditors()]
    return Resolver(resolve, model_field_type=kind, inject_before_resolve=False)


def model_of(settings: type[BaseModel], *, without: Iterable[str] = (), **types: Any) -> type[BaseModel]:
    """Derives the YAML schema of settings: their fields, each of which also accepts a template."""
    texts = [each for base in reversed(settings.__mro__) for each in entries(base).items()]
    described = dict(texts) | {name: text for name, text in texts if not text.startswith("See ")}
    fields: dict[str, Any] = {}
    for name, field in settings.model_fields.items():
        if name in without:
            continue
        # A field can't be named `schema`: pydantic has a method of that name.
        written = field.alias or ("schema" if name == "declared" else name)
        kind = types.get(name, field.annotation)
        default = ... if field.is_required() and type(None) not in get_args(types.get(name)) else None
        text = field.description or described.get(written)
        fields[name] = (_or_template(kind), Field(default, alias=written, description=text))
    return create_model(f"{settings.__name__}Attributes", __base__=Model, **fields)


def help_of(function: Callable[..., Any]) -> dict[str, str]:
    """The texts of a function's options, and of Dagster's."""
    return {name: text for each in OPTIONS_OF_DAGSTER for name, text in entries(each).items()} | entries(function)


def resolved(resolver: Resolver, context: ResolutionContext, value: Any) -> Any:
    """Reads an option as the attribute of that kind is read."""
    resolve: Any = resolver.fn
    return resolve.callable(context, value)


def model_of_options(name: str, kinds: Mapping[str, Resolver], texts: Mapping[str, str]) -> type[BaseModel]:
    """Derives the YAML schema of options that are below one attribute."""
    fields: dict[str, Any] = {
        f"{option}_": (_or_template(each.model_field_type), Field(None, alias=option, description=texts[option]))
        for option, each in kinds.items()
    }
    return create_model(name, __base__=Model, **fields)


def options_of(function: Callable[..., Any], dagsters: type, kinds: Mapping[str, Resolver], **own_texts: str) -> Any:
    """Derives a component's attributes from a function's options, so that they can't differ."""
    parameters = inspect.signature(function).parameters
    named = {name: each.default for name, each in parameters.items() if each.kind is each.KEYWORD_ONLY}
    texts, fields = help_of(function) | own_texts, dict[str, Any]()
    for name in (*named, *dagsters.__annotations__):
        kind: Any = Annotated[Any, kinds[name]]
        is_required = named.get(name) is inspect.Parameter.empty
        default: Any = ... if is_required else None
        fields[name] = (kind if is_required else kind | None, Field(default, description=texts[name]))
    return create_model(f"Options_of_{function.__name__}", __base__=Model, **fields)


def typed(classes: Mapping[str, type[BaseModel]], **types: Any) -> Any:
    """Derives the YAML schema of settings whose class is given by the field `type`."""
    models: list[Any] = []
    for name, settings in classes.items():
        doc = (inspect.getdoc(settings) or "").partition("\n")[0]
        kind: Any = (Literal[name], ...)
        written = {field: each for field, each in types.items() if field in settings.model_fields}
        models.append(
            create_model(
                f"{settings.__name__}Attributes", __base__=model_of(settings, **written), __doc__=doc, type=kind
            )
        )
    return Annotated[Union[tuple(models)], Field(discriminator="type")]  # noqa: UP007 - made at run time


def _or_template(kind: Any) -> Any:
    # YAML's 10 and true are strings here.
    kind = dict[str, Scalar] if kind in {dict[str, str], Mapping[str, str]} else kind
    return kind if kind is str else kind | _Template
