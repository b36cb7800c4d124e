"""Schemas of a defs.yaml, derived from classes of settings and their docstrings, so that they can't differ."""

from __future__ import annotations

import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args

from dagster import Model
from pydantic import BaseModel, BeforeValidator, Field, create_model
from pydantic_core import PydanticKnownError

from dagster_kafka_flip.components.templates import Template

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

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
