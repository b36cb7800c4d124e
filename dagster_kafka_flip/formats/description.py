"""Describes formats as JSON: to compare decoders, and to rebuild the built-in ones.

Stored with rejected records, so that a later run finds the same ones even if its own formats have changed.
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

from dagster_kafka_flip.formats.built_in import BUILT_IN

if TYPE_CHECKING:
    from dagster_kafka_flip.formats.decode import Decoder
    from dagster_kafka_flip.formats.format import Format

# An object's address differs in every process.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")

_PROCESS = uuid.uuid4().hex

# Objects described by their address. Keeps them alive, because Python could reuse the address.
_described: dict[int, Any] = {}


def describe_decoder(decoder: Decoder) -> dict[str, Any]:
    """Settings that decide which records a decoder rejects, as JSON; masks secrets."""
    return {"key": _describe(decoder.key_format), "value": _describe(decoder.value_format)}


def decoder_of(description: Mapping[str, Any], current: Decoder) -> Decoder | None:
    """Returns the decoder of a description: the current one if equal, or a rebuilt one; None if impossible."""
    key_format = _format_of(description["key"], current.key_format)
    value_format = _format_of(description["value"], current.value_format)
    if key_format is None or value_format is None:
        return None
    return replace(current, key_format=key_format, value_format=value_format)


def _describe(described: Format) -> dict[str, Any]:
    kind = type(described)
    # Stored in commits, so a built-in one has an id of its own instead of the class path.
    own_id = next((name for name, each in BUILT_IN.items() if each is kind), f"{kind.__module__}.{kind.__qualname__}")
    return {"format": own_id, **{name: _plain(value) for name, value in described.description().items()}}


def _plain(value: Any) -> Any:
    # A StructType, detected by its method: importing pyspark to describe a definition would cost a second.
    if hasattr(value, "jsonValue"):
        return value.jsonValue()
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return _plain_object(value)


def _plain_object(value: Any) -> Any:
    """Describes values that JSON can't represent; indistinguishable ones get a unique description."""
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
    # Its text only contains its address: equal to itself, but to no other object, and not in another process.
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
    """Describes a function by its code, because names are not unique: all lambdas have the same."""
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
    kind = BUILT_IN.get(description["format"])
    made = None if kind is None else kind.described(description)
    # Compares exactly the described settings: a later version may describe additional ones.
    return made if made is not None and _describe(made) == description else None
