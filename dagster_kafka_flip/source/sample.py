"""What a few records of a split tell of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class TimestampedOffset(NamedTuple):
    """An offset and a time that goes with it, in milliseconds since the epoch."""

    offset: int
    timestamp_ms: int


@dataclass(frozen=True)
class SplitSample:
    """A bounded sample of one split: some records from its start, and some from its end.

    Attributes:
        records: Records looked at.
        bytes: Bytes of their keys and values.
        first_timestamp: Of the first record, in milliseconds since the epoch.
        last_timestamp: Of the last record, in milliseconds since the epoch.
    """

    records: int
    bytes: int
    first_timestamp: int
    last_timestamp: int
