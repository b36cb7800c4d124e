"""A large run on a cluster whose workers are killed: `make soak-cluster`, or `python -m tests.cluster.soak --help`.

Numbered records are in a topic of four topic partitions. While one run lands them, the worker of one of its executors
is killed by SIGKILL every few seconds, with all that it started, and another one takes its place. Then each row is
compared with the record that it should be.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

import click

from dagster_kafka_flip.broker.local_broker import LocalBroker
from tests import landed
from tests.cluster.driver import Driver
from tests.cluster.standalone import StandaloneCluster
from tests.kafka_topic import Kafka

_TOPIC = "numbered"
_PARTITIONS = 4
_AT_ONCE = 100_000
# What a value is: its topic partition and offset, and the same text for all.
_PADDING = "x" * 80
_RIGHT = f"concat(kafka_partition, ' ', kafka_offset, ' {_PADDING}')"
_PATIENCE_SECONDS = 600.0


@click.command()
@click.option("--records", default=20_000_000, show_default=True, help="In all topic partitions together.")
@click.option("--kills", default=3, show_default=True, help="How many workers are killed at most.")
@click.option("--every", default=20.0, show_default=True, help="Seconds of a run between two kills.")
@click.option("--seed", default=1, show_default=True, help="Of the choice of workers.")
def main(records: int, kills: int, every: float, seed: int) -> None:
    """Lands RECORDS records on a cluster that loses workers, and compares them one by one."""
    each = records // _PARTITIONS
    with tempfile.TemporaryDirectory(prefix="soak-cluster-") as temporary:
        folder = Path(temporary)
        with LocalBroker(folder / "kafka") as broker, StandaloneCluster(folder / "cluster") as cluster:
            _fill(broker.bootstrap_servers, each)
            with Driver(folder, "driver", cluster.url, broker.bootstrap_servers) as driver:
                killed, seconds = _run(driver, cluster, folder, each, kills, every, random.Random(seed))
        wrong = _compare(folder / "stream", each)
    click.echo(f"{killed} workers killed in a run of {seconds:.0f} s")
    if wrong:
        sys.exit("\n".join(wrong))
    click.echo(f"{each * _PARTITIONS:,} records, each of them in one row, none wrong")
    if not killed:
        sys.exit("the run ended before a worker was killed: take more records, or less time between two kills")


def _fill(bootstrap_servers: str, each: int) -> None:
    kafka = Kafka(bootstrap_servers)
    kafka.create(_TOPIC, _PARTITIONS)
    producer = kafka.producer(**{"enable.idempotence": True, "linger.ms": 50, "compression.type": "lz4"})
    for first in range(0, each, _AT_ONCE):
        for partition in range(_PARTITIONS):
            for number in range(first, min(first + _AT_ONCE, each)):
                producer.produce(_TOPIC, f"{partition} {number} {_PADDING}", partition=partition)
            if producer.flush(_PATIENCE_SECONDS):
                sys.exit("the broker took no records")
    kafka.close()


def _run(
    driver: Driver, cluster: StandaloneCluster, folder: Path, each: int, kills: int, every: float, chance: random.Random
) -> tuple[int, float]:
    """One run; returns how many workers were killed, and how long it took."""
    started = time.monotonic()
    driver.order("stream", _TOPIC, folder)
    killed = 0
    last = started
    while not driver.has_answered:
        time.sleep(0.1)
        running = cluster.executors()
        if killed < kills and running and time.monotonic() - last >= every:
            cluster.kill_worker_of(chance.choice(running))
            killed += 1
            cluster.heal()
            last = time.monotonic()
    reported = driver.answer()
    if reported != {"rows": {"stream": each * _PARTITIONS}, "errors": {}}:
        sys.exit(f"the run came to {reported}:\n{driver.log()[-4000:]}")
    return killed, time.monotonic() - started


def _compare(table: Path, each: int) -> list[str]:
    """What is wrong with a table."""
    found = landed.rows(
        table,
        "kafka_partition",
        "count(*)",
        "count(DISTINCT kafka_offset)",
        "min(kafka_offset)",
        "max(kafka_offset)",
        f"sum(CASE WHEN CAST(kafka_value AS STRING) = {_RIGHT} THEN 0 ELSE 1 END)",
        where="true GROUP BY kafka_partition",
    )
    wanted = [(partition, each, each, 0, each - 1, 0) for partition in range(_PARTITIONS)]
    return [
        f"topic partition, rows, offsets, first, last, wrong values: {reported} instead of {right}"
        for reported, right in zip(found, wanted, strict=False)
        if reported != right
    ] + ([] if len(found) == len(wanted) else [f"{len(found)} topic partitions instead of {len(wanted)}"])


if __name__ == "__main__":
    main()
