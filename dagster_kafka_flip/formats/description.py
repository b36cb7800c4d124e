"""Describes formats as JSON: to compare decoders, and to rebuild the built-in ones.

Stored with rejected records, so that a later run finds the same ones even if its own formats have changed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.built_in import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.formats.decode import Decoder
    from dagster_kafka_flip.formats.format import Format


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
    settings = to_jsonable_python(described.description(), fallback=_plain_object, bytes_mode="base64")
    return {"format": own_id, **settings}


def _plain_object(value: Any) -> Any:
    # A StructType, detected by its method: importing pyspark to describe a definition would cost a second.
    if hasattr(value, "jsonValue"):
        return value.jsonValue()
    raise ConfigurationError(
        f"a format has a setting of the type {type(value).__name__}, which JSON can't hold, so a run could not tell "
        "which records an earlier one rejected",
        "Make it a method of the format's class, or leave out dead_letter",
    )


def _format_of(description: Mapping[str, Any], current: Format) -> Format | None:
    if description == _describe(current):
        return current
    kind = BUILT_IN.get(description["format"])
    made = None if kind is None else kind.described(description)
    # Compares exactly the described settings: a later version may describe additional ones.
    return made if made is not None and _describe(made) == description else None
