"""What a run costs as things grow: `python -m benchmarks.growth`, or `make bench-growth`.

One curve for each thing that grows: records, topic partitions, commits in the table's history, columns, batches of one
run, and tables of one code location. Everything else stays as small as it can, in one warm session. What grows with a
curve is made before anything is timed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.report import make_console, print_table, write_json
from benchmarks.topics import create_topics, produce
from dagster_kafka_flip import (
    JsonFormat,
    KafkaSource,
    Limits,
    LocalBroker,
    TopicPartition,
    Window,
    build_session,
    ingest,
    rewrite_windows,
)
from examples.progress import busy

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession
    from rich.console import Console

_FIRST_MS = 1_700_000_000_000
_DAY_MS = 86_400_000
_PARTITIONS_PER_TOPIC = 1_000
_FEW = 100
# What takes longer is timed only once.
_LONGEST_SECONDS = 10
_DRIVER_MEMORY = "4g"
# Thousands of topic partitions need room for their metadata, and indexes that are not made at their full size at once.
_BROKER_JVM = ("-Xmx2g",)
_BROKER_PROPERTIES = {"log.index.size.max.bytes": "4096", "log.segment.bytes": str(64 << 20)}

_CODE_LOCATION = """
from dagster import Definitions
from dagster_kafka_flip import KafkaResource, KafkaSource, SparkResource, build_kafka_delta_asset

assets = [
    build_kafka_delta_asset(name=name, source=KafkaSource(topics=(name,)), table=f"lake/{{name}}")
    for name in map("t{{}}".format, range({count}))
]
defs = Definitions(
    assets=assets, resources={{"kafka": KafkaResource(bootstrap_servers="localhost:9092"), "spark": SparkResource()}}
)
defs.resolve_all_asset_specs()
"""

DEFAULT_SIZES: Mapping[str, tuple[int, ...]] = {
    "records": (10_000, 100_000, 1_000_000, 10_000_000),
    "topic partitions": (10, 100, 1_000, 5_000),
    "commits": (1, 100, 1_000, 3_000),
    "commits, windows": (1, 100, 1_000, 3_000),
    "columns": (1, 10, 100, 1_000),
    "batches": (1, 10, 50, 200),
    "tables": (1, 10, 50, 200),
}


@dataclass(frozen=True)
class Measurement:
    """One size of one curve.

    Attributes:
        curve: What grows.
        size: How much of it there is.
        what: What was timed.
        seconds: Median.
        all_seconds: Of each round; of those that began within ten seconds.
    """

    curve: str
    size: int
    what: str
    seconds: float
    all_seconds: tuple[float, ...]


class Growth:
    """Measures runs of growing size.

    Args:
        bootstrap_servers: The broker.
        spark: A session.
        folder: Where tables are made.
        rounds: How often each is timed.
    """

    def __init__(self, bootstrap_servers: str, spark: SparkSession, folder: Path, rounds: int) -> None:
        self._servers = bootstrap_servers
        self._spark = spark
        self._folder = folder
        self._rounds = rounds
        self._numbers = itertools.count()
        self.curves: Mapping[str, Callable[[int], dict[str, list[float]]]] = {
            "records": self._records,
            "topic partitions": self._topic_partitions,
            "commits": self._commits,
            "commits, windows": self._commits_of_windows,
            "columns": self._columns,
            "batches": self._batches,
            "tables": self._tables,
        }

    def measure(self, curve: str, sizes: Sequence[int]) -> list[Measurement]:
        """One curve.

        Args:
            curve: Its name.
            sizes: How much there is of what grows.
        """
        return [
            Measurement(curve, size, what, statistics.median(times), tuple(round(each, 3) for each in times))
            for size in sizes
            for what, times in self.curves[curve](size).items()
        ]

    def _records(self, size: int) -> dict[str, list[float]]:
        source = self._topic(4, size)
        seconds: list[float] = []
        for _ in self._repeats():
            with self._table() as table:
                seconds.append(self._run(source, table, size))
        return {"into a new table": seconds}

    def _topic_partitions(self, size: int) -> dict[str, list[float]]:
        source = self._topic(size, size)
        first = _first_of(source)
        found: dict[str, list[float]] = {"one record in each": [], "one record in one of them": [], "nothing new": []}
        for produced in map(size.__add__, self._repeats()):
            with self._table() as table:
                found["one record in each"].append(self._run(source, table, produced))
                produce(self._servers, [(first, b"x", _FIRST_MS)])
                found["one record in one of them"].append(self._run(source, table, 1))
                found["nothing new"].append(self._run(source, table, 0))
        return found

    def _commits(self, size: int) -> dict[str, list[float]]:
        source = self._topic(1, _FEW)
        more = [(_first_of(source), b"x", _FIRST_MS)] * _FEW
        seconds: list[float] = []
        with self._table() as table:
            self._run(source, table, _FEW)
            self._commit_elsewhere(table, size)
            for _ in self._repeats():
                produce(self._servers, more)
                seconds.append(self._run(source, table, _FEW))
        return {f"{_FEW} records, after commits of others": seconds}

    def _commits_of_windows(self, size: int) -> dict[str, list[float]]:
        source = self._topic(1, _FEW)
        window = Window.between(_FIRST_MS, _FIRST_MS + _DAY_MS)
        with self._table() as table:

            def rewrite() -> None:
                (result,) = rewrite_windows(source, table, [window], spark=lambda: self._spark)
                if (rows := result.rows_of(result.plan.windows[0])) != _FEW:
                    msg = f"{rows} rows instead of {_FEW}"
                    raise click.ClickException(msg)

            rewrite()
            self._commit_elsewhere(table, size)
            # The first one replaces the others' rows, which is work of its own.
            rewrite()
            seconds = [_seconds(rewrite) for _ in self._repeats()]
        return {f"a window of {_FEW} records, after commits of others": seconds}

    def _columns(self, size: int) -> dict[str, list[float]]:
        names = [f"c{number}" for number in range(size)]
        value = ("{" + ",".join(f'"{name}":{number}' for number, name in enumerate(names)) + "}").encode()
        source = self._topic(4, 10_000, value)
        schema = ", ".join(f"{name} BIGINT" for name in names)
        seconds: list[float] = []
        for _ in self._repeats():
            with self._table() as table:
                seconds.append(self._run(source, table, 10_000, value_format=JsonFormat(schema)))
        return {"10,000 records of JSON": seconds}

    def _batches(self, size: int) -> dict[str, list[float]]:
        source = self._topic(4, size * _FEW)
        seconds: list[float] = []
        for _ in self._repeats():
            with self._table() as table:
                limits = Limits(max_records_per_batch=_FEW)
                seconds.append(self._run(source, table, size * _FEW, limits=limits))
        return {f"{_FEW} records in each": seconds}

    def _tables(self, size: int) -> dict[str, list[float]]:
        command = [sys.executable, "-c", _CODE_LOCATION.format(count=size)]
        times = [_seconds(lambda: subprocess.run(command, check=True)) for _ in self._repeats()]
        return {"a code location loads, in a new process": times}

    def _repeats(self) -> Iterator[int]:
        """Numbers the rounds: all of them, or those that begin within some seconds."""
        begin = time.monotonic()
        for number in range(self._rounds):
            if number and time.monotonic() - begin > _LONGEST_SECONDS:
                return
            yield number

    def _topic(self, partitions: int, records: int, value: bytes = b"x" * 100) -> KafkaSource:
        name = f"growth-{next(self._numbers)}"
        counts = [min(_PARTITIONS_PER_TOPIC, partitions - at) for at in range(0, partitions, _PARTITIONS_PER_TOPIC)]
        topics = [(f"{name}-{number}", count) for number, count in enumerate(counts)]
        create_topics(self._servers, topics)
        everything = [TopicPartition(topic, number) for topic, count in topics for number in range(count)]

        def values() -> Iterator[tuple[TopicPartition, bytes, int]]:
            for number in range(records):
                yield everything[number % len(everything)], value, _FIRST_MS + number

        produce(self._servers, values())
        return (
            KafkaSource.builder().set_bootstrap_servers(self._servers).set_topics(*(name for name, _ in topics)).build()
        )

    def _run(self, source: KafkaSource, table: str, expected: int, **options: Any) -> float:
        """Seconds of a run; it must land what is expected."""
        begin = time.monotonic()
        result = ingest(source, table, spark=lambda: self._spark, **options)
        seconds = time.monotonic() - begin
        if result.rows != expected:
            msg = f"{result.rows} rows instead of {expected}"
            raise click.ClickException(msg)
        return seconds

    def _commit_elsewhere(self, table: str, commits: int) -> None:
        """Appends as another program would, one row at a time."""
        from deltalake import DeltaTable, write_deltalake

        row = DeltaTable(table).to_pyarrow_table().slice(0, 1)
        for _ in range(commits):
            write_deltalake(table, row, mode="append")

    @contextlib.contextmanager
    def _table(self) -> Generator[str]:
        table = self._folder / f"table-{next(self._numbers)}"
        try:
            yield str(table)
        finally:
            shutil.rmtree(table, ignore_errors=True)


def _first_of(source: KafkaSource) -> TopicPartition:
    return TopicPartition((source.topics or ("",))[0], 0)


def _seconds(action: Callable[[], object]) -> float:
    begin = time.monotonic()
    action()
    return time.monotonic() - begin


def table_of(curve: str, measured: Sequence[Measurement]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The heads and the rows of the table of a curve.

    Args:
        curve: Its name.
        measured: Everything that was measured.
    """
    found = [each for each in measured if each.curve == curve]
    sizes = sorted({each.size for each in found})
    seconds = {(each.what, each.size): each.seconds for each in found}
    rows = [[what, *(f"{seconds[what, size]:.2f}" for size in sizes)] for what in dict.fromkeys(e.what for e in found)]
    return [curve, *(f"{size:,}" for size in sizes)], rows


def _tell(console: Console, measured: Sequence[Measurement]) -> None:
    for curve in dict.fromkeys(each.curve for each in measured):
        print_table(console, f"Seconds, median, by {curve}", *table_of(curve, measured))


@click.command()
@click.option("--curve", "curves", type=click.Choice(list(DEFAULT_SIZES)), multiple=True, help="Default: all.")
@click.option(
    "--up-to", type=click.IntRange(min=1), default=None, help="Leave out larger sizes. Default: all are measured."
)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="How often each is timed.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the measurements to this file too.")
def main(curves: tuple[str, ...], up_to: int | None, rounds: int, json_path: Path | None) -> None:
    """Measure how the cost of a run grows."""
    console = make_console()
    measured: list[Measurement] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        broker = LocalBroker(folder / "kafka", jvm_options=_BROKER_JVM, properties=_BROKER_PROPERTIES)
        with broker:
            spark = build_session(
                config={
                    "spark.ui.enabled": "false",
                    "spark.sql.warehouse.dir": str(folder / "warehouse"),
                    "spark.driver.memory": _DRIVER_MEMORY,
                }
            )
            try:
                growth = Growth(broker.bootstrap_servers, spark, folder, rounds)
                for curve in curves or DEFAULT_SIZES:
                    with busy(console, f"Growing {curve}"):
                        sizes = [size for size in DEFAULT_SIZES[curve] if up_to is None or size <= up_to]
                        measured += growth.measure(curve, sizes)
            finally:
                spark.stop()
    console.print(f"\n{os.cpu_count()} cores, {platform.machine()}, medians of up to {rounds} rounds")
    _tell(console, measured)
    write_json(json_path, {"runs": measured}, rounds=rounds)


if __name__ == "__main__":
    main()
