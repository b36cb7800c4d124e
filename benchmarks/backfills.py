"""What a backfill by windows reads and takes: `python -m benchmarks.backfills`, or `make bench-backfills`.

One topic of many days. First some of its days are landed, and the broker's own counter tells what it has sent for them;
what the log holds of these days is read off its files, batch by batch. Then many days are landed in one run, and in a
run for each day, in one warm session; and the two tables are compared.
"""

from __future__ import annotations

import itertools
import random
import shutil
import statistics
import struct
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as ClientPartition

from benchmarks.report import make_console, print_table, write_json
from benchmarks.topics import QUIET, create_topics
from dagster_kafka_flip import KafkaSource, LocalBroker, Window, Windows, build_session, rewrite_windows
from examples.progress import busy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession
    from rich.console import Console

    from dagster_kafka_flip import WindowsResult
    from dagster_kafka_flip.source.split import KafkaPartitionSplit, Position

_MASTER = "local[2]"
_DRIVER_MEMORY = "4g"
_TOPIC = "days"
_PARTITIONS = 4
# The first moment of 15 November 2023, in UTC: each of these days is long over.
_FIRST_MS = 1_700_006_400_000
_DAY_MS = 86_400_000
_PERCENTS = (1, 10, 100)
_MEGABYTE = 1_000_000
# Small against a day, so that it does not matter that a broker sends whole batches.
_BATCH_BYTES = 64 * 1024
_LARGE_FETCH_BYTES = 16 * 1024 * 1024
_SECONDS = 120.0
_POLL_SECONDS = 0.01
_LOOK_EVERY = 0.1
_QUIET_LOOKS = 3

AS_IT_IS = "as it is"
LARGE_FETCHES = "fetches of 16 MiB"
PLAIN_CONSUMER = "a plain consumer"
ONE_RUN = "one run of all windows"
RUN_FOR_EACH = "a run for each window"


@dataclass(frozen=True)
class Read:
    """One way to read some days.

    Attributes:
        days: How many days are read.
        of_days: How many the topic has.
        way: How they are read.
        records: Records of these days that were read.
        record_bytes: Bytes of their keys and values.
        range_bytes: Bytes of the batches in the log that hold a record of these days.
        planned_bytes: The same with what is read for late records, by `max_lateness`.
        fetched_bytes: What the broker has sent of the topic, by its counter; median.
        fetched: From each round, from the lowest to the highest.
        ratio: `fetched_bytes` to `range_bytes`.
        topic_share: `fetched_bytes` to all that the topic's log holds.
        seconds: Of the whole call, median.
    """

    days: int
    of_days: int
    way: str
    records: int
    record_bytes: int
    range_bytes: int
    planned_bytes: int
    fetched_bytes: float
    fetched: tuple[int, ...]
    ratio: float
    topic_share: float
    seconds: float


@dataclass(frozen=True)
class Backfill:
    """One way to land many days.

    Attributes:
        way: How they are landed.
        windows: How many.
        runs: In how many runs, each of which makes one commit.
        commits: Commits that were made.
        seconds: Of all runs together, median.
        ratio: How many times as long as one run: median of the pairs.
        ratios: Of each pair, from the lowest to the highest.
        plan_seconds: Of planning, all runs together, median.
        read_and_write_seconds: Of reading, decoding, writing and Delta's commit, all runs together, median.
        fetched_bytes: What the broker has sent of the topic, by its counter; median.
        rows: Rows in the table.
    """

    way: str
    windows: int
    runs: int
    commits: int
    seconds: float
    ratio: float
    ratios: tuple[float, ...]
    plan_seconds: float
    read_and_write_seconds: float
    fetched_bytes: float
    rows: int


@dataclass(frozen=True)
class Contents:
    """How the tables of both ways compare, in one round.

    Attributes:
        rows: Rows in each.
        windows: Different windows in each.
        differing: Rows that only one of them has.
    """

    rows: tuple[int, int]
    windows: tuple[int, int]
    differing: int


class SentBytes:
    """What a broker has sent of a topic to consumers, by its JMX counter `BytesOutPerSec`.

    It counts record batches as they go over the wire, without what the protocol puts around them. Spark's JVM asks the
    broker's JVM for it; the counter costs the broker nothing that it does not pay anyway.

    Args:
        spark: A session with a JVM of its own.
        broker: The broker; it runs.
        topic: The topic.
    """

    def __init__(self, spark: SparkSession, broker: LocalBroker, topic: str) -> None:
        self._gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        jvm = self._gateway.jvm
        status = broker.status()
        if status is None:
            msg = "the broker does not run"
            raise RuntimeError(msg)
        machine = self._call("com.sun.tools.attach.VirtualMachine", "attach", None, str(status.pid))
        address = self._call("com.sun.tools.attach.VirtualMachine", "startLocalManagementAgent", machine)
        self._call("com.sun.tools.attach.VirtualMachine", "detach", machine)
        url = jvm.javax.management.remote.JMXServiceURL(address)
        connector = jvm.javax.management.remote.JMXConnectorFactory.connect(url)
        self._server = self._call("javax.management.remote.JMXConnector", "getMBeanServerConnection", connector)
        self._name = jvm.javax.management.ObjectName(
            f"kafka.server:type=BrokerTopicMetrics,name=BytesOutPerSec,topic={topic}"
        )

    def settled(self) -> int:
        """Bytes so far, once no more are sent: a consumer that stops has fetches on their way still."""
        same, last = 0, -1
        while same < _QUIET_LOOKS:
            time.sleep(_LOOK_EVERY)
            now = self.count()
            same, last = (same + 1 if now == last else 0), now
        return last

    def count(self) -> int:
        """Bytes so far."""
        connection = "javax.management.MBeanServerConnection"
        # The counter is there from the first fetch on.
        if not self._call(connection, "isRegistered", self._server, self._name):
            return 0
        return int(self._call(connection, "getAttribute", self._server, self._name, "Count"))

    def _call(self, class_name: str, method: str, target: Any, *arguments: Any) -> Any:
        """Calls a method as a public class or interface has it: what implements it is not public, and so refused."""
        java = self._gateway.jvm.java.lang
        types = [
            java.Class.forName("java.lang.String") if isinstance(each, str) else each.getClass() for each in arguments
        ]
        found = java.Class.forName(class_name).getMethod(method, self._array(java.Class, types))
        return found.invoke(target, self._array(java.Object, arguments))

    def _array(self, kind: Any, items: Sequence[Any]) -> Any:
        array = self._gateway.new_array(kind, len(items))
        for index, item in enumerate(items):
            array[index] = item
        return array


class LogFiles:
    """What a topic's log holds, by the headers of its batches.

    Args:
        data_dir: The broker's folder.
        topic: The topic; nothing is written to it any more, and nothing deleted.
        partitions: Number of its topic partitions.
    """

    def __init__(self, data_dir: Path, topic: str, partitions: int) -> None:
        folders = [data_dir / "data" / f"{topic}-{partition}" for partition in range(partitions)]
        self._batches = [
            [batch for path in sorted(folder.glob("*.log")) for batch in _batches(path.read_bytes())]
            for folder in folders
        ]

    @property
    def all_bytes(self) -> int:
        """Bytes of all batches."""
        return sum(size for batches in self._batches for _, _, size in batches)

    def bytes_between(self, starts: Position, stops: Position) -> int:
        """Bytes of the batches that hold an offset between two positions. Batches are all that a broker sends."""
        return sum(
            size
            for tp, stop in stops.items()
            for first, last, size in self._batches[tp.partition]
            if first < stop and starts[tp] <= last
        )


def _batches(log: bytes) -> Iterator[tuple[int, int, int]]:
    """First offset, last offset and size of each batch in a file."""
    begin = 0
    while begin < len(log):
        # The base offset and the length of what follows; then, behind epoch, magic, checksum and attributes, the delta.
        base, length = struct.unpack_from(">qi", log, begin)
        (delta,) = struct.unpack_from(">i", log, begin + 23)
        yield base, base + delta, 12 + length
        begin += 12 + length


class Landing:
    """Lands days of the topic in tables that are thrown away.

    Args:
        broker: The broker.
        spark: A session.
        folder: Where tables are made.
    """

    def __init__(self, broker: LocalBroker, spark: SparkSession, folder: Path) -> None:
        self._bootstrap_servers = broker.bootstrap_servers
        self._spark = spark
        self._folder = folder
        self._sent = SentBytes(spark, broker, _TOPIC)
        self._numbers = itertools.count()

    def land(self, runs: Iterable[Sequence[Window]], properties: Mapping[str, str] | None = None) -> Landed:
        """Lands windows in a new table.

        Args:
            runs: The windows of each run.
            properties: Of the consumer that reads. Default: none.
        """
        source = (
            KafkaSource.builder()
            .set_bootstrap_servers(self._bootstrap_servers)
            .set_topics(_TOPIC)
            .set_properties(properties or {})
            .build()
        )
        table = self._folder / f"days-{next(self._numbers)}"
        before = self._sent.count()
        begin = time.monotonic()
        results = [
            result
            for windows in runs
            for result in rewrite_windows(source, str(table), windows, spark=lambda: self._spark, rules=Windows())
        ]
        seconds = time.monotonic() - begin
        return Landed(table, results, self._sent.settled() - before, seconds)

    def consume(self, splits: Sequence[KafkaPartitionSplit]) -> tuple[int, float]:
        """Reads ranges by a consumer with nothing set, and throws the records away.

        Args:
            splits: The ranges.

        Returns:
            What the broker has sent for it, and the seconds.
        """
        before = self._sent.count()
        begin = time.monotonic()
        left = {split.topic_partition.partition: split.stopping_offset for split in splits}
        consumer = Consumer(
            {"bootstrap.servers": self._bootstrap_servers, "group.id": "plain", "enable.auto.commit": False, **QUIET}
        )
        try:
            consumer.assign(
                [ClientPartition(_TOPIC, split.topic_partition.partition, split.starting_offset) for split in splits]
            )
            while left:
                records = consumer.consume(1_000, _POLL_SECONDS)
                if time.monotonic() > begin + _SECONDS:
                    msg = f"the records were not there after {_SECONDS:.0f} s"
                    raise TimeoutError(msg)
                for record in records:
                    if record.error() is not None:
                        raise KafkaException(record.error())
                    partition = record.partition() or 0
                    if partition in left and (record.offset() or 0) + 1 >= left[partition]:
                        del left[partition]
                        consumer.incremental_unassign([ClientPartition(_TOPIC, partition)])
        finally:
            consumer.close()
        seconds = time.monotonic() - begin
        return self._sent.settled() - before, seconds


@dataclass(frozen=True)
class Landed:
    """Windows in a table.

    Attributes:
        table: Where it is.
        results: Of each commit.
        fetched_bytes: What the broker has sent for it.
        seconds: How long it took.
    """

    table: Path
    results: list[WindowsResult]
    fetched_bytes: int
    seconds: float

    @property
    def rows(self) -> int:
        """Rows that were landed."""
        return sum((result.committed.rows or 0) for result in self.results if result.committed is not None)

    @property
    def plan_seconds(self) -> float:
        """Of planning, all commits together."""
        return sum(result.plan_seconds for result in self.results)

    @property
    def read_and_write_seconds(self) -> float:
        """Of reading and writing, all commits together."""
        return sum(result.read_and_write_seconds for result in self.results)


def measure_reads(landing: Landing, log: LogFiles, days: Sequence[Window], count: int, rounds: int) -> list[Read]:
    """Reads some of the days, from the middle, each way in turn.

    Args:
        landing: Where to.
        log: What there is to read.
        days: All days of the topic.
        count: How many of them.
        rounds: How often.
    """
    first = (len(days) - count) // 2
    windows = days[first : first + count]
    ways = {AS_IT_IS: {}, LARGE_FETCHES: {"max.partition.fetch.bytes": str(_LARGE_FETCH_BYTES)}, PLAIN_CONSUMER: None}
    found: dict[str, list[tuple[int, float]]] = {way: [] for way in ways}
    # It tells the plan, and warms up.
    landed = landing.land([windows])
    shutil.rmtree(landed.table)
    (one,) = landed.results
    for number in range(rounds):
        # Back and forth, so that none of them is always the one that comes after another.
        for way in list(ways) if number % 2 else reversed(list(ways)):
            properties = ways[way]
            if properties is None:
                run = landing.consume(one.plan.splits)
            else:
                again = landing.land([windows], properties)
                shutil.rmtree(again.table)
                _check_rows(again.rows, landed.rows)
                run = (again.fetched_bytes, again.seconds)
            found[way].append(run)
    range_bytes = log.bytes_between(one.plan.starting_position, one.plan.windows[-1].ends)
    observed = one.observed
    return [
        Read(
            days=count,
            of_days=len(days),
            way=way,
            records=landed.rows,
            record_bytes=observed.bytes or 0,
            range_bytes=range_bytes,
            planned_bytes=log.bytes_between(one.plan.starting_position, one.plan.stops),
            fetched_bytes=(fetched := statistics.median(each for each, _ in runs)),
            fetched=tuple(sorted(each for each, _ in runs)),
            ratio=fetched / range_bytes,
            topic_share=fetched / log.all_bytes,
            seconds=statistics.median(seconds for _, seconds in runs),
        )
        for way, runs in found.items()
    ]


def measure_backfills(
    landing: Landing, spark: SparkSession, windows: Sequence[Window], rounds: int
) -> tuple[list[Backfill], list[Contents]]:
    """Lands windows in one run, and in a run for each, in turn; and compares the tables.

    Args:
        landing: Where to.
        spark: A session to compare them with.
        windows: The windows.
        rounds: How often.
    """
    ways = {ONE_RUN: [windows], RUN_FOR_EACH: [[window] for window in windows]}
    found: dict[str, list[Landed]] = {way: [] for way in ways}
    contents: list[Contents] = []
    for number in range(rounds):
        for way in reversed(list(ways)) if number % 2 else list(ways):
            found[way].append(landing.land(ways[way]))
        tables = [runs[-1].table for runs in found.values()]
        contents.append(_compare(spark, *tables))
        for table in tables:
            shutil.rmtree(table)
    base = found[ONE_RUN]
    backfills: list[Backfill] = []
    for way, runs in found.items():
        ratios = sorted(run.seconds / other.seconds for run, other in zip(runs, base, strict=True))
        backfills.append(
            Backfill(
                way=way,
                windows=len(windows),
                runs=len(ways[way]),
                commits=sum(1 for result in runs[-1].results if result.committed is not None),
                seconds=statistics.median(run.seconds for run in runs),
                ratio=statistics.median(ratios),
                ratios=tuple(ratios),
                plan_seconds=statistics.median(run.plan_seconds for run in runs),
                read_and_write_seconds=statistics.median(run.read_and_write_seconds for run in runs),
                fetched_bytes=statistics.median(run.fetched_bytes for run in runs),
                rows=runs[-1].rows,
            )
        )
    return backfills, contents


def _compare(spark: SparkSession, one: Path, other: Path) -> Contents:
    from pyspark.sql import functions as f

    # A hash of all columns instead of the columns: the rows of a whole topic would go through a shuffle twice.
    frames = [
        spark.read.format("delta").load(str(path)).select("*", f.xxhash64(f.struct("*")).alias("hash"))
        for path in (one, other)
    ]
    keys = [frame.select("kafka_window", "kafka_partition", "kafka_offset", "hash") for frame in frames]
    rows = [frame.count() for frame in keys]
    windows = [frame.select("kafka_window").distinct().count() for frame in keys]
    differing = keys[0].exceptAll(keys[1]).count() + keys[1].exceptAll(keys[0]).count()
    return Contents((rows[0], rows[1]), (windows[0], windows[1]), differing)


def _check_rows(found: int, expected: int) -> None:
    if found != expected:
        msg = f"{found} rows were landed, and not {expected}"
        raise click.ClickException(msg)


def _produce(bootstrap_servers: str, records: int, record_bytes: int, days: int) -> None:
    """Writes records one after the other in time, evenly over the days, in small batches that are not compressed."""
    failures: list[Any] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "compression.type": "none",
            "linger.ms": 50,
            "batch.size": _BATCH_BYTES,
            "delivery.report.only.error": True,
            "queue.buffering.max.messages": 500_000,
            **QUIET,
        }
    )
    pool = random.Random(27).randbytes(1_000_000 + record_bytes)  # noqa: S311 - no secret depends on it
    for number in range(records):
        begin = number * 37 % 1_000_000
        value = pool[begin : begin + record_bytes]
        timestamp = _FIRST_MS + number * days * _DAY_MS // records
        while True:
            try:
                producer.produce(
                    _TOPIC, value, partition=number % _PARTITIONS, timestamp=timestamp, on_delivery=delivered
                )
                break
            except BufferError:
                producer.poll(0.1)
        if number % 10_000 == 0:
            producer.poll(0)
    if producer.flush(_SECONDS):
        msg = f"{len(producer)} records were not acknowledged within {_SECONDS:.0f} s"
        raise TimeoutError(msg)
    if failures:
        raise KafkaException(failures[0])


def _tell_reads(console: Console, reads: Sequence[Read]) -> None:
    names = ("", "fetched", "ratio", "of the topic", "seconds")
    for days in dict.fromkeys(each.days for each in reads):
        found = [each for each in reads if each.days == days]
        (first, *_) = found
        title = (
            f"{days} of {first.of_days} days, medians, in MB: {first.records:,} records have "
            f"{_megabytes(first.record_bytes)} of keys and values; the log has {_megabytes(first.range_bytes)} of "
            f"them, and {_megabytes(first.planned_bytes)} with what is read for late ones"
        )
        rows = [
            (
                each.way,
                _megabytes(each.fetched_bytes),
                f"{each.ratio:.2f}",
                f"{each.topic_share:.1%}",
                f"{each.seconds:.2f}",
            )
            for each in found
        ]
        print_table(console, title, names, rows)


def _tell_backfills(console: Console, backfills: Sequence[Backfill], contents: Sequence[Contents]) -> None:
    names = ("", "seconds", "ratio", "from to", "planning", "read and write", "fetched MB", "commits", "rows")
    rows = [
        (
            each.way,
            f"{each.seconds:.2f}",
            f"{each.ratio:.2f}",
            f"{each.ratios[0]:.2f} {each.ratios[-1]:.2f}",
            f"{each.plan_seconds:.3f}",
            f"{each.read_and_write_seconds:.2f}",
            _megabytes(each.fetched_bytes),
            f"{each.commits:,}",
            f"{each.rows:,}",
        )
        for each in backfills
    ]
    print_table(console, f"{backfills[0].windows} windows of a day, medians", names, rows)
    console.print(f"\nRows that only one of the two tables has: {sum(each.differing for each in contents)}")


def _megabytes(number: float) -> str:
    return f"{number / _MEGABYTE:,.2f}"


@click.command()
@click.option("--records", type=click.IntRange(min=100), default=400_000, show_default=True, help="In the topic.")
@click.option("--record-bytes", type=click.IntRange(min=1), default=1_000, show_default=True, help="Of each value.")
@click.option("--days", "day_count", type=click.IntRange(min=1), default=100, show_default=True, help="In the topic.")
@click.option("--windows", "window_count", type=click.IntRange(min=1), default=90, show_default=True, help="To land.")
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True, help="How often each read is made.")
@click.option("--backfill-rounds", type=click.IntRange(min=1), default=1, show_default=True, help="Of all windows.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the measurements to this file too.")
def main(
    records: int,
    record_bytes: int,
    day_count: int,
    window_count: int,
    rounds: int,
    backfill_rounds: int,
    json_path: Path | None,
) -> None:
    """Measure what a range of days reads from Kafka, and what many days in one run are worth."""
    if window_count > day_count:
        raise click.BadParameter("there are more windows than days", param_hint="--windows")
    console = make_console()
    days = [
        Window(f"day-{number:03}", _FIRST_MS + number * _DAY_MS, _FIRST_MS + (number + 1) * _DAY_MS)
        for number in range(day_count)
    ]
    reads: list[Read] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with LocalBroker(folder / "kafka", jvm_options=("-Xmx1g",)) as broker:
            with busy(console, f"Writing {records:,} records of {day_count:,} days"):
                create_topics(broker.bootstrap_servers, [(_TOPIC, _PARTITIONS)])
                _produce(broker.bootstrap_servers, records, record_bytes, day_count)
            log = LogFiles(broker.data_dir, _TOPIC, _PARTITIONS)
            spark = build_session(
                master=_MASTER,
                config={
                    "spark.ui.enabled": "false",
                    "spark.sql.warehouse.dir": str(folder / "warehouse"),
                    "spark.driver.memory": _DRIVER_MEMORY,
                },
            )
            try:
                landing = Landing(broker, spark, folder)
                for count in dict.fromkeys(max(1, day_count * percent // 100) for percent in _PERCENTS):
                    with busy(console, f"Reading {count:,} of {day_count:,} days"):
                        reads += measure_reads(landing, log, days, count, rounds)
                # What is known is told at once: the rest takes minutes.
                _tell_reads(console, reads)
                with busy(console, f"Landing {window_count:,} windows"):
                    backfills, contents = measure_backfills(landing, spark, days[:window_count], backfill_rounds)
            finally:
                spark.stop()
    _tell_backfills(console, backfills, contents)
    write_json(json_path, {"reads": reads, "backfills": backfills, "contents": contents})
    for each in contents:
        if each.differing or each.rows[0] != each.rows[1]:
            msg = f"the two tables differ: {each}"
            raise click.ClickException(msg)


if __name__ == "__main__":
    main()
