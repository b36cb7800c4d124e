"""Base class of components with clear errors: file, line, attribute and fix."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, cast

from dagster import Component, Model, Resolvable
from dagster.components.component.component import ComponentTypeSpec
from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError, create_model, model_validator

from dagster_kafka_flip.components.schemas import EMPTY, described, located
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.arguments import refuse_unnamed
from dagster_kafka_flip.settings.base import describe, plain_problem
from dagster_kafka_flip.settings.names import near_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import NoReturn

    from dagster import ComponentLoadContext
    from typing_extensions import Self

Place = tuple[str | int, ...]

_TEXT = "a string"
_KINDS = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a mapping",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "list_type": "a list",
    "model_attributes_type": "a mapping",
    "model_type": "a mapping",
    "string_type": _TEXT,
    "tuple_type": "a list",
}
_SCALARS = {"true or false", "a number", "a whole number", _TEXT}
_GIVEN: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (bool, "true or false"),
    ((int, float), "a number"),
    (str, _TEXT),
    (Mapping, "a mapping"),
    ((list, tuple), "a list"),
)


class CheckedComponent(Component, Resolvable, Model):
    """Rejects invalid attributes with clear errors that show no secrets.

    Raises:
        ConfigurationError: In Python: an attribute is missing, unknown or invalid.

    Attributes:
        settings_of: Attributes with settings; an error about an unknown attribute says which of them has it.
    """

    settings_of: ClassVar[tuple[str, ...]] = ()

    model_config = ConfigDict(arbitrary_types_allowed=True, extra="forbid", hide_input_in_errors=True)

    def __init__(self, *unnamed: NoReturn, **values: Any) -> None:
        name, fields = type(self).__name__, type(self).model_fields
        refuse_unnamed(name, unnamed, fields)
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigurationError(f"invalid {name}: {describe(error, fields)}") from None

    @classmethod
    def get_spec(cls) -> ComponentTypeSpec:
        """The description in `dg list components`."""
        return ComponentTypeSpec(description=(inspect.getdoc(cls) or "").partition("\n\n")[0], tags=["kafka", "delta"])

    @classmethod
    def model(cls) -> type[BaseModel]:
        """The attribute schema with descriptions, for editors and Dagster's pages."""
        return _keeping(described(super().model(), cls.model_fields))

    @classmethod
    def load(cls, attributes: BaseModel | None, context: ComponentLoadContext) -> Self:
        """Creates the component from a file's attributes.

        Args:
            attributes: The validated attributes; None if the file has none.
            context: Dagster's load context.

        Raises:
            ConfigurationError: Attributes are invalid; the message names file, line and attribute of each.
        """
        if attributes is None:
            attributes = cls.model().model_validate({})
        resolution = context.resolution_context.at_path("attributes")
        if isinstance(attributes, _Keeping) and attributes.kept is not None:
            texts: list[str] = []
            for place, text in _problems(*attributes.kept, cls.model(), cls.settings_of):
                at = functools.reduce(lambda each, part: each.at_path(part), place, resolution)
                texts.append(located(at, text))
            raise ConfigurationError("\n".join(texts))
        try:
            return super().load(attributes, context)
        except ConfigurationError as error:
            raise ConfigurationError(located(resolution, str(error))) from None


class _Keeping(Model):
    """Keeps errors until file and line are known, because pydantic's own message may show a password."""

    _kept: tuple[ValidationError, Any] | None = PrivateAttr(default=None)

    @property
    def kept(self) -> tuple[ValidationError, Any] | None:
        """The errors with the given attributes; None if valid."""
        return self._kept

    def keep(self, error: ValidationError, given: object) -> None:
        """Stores the errors."""
        self._kept = (error, given)

    @model_validator(mode="wrap")
    @classmethod
    def _keep(cls, given: Any, validate: Callable[[Any], Any]) -> Any:
        try:
            return validate(given)
        except ValidationError as error:
            broken = cls.model_construct()
            broken.keep(error, given)
            return broken


@functools.cache
def _keeping(schema: type[BaseModel]) -> type[BaseModel]:
    return create_model(schema.__name__, __base__=(schema, _Keeping), __doc__=schema.__doc__)


def _problems(
    error: ValidationError, given: object, schema: type[BaseModel], settings_of: Sequence[str]
) -> list[tuple[Place, str]]:
    """Merges the errors of each location: pydantic reports one for every possible type."""
    found: dict[Place, list[Any]] = {}
    for problem in _of_the_right_kind(error.errors(include_url=False, include_input=False), given):
        found.setdefault(_place(problem, given)[0], []).append(problem)
    deepest = [
        place for place in found if not any(len(other) > len(place) and other[: len(place)] == place for other in found)
    ]
    return [
        (place, _misplaced(place, schema, settings_of) or _text(found[place], _value(given, place), place, schema))
        for place in deepest
    ]


def _misplaced(place: Place, schema: type[BaseModel], settings_of: Sequence[str]) -> str | None:
    """Says where an unknown attribute belongs, if it is a setting; otherwise None."""
    name = str(place[0])
    if len(place) > 1 or name in _names(schema, ()):
        return None
    home = next((each for each in settings_of if name in _names(schema, (each,))), None)
    return None if home is None else f"not an attribute of its own; write it below {home}"


def _place(problem: Any, given: object) -> tuple[Place, Place | None]:
    """The part of a location that exists in the file, and the first type that pydantic tried there."""
    place: list[str | int] = []
    kind: Place | None = None
    value: Any = given
    parts: Place = problem["loc"]
    for number, part in enumerate(parts):
        inside = _inside(value)
        if part in inside:
            value = inside[part]
            place.append(part)
        elif problem["type"] == "missing" and number == len(parts) - 1:
            # Missing keys are not in the file.
            place.append(part)
        elif kind is None:
            kind = parts[: number + 1]
    return tuple(place), kind


def _of_the_right_kind(problems: Sequence[Any], given: object) -> list[Any]:
    """Removes errors of types with another `type` than the file's, if that one exists."""
    kinds = [_place(problem, given)[1] for problem in problems]
    wrong = {
        kind
        for kind, problem in zip(kinds, problems, strict=True)
        if problem["loc"][-1] == "type" and problem["type"] in {"literal_error", "missing"}
    }
    right = {kind for kind in kinds if kind is not None and kind not in wrong and str(kind[-1]) not in _TEMPLATES}
    places = {kind[:-1] for kind in right}
    return [
        problem
        for kind, problem in zip(kinds, problems, strict=True)
        if kind not in wrong or (kind is not None and kind[:-1] not in places and problem["loc"][-1] == "type")
    ]


# Pydantic's tag for a string with a template.
_TEMPLATES = frozenset({"str", "constrained-str"})


def _inside(value: object) -> Mapping[str | int, object]:
    if isinstance(value, Mapping):
        return cast("Mapping[str | int, object]", value)
    return dict(enumerate(cast("list[object]", value))) if isinstance(value, list) else {}


def _value(given: object, place: Place) -> object:
    for part in place:
        given = _inside(given).get(part)
    return given


def _text(problems: Sequence[Any], value: object, place: Place, schema: type[BaseModel]) -> str:
    types = {problem["type"] for problem in problems}
    if "extra_forbidden" in types:
        return f"unknown attribute; {near_names(str(place[-1]), sorted(_names(schema, place[:-1])))}"
    if "missing" in types:
        return "missing"
    for problem in problems:
        if problem["type"] == "value_error":
            return plain_problem(problem)
    if value is None:
        return EMPTY
    if types & {"union_tag_invalid", "union_tag_not_found"}:
        choices = [problem["ctx"].get("expected_tags") for problem in problems if "ctx" in problem]
        return f"type: expected {choices[0]}" if choices and choices[0] else "type: missing"
    return _expected(problems, value)


def _expected(problems: Sequence[Any], value: object) -> str:
    choices = [problem["ctx"]["expected"] for problem in problems if problem["type"] in {"literal_error", "enum"}]
    if choices:
        return f"expected {', '.join(dict.fromkeys(choices))}"
    wanted = list(dict.fromkeys(_KINDS[problem["type"]] for problem in problems if problem["type"] in _KINDS))
    if not wanted:
        return plain_problem(problems[0])
    if set(wanted) >= _SCALARS:
        wanted = [_TEXT, *(each for each in wanted if each not in _SCALARS)]
    elif len(wanted) > 1:
        # If another type is expected, a string can only be a template.
        wanted = [each for each in wanted if each != _TEXT]
    is_given = next((name for kind, name in _GIVEN if isinstance(value, kind)), type(value).__name__)
    return f"expected {' or '.join(wanted)}" + ("" if is_given in wanted else f", got {is_given}")


def _names(schema: type[BaseModel], place: Place) -> set[str]:
    """The attribute names at a location."""
    found: Any = schema.model_json_schema()
    definitions = found.get("$defs", {})
    level = [found]
    for part in place:
        inside: list[Any] = []
        for each in _alternatives(level, definitions):
            if isinstance(part, int):
                inside.append(each.get("items", {}))
            elif part in each.get("properties", {}):
                inside.append(each["properties"][part])
            elif isinstance(each.get("additionalProperties"), dict):
                inside.append(each["additionalProperties"])
        level = inside
    return {name for each in _alternatives(level, definitions) for name in each.get("properties", {})}


def _alternatives(schemas: Iterable[Any], definitions: Mapping[str, Any]) -> list[Any]:
    found: list[Any] = []
    for each in schemas:
        whole = definitions[each["$ref"].rpartition("/")[2]] if "$ref" in each else each
        inside = [*whole.get("anyOf", ()), *whole.get("oneOf", ())]
        found += _alternatives(inside, definitions) if inside else [whole]
    return found
