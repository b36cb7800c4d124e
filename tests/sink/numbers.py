"""Numbers that are published as rows are, without a table: from the progress, in batches, by the product's lanes."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from dagster_kafka_flip.errors import KafkaFlipError
from dagster_kafka_flip.sink.kafka_sink import KafkaSink
from dagster_kafka_flip.sink.lane import Lane, Lanes
from dagster_kafka_flip.sink.progress import Origin, Progress, ProgressTopic
from dagster_kafka_flip.source.cluster import KafkaCluster
from tests.kafka_topic import committed_records, consumed
from tests.sink.held_requests import ADD_PARTITIONS, END_TXN, INIT_PRODUCER_ID, PRODUCE, Place

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from typing_extensions import Self

    from dagster_kafka_flip.source.connection import KafkaConnection
    from tests.kafka_topic import Kafka
    from tests.sink.held_requests import HeldRequests

_logger = logging.getLogger(__name__)

_BATCH, _BATCHES = 3, 4
_MOST_RUNS = 8
_FIRST = Progress(0, 1, "t", None, "a", "i", Origin(0, snapshot=False), 0, 0, "{}", "s")
# Each record is a request of its own.
_PROPERTIES = {"linger.ms": "0", "batch.num.messages": "1", "reconnect.backoff.ms": "10", "retry.backoff.ms": "10"}


class Schedule(NamedTuple):
    """When a request is held back, and let through.

    Attributes:
        hold: Which one.
        until: Before which one it is let through, as counted from there on.
        end: What the run does after that: it goes on, ends with an abort, or is gone without one.
    """

    hold: Place
    until: Place
    end: str

    def __str__(self) -> str:
        return f"{self.hold} before {self.until}, {self.end}"


def _places(*counts: tuple[int, int]) -> list[Place]:
    return [Place(kind, number) for kind, count in counts for number in range(1, count + 1)]


EVERY_SCHEDULE = [
    Schedule(hold, until, end)
    for hold, until, end in itertools.product(
        _places((INIT_PRODUCER_ID, 2), (ADD_PARTITIONS, 4), (PRODUCE, 5), (END_TXN, 3)),
        _places((INIT_PRODUCER_ID, 2), (ADD_PARTITIONS, 4), (PRODUCE, 5), (END_TXN, 2)),
        ("goes on", "aborts", "is gone"),
    )
]


class _DiedError(BaseException):
    """The run is over."""


class Numbers:
    """Publishes numbers to one topic of two topic partitions, some for each schedule.

    Args:
        connection: The way through the network.
        topic: The topic, which is empty.
        network: The network.

    Attributes:
        released: In how many schedules the request was let through before the end.
    """

    def __init__(self, connection: KafkaConnection, topic: str, network: HeldRequests) -> None:
        self._connection, self._topic, self._network = connection, topic, network
        self._sink = KafkaSink(topic=topic, transactional_id_prefix=topic, properties=_PROPERTIES)
        self._cluster = KafkaCluster(connection)
        ProgressTopic(self._cluster, self._sink).prepare(1, _logger)
        self._schedules: list[Schedule] = []
        self._gone: list[Any] = []
        self.released = 0
        self.failures: Counter[str] = Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._network.release()
        self._bury()
        self._cluster.close()

    def publish(self, schedule: Schedule) -> None:
        """Publishes the next numbers, by as many runs as it takes."""
        self._schedules.append(schedule)
        self._network.hold(schedule.hold, schedule.until)
        for _ in range(_MOST_RUNS):
            try:
                self._run(schedule.end)
            except KafkaFlipError as error:  # noqa: PERF203 - run again
                self.failures[f"{schedule}: {type(error).__name__}: {error}"] += 1
            except _DiedError:
                # Once is enough.
                schedule = schedule._replace(end="goes on")
            else:
                break
        else:
            msg = f"no run came to its end: {schedule}"
            raise AssertionError(msg)
        self.released += self._network.is_released
        self._network.release()
        self._bury()

    def compared(self, kafka: Kafka) -> tuple[list[str], list[str], list[str]]:
        """Which numbers a consumer of committed records misses, finds twice, and does not know."""
        # Once all transactions are over.
        committed_records(self._connection, self._topic)
        found = Counter(value.decode() for _, _, _, value in consumed(kafka.bootstrap_servers, self._topic, 2))
        wanted = {self._value(number) for number in range(len(self._schedules) * _BATCH * _BATCHES)}
        doubled = sorted(value for value, count in found.items() if count > 1)
        return sorted(wanted - set(found)), doubled, sorted(set(found) - wanted)

    def _value(self, number: int) -> str:
        return f"{number}: {self._schedules[number // (_BATCH * _BATCHES)]}"

    def _run(self, end: str) -> None:
        lane = Lane(self._connection, self._sink, 0)
        lanes = Lanes([lane], self._sink, ProgressTopic(self._cluster, self._sink))
        try:
            progress = lanes.own().get(0)
            if progress is None:
                progress = _FIRST
                lane.commit(progress)
            while progress.rows < len(self._schedules) * _BATCH * _BATCHES:
                if not lane.is_open:
                    lanes.own_again([progress])
                following = replace(progress, rows=progress.rows + _BATCH)
                for number in range(progress.rows, following.rows):
                    self._write(lane, number, end)
                lane.commit(following)
                progress = following
        except _DiedError:
            if end == "is gone":
                # Its producer stays, and so does its transaction.
                self._gone.append(lane._producer)
                lane._producer = None
            raise
        finally:
            lanes.close()

    def _write(self, lane: Lane, number: int, end: str) -> None:
        lane.write(self._topic, None, self._value(number).encode(), number % 2)
        # One after the other, so that the requests come in this order.
        while len(lane._producer):
            lane._poll(0.05)
            lane.serve()
        if self._network.is_released and end != "goes on":
            raise _DiedError

    def _bury(self) -> None:
        while self._gone:
            with contextlib.suppress(Exception):
                self._gone.pop().purge()


def try_all(
    kafka: Kafka, connection: KafkaConnection, topic: str, network: HeldRequests, schedules: Sequence[Schedule]
) -> None:
    """Publishes numbers to a new topic under each schedule, and counts them."""
    kafka.create(topic, 2)
    with Numbers(connection, topic, network) as numbers:
        for schedule in schedules:
            numbers.publish(schedule)
        assert numbers.compared(kafka) == ([], [], [])
        # Most of the requests come to a later transaction, and not only to the end.
        assert numbers.released > len(schedules) / 2
        # Only a late InitProducerId ends a run.
        assert [failure for failure in numbers.failures if not failure.startswith("InitProducerId")] == []
