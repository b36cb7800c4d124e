"""What small runs cost, start included: `python -m benchmarks.starts`.

Each run is a process of its own that lands 100 records in a table which exists, or finds nothing new: with a local
session, which starts a JVM, with one whose Java has only its first compiler, and with a warm server of
`dagster-kafka-flip spark start`. The session starts from a class archive if `dagster-kafka-flip spark prepare` has made
one. An asset knows the position from Dagster's record of its last run, and needs no Spark to find nothing new.

Beside it, in turn and with the same session, land as many records: Structured Streaming's AvailableNow, and a plain
batch read and write, which keeps no position and reads all of the topic each time.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.report import make_console, print_table, write_json
from benchmarks.topics import create_topics, produce
from dagster_kafka_flip import LocalBroker, TopicPartition
from dagster_kafka_flip.runtime.spark_server import SparkServer
from examples.progress import busy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_FIRST_MS = 1_700_000_000_000
_RECORDS = 100
_TOPIC = "starts"
_FIRST_COMPILER_ONLY = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}

_MORE = f"{_RECORDS} more records"
_BATCH = "plain batch"
_STREAM = "AvailableNow"

# One run in a new process: it prints its rows, the seconds of `ingest()` without the import before it, and what the
# process and its JVM took of the cores.
_RUN = """
import json, os, pickle, sys, time
from pathlib import Path
from benchmarks.cpu import cpu_seconds
from dagster_kafka_flip import KafkaSource, build_session, ingest

servers, topic, table, is_recorded, config = sys.argv[1:]
# What an asset finds in Dagster's record of its last run.
record = Path(f"{table}.known")
known = pickle.loads(record.read_bytes()) if is_recorded == "yes" else None
source = KafkaSource.builder().set_bootstrap_servers(servers).set_topics(topic).build()
begin, sessions = time.monotonic(), []
def session():
    sessions.append(build_session(config=json.loads(config)))
    return sessions[0]
result = ingest(source, table, spark=session, known=known)
seconds, cpu = time.monotonic() - begin, None
if "SPARK_REMOTE" not in os.environ:
    cpu = time.process_time() + sum(map(cpu_seconds, sessions))
print(json.dumps([result.rows, seconds, cpu]))
record.write_bytes(pickle.dumps(result.known))
"""

# The same without `ingest()`: the columns that it lands, with a consumer tuned for it.
_WITHOUT = """
import json, sys, time
from benchmarks.cpu import cpu_seconds
from dagster_kafka_flip.runtime.session import build_session

servers, topic, table, way, config = sys.argv[1:]
begin = time.monotonic()
session = build_session(config=json.loads(config))
reader = session.readStream if way == "AvailableNow" else session.read
options = {
    "kafka.bootstrap.servers": servers,
    "subscribe": topic,
    "startingOffsets": "earliest",
    "includeHeaders": "true",
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": str(16 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
}
own = ("topic", "partition", "offset", "timestamp", "timestampType AS kafka_timestamp_type", "key", "headers")
columns = [name if " " in name else f"{name} AS kafka_{name}" for name in ("value", *own)]
rows = reader.format("kafka").options(**options).load().selectExpr(*columns)
if way == "AvailableNow":
    writer = rows.writeStream.format("delta").option("checkpointLocation", f"{table}-checkpoint")
    query = writer.trigger(availableNow=True).start(table)
    query.awaitTermination()
    landed = sum(progress.numInputRows for progress in query.recentProgress)
else:
    rows.write.format("delta").mode("append").save(table)
    landed = None
print(json.dumps([landed, time.monotonic() - begin, time.process_time() + cpu_seconds(session)]))
"""


@dataclass(frozen=True)
class Measurement:
    """Runs of one kind.

    Attributes:
        way: What runs Spark.
        what: What the run finds.
        seconds: From the start of the process to its end, median.
        all_seconds: Of each round.
        ingest_seconds: Of `ingest()` alone, or of what is in its place, median.
        cpu_seconds: What the process and its JVM took of the cores until then, median; None if that is a server's.
    """

    way: str
    what: str
    seconds: float
    all_seconds: tuple[float, ...]
    ingest_seconds: float
    cpu_seconds: float | None = None


_Timed = tuple[float, float, float | None]


def measure(
    way: str,
    bootstrap_servers: str,
    table: Path,
    rounds: int,
    remote: str | None = None,
    config: Mapping[str, str] | None = None,
) -> list[Measurement]:
    """Lands records in a table again and again.

    Args:
        way: What runs Spark.
        bootstrap_servers: The broker.
        table: Where the table is made.
        rounds: How often each run is timed.
        remote: The address of a server; None for a local session.
        config: Further settings of the session.
    """
    settings, output, errors = json.dumps(dict(config or {})), Path(f"{table}.out"), Path(f"{table}.err")
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_REMOTE"}
    if remote is not None:
        environment["SPARK_REMOTE"] = remote

    def run(expected: int | None, is_recorded: str = "no", without: str | None = None) -> _Timed:
        program, place, how = (_RUN, table, is_recorded)
        if without is not None:
            program, place, how = _WITHOUT, table.with_name(f"{table.name}-{without}"), without
        command = [sys.executable, "-c", program, bootstrap_servers, _TOPIC, str(place), how, settings]
        # No pipes: they end with the JVM, which ends after the process that started it.
        with output.open("w+") as printed, errors.open("w") as complaints:
            begin = time.monotonic()
            done = subprocess.run(command, env=environment, stdout=printed, stderr=complaints, check=False)
            seconds = time.monotonic() - begin
        if done.returncode:
            raise click.ClickException(errors.read_text()[-2000:])
        rows, of_ingest, cpu = json.loads(output.read_text().splitlines()[-1])
        if rows != expected:
            msg = f"{rows} rows instead of {expected}"
            raise click.ClickException(msg)
        return seconds, of_ingest, cpu

    found: dict[str, list[_Timed]] = {
        "the first records, a new table": [],
        _MORE: [],
        "nothing new": [],
        "nothing new, as in an asset": [],
    }
    first, more, nothing, recorded = found.values()
    records = [(TopicPartition(_TOPIC, number % 4), b"x" * 100, _FIRST_MS + number) for number in range(_RECORDS)]
    there = _landed(bootstrap_servers)
    first.append(run(there))
    if remote is None:
        found = {f"{_MORE}, {_BATCH}": [], f"{_MORE}, {_STREAM}": [], **found}
        run(None, without=_BATCH)
        run(there, without=_STREAM)
    for _ in range(rounds):
        produce(bootstrap_servers, records)
        if remote is None:
            found[f"{_MORE}, {_BATCH}"].append(run(None, without=_BATCH))
            found[f"{_MORE}, {_STREAM}"].append(run(_RECORDS, without=_STREAM))
        more.append(run(_RECORDS))
        nothing.append(run(0))
        recorded.append(run(0, is_recorded="yes"))
    return [
        Measurement(
            way,
            what,
            statistics.median(seconds for seconds, _, _ in runs),
            tuple(round(seconds, 3) for seconds, _, _ in runs),
            statistics.median(of_ingest for _, of_ingest, _ in runs),
            None if remote else statistics.median(cpu for _, _, cpu in runs if cpu is not None),
        )
        for what, runs in found.items()
    ]


def _landed(bootstrap_servers: str) -> int:
    """How many records the topic has."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Partition

    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": _TOPIC})
    try:
        return sum(consumer.get_watermark_offsets(Partition(_TOPIC, number))[1] for number in range(4))
    finally:
        consumer.close()


def table_of(measured: Sequence[Measurement]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The heads and the rows of a table of measurements."""
    rows = [
        (
            f"{each.way}: {each.what}",
            f"{each.seconds:.2f}",
            f"{min(each.all_seconds):.2f} {max(each.all_seconds):.2f}",
            f"{each.ingest_seconds:.2f}",
            "" if each.cpu_seconds is None else f"{each.cpu_seconds:.1f}",
        )
        for each in measured
    ]
    return ("one process", "seconds", "from to", "of `ingest()`", "seconds of CPU"), rows


@click.command()
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="How often each is timed.")
@click.option(
    "--warm-up", type=click.IntRange(min=1), default=5, show_default=True, help="Rounds on the server that don't count."
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the measurements to this file too.")
def main(rounds: int, warm_up: int, json_path: Path | None) -> None:
    """Measure what small runs cost, start included."""
    console = make_console()
    measured: list[Measurement] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with LocalBroker(folder / "kafka") as broker:
            servers = broker.bootstrap_servers
            create_topics(servers, [(_TOPIC, 4)])
            produce(servers, [(TopicPartition(_TOPIC, 0), b"x" * 100, _FIRST_MS)] * _RECORDS)
            with busy(console, "Landing with local sessions"):
                measured += measure("local session", servers, folder / "local", rounds)
                measured += measure(
                    "local session, first compiler only", servers, folder / "quick", rounds, config=_FIRST_COMPILER_ONLY
                )
            server = SparkServer(folder / "spark")
            try:
                remote = server.start().address
                with busy(console, "Landing with a server"):
                    # What starts first on a server also loads its classes.
                    measure("cold", servers, folder / "cold", warm_up, remote)
                    measured += measure("warm server", servers, folder / "server", rounds, remote)
            finally:
                server.stop()
    print_table(console, f"\n{os.cpu_count()} cores, medians of {rounds} rounds", *table_of(measured))
    write_json(json_path, {"runs": measured}, rounds=rounds, warm_up=warm_up)


if __name__ == "__main__":
    main()
