"""Times that are numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pyspark.sql import Column

# The years 1 to 9999.
_FIRST, _LAST = -62135596800, 253402300799


def moment(number: Column, unit: Literal["seconds", "milliseconds"] = "milliseconds") -> Column:
    """The TIMESTAMP of a number since the epoch; null if not in the years 1 to 9999, in which Spark would fail."""
    from pyspark.sql import functions as f

    if unit == "seconds":
        return f.when(number.between(f.lit(_FIRST), f.lit(_LAST)), f.timestamp_seconds(number))
    return f.when(number.between(f.lit(_FIRST * 1000), f.lit(_LAST * 1000 + 999)), f.timestamp_millis(number))
