"""The placeholder that Debezium writes for a value that it does not have.

PostgreSQL does not send a large value (TOAST) that an update did not change. The library knows the form that the
connector gives the text in each type; what needs a digest or Base64 is made here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid

PLACEHOLDER = "__debezium_unavailable_value"
"""The connector's default."""


def forms_of(placeholder: str) -> tuple[list[str], str]:
    """The text, and what it is as hstore in JSON or as bytes in a text (`binary.handling.mode`); and its UUID."""
    data = placeholder.encode()
    encoded = (base64.b64encode(data), base64.urlsafe_b64encode(data))
    hstore = json.dumps({placeholder: placeholder}, ensure_ascii=False, separators=(",", ":"))
    texts = dict.fromkeys((placeholder, *(each.decode() for each in encoded), data.hex(), hstore))
    # As Java's UUID.nameUUIDFromBytes.
    return list(texts), str(uuid.UUID(bytes=hashlib.md5(data, usedforsecurity=False).digest(), version=3))
