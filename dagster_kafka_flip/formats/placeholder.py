"""The placeholder that Debezium writes for a value that it does not have, and its form in each type.

PostgreSQL does not send a large value (TOAST) that an update did not change. As the connector does, this makes of the
text: its bytes; an array of it; an array of its bytes as numbers; a name-based UUID in an array; a map of it to itself.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType

PLACEHOLDER = "__debezium_unavailable_value"
"""The connector's default."""


def is_placeholder(data_type: DataType, value: Column, placeholder: str) -> Column | None:
    """Whether a value was left out, null or false for a null; None if values of this type don't show it."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, VariantType

    if isinstance(data_type, StringType):
        return value.isin(forms_of(placeholder)[0])
    if isinstance(data_type, BinaryType):
        return value == f.lit(placeholder.encode())
    if isinstance(data_type, VariantType):
        return f.try_variant_get(value, "$", "string").isin(forms_of(placeholder)[0])
    if isinstance(data_type, ArrayType):
        return _is_placeholder_array(data_type.elementType, value, placeholder)
    if (
        isinstance(data_type, MapType)
        and isinstance(data_type.keyType, StringType)
        and isinstance(data_type.valueType, StringType)
    ):
        is_it = f.get(f.map_keys(value), f.lit(0)) == f.lit(placeholder)
        return (f.size(value) == f.lit(1)) & is_it & (f.get(f.map_values(value), f.lit(0)) == f.lit(placeholder))
    return None


def _is_placeholder_array(element_type: DataType, value: Column, placeholder: str) -> Column | None:
    from pyspark.sql import functions as f
    from pyspark.sql.types import BinaryType, IntegralType, StringType

    data, first = placeholder.encode(), f.get(value, f.lit(0))
    texts, name = forms_of(placeholder)
    if isinstance(element_type, IntegralType):
        # Signed, as Java's.
        numbers = f.array(*(f.lit(byte - (byte >> 7 << 8)) for byte in data)).cast("array<bigint>")
        return (f.size(value) == f.lit(len(data))) & (value.cast("array<bigint>") == numbers)
    if isinstance(element_type, BinaryType):
        return (f.size(value) == f.lit(1)) & (first == f.lit(data))
    if not isinstance(element_type, StringType):
        return None
    return (f.size(value) == f.lit(1)) & first.isin(*texts, name)


def forms_of(placeholder: str) -> tuple[list[str], str]:
    """The text, and what it is as hstore in JSON or as bytes in a text (`binary.handling.mode`); and its UUID."""
    data = placeholder.encode()
    encoded = (base64.b64encode(data), base64.urlsafe_b64encode(data))
    hstore = json.dumps({placeholder: placeholder}, ensure_ascii=False, separators=(",", ":"))
    texts = dict.fromkeys((placeholder, *(each.decode() for each in encoded), data.hex(), hstore))
    # As Java's UUID.nameUUIDFromBytes.
    return list(texts), str(uuid.UUID(bytes=hashlib.md5(data, usedforsecurity=False).digest(), version=3))
