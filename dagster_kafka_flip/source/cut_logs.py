"""Finds logs that were cut off before an offset and written again since: their offsets alone don't show it.

Each leader of a topic partition has a number, its epoch, and brokers know at which offset the records of an epoch end
(KIP-320). After an unclean election this is where the new leader's log ended, however much was written to it since.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import confluent_kafka

from dagster_kafka_flip.source.groupless import ReadFailedError, at, awaited_message, groupless_consumer
from dagster_kafka_flip.source.split import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dagster_kafka_flip.source.sample import LogEnd

# The record itself is not used: if a record or the log's end arrives, the log was not truncated.
_SETTINGS = {"fetch.message.max.bytes": 1024, "queued.min.messages": 1, "fetch.queue.backoff.ms": 0}

# The client only says in words that a log was cut off, and where: -1 if the broker knows no such epoch.
_CUT_AT = re.compile(r"broker end offset is (-?\d+)")

_PAUSE_SECONDS = 0.02


def cut_offsets(
    config: Mapping[str, Any], ends: Mapping[TopicPartition, LogEnd], seconds: float
) -> dict[TopicPartition, int | None]:
    """Returns where logs were cut off before an earlier end; None if unknown. Omits those that were not.

    All topic partitions are asked for at the same time.

    Args:
        config: Settings of a librdkafka client.
        ends: Earlier ends, with epochs.
        seconds: Maximum time to wait for the next answer, in seconds.

    Raises:
        ReadFailedError: A topic partition can't be read.
        NoAnswerError: No answer arrived in this time.
    """
    cut: dict[TopicPartition, int | None] = {}
    left = set(ends)
    consumer = groupless_consumer(config, _SETTINGS)
    try:
        consumer.assign([at(tp, end.offset) for tp, end in ends.items()])
        # The client only compares epochs after a seek.
        for tp, end in ends.items():
            epoch = -1 if end.leader_epoch is None else end.leader_epoch
            _seek(consumer, at(tp, end.offset, epoch), time.monotonic() + seconds)
        deadline = time.monotonic() + seconds
        while left:
            try:
                tp, _ = awaited_message(consumer, deadline, left)
            except ReadFailedError as failed:
                match = _CUT_AT.search(failed.error.str())
                if match is None:
                    raise
                tp = failed.topic_partition
                cut[tp] = None if int(match[1]) < 0 else int(match[1])
            left.remove(tp)
            consumer.incremental_unassign([at(tp)])
            deadline = time.monotonic() + seconds
    finally:
        consumer.close()
    return cut


def _seek(consumer: confluent_kafka.Consumer, to: confluent_kafka.TopicPartition, deadline: float) -> None:
    while True:
        try:
            consumer.seek(to)
            return  # noqa: TRY300 - as the other end of the loop
        except confluent_kafka.KafkaException as error:  # noqa: PERF203 - hardly ever again
            # The client's own thread has not begun with the topic partition yet.
            if error.args[0].name() != "_STATE" or time.monotonic() > deadline:
                raise ReadFailedError(TopicPartition(to.topic, to.partition), error.args[0]) from None
            time.sleep(_PAUSE_SECONDS)
