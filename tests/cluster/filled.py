"""Topics with records, for runs on clusters, and what is landed of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.windows.conftest import DAY, START

if TYPE_CHECKING:
    from tests.kafka_topic import Kafka

PARTITIONS = 2
# More than Spark hands to a Python function at once, so that a task which waits in it has not read all.
RECORDS = 400
_RECORD_BYTES = 1000

COLUMNS = ("kafka_partition", "kafka_offset", "CAST(kafka_value AS STRING)")

# The rows that a run of `everything` of tests/cluster/driver.py reports, by asset.
EVERYTHING = {"raw": 23, "orders": 22, "current": 7, "some": 23, "bytes": 23, "avro": 20, "days": 21}


def fill(kafka: Kafka, topic: str) -> None:
    """Makes a topic with `records()`."""
    kafka.create(topic, PARTITIONS)
    for partition in range(PARTITIONS):
        kafka.produce(topic, [(None, _value(partition, number)) for number in range(RECORDS)], partition=partition)


def records() -> list[tuple[int, int, str]]:
    """`COLUMNS` of all records of such a topic, sorted."""
    return [
        (partition, number, _value(partition, number)) for partition in range(PARTITIONS) for number in range(RECORDS)
    ]


def _value(partition: int, number: int) -> str:
    return f"{partition} {number} ".ljust(_RECORD_BYTES, "x")


def fill_for_everything(kafka: Kafka, topic: str) -> list[tuple[int, str]]:
    """Makes the topics of which `everything` of tests/cluster/driver.py lands; returns id and name of each order."""
    orders = [(number % 7, f"n{number}") for number in range(20)]
    for name in (topic, f"{topic}-keys", f"{topic}-avro"):
        kafka.create(name, 1 if name.endswith("-avro") else PARTITIONS)
    for number, (key, name) in enumerate(orders):
        record = json.dumps({"id": key}), json.dumps({"id": key, "name": name})
        kafka.produce(topic, [record], partition=number % 2, timestamp=START + number)
        kafka.produce(f"{topic}-keys", [record], partition=key % 2)
        kafka.produce(f"{topic}-avro", [(None, bytes([2 * key]))])
    kafka.produce(topic, [(None, "nonsense")], timestamp=START + 100)
    for partition in range(PARTITIONS):
        kafka.produce(topic, [(None, '{"id": 99}')], partition=partition, timestamp=START + DAY)
    return orders
