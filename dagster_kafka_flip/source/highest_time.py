"""The highest timestamp of a log by look-ups by time, for brokers that have no look-up for it (Kafka before 3.0)."""

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
    """The highest timestamp of each log, and the first offset that has it.

    The steps double until there is nothing later, and are halved from there: some dozen requests, each for all logs.

    Args:
        found: An entry of each log, and its timestamp.
        look_up: The first entry of each log at or after a time; logs without one are left out.
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
