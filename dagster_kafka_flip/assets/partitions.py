"""Maps asset partitions (time, or time and topics) to windows."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster import (
    MultiPartitionKey,
    MultiPartitionsDefinition,
    StaticPartitionsDefinition,
    TimeWindow,
    TimeWindowPartitionsDefinition,
)

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.arguments import expect
from dagster_kafka_flip.source.instants import nearest_time
from dagster_kafka_flip.source.window import Window, Windows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dagster import PartitionsDefinition

    from dagster_kafka_flip.source.kafka_source import KafkaSource


@dataclass(frozen=True)
class WindowGroup:
    """Windows of the same topics (None for all), with the partition keys of each, and the topics of each of these."""

    topics: tuple[str, ...] | None
    windows: tuple[Window, ...]
    partition_keys: Mapping[str, Mapping[str, tuple[str, ...] | None]]


class AssetPartitions:
    """Interprets an asset's partitions as windows: time, or time and a static dimension whose keys select topics."""

    def __init__(
        self,
        partitions_def: PartitionsDefinition[Any],
        rules: Windows,
        source: KafkaSource,
        topics_of: Mapping[str, Sequence[str]] | None,
    ) -> None:
        expect("windows", rules, Windows, "Windows(max_lateness=timedelta(hours=1))")
        self.rules = rules
        self._time_name, self._time, self._static_name, static = _dimensions(partitions_def)
        self._check_keys()
        self.has_topics = static is not None
        self._topics: dict[str, tuple[str, ...]] = {}
        if static is None and topics_of is not None:
            msg = "topics_of needs time partitions with a static dimension, and there is no static dimension"
            raise ConfigurationError(msg)
        for key in static.get_partition_keys() if static is not None else ():
            given: Any = (key,) if topics_of is None else topics_of.get(key, ())
            if isinstance(given, str) or not isinstance(given, Iterable):
                expect(f"topics_of[{key!r}]", given, list, '["orders"]')
            topics = tuple(given)
            if not topics:
                raise ConfigurationError(f"topics_of has no topic for the partition key {key!r}")
            source.only(topics)
            self._topics[key] = topics
        named = [topic for topics in self._topics.values() for topic in topics]
        twice = sorted({topic for topic in named if named.count(topic) > 1})
        if twice:
            raise ConfigurationError(f"two partition keys select the topic {twice[0]}; each would replace its rows")

    def _check_keys(self) -> None:
        """Each window replaces the rows with its key."""
        first = self._time.get_first_partition_window()
        if first is None:
            return
        some = TimeWindow(first.start, first.start + 3 * (first.end - first.start))
        keys = self._time.get_partition_keys_in_time_window(some)
        if len(set(keys)) < len(keys):
            raise ConfigurationError(
                f"several windows have the partition key {keys[-1]!r}, and would replace each other's rows: fmt is "
                f"{self._time.fmt!r}. Give partitions_def a fmt that tells all of its windows apart"
            )

    @property
    def definition(self) -> str:
        """Identifies the window definition, so that a table never mixes different ones."""
        return json.dumps(
            {
                "cron": self._time.cron_schedule,
                "timezone": self._time.timezone,
                "keys": self._time.fmt,
            }
        )

    def groups(self, partition_keys: Iterable[str]) -> list[WindowGroup]:
        """Groups the windows of partitions by topics."""
        keys_of: dict[str, dict[str, list[str]]] = {}
        for partition_key in partition_keys:
            time_key, topic_key = self._parts(partition_key)
            keys_of.setdefault(time_key, {}).setdefault(topic_key, []).append(partition_key)
        by_topics: dict[tuple[str, ...], list[str]] = {}
        for time_key, by_topic_key in keys_of.items():
            by_topics.setdefault(tuple(sorted(by_topic_key)), []).append(time_key)
        return [
            WindowGroup(
                topics=tuple(topic for key in topic_keys for topic in self._topics[key]) if self.has_topics else None,
                windows=tuple(self._window(time_key) for time_key in time_keys),
                partition_keys={
                    time_key: {
                        key: self._topics[topic_key] if self.has_topics else None
                        for topic_key, keys in keys_of[time_key].items()
                        for key in keys
                    }
                    for time_key in time_keys
                },
            )
            for topic_keys, time_keys in by_topics.items()
        ]

    def keys_between(self, start_ms: int, stop_ms: int) -> list[str]:
        """Partition keys of the windows within a time span, for all topics."""
        windows = {window.key: window for window in self._windows(start_ms, stop_ms)}
        within = [key for key, window in windows.items() if start_ms <= window.start_ms and window.stop_ms <= stop_ms]
        if not self.has_topics:
            return within
        return [
            MultiPartitionKey({self._time_name: time_key, self._static_name: topic_key})
            for topic_key in self._topics
            for time_key in within
        ]

    def irregularities(self, windows: Sequence[Window]) -> list[str]:
        """Describes gaps and overlaps of the definition's windows, at or between the given ones.

        Dagster defines the windows. If a clock change is less than one hour, hourly windows have a gap; if a time zone
        skips a day, two keys have the same window. Explicitly excluded windows are not reported.
        """
        if not windows:
            return []
        reach = max(window.stop_ms - window.start_ms for window in windows)
        start = min(window.start_ms for window in windows) - reach
        stop = max(window.stop_ms for window in windows) + reach
        landed = {window.key for window in windows}
        texts: list[str] = []
        every = sorted(self._windows(max(0, start), stop), key=lambda window: (window.start_ms, window.stop_ms))
        for before, after in itertools.pairwise(every):
            if landed.isdisjoint({before.key, after.key}):
                continue
            if before.stop_ms > after.start_ms:
                texts.append(
                    f"the partitions {before} and {after} overlap by definition: a record with a timestamp in both is "
                    "written twice if both are materialized. Materialize only one of them, and never both in one run"
                )
            elif before.stop_ms < after.start_ms and not self._time.exclusions:
                texts.append(
                    f"records with timestamps from {before.stop} to {after.start} are in no partition: by definition "
                    f"{before.key} ends and {after.key} begins at these times. To include them, use a time zone "
                    "without clock changes, such as UTC, or longer partitions"
                )
        return texts

    def _windows(self, start_ms: int, stop_ms: int) -> list[Window]:
        """The definition's windows that overlap a time span."""
        first, last = self._time.get_first_partition_window(), self._time.get_last_partition_window()
        if first is None or last is None:
            return []
        begin, end = max(first.start, nearest_time(start_ms)), min(last.end, nearest_time(stop_ms))
        keys = self._time.get_partition_keys_in_time_window(TimeWindow(begin, end)) if begin < end else ()
        return [self._window(key) for key in keys]

    def _parts(self, partition_key: str) -> tuple[str, str]:
        if isinstance(partition_key, MultiPartitionKey):
            keys = partition_key.keys_by_dimension
            return keys[self._time_name], keys[self._static_name]
        return partition_key, ""

    def _window(self, time_key: str) -> Window:
        span = self._time.time_window_for_partition_key(time_key)
        return Window.between(span.start, span.end, time_key)


def _dimensions(
    partitions_def: PartitionsDefinition[Any],
) -> tuple[str, TimeWindowPartitionsDefinition, str, StaticPartitionsDefinition | None]:
    if isinstance(partitions_def, TimeWindowPartitionsDefinition):
        return "", partitions_def, "", None
    if isinstance(partitions_def, MultiPartitionsDefinition):
        kinds = {dimension.name: dimension.partitions_def for dimension in partitions_def.partitions_defs}
        times = {name: kind for name, kind in kinds.items() if isinstance(kind, TimeWindowPartitionsDefinition)}
        statics = {name: kind for name, kind in kinds.items() if isinstance(kind, StaticPartitionsDefinition)}
        if len(times) == len(statics) == 1:
            ((time_name, time),) = times.items()
            ((static_name, static),) = statics.items()
            return time_name, time, static_name, static
    raise ConfigurationError(
        f"{type(partitions_def).__name__}: not supported; use time partitions (hourly, daily, weekly, monthly or a "
        "cron schedule), or time partitions with a static dimension that selects topics"
    )
