"""Limits on what Avro's library allocates at the word of a record."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_LIMITS = "org.apache.avro.limits"

# Seven bytes can claim a text of 2 GiB, for which Avro's library reserves memory before it reads on. No Kafka record
# that a broker takes with its default settings (1 MB) comes near these.
AVRO_LIMITS = (
    f"-D{_LIMITS}.bytes.maxLength=67108864 -D{_LIMITS}.string.maxLength=67108864 "
    f"-D{_LIMITS}.collectionItems.maxLength=10000000"
)
"""Java options: 64 MiB for a text or bytes, ten million elements for an array or a map."""


def with_avro_limits(settings: Mapping[str, str]) -> dict[str, str]:
    """A session's settings with these limits in the Java options of driver and executors, unless they have any.

    Args:
        settings: The settings.
    """
    limited = dict(settings)
    for name in ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"):
        options = settings.get(name, "")
        if _LIMITS not in options:
            limited[name] = f"{options} {AVRO_LIMITS}".strip()
    return limited
