"""Formats as JSON: enough to say whether two decode alike, and to make the built-in ones again.

Kept where records were rejected, so that a later run can find the same ones, whatever its own formats are by then.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import types
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.raw import RawFormat
from dagster_kafka_flip.formats.string import StringFormat

if TYPE_CHECKING:
    from dagster_kafka_flip.formats.decode import Decoder
    from dagster_kafka_flip.formats.format import Format

# Kept in commits, so an id of its own and not where the class is.
_BUILT_IN: dict[str, type[Format]] = {"raw": RawFormat, "string": StringFormat, "json": JsonFormat}

# What says nothing of which records are rejected.
_OTHER_SETTINGS = frozenset({"on_error", "show_values"})

# An object's address is another one in every process.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

_PROCESS = uuid.uuid4().hex

# Objects that are described by their address. They are kept, because Python would give the address to another object.
_described: dict[int, Any] = {}


def describe_decoder(decoder: Decoder) -> dict[str, Any]:
    """What decides which records a decoder rejects, as JSON; secrets are masked."""
    return {"key": _describe(decoder.key_format), "value": _describe(decoder.value_format)}


def decoder_of(description: Mapping[str, Any], current: Decoder) -> Decoder | None:
    """The decoder that was described: the current one if that is it, or made again; None if that can't be.

    Args:
        description: From `describe_decoder`.
        current: The decoder that is there.
    """
    key_format = _format_of(description["key"], current.key_format)
    value_format = _format_of(description["value"], current.value_format)
    if key_format is None or value_format is None:
        return None
    return replace(current, key_format=key_format, value_format=value_format)


def _describe(described: Format) -> dict[str, Any]:
    kind = type(described)
    own_id = next((name for name, built_in in _BUILT_IN.items() if built_in is kind), None)
    settings = {name: _plain(value) for name, value in described if name not in _OTHER_SETTINGS}
    return {"format": own_id or f"{kind.__module__}.{kind.__qualname__}", **settings}


def _plain(value: Any) -> Any:
    # A StructType, told by its method: importing pyspark to describe a definition would cost a second.
    if hasattr(value, "jsonValue"):
        return value.jsonValue()
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return _plain_object(value)


def _plain_object(value: Any) -> Any:
    """What json can't describe; what can't be told apart from another is described as no other is."""
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {str(key): _plain(each) for key, each in items}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in cast("list[Any] | tuple[Any, ...]", value)]
    called = _plain_callable(value)
    if called is not None:
        return called
    text = repr(value)
    if not _ADDRESS.search(text):
        return text
    # Its text says nothing but where it is: the same object is the same, and no other one, nor one of another process.
    _described[id(value)] = value
    return f"{_ADDRESS.sub('', text)} {_PROCESS}-{id(value)}"


def _plain_callable(value: Any) -> Any:
    if isinstance(value, functools.partial):
        made = cast("functools.partial[Any]", value)
        return {"partial": _plain(made.func), "args": _plain(made.args), "keywords": _plain(made.keywords)}
    if isinstance(value, types.FunctionType):
        return _plain_function(value)
    if isinstance(value, types.MethodType):
        return {"method": _plain(value.__func__), "of": _plain(value.__self__)}
    if isinstance(value, (type, types.BuiltinFunctionType)):
        return f"{value.__module__}.{value.__qualname__}"
    return None


def _plain_function(function: types.FunctionType) -> dict[str, Any]:
    """By what it does, because its name may be that of another one: two lambdas have the same."""
    cells = function.__closure__ or ()
    return {
        "function": f"{function.__module__}.{function.__qualname__}",
        "code": hashlib.sha256(_code(function.__code__).encode()).hexdigest(),
        "defaults": _plain([function.__defaults__, function.__kwdefaults__]),
        "closure": [_plain(cell.cell_contents) for cell in cells],
    }


def _code(code: types.CodeType) -> str:
    constants = [_code(each) if isinstance(each, types.CodeType) else repr(each) for each in code.co_consts]
    return repr((code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars))


def _format_of(description: Mapping[str, Any], current: Format) -> Format | None:
    if description == _describe(current):
        return current
    made = _make(description)
    # As said, and nothing besides: a later version may describe a setting that this one does not know.
    return made if made is not None and _describe(made) == description else None


def _make(description: Mapping[str, Any]) -> Format | None:
    kind = _BUILT_IN.get(description["format"])
    if kind is not JsonFormat:
        return kind() if kind else None
    declared = description["declared"]
    if isinstance(declared, str):
        return JsonFormat(declared)
    from pyspark.sql.types import StructType

    return JsonFormat(StructType.fromJson(declared))
