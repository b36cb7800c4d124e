"""How fast a table gets into a topic, beside Spark's own Kafka sink: `python -m benchmarks.publishing`.

The rows of one table, as JSON with a JSON key, each time to a new topic: `publish()` exactly once with one lane and
with several, and at least once; and Spark's Kafka sink, which is at least once and keeps no progress. One warm session,
the ways in turn.
"""

from __future__ import annotations

import itertools
import os
import platform
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.cpu import cpu_seconds
from benchmarks.report import make_console, print_table, write_json
from benchmarks.topics import create_topics
from dagster_kafka_flip import DeltaSource, JsonSerializer, KafkaConnection, KafkaSink, LocalBroker, publish
from dagster_kafka_flip.runtime.session import build_session
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.split import READ_COMMITTED, READ_UNCOMMITTED, KafkaPartitionSplit
from examples.progress import busy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession
    from rich.console import Console

_PARTITIONS = 4
_DRIVER_MEMORY = "4g"
_EVERY_SECONDS = 0.1

OURS = "publish()"
OURS_FOUR_LANES = "publish(), 4 lanes"
OURS_AT_LEAST_ONCE = 'publish(), "at_least_once"'
SPARKS = "Spark's Kafka sink"


@dataclass(frozen=True)
class Measurement:
    """One way to publish the table.

    Attributes:
        way: How it is published.
        seconds: Of the whole, median.
        all_seconds: Of each round.
        records_per_second: By the median.
        cpu_seconds: What Spark's process took of the cores, median.
        python_seconds: What this process took, median.
        ratio: How many times as long as `publish()`, median of the rounds.
        records: Records that readers of committed records see.
    """

    way: str
    seconds: float
    all_seconds: tuple[float, ...]
    records_per_second: float
    cpu_seconds: float
    python_seconds: float
    ratio: float
    records: int


class Publishing:
    """Publishes one table in several ways.

    Args:
        bootstrap_servers: The broker.
        spark: A session.
        table: The table.
    """

    def __init__(self, bootstrap_servers: str, spark: SparkSession, table: str) -> None:
        self._servers, self._spark, self._table = bootstrap_servers, spark, table
        self._connection = KafkaConnection(bootstrap_servers=bootstrap_servers)
        self._numbers = itertools.count()
        self.ways: dict[str, Callable[[str], None]] = {
            OURS: self._publish,
            OURS_FOUR_LANES: lambda topic: self._publish(topic, lanes=4),
            OURS_AT_LEAST_ONCE: lambda topic: self._publish(topic, delivery_guarantee="at_least_once"),
            SPARKS: self._sparks,
        }

    def run(self, way: Callable[[str], None]) -> tuple[float, float, float, str]:
        """Publishes the table once; returns the seconds, those of Spark's process and of this one, and the topic."""
        topic = f"rows-{next(self._numbers)}"
        create_topics(self._servers, [(topic, _PARTITIONS)])
        cpu, own, begin = cpu_seconds(self._spark), time.process_time(), time.monotonic()
        way(topic)
        seconds = time.monotonic() - begin
        return seconds, cpu_seconds(self._spark) - cpu, time.process_time() - own, topic

    def count(self, topic: str) -> int:
        """How many records readers of committed records see."""
        cluster = KafkaCluster(self._connection)
        try:
            partitions = cluster.describe_topics([topic])[topic].partitions
            # A broker writes the markers of a committed transaction a little later.
            while (ends := cluster.end_offsets(partitions, READ_COMMITTED)) != cluster.end_offsets(
                partitions, READ_UNCOMMITTED
            ):
                time.sleep(_EVERY_SECONDS)
            ranges = [KafkaPartitionSplit(tp, 0, end) for tp, end in ends.items() if end]
            return sum(1 for _ in cluster.records(ranges, READ_COMMITTED))
        finally:
            cluster.close()

    def _publish(self, topic: str, **options: object) -> None:
        values: dict[str, object] = {"topic": topic, "transactional_id_prefix": topic, **options}
        sink = KafkaSink.model_validate({"key": JsonSerializer(columns=("id",)), **values})
        source = DeltaSource(table=self._table)
        publish(source, sink, spark=lambda: self._spark, connection=self._connection)

    def _sparks(self, topic: str) -> None:
        rows = self._spark.read.format("delta").load(self._table)
        records = rows.selectExpr("to_json(struct(id)) AS key", "to_json(struct(*)) AS value")
        options = {"kafka.bootstrap.servers": self._servers, "topic": topic}
        records.write.format("kafka").mode("append").options(**options).save()


def compare(publishing: Publishing, rounds: int, warm_up: int) -> list[Measurement]:
    """Publishes the table each way in turn.

    Args:
        publishing: How.
        rounds: How often.
        warm_up: How often before that, without counting.
    """
    found: dict[str, list[tuple[float, float, float, str]]] = {name: [] for name in publishing.ways}
    for number in range(-warm_up, rounds):
        # Back and forth, so that none of them is always the one that comes after another.
        for name in list(found) if number % 2 else reversed(list(found)):
            measured = publishing.run(publishing.ways[name])
            if number >= 0:
                found[name].append(measured)
    ours = [seconds for seconds, *_ in found[OURS]]
    measurements: list[Measurement] = []
    for name, runs in found.items():
        seconds = statistics.median(each for each, *_ in runs)
        records = publishing.count(runs[-1][3])
        measurements.append(
            Measurement(
                way=name,
                seconds=seconds,
                all_seconds=tuple(round(each, 3) for each, *_ in runs),
                records_per_second=round(records / seconds, 1),
                cpu_seconds=statistics.median(cpu for _, cpu, _, _ in runs),
                python_seconds=statistics.median(own for _, _, own, _ in runs),
                ratio=statistics.median(each / own for (each, *_), own in zip(runs, ours, strict=True)),
                records=records,
            )
        )
    return measurements


def _fill(spark: SparkSession, table: str, rows: int) -> None:
    spark.range(rows).selectExpr(
        "id",
        "concat('name ', id) AS name",
        "id / 8.0D AS amount",
        "CAST(id % 100 AS INT) AS shop",
        "id % 3 = 0 AS is_paid",
        "timestamp_millis(1700000000000 + id) AS at",
        "CAST(id / 100 AS DECIMAL(18, 2)) AS price",
        "md5(CAST(id AS STRING)) AS note",
    ).write.format("delta").save(table)


def _tell(console: Console, measured: Sequence[Measurement]) -> None:
    head = ("", "seconds", "from to", "records/s", "CPU of Spark", "of Python", "times publish()")
    rows = [
        (
            each.way,
            f"{each.seconds:.2f}",
            f"{min(each.all_seconds):.2f} {max(each.all_seconds):.2f}",
            f"{each.records_per_second:,.0f}",
            f"{each.cpu_seconds:.1f}",
            f"{each.python_seconds:.1f}",
            f"{each.ratio:.2f}",
        )
        for each in measured
    ]
    print_table(console, "Publishing, medians", head, rows)


@click.command()
@click.option("--rows", type=click.IntRange(min=100), default=1_000_000, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="How often each is timed.")
@click.option("--warm-up", type=click.IntRange(min=0), default=1, show_default=True, help="Rounds that don't count.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the measurements to this file too.")
def main(rows: int, rounds: int, warm_up: int, json_path: Path | None) -> None:
    """Measure how long it takes to publish a table, beside Spark's own Kafka sink."""
    console = make_console()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with LocalBroker(folder / "kafka", jvm_options=("-Xmx1g",)) as broker:
            spark = build_session(
                config={
                    "spark.ui.enabled": "false",
                    "spark.sql.warehouse.dir": str(folder / "warehouse"),
                    "spark.driver.memory": _DRIVER_MEMORY,
                },
            )
            try:
                table = str(folder / "table")
                with busy(console, f"Publishing {rows:,} rows"):
                    _fill(spark, table, rows)
                    measured = compare(Publishing(broker.bootstrap_servers, spark, table), rounds, warm_up)
            finally:
                spark.stop()
    if wrong := [(each.way, each.records) for each in measured if each.records != rows]:
        msg = f"not {rows} records: {wrong}"
        raise click.ClickException(msg)
    console.print(f"\n{rows:,} rows of 8 columns; {os.cpu_count()} cores, {platform.machine()}")
    _tell(console, measured)
    write_json(json_path, {"publications": measured})


if __name__ == "__main__":
    main()
