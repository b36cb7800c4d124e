"""Frames: the bytes that name a record's schema in a registry, by Confluent's wire format.

A frame is a magic byte and an id: before the payload 0 and the schema's number in four bytes, in a header 1 and the
schema's GUID in sixteen bytes.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyspark.sql import Column

    from dagster_kafka_flip.registry.registered_schema import RegisteredSchema

SchemaIdIn = Literal["payload", "headers"]

_NUMBER, _NUMBER_BYTES = b"\x00", 5
_NUMBERS = range(2**32)
_GUID, _GUID_BYTES = b"\x01", 17
_FRAMES = ((_NUMBER, _NUMBER_BYTES), (_GUID, _GUID_BYTES))

# Before a header that holds no frame. No record has these bytes.
_NO_FRAME = bytes.fromhex("f3b1d07c5e29486a9c04e7fb8216d35a")


def header_name(*, is_key: bool) -> str:
    """The header with the frame of a key or a value."""
    return "__key_schema_id" if is_key else "__value_schema_id"


def framed(data: Column, headers: Column, name: str, *, may_go_on: bool) -> Column:
    """The payload after its frame, which comes from the last header of a name, or else from the payload itself.

    A header without a frame is kept as it is, after a mark: what it lacks is not taken from the payload. More may
    follow the frame in the header if `may_go_on`.
    """
    from pyspark.sql import functions as f

    named = f.filter(headers, lambda header: header.getField("key") == f.lit(name))
    header = f.try_element_at(named, f.lit(-1)).getField("value")
    first, size = f.substring(header, 1, 1), f.octet_length(header)
    is_frame = f.lit(False)
    for magic, length in _FRAMES:
        fits = size >= f.lit(length) if may_go_on else size == f.lit(length)
        is_frame |= (first == f.lit(magic)) & fits
    broken = f.when(data.isNotNull(), f.concat(f.lit(_NO_FRAME), header))
    return f.when(header.isNull(), data).when(is_frame, f.concat(header, data)).otherwise(broken)


def frame(data: Column) -> Column:
    """The frame of a framed payload, as hexadecimal digits; null if it has none."""
    from pyspark.sql import functions as f

    first, size = f.substring(data, 1, 1), f.octet_length(data)
    (is_number, number), (is_guid, guid) = (
        ((first == f.lit(magic)) & (size >= f.lit(length)), f.hex(f.substring(data, 1, length)))
        for magic, length in _FRAMES
    )
    return f.when(is_number, number).when(is_guid, guid)


def frames_of(schema: RegisteredSchema) -> list[str]:
    """The frames that name a schema, as hexadecimal digits: first that of its number, then that of its GUID."""
    found: list[bytes] = []
    if schema.schema_id in _NUMBERS:
        found.append(_NUMBER + schema.schema_id.to_bytes(4, "big"))
    if schema.guid is not None:
        found.append(_GUID + uuid.UUID(schema.guid).bytes)
    return [each.hex().upper() for each in found]


def has_frame(data: Column, digits: str) -> Column:
    """Whether a payload has a frame, which is given in hexadecimal digits."""
    from pyspark.sql import functions as f

    return f.substring(data, 1, len(digits) // 2) == f.lit(bytes.fromhex(digits))


def schema_id(digits: str) -> int | str:
    """The number or the GUID of the schema that a frame names."""
    content = bytes.fromhex(digits)
    return int.from_bytes(content[1:], "big") if content[:1] == _NUMBER else str(uuid.UUID(bytes=content[1:]))


def schema_id_text(frame: Column) -> Column:
    """As `schema_id`, of a column of frames, as text."""
    from pyspark.sql import functions as f

    digits = f.lower(f.substring(frame, 3, 2 * _GUID_BYTES))
    guid = f.regexp_replace(digits, "^(.{8})(.{4})(.{4})(.{4})(.{12})$", "$1-$2-$3-$4-$5")
    return f.when(frame.startswith(_NUMBER.hex()), f.conv(digits, 16, 10)).otherwise(guid)
