"""WindowLogs: the logs in which windows are looked for, as of one plan."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.source.log import TopicSettings
    from dagster_kafka_flip.source.look_ups import LookUps
    from dagster_kafka_flip.source.sample import TimestampedOffset
    from dagster_kafka_flip.source.split import Position, TopicPartition
    from dagster_kafka_flip.source.window import Windows

# The clock of a new leader, and so its timestamps, may be behind the previous leader's.
_BROKER_CLOCKS = timedelta(seconds=10) // timedelta(milliseconds=1)
# Tolerated clock difference before a record counts as being in the future.
_CLOCK_SKEW = timedelta(minutes=5) // timedelta(milliseconds=1)


@dataclass(frozen=True)
class WindowLogs:
    """The logs of one plan.

    Attributes:
        rules: The rules that assign records to windows.
        now: The current time, in milliseconds since the epoch.
        look: The lookups by timestamp.
        beginning: Start offset of each log.
        end: End offset of each for the source's isolation level.
        high_watermarks: High watermark of each.
        settings: Settings of the topics that this client may see.
        set_by_broker: Topics whose records can't be late, because brokers set their timestamps on arrival.
    """

    rules: Windows
    now: int
    look: LookUps
    beginning: Position
    end: Position
    high_watermarks: Mapping[TopicPartition, int]
    settings: Mapping[str, TopicSettings]
    set_by_broker: frozenset[str]

    def lateness(self, tp: TopicPartition) -> int | None:
        """How late a record may be, in milliseconds; None if unlimited."""
        lateness = self.rules.lateness_ms
        if tp.topic not in self.set_by_broker:
            return lateness
        return _BROKER_CLOCKS if lateness is None else min(lateness, _BROKER_CLOCKS)

    def stop_time(self, tp: TopicPartition, bound: int) -> int | None:
        """The timestamp whose first record is the stop of a window with the given end; None for the end of the log."""
        lateness = self.lateness(tp)
        return None if lateness is None else bound + lateness

    def is_from_future(self, record: TimestampedOffset) -> bool:
        """Whether a record's timestamp is later than now."""
        return record.timestamp_ms > self.now + _CLOCK_SKEW

    def bound(self, tp: TopicPartition, ms: int | None) -> int:
        """The first record at or after a timestamp; the end offset if there is none, or if it is unreliable."""
        record = None if ms is None else self.look.record(tp, ms)
        return self.end[tp] if record is None or self.is_from_future(record) else record.offset

    def may_be_gone(self, tp: TopicPartition, ms: int) -> bool:
        """Whether a log may have had records at or after a timestamp that were deleted."""
        first = self.look.record(tp, 0)
        if first is not None:
            return first.timestamp_ms >= ms
        # The log has no records to compare with; only the topic's retention shows whether it may have had one.
        settings = self.settings.get(tp.topic)
        return settings is None or not settings.keeps(ms, self.now)
