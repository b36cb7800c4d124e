"""What the values of a JSON Schema look like: shapes, their combination, and the columns they become."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from dagster_kafka_flip.formats.column_types import (
    STRING,
    WHOLE,
    ColumnType,
    Field,
    array_of,
    map_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

# Each has the values of those before it.
_NUMBERS = tuple(map(ColumnType, (*WHOLE, "FLOAT", "DOUBLE")))
_TEXTS = (ColumnType("DATE"), ColumnType("TIMESTAMP_LTZ"), STRING)


@dataclass(frozen=True)
class Shape:
    """The look of values.

    Attributes:
        kind: The type of single values, members, or elements; `ANY_KIND` for values of several types; None if there
            are no values but null.
        is_null: Whether null is among the values.
        is_hint: Whether the schema says what objects or arrays look like, but not that values are such.
        comment: The field's description.
    """

    kind: Kind | None
    is_null: bool = False
    is_hint: bool = False
    comment: str | None = None

    def commented(self, comment: str | None) -> Shape:
        """The shape with a description, if there is one."""
        return self if comment is None else replace(self, comment=comment)


@dataclass(frozen=True)
class ArrayOf:
    """An array.

    Attributes:
        element: The shape of its elements.
    """

    element: Shape


@dataclass(frozen=True)
class Members:
    """An object.

    Attributes:
        fields: The shapes of its fields by name.
        required: Names of fields that it always has.
        values: The shape of the values, if any name is allowed and there are no fields.
        is_closed: Whether it has no other fields.
    """

    fields: Mapping[str, Shape] = field(default_factory=dict[str, Shape])
    required: frozenset[str] = frozenset()
    values: Shape | None = None
    is_closed: bool = False


Kind: TypeAlias = ColumnType | ArrayOf | Members

ANY_KIND = ColumnType("any")

ANY = Shape(ANY_KIND, is_null=True)
"""Any value."""

NULL = Shape(None, is_null=True)
"""Only null."""

NEVER = Shape(None)
"""No value at all."""


def join(one: Shape, other: Shape) -> Shape:
    """The shape of values that have one of two shapes."""
    is_null = one.is_null or other.is_null
    if one.kind is None or other.kind is None:
        return replace(other if one.kind is None else one, is_null=is_null)
    comment = one.comment if one.comment == other.comment else None
    return Shape(_either(one.kind, other.kind), is_null, one.is_hint and other.is_hint, comment)


def meet(one: Shape, other: Shape) -> Shape:
    """The shape of values that have both of two shapes."""
    is_null, comment = one.is_null and other.is_null, one.comment or other.comment
    if one.kind is None or other.kind is None:
        return Shape(None, is_null, comment=comment)
    kind = _both(one.kind, other.kind)
    is_hint = (one.is_hint or one.kind == ANY_KIND) and (other.is_hint or other.kind == ANY_KIND)
    if kind is None and one.is_hint != other.is_hint:
        # Rules for objects do not apply to other values.
        kind, is_hint = other.kind if one.is_hint else one.kind, False
    return Shape(kind, is_null, is_hint, comment)


def _either(one: Kind, other: Kind) -> Kind:
    if isinstance(one, ColumnType) and isinstance(other, ColumnType):
        return _either_scalar(one, other)
    if isinstance(one, ArrayOf) and isinstance(other, ArrayOf):
        return ArrayOf(join(one.element, other.element))
    if isinstance(one, Members) and isinstance(other, Members):
        return _either_members(one, other)
    return ANY_KIND


def _either_scalar(one: ColumnType, other: ColumnType) -> ColumnType:
    if one == other:
        return one
    if {one, other} <= set(_NUMBERS):
        widest = max(one, other, key=_NUMBERS.index)
        return widest if widest.name in WHOLE else _NUMBERS[-1]
    return STRING if {one, other} <= set(_TEXTS) else ANY_KIND


def _either_members(one: Members, other: Members) -> Kind:
    if not one.fields and not other.fields:
        values = None
        if one.values is not None and other.values is not None:
            values = join(one.values, other.values)
        return Members({}, one.required & other.required, values, is_closed=one.is_closed and other.is_closed)
    if any(not each.fields and not each.is_closed for each in (one, other)):
        # A STRUCT would drop fields whose names are unknown.
        return ANY_KIND
    fields = {**one.fields, **other.fields}
    for name in one.fields.keys() & other.fields.keys():
        fields[name] = join(one.fields[name], other.fields[name])
    return Members(fields, one.required & other.required, is_closed=one.is_closed and other.is_closed)


def _both(one: Kind, other: Kind) -> Kind | None:
    """What two kinds have in common; None if nothing."""
    if ANY_KIND in (one, other):
        return other if one == ANY_KIND else one
    if isinstance(one, ColumnType) and isinstance(other, ColumnType):
        for order in (_NUMBERS, (_TEXTS[0], STRING), (_TEXTS[1], STRING)):
            if {one, other} <= set(order):
                return min(one, other, key=order.index)
        return None
    if isinstance(one, ArrayOf) and isinstance(other, ArrayOf):
        return ArrayOf(meet(one.element, other.element))
    if isinstance(one, Members) and isinstance(other, Members):
        fields = {**one.fields, **other.fields}
        for name in one.fields.keys() & other.fields.keys():
            fields[name] = meet(one.fields[name], other.fields[name])
        values = one.values or other.values
        if one.values is not None and other.values is not None:
            values = meet(one.values, other.values)
        return Members(fields, one.required | other.required, values, is_closed=one.is_closed or other.is_closed)
    return None


def struct_of(members: Members, path: str = "") -> ColumnType:
    """The columns of an object."""
    fields: dict[str, Field] = {}
    for name, shape in members.fields.items():
        inside = f"{path}.{name}".removeprefix(".")
        if (other := fields.get(name.lower())) is not None:
            msg = (
                f"{inside} and {other.name} differ only in case; names in Spark are not case-sensitive. Give the "
                "columns as DDL (schema=)"
            )
            raise ValueError(msg)
        is_there = name in members.required and shape.kind is not None and not shape.is_null
        comment = None if path else shape.comment
        fields[name.lower()] = Field(name, _column(shape.kind, inside), is_null=not is_there, comment=comment)
    return ColumnType("STRUCT", tuple(fields.values()))


def _column(kind: Kind | None, path: str) -> ColumnType:
    if isinstance(kind, ArrayOf):
        return array_of(_column(kind.element.kind, f"{path}[]"))
    if isinstance(kind, Members):
        if kind.fields:
            return struct_of(kind, path)
        if kind.values is not None and kind.values.kind != ANY_KIND:
            return map_of(STRING, _column(kind.values.kind, f"{path}{{}}"))
    return kind if isinstance(kind, ColumnType) and kind != ANY_KIND else STRING
