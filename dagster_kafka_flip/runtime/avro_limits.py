"""Limits on the memory that Avro's library reserves because a record says so.

Seven bytes can claim a string of 2 GiB, for which the library reserves memory before it reads on. No record that a
broker accepts by default (1 MB) comes near these limits.
"""

from __future__ import annotations

AVRO_LIMITS_NAME = "org.apache.avro.limits"
"""How the names of these Java properties begin."""

AVRO_LIMITS = (
    f"-D{AVRO_LIMITS_NAME}.bytes.maxLength=67108864 -D{AVRO_LIMITS_NAME}.string.maxLength=67108864 "
    f"-D{AVRO_LIMITS_NAME}.collectionItems.maxLength=10000000"
)
"""Java options: 64 MiB for a string or bytes, ten million elements for an array or a map."""
