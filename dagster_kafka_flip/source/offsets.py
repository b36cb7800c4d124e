"""Start and stop offsets: Flink's OffsetsInitializer for bounded reads.

An initializer is resolved to one offset per topic partition before anything is read (FLIP-27). "The plan" in
docs/architecture.md has the rules for starts and stops.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError, OffsetNotFoundError
from dagster_kafka_flip.settings.arguments import expect
from dagster_kafka_flip.settings.base import Settings
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.source.instants import LAST_TIMESTAMP_MS, instant
from dagster_kafka_flip.source.split import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from dagster_kafka_flip.source.log import Log

# 2001 to 2096 as seconds since the epoch; as milliseconds, the first days of 1970.
_LIKELY_SECONDS = range(1_000_000_000, 4_000_000_000)
# Years and dates without dashes.
_LIKELY_DATE = re.compile(r"(19[7-9][0-9]|20[0-9][0-9])(?:(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01]))?")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)

_LAST_OFFSET = 2**63 - 1


class OffsetResetStrategy(enum.Enum):
    """What to do if a consumer group has no committed offset. Same values as the Java client's `auto.offset.reset`."""

    NONE = "none"
    EARLIEST = "earliest"
    LATEST = "latest"


class OffsetsKind(enum.Enum):
    """The five kinds of initializers."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIMESTAMP = "timestamp"
    COMMITTED = "committed"
    SPECIFIC = "specific"


class OffsetsInitializer(Settings):
    """Resolves to a start or stop offset for each topic partition of a source.

    Starts and stops have slightly different rules: see docs/architecture.md.
    """

    kind: OffsetsKind
    timestamp_ms: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    reset: OffsetResetStrategy = OffsetResetStrategy.NONE

    @classmethod
    def earliest(cls) -> OffsetsInitializer:
        """The beginning of the log. Only valid as a start."""
        return cls(kind=OffsetsKind.EARLIEST)

    @classmethod
    def latest(cls) -> OffsetsInitializer:
        """The end offset, read once when the plan is created."""
        return cls(kind=OffsetsKind.LATEST)

    @classmethod
    def timestamp(cls, timestamp: int | datetime | str) -> OffsetsInitializer:
        """The first record at or after a timestamp; if there is none, the end offset.

        Args:
            timestamp: Epoch milliseconds, an aware datetime, or ISO 8601 with a UTC offset.

        Raises:
            ConfigurationError: The timestamp is negative, malformed, has no UTC offset, or is in seconds.
        """
        milliseconds = epoch_milliseconds(timestamp)
        if isinstance(timestamp, int) and milliseconds in _LIKELY_SECONDS:
            raise ConfigurationError(
                f"timestamp {timestamp} looks like seconds since the epoch, but milliseconds are expected: write "
                f"{timestamp * 1000} for that moment, or an ISO 8601 string"
            )
        return cls(kind=OffsetsKind.TIMESTAMP, timestamp_ms=milliseconds)

    @classmethod
    def committed_offsets(cls, reset: OffsetResetStrategy | str = OffsetResetStrategy.NONE) -> OffsetsInitializer:
        """The committed offsets of the source's consumer group.

        Args:
            reset: For a topic partition without a committed offset. Default: an error.

        Raises:
            ConfigurationError: Unknown reset strategy.
        """
        return cls(kind=OffsetsKind.COMMITTED, reset=_reset_strategy(reset))

    @classmethod
    def specific_offsets(
        cls,
        offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int],
        reset: OffsetResetStrategy | str = OffsetResetStrategy.EARLIEST,
    ) -> OffsetsInitializer:
        """An offset for each topic partition.

        Args:
            offsets: Unlisted ones start at the group's committed offset, or else at `reset`; as a stop, they are not
                read.
            reset: Default: earliest.

        Raises:
            ConfigurationError: The map is empty, an offset is out of range, or the reset strategy is unknown.
        """
        expect("offsets", offsets, Mapping, '{TopicPartition("orders", 0): 17}')
        if not offsets:
            raise ConfigurationError("specific offsets need at least one topic partition")
        named = {_topic_partition(key): offset for key, offset in offsets.items()}
        for topic_partition, offset in named.items():
            if type(offset) is not int:
                raise ConfigurationError(f"{topic_partition}: invalid offset {offset!r}; expected a whole number")
            if offset < 0:
                raise ConfigurationError(f"{topic_partition}: the offset {offset} is negative")
            if offset > _LAST_OFFSET:
                msg = f"{topic_partition}: the offset {offset} is above Kafka's maximum of {_LAST_OFFSET}"
                raise ConfigurationError(msg)
        return cls(kind=OffsetsKind.SPECIFIC, offsets=named, reset=_reset_strategy(reset))

    @classmethod
    def parse(cls, text: str) -> OffsetsInitializer:
        """Parses the form used in run config and on the command line.

        Args:
            text: `earliest`, `latest`, `committed`, `committed:earliest`, `committed:latest`,
                `timestamp:2026-01-31T00:00:00Z`, `timestamp:1769817600000` (epoch milliseconds), or
                `offsets:{"topic": {"0": 17}}`.

        Raises:
            ConfigurationError: The text has none of these forms.
        """
        expect("offsets", text, str, '"earliest"')
        kind, _, argument = text.strip().partition(":")
        if kind in {"earliest", "latest"} and not argument:
            return cls(kind=OffsetsKind(kind))
        if kind == "committed" and argument in {"", *(strategy.value for strategy in OffsetResetStrategy)}:
            return cls.committed_offsets(argument or OffsetResetStrategy.NONE)
        if kind == "timestamp" and argument:
            _check_no_date(argument)
            return cls.timestamp(int(argument) if re.fullmatch("-?[0-9]{1,100}", argument) else argument)
        if kind == "offsets" and argument:
            return cls.specific_offsets(_parse_offsets(argument))
        raise ConfigurationError(
            f"invalid offsets {text!r}; write earliest, latest, committed, committed:earliest, "
            'timestamp:2026-01-31T00:00:00Z, timestamp:<epoch milliseconds> or offsets:{"topic": {"0": 17}}'
        )

    def only(self, may_read: Callable[[TopicPartition], bool]) -> OffsetsInitializer:
        """Returns the initializer for some topic partitions."""
        if self.offsets is None:
            return self
        return self.model_copy(update={"offsets": {tp: at for tp, at in self.offsets.items() if may_read(tp)}})

    @property
    def needs_group(self) -> bool:
        """Whether the initializer needs a consumer group."""
        return self.kind is OffsetsKind.COMMITTED

    def starting_offsets(self, partitions: Collection[TopicPartition], log: Log) -> dict[TopicPartition, int]:
        """Resolves the start offset of each topic partition."""
        if self.kind is OffsetsKind.EARLIEST:
            return dict(log.beginning_offsets(partitions))
        if self.kind is OffsetsKind.TIMESTAMP:
            return self._time_as_start(partitions, log)
        if self.kind is OffsetsKind.LATEST:
            return self._latest_or_time(partitions, log)
        named = self._named(partitions)
        return named | self._committed([tp for tp in partitions if tp not in named], log)

    def stopping_offsets(self, partitions: Collection[TopicPartition], log: Log) -> dict[TopicPartition, int]:
        """Resolves the stop offset (exclusive) of each topic partition; omits those that are not to be read."""
        if self.offsets is not None:
            return self._named(partitions)
        if self.kind is OffsetsKind.COMMITTED:
            return self._committed(partitions, log)
        return self._latest_or_time(partitions, log)

    def _named(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        existing = set(partitions)
        return {tp: offset for tp, offset in (self.offsets or {}).items() if tp in existing}

    def _latest_or_time(self, partitions: Collection[TopicPartition], log: Log) -> dict[TopicPartition, int]:
        # The end offset first: a record that arrives between the two lookups must not be beyond an earlier "end".
        end = dict(log.end_offsets(partitions))
        if self.timestamp_ms is None:
            return end
        return end | dict(log.offsets_for_times(dict.fromkeys(partitions, self.timestamp_ms)))

    def _time_as_start(self, partitions: Collection[TopicPartition], log: Log) -> dict[TopicPartition, int]:
        timestamp_ms = self.timestamp_ms or 0
        end = dict(log.end_offsets(partitions))
        found = dict(log.offsets_for_times(dict.fromkeys(partitions, timestamp_ms)))
        without = [tp for tp in partitions if tp not in found]
        # If the head of a segment was deleted and timestamps are out of order, a broker may return no record for a
        # timestamp although later segments have one. A start at the end would skip them permanently.
        highest = log.max_timestamps(without) if without else {}
        missed = [tp for tp, (offset, time) in highest.items() if time >= timestamp_ms and offset < end[tp]]
        return end | found | dict(log.beginning_offsets(missed))

    def _committed(self, partitions: Collection[TopicPartition], log: Log) -> dict[TopicPartition, int]:
        committed = dict(log.committed_offsets(partitions)) if partitions else {}
        missing = sorted(tp for tp in partitions if tp not in committed)
        if not missing:
            return committed
        if self.reset is OffsetResetStrategy.EARLIEST:
            return committed | dict(log.beginning_offsets(missing))
        if self.reset is OffsetResetStrategy.LATEST:
            return committed | dict(log.end_offsets(missing))
        raise OffsetNotFoundError(
            f"{missing[0]}: the consumer group has no committed offset"
            + (f" (also for {counted(len(missing) - 1, 'more topic partition')})" if len(missing) > 1 else "")
            + ", and no reset strategy is set; set one, such as committed_offsets(OffsetResetStrategy.EARLIEST)"
        )

    def __str__(self) -> str:
        if self.timestamp_ms is not None:
            return timestamp_text(self.timestamp_ms)
        if self.kind is OffsetsKind.COMMITTED:
            return f"committed:{self.reset.value}"
        if self.kind is OffsetsKind.SPECIFIC:
            nested: dict[str, dict[str, int]] = {}
            for topic_partition, offset in (self.offsets or {}).items():
                nested.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = offset
            return f"offsets:{json.dumps(nested)}"
        return self.kind.value


def timestamp_text(milliseconds: int) -> str:
    """Returns a timestamp as `OffsetsInitializer.parse` reads it."""
    # As a number, the first weeks of 1970 look like seconds or a date.
    is_doubtful = milliseconds in _LIKELY_SECONDS or _LIKELY_DATE.fullmatch(str(milliseconds))
    return f"timestamp:{instant(milliseconds) if is_doubtful else milliseconds}"


def epoch_milliseconds(timestamp: int | datetime | str) -> int:
    """Converts a timestamp to milliseconds since the epoch, rounded up."""
    if isinstance(timestamp, str):
        try:
            # Python 3.10 does not parse a trailing Z.
            timestamp = datetime.fromisoformat(timestamp.strip().replace("Z", "+00:00"))
        except ValueError as error:
            msg = f"invalid timestamp {timestamp!r}; write ISO 8601, such as 2026-01-31T00:00:00Z"
            raise ConfigurationError(msg) from error
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            msg = (
                f"the timestamp {timestamp.isoformat()} has no UTC offset; write one, such as {timestamp.isoformat()}Z"
            )
            raise ConfigurationError(msg)
        # Rounded up: record timestamps are whole milliseconds, and "at or after" must not include an earlier record.
        # By its fields: subclasses, such as Airflow's pendulum.DateTime, subtract differently.
        offset = timezone(timestamp.utcoffset() or timedelta())
        plain = datetime(*timestamp.timetuple()[:6], timestamp.microsecond, tzinfo=offset)
        timestamp = -((_EPOCH - plain) // timedelta(milliseconds=1))
    if type(timestamp) is not int:
        expect("timestamp", timestamp, datetime, '"2026-01-31T00:00:00Z", or milliseconds since 1970 as a whole number')
    if timestamp < 0:
        msg = f"the timestamp {timestamp} is before 1970, which Kafka can't look up; write 1970 or later"
        raise ConfigurationError(msg)
    if timestamp > LAST_TIMESTAMP_MS:
        msg = (
            f"the timestamp {timestamp} is above Kafka's maximum of {LAST_TIMESTAMP_MS}; write milliseconds since 1970"
        )
        raise ConfigurationError(msg)
    return timestamp


def _check_no_date(text: str) -> None:
    """Rejects a year and a date without dashes: as milliseconds they mean early 1970."""
    match = _LIKELY_DATE.fullmatch(text)
    if match:
        meant = "-".join(part or "01" for part in match.groups())
        raise ConfigurationError(
            f"timestamp {text} looks like a {'date' if match[2] else 'year'}, but milliseconds since 1970 are "
            f"expected: write {meant}T00:00:00Z for that moment"
        )


def _reset_strategy(reset: OffsetResetStrategy | str) -> OffsetResetStrategy:
    try:
        return OffsetResetStrategy(reset)
    except ValueError:
        raise ConfigurationError(f"invalid reset strategy {reset!r}; use none, earliest or latest") from None


def _parse_offsets(text: str) -> dict[TopicPartition, int]:
    try:
        nested = json.loads(text, object_pairs_hook=_each_once)
        return {
            TopicPartition(topic, _partition(partition)): offset
            for topic, partitions in nested.items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        msg = f'invalid offsets {text!r}; write a map such as {{"flights": {{"0": 17, "1": 23}}}}'
        raise ConfigurationError(msg) from error


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    # JSON parsers keep the last duplicate key, which would silently ignore a topic partition.
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        msg = f"the map of offsets has the key {twice!r} twice; write each topic and each partition once"
        raise ConfigurationError(msg)
    return found


def _partition(text: str) -> int:
    # int() would accept "00" as a second name of 0.
    if not re.fullmatch("0|[1-9][0-9]{0,9}", text):
        raise ValueError
    return int(text)


def _topic_partition(key: tuple[str, int]) -> TopicPartition:
    match key:
        case (str(topic), int(partition)) if topic and type(partition) is int and partition >= 0:
            return TopicPartition(topic, partition)
        case _:
            msg = f"invalid topic partition {key!r}; write TopicPartition(topic, number), such as ('flights', 0)"
            raise ConfigurationError(msg)


def check_order(start: OffsetsInitializer, stop: OffsetsInitializer) -> None:
    """Rejects a start after the stop, if this is known without a cluster."""
    if start.timestamp_ms is not None and stop.timestamp_ms is not None and start.timestamp_ms > stop.timestamp_ms:
        raise ValueError(f"the start {start} is after the stop {stop}: nothing would ever be read")
    for topic_partition, stopping_offset in (stop.offsets or {}).items():
        starting_offset = (start.offsets or {}).get(topic_partition, 0)
        if starting_offset > stopping_offset:
            raise ValueError(
                f"{topic_partition}: the start offset {starting_offset} is after the stop offset {stopping_offset}: "
                "nothing would ever be read"
            )
