"""How fast a topic gets into Delta, beside what users would write themselves: `python -m benchmarks.throughput`.

The same records as JSON, landed raw and decoded, as Avro and as Protobuf. Each way lands its topic whole, in turn, in
one warm session and each time in a new table: `ingest()`; Structured Streaming's AvailableNow with Spark's defaults and
tuned; and a plain batch read and write, which keeps no position. Each in a process of its own, its start included, run
a loop of confluent-kafka, pyarrow and deltalake, `ingest()` once more and, if `--flink` names a Python that has it,
Flink. Two floors tell what reading and parsing cost alone, and what writing does.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
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

from benchmarks.cpu import cpu_seconds
from benchmarks.forms import Form, forms
from benchmarks.forms import records as records_of
from benchmarks.report import make_console, print_table, write_json
from benchmarks.topics import create_topics, produce
from dagster_kafka_flip import KafkaSource, LocalBroker, TopicPartition, build_session, ingest
from dagster_kafka_flip.runtime.jars import retrieve
from examples.progress import busy

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from rich.console import Console

_PARTITIONS = 4
_FIRST_MS = 1_700_000_000_000
_DRIVER_MEMORY = "4g"

# What the documentation of Spark and of Kafka's consumer lead to, for large reads.
TUNED = {
    "kafka.max.poll.records": "10000",
    "kafka.max.partition.fetch.bytes": str(16 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
}

_FORMS = ("raw", "json", "avro", "protobuf")

# What a session of this package sets, and one with Spark's defaults does not.
_NOT_BY_DEFAULT = ("spark.sql.sources.useV1SourceList", "spark.sql.parquet.outputTimestampType")

# Parquet's defaults. A session of this package has others, so that large records fit a small heap.
_PARQUETS_OWN = {
    "parquet.block.size": str(128 << 20),
    **{
        f"parquet.{what}.size.row.check.{bound}": rows
        for what in ("page", "block")
        for bound, rows in (("min", "100"), ("max", "10000"))
    },
}

OURS = "ingest()"
OURS_NULL = 'ingest(), on_error="null"'
AVAILABLE_NOW = "AvailableNow"
AVAILABLE_NOW_TUNED = "AvailableNow, tuned"
BATCH = "plain batch, tuned"
FLOOR = "reading (and parsing) alone"
WRITING = "writing alone, from memory"
LOOP = "a Python loop, start included"
OURS_PROCESS = "ingest(), start included"
FLINK = "Flink into Parquet, start included"
_PROCESSES = (LOOP, OURS_PROCESS, FLINK)

_PROCESS = """
import sys
from benchmarks.forms import JSON_SCHEMA
from dagster_kafka_flip import JsonFormat, KafkaSource, build_session, ingest

servers, topic, table = sys.argv[1:]
source = KafkaSource.builder().set_bootstrap_servers(servers).set_topics(topic).build()
ingest(source, table, spark=build_session, value_format=JsonFormat(JSON_SCHEMA))
"""

_FLINK_JARS = (
    "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2",
    "org.apache.flink:flink-parquet:2.2.0",
    "org.apache.hadoop:hadoop-client-runtime:3.5.0",
)


@dataclass(frozen=True)
class Measurement:
    """One way to land one topic.

    Attributes:
        form: Name of the records' form.
        way: How it is landed.
        seconds: Of the whole, median.
        all_seconds: Of each round.
        cpu_seconds: What Spark's process took of the cores, median; 0 where that can't be told.
        ratio: How many times as long as `ingest()`, median of the rounds.
        rows: Rows landed; 0 where nothing is.
    """

    form: str
    way: str
    seconds: float
    all_seconds: tuple[float, ...]
    cpu_seconds: float
    ratio: float
    rows: int


class Ways:
    """Lands one topic in several ways.

    Args:
        bootstrap_servers: The broker.
        spark: A session.
        folder: Where tables are made.
        flink: A Python that has apache-flink; None to leave Flink out.
    """

    def __init__(self, bootstrap_servers: str, spark: SparkSession, folder: Path, flink: Path | None) -> None:
        self._servers = bootstrap_servers
        self._spark = spark
        self._folder = folder
        self._flink_python = flink
        self._flink_jars = [] if flink is None else [str(jar) for jar in retrieve(_FLINK_JARS)]
        self._numbers = itertools.count()

    def of(self, form: Form) -> dict[str, Callable[[str], None]]:
        """What lands the topic in a table.

        Args:
            form: The records' form.
        """
        ways: dict[str, Callable[[str], None]] = {OURS: functools.partial(self._ingest, form, "fail")}
        if form.name == "json":
            ways[OURS_NULL] = functools.partial(self._ingest, form, "null")
        if form.name == "protobuf":
            # Spark reads Protobuf with a jar that it does not come with.
            return ways
        ways |= {
            AVAILABLE_NOW_TUNED: functools.partial(self._available_now, form, TUNED),
            AVAILABLE_NOW: functools.partial(self._available_now, form, None),
            BATCH: functools.partial(self._batch, form),
            FLOOR: functools.partial(self._alone, form),
        }
        if form.name == "json":
            ways[LOOP] = functools.partial(self._loop, form)
            ways[OURS_PROCESS] = functools.partial(self._ingest_in_a_process, form)
        if self._flink_python is not None and form.name in ("raw", "json"):
            ways[FLINK] = functools.partial(self._flink, form)
        return ways

    def land(self, way: Callable[[str], None]) -> tuple[float, float, int]:
        """Lands the topic once, and returns the seconds, those of Spark's process, and how many rows there are.

        Args:
            way: Lands it.
        """
        import pyarrow.parquet as pq
        from deltalake import DeltaTable

        table = self._folder / str(next(self._numbers))
        cpu, begin = cpu_seconds(self._spark), time.monotonic()
        way(str(table))
        seconds, cpu = time.monotonic() - begin, cpu_seconds(self._spark) - cpu
        rows = 0
        if table.exists():
            if DeltaTable.is_deltatable(str(table)):
                found: Any = DeltaTable(str(table)).get_add_actions(flatten=True)
                rows = sum(found.column("num_records").to_pylist())
            else:
                rows = sum(pq.read_metadata(file).num_rows for file in table.iterdir() if file.is_file())
            shutil.rmtree(table)
        return seconds, cpu, rows

    def _ingest(self, form: Form, on_error: Any, table: str) -> None:
        source = KafkaSource.builder().set_bootstrap_servers(self._servers).set_topics(_topic(form)).build()
        ingest(source, table, spark=lambda: self._spark, value_format=form.format_of(on_error))

    def _columns(self, form: Form, records: DataFrame) -> DataFrame:
        """The columns that `ingest()` lands by default."""
        from pyspark.sql import functions as f

        own = [
            f.col(name).alias(f"kafka_{alias}")
            for name, alias in (
                ("topic", "topic"),
                ("partition", "partition"),
                ("offset", "offset"),
                ("timestamp", "timestamp"),
                ("timestampType", "timestamp_type"),
                ("key", "key"),
                ("headers", "headers"),
            )
        ]
        if form.plainly is None:
            return records.select(f.col("value").alias("kafka_value"), *own)
        parsed = records.withColumn("_parsed", form.plainly(f.col("value")))
        return parsed.select("_parsed.*", *own)

    def _options(self, form: Form, tuned: Mapping[str, str]) -> dict[str, str]:
        return {"kafka.bootstrap.servers": self._servers, "subscribe": _topic(form), "includeHeaders": "true", **tuned}

    def _available_now(self, form: Form, tuned: Mapping[str, str] | None, table: str) -> None:
        options = self._options(form, tuned or {})
        with self._as_users_have_it(() if tuned is not None else _NOT_BY_DEFAULT):
            records = self._spark.readStream.format("kafka").options(**options, startingOffsets="earliest").load()
            writer = self._columns(form, records).writeStream.format("delta").trigger(availableNow=True)
            query = writer.option("checkpointLocation", f"{table}-checkpoint").start(table)
            query.awaitTermination()
        shutil.rmtree(f"{table}-checkpoint", ignore_errors=True)

    @contextlib.contextmanager
    def _as_users_have_it(self, unset: Sequence[str] = ()) -> Generator[None]:
        """Sets Parquet's own defaults, and leaves out some of the session's settings.

        Args:
            unset: The settings to leave out.
        """
        conf = self._spark.conf
        before = {name: conf.get(name, None) for name in (*unset, *_PARQUETS_OWN)}
        for name in unset:
            conf.unset(name)
        for name, value in _PARQUETS_OWN.items():
            conf.set(name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                conf.unset(name) if value is None else conf.set(name, value)

    def _read(self, form: Form) -> DataFrame:
        records = self._spark.read.format("kafka").options(**self._options(form, TUNED)).load()
        return self._columns(form, records)

    def _batch(self, form: Form, table: str) -> None:
        self._write(self._read(form), table)

    def _alone(self, form: Form, table: str) -> None:
        del table
        self._read(form).write.format("noop").mode("overwrite").save()

    @contextlib.contextmanager
    def in_memory(self, form: Form) -> Generator[Callable[[str], None]]:
        """Keeps the columns of a topic in Spark's memory, and gives what writes them to a table.

        Args:
            form: The records' form.
        """
        rows = self._read(form).persist()
        try:
            rows.count()
            yield functools.partial(self._write, rows)
        finally:
            rows.unpersist(blocking=True)

    def _write(self, rows: DataFrame, table: str) -> None:
        with self._as_users_have_it():
            rows.write.format("delta").save(table)

    def _loop(self, form: Form, table: str) -> None:
        subprocess.run([sys.executable, "-m", "benchmarks.python_loop", self._servers, _topic(form), table], check=True)

    def _ingest_in_a_process(self, form: Form, table: str) -> None:
        command = [sys.executable, "-c", _PROCESS, self._servers, _topic(form), table]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)

    def _flink(self, form: Form, table: str) -> None:
        program = Path(__file__).with_name("flink_sql.py")
        options = (self._servers, form.name, _topic(form), table, str(os.cpu_count()), json.dumps(self._flink_jars))
        subprocess.run([str(self._flink_python), str(program), *options], check=True, stdout=subprocess.DEVNULL)


def compare(ways: Ways, form: Form, wanted: Sequence[str], rounds: int, warm_up: int) -> list[Measurement]:
    """Lands the topic each way in turn.

    Args:
        ways: How.
        form: The records' form.
        wanted: Names of the ways; all if there are none.
        rounds: How often.
        warm_up: How often before that, without counting, unless it is a process of its own.
    """
    known = ways.of(form)
    all_of_them = {name: way for name, way in known.items() if not wanted or name in {OURS, *wanted}}
    found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in all_of_them}
    for number in range(-warm_up, rounds):
        # Back and forth, so that none of them is always the one that comes after another.
        for name in list(all_of_them) if number % 2 else reversed(list(all_of_them)):
            if number < 0 and name in _PROCESSES:
                continue
            measured = ways.land(all_of_them[name])
            if number >= 0:
                found[name].append(measured)
    if BATCH in known and (not wanted or WRITING in wanted):
        # Last: kept rows take memory from the others.
        with ways.in_memory(form) as write:
            found[WRITING] = [ways.land(write) for _ in range(-warm_up, rounds)][warm_up:]
    ours = [seconds for seconds, _, _ in found[OURS]]
    return [
        Measurement(
            form=form.name,
            way=name,
            seconds=statistics.median(seconds for seconds, _, _ in runs),
            all_seconds=tuple(round(seconds, 3) for seconds, _, _ in runs),
            cpu_seconds=statistics.median(cpu for _, cpu, _ in runs),
            ratio=statistics.median(seconds / own for (seconds, _, _), own in zip(runs, ours, strict=True)),
            rows=runs[-1][2],
        )
        for name, runs in found.items()
    ]


def _values(form: Form, records: Iterable[dict[str, Any]]) -> Iterator[tuple[TopicPartition, bytes, int]]:
    partitions = [TopicPartition(_topic(form), number) for number in range(_PARTITIONS)]
    for number, record in enumerate(records):
        yield partitions[number % _PARTITIONS], form.encode(record), _FIRST_MS + number


def _topic(form: Form) -> str:
    return f"flights-{form.name}"


def table_of(form: str, measured: Sequence[Measurement]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The heads and the rows of the table of a form.

    Args:
        form: Its name.
        measured: Everything that was measured.
    """
    rows = [
        (
            each.way,
            f"{each.seconds:.2f}",
            f"{min(each.all_seconds):.2f} {max(each.all_seconds):.2f}",
            f"{each.cpu_seconds:.1f}" if each.cpu_seconds > 1 else "",
            f"{each.ratio:.2f}",
        )
        for each in measured
        if each.form == form
    ]
    return (form, "seconds", "from to", "CPU", "times ingest()"), rows


def _tell(console: Console, measured: Sequence[Measurement]) -> None:
    for form in dict.fromkeys(each.form for each in measured):
        print_table(console, f"Landing {form}, medians", *table_of(form, measured))


@click.command()
@click.option("--records", type=click.IntRange(min=100), default=2_000_000, show_default=True)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="How often each is timed.")
@click.option("--warm-up", type=click.IntRange(min=0), default=1, show_default=True, help="Rounds that don't count.")
@click.option("--form", "names", type=click.Choice(list(_FORMS)), multiple=True, help="Default: all.")
@click.option("--way", "wanted", multiple=True, help="A way to compare with; may be given several times. Default: all.")
@click.option("--flink", type=click.Path(path_type=Path, exists=True), help="A Python that has apache-flink 2.2.")
@click.option("--note-digits", type=click.IntRange(min=1), default=40, show_default=True, help="Makes records longer.")
@click.option("--repeating", is_flag=True, help="Records of which each field but one has at most a hundred values.")
@click.option("--collector", default="ParallelGC", show_default=True, help="Java's garbage collector.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the measurements to this file too.")
def main(
    records: int,
    rounds: int,
    warm_up: int,
    names: tuple[str, ...],
    wanted: tuple[str, ...],
    flink: Path | None,
    note_digits: int,
    repeating: bool,
    collector: str,
    json_path: Path | None,
) -> None:
    """Measure how long it takes to get a topic into Delta, beside the alternatives."""
    console = make_console()
    measured: list[Measurement] = []
    made = functools.partial(records_of, note_digits=note_digits, repeating=repeating)
    chosen = [form for name, form in forms().items() if name in (names or _FORMS)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with LocalBroker(folder / "kafka", jvm_options=("-Xmx1g",)) as broker:
            with busy(console, f"Writing {records:,} records"):
                create_topics(broker.bootstrap_servers, [(_topic(form), _PARTITIONS) for form in chosen])
                for form in chosen:
                    produce(broker.bootstrap_servers, _values(form, made(records)))
            spark = build_session(
                config={
                    "spark.ui.enabled": "false",
                    "spark.sql.warehouse.dir": str(folder / "warehouse"),
                    "spark.driver.memory": _DRIVER_MEMORY,
                    "spark.driver.extraJavaOptions": f"-XX:+Use{collector}",
                },
            )
            try:
                ways = Ways(broker.bootstrap_servers, spark, folder, flink)
                for form in chosen:
                    with busy(console, f"Landing {form.name}"):
                        measured += compare(ways, form, wanted, rounds, warm_up)
            finally:
                spark.stop()
    if wrong := [each for each in measured if each.rows not in ((0,) if each.way == FLOOR else (records,))]:
        msg = f"not {records} rows: {[(each.form, each.way, each.rows) for each in wrong]}"
        raise click.ClickException(msg)
    sizes = {form.name: len(next(_values(form, made(1)))[1]) for form in chosen}
    first = ", ".join(f"{name} {size}" for name, size in sizes.items())
    console.print(
        f"\n{records:,} records, bytes of the first: {first}; {os.cpu_count()} cores, {platform.machine()}, {collector}"
    )
    _tell(console, measured)
    settings = {"records": records, "bytes": sizes, "repeating": repeating, "collector": collector, "rounds": rounds}
    write_json(json_path, {"landings": measured}, **settings)


if __name__ == "__main__":
    main()
