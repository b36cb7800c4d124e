"""What memory a run needs: `python -m benchmarks.memory`, or `make bench-memory`.

Each topic is landed whole by one `ingest()` in a process of its own, whose JVM has a small heap. A run that needs more
ends with an OutOfMemoryError, and so does the benchmark. The peaks are Linux's, of the whole process.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.report import make_console, print_table, write_json
from benchmarks.topics import create_topics, produce
from dagster_kafka_flip import LocalBroker, TopicPartition
from examples.progress import busy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_PARTITIONS = 4
_FIRST_MS = 1_700_000_000_000
_MEGABYTE = 1 << 20
_LARGEST_RECORD = 32 * _MEGABYTE

# One run in a new process: it prints its rows and batches, and the peak memory of itself and of its JVM.
_RUN = """
import json, sys
from pathlib import Path
from dagster_kafka_flip import KafkaSource, build_session, ingest

servers, topic, table, heap = sys.argv[1:]
spark = build_session(config={"spark.ui.enabled": "false", "spark.driver.memory": heap})
source = KafkaSource.builder().set_bootstrap_servers(servers).set_topics(topic).build()
result = ingest(source, table, spark=lambda: spark)

def peak(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))

jvm = spark.sparkContext._gateway.proc.pid
print(json.dumps([result.rows, len(result.batches), peak("self"), peak(jvm)]))
spark.stop()
"""


@dataclass(frozen=True)
class Measurement:
    """One topic, landed in one run.

    Attributes:
        records: Number of records.
        record_bytes: Bytes of each value.
        heap: Highest heap of the JVM, as Spark's `spark.driver.memory`.
        rows: Rows landed.
        batches: Commits.
        python_bytes: Peak resident memory of the Python process.
        jvm_bytes: Peak resident memory of the JVM: heap, classes, code and buffers.
    """

    records: int
    record_bytes: int
    heap: str
    rows: int
    batches: int
    python_bytes: int
    jvm_bytes: int


def measure(bootstrap_servers: str, folder: Path, records: int, record_bytes: int, heap: str) -> Measurement:
    """Produces a topic and lands it.

    Args:
        bootstrap_servers: The broker.
        folder: Where the table is made.
        records: Number of records.
        record_bytes: Bytes of each value.
        heap: Highest heap of the JVM.

    Raises:
        click.ClickException: The run failed.
    """
    topic = f"memory-{records}-{record_bytes}"
    create_topics(bootstrap_servers, [(topic, _PARTITIONS)])
    produce(bootstrap_servers, _values(topic, records, record_bytes))
    command = [sys.executable, "-c", _RUN, bootstrap_servers, topic, str(folder / topic), heap]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode:
        msg = f"{records:,} records of {record_bytes:,} bytes with {heap} of heap: {finished.stderr[-2000:]}"
        raise click.ClickException(msg)
    rows, batches, python_bytes, jvm_bytes = json.loads(finished.stdout.splitlines()[-1])
    return Measurement(records, record_bytes, heap, rows, batches, python_bytes, jvm_bytes)


def _values(topic: str, records: int, record_bytes: int) -> Iterator[tuple[TopicPartition, bytes, int]]:
    value = bytes(record_bytes)
    for number in range(records):
        yield TopicPartition(topic, number % _PARTITIONS), value, _FIRST_MS + number


def table_of(measured: Sequence[Measurement]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The heads and the rows of a table of measurements."""
    head = ("records", "bytes each", "heap", "rows", "batches", "peak of Python, MB", "peak of the JVM, MB")
    rows = [
        (
            f"{each.records:,}",
            f"{each.record_bytes:,}",
            each.heap,
            f"{each.rows:,}",
            f"{each.batches:,}",
            f"{each.python_bytes / _MEGABYTE:,.0f}",
            f"{each.jvm_bytes / _MEGABYTE:,.0f}",
        )
        for each in measured
    ]
    return head, rows


@click.command()
@click.option("--heap", default="1g", show_default=True, help="spark.driver.memory.")
@click.option(
    "--topic",
    "topics",
    type=(click.IntRange(min=1), click.IntRange(min=1)),
    multiple=True,
    metavar="RECORDS BYTES",
    default=((10_000_000, 100), (400, 5 * _MEGABYTE)),
    show_default=True,
    help="Number of records, and bytes of each.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the measurements to this file too.")
def main(heap: str, topics: tuple[tuple[int, int], ...], json_path: Path | None) -> None:
    """Land topics with a small heap, and measure the peak memory."""
    console = make_console()
    measured: list[Measurement] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        properties = {"message.max.bytes": str(_LARGEST_RECORD)}
        with LocalBroker(folder / "kafka", jvm_options=("-Xmx1g",), properties=properties) as broker:
            for records, record_bytes in topics:
                with busy(console, f"Landing {records:,} records of {record_bytes:,} bytes"):
                    found = measure(broker.bootstrap_servers, folder, records, record_bytes, heap)
                if found.rows != records:
                    msg = f"{found.rows} rows instead of {records}"
                    raise click.ClickException(msg)
                measured.append(found)
    print_table(console, "One run in a process of its own", *table_of(measured))
    write_json(json_path, {"runs": measured}, heap=heap)


if __name__ == "__main__":
    main()
