"""A process that publishes through Spark Connect, and stops at a record until it may go on.

Arguments: the server, the brokers, the topic, the table, and the folder where it says `there` and waits for `go`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from dagster_kafka_flip.errors import KafkaFlipError
from dagster_kafka_flip.runtime.session import build_session
from dagster_kafka_flip.sink.delta_source import DeltaSource
from dagster_kafka_flip.sink.kafka_sink import KafkaSink
from dagster_kafka_flip.sink.publish import publish
from dagster_kafka_flip.sink.serializers import JsonSerializer
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.plan import Limits

_RECORD = 8


def by_last_digit(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
    """The partitioner of all runs, so that a key stays in its topic partition: of {"id":1} the 1."""
    assert key is not None
    return key[-2] % partitions


def main() -> None:
    """Publishes, and prints the error's class, or nothing."""
    remote, broker, topic, table, folder = sys.argv[1:]
    place, calls = Path(folder), []

    def waiting(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        calls.append(key)
        if len(calls) == _RECORD:
            (place / "there").touch()
            while not (place / "go").exists():
                time.sleep(0.05)
        return by_last_digit(topic, key, value, partitions)

    try:
        publish(
            DeltaSource(table=table, start=0),
            KafkaSink(
                topic=topic,
                transactional_id_prefix=topic,
                key=JsonSerializer(columns=("id",)),
                partitioner=waiting,
                lanes=2,
            ),
            spark=lambda: build_session(remote=remote),
            connection=KafkaConnection(bootstrap_servers=broker),
            limits=Limits(max_records_per_batch=5),
        )
    except KafkaFlipError as error:
        print(type(error).__name__, error)


if __name__ == "__main__":
    main()
