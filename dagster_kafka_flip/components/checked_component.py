"""Base class of components: their errors name what is meant, and show no values."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from dagster import Component, Model, Resolvable
from dagster.components.component.component import ComponentTypeSpec
from pydantic import BaseModel, ConfigDict, ValidationError, create_model, model_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.arguments import refuse_unnamed
from dagster_kafka_flip.settings.base import describe
from dagster_kafka_flip.settings.names import near_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


class CheckedComponent(Component, Resolvable, Model):
    """Rejects invalid attributes with errors that show no secrets, and say in which settings an unknown one belongs."""

    settings_of: ClassVar[Mapping[str, type[BaseModel]]] = {}

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
        """The attribute schema, for editors and Dagster's pages."""
        return _schema(cls, super().model())


@functools.cache
def _schema(component: type[CheckedComponent], derived: type[BaseModel]) -> type[BaseModel]:
    # Dagster omits the descriptions.
    for name, field in derived.model_fields.items():
        field.description = component.model_fields[name].description
    made: Any = create_model(derived.__name__, __base__=(derived, _Attributes), __doc__=derived.__doc__)
    made.settings_of = component.settings_of
    return made


class _Attributes(Model):
    settings_of: ClassVar[Mapping[str, type[BaseModel]]] = {}

    @model_validator(mode="wrap")
    @classmethod
    def _hide_values(cls, given: Any, validate: Callable[[Any], Any]) -> Any:
        """Repeats errors without the values, which may be passwords, and says what an unknown name may mean."""
        try:
            return validate(given)
        except ValidationError as error:
            found: list[Any] = []
            for problem in error.errors(include_url=False):
                hidden = {**problem, "input": "..."}
                if problem["type"] == "extra_forbidden":
                    text = _unknown(str(problem["loc"][-1]), cls.settings_of, cls.model_fields)
                    hidden |= {"type": "value_error", "ctx": {"error": ValueError(text)}}
                found.append(hidden)
            raise ValidationError.from_exception_data(error.title, found) from None


def _unknown(name: str, settings_of: Mapping[str, type[BaseModel]], names: Mapping[str, Any]) -> str:
    home = next((each for each, settings in settings_of.items() if name in settings.model_fields), None)
    if home is not None:
        return f"not an attribute of its own; write it below {home}"
    return f"unknown attribute; {near_names(name, sorted(names))}"
