"""Finds the highest timestamp of a log with lookups by timestamp, for brokers before Kafka 3.0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.source.instants import LAST_TIMESTAMP_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dagster_kafka_flip.source.sample import TimestampedOffset
    from dagster_kafka_flip.source.split import TopicPartition


def highest_times(
    found: Mapping[TopicPartition, TimestampedOffset],
    look_up: Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, TimestampedOffset]],
) -> dict[TopicPartition, TimestampedOffset]:
    """Returns the highest timestamp of each log and the first offset that has it.

    Steps double until there is no later record, then halve: a few dozen requests, each for all logs.

    Args:
        found: An entry of each log, with its timestamp.
        look_up: Returns the first entry of each log at or after a time; omits logs without one.
    """
    highest = dict(found)
    steps = dict.fromkeys(found, 1)
    nothing_from = dict.fromkeys(found, LAST_TIMESTAMP_MS + 1)
    while open_ones := [tp for tp, entry in highest.items() if nothing_from[tp] - entry.timestamp_ms > 1]:
        asked: dict[TopicPartition, int] = {}
        for tp in open_ones:
            low, high = highest[tp].timestamp_ms, nothing_from[tp]
            asked[tp] = low + min(steps[tp], (high - low) // 2)
        answers = look_up(asked)
        for tp, ms in asked.items():
            if tp in answers:
                highest[tp] = answers[tp]
                steps[tp] *= 2
            else:
                nothing_from[tp] = ms
    return highest
