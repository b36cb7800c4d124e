"""What dealing splits out to tasks by size is worth: `python -m benchmarks.tasks`, or `make bench-tasks`.

Two topics: one where one topic partition holds nearly everything, and one with very many that hold next to nothing.
Each is landed by `ingest()` as it is, and with one task for each topic partition, as Spark would do it by itself; in
turn, in one warm session, each time in a new table. `--alternative` adds other sizes of a task to the comparison.
"""

from __future__ import annotations

import itertools
import random
import shutil
import statistics
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import click

from benchmarks.report import make_console, print_table, write_json
from benchmarks.topics import create_topics, produce
from dagster_kafka_flip import KafkaSource, LocalBroker, build_session, ingest
from dagster_kafka_flip.source import api, plan
from dagster_kafka_flip.source.plan import TaskPlan
from dagster_kafka_flip.source.split import TopicPartition
from examples.progress import busy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession
    from rich.console import Console

    from dagster_kafka_flip.source.split import KafkaPartitionSplit

    Way = Callable[[], AbstractContextManager[object]]
    """Within it, splits are dealt out to tasks in a certain way."""

_MASTER = "local[2]"
# Spark keeps each batch's consumers, with what they have fetched ahead, for five minutes: landing after landing they
# fill the 1 GiB that is the default.
_DRIVER_MEMORY = "4g"
_SKEWED = "skewed"
_THIN = "thin"
_SKEWED_PARTITIONS = 4
_SHARE_OF_FAT = 0.9
_RECORDS_PER_THIN_PARTITION = 10
_FIRST_MS = 1_700_000_000_000
_TEXTS = 1_000

AS_IT_IS = "as it is"
ONE_FOR_EACH = "one task each"


@dataclass(frozen=True)
class Measurement:
    """One way to deal out one topic.

    Attributes:
        topic: Which topic.
        way: How it is dealt out.
        seconds: Of a whole `ingest()`, median.
        read_and_write_seconds: Of reading, decoding, writing and Delta's commit, median.
        ratio: How many times as long as it is, by the whole: median of the pairs.
        ratios: Of each pair, from the lowest to the highest.
        read_and_write_ratio: As `ratio`, by reading and writing.
        tasks: Number of tasks that read.
        files: Number of files that were added to the table.
        rows: Rows landed.
    """

    topic: str
    way: str
    seconds: float
    read_and_write_seconds: float
    ratio: float
    ratios: tuple[float, ...]
    read_and_write_ratio: float
    tasks: int
    files: int
    rows: int


@dataclass(frozen=True)
class _Run:
    seconds: float
    read_and_write_seconds: float
    tasks: int
    files: int
    rows: int


def one_for_each(splits: Sequence[KafkaPartitionSplit], parallelism: int) -> TaskPlan:
    """One task for each topic partition, however large or small."""
    del parallelism
    return TaskPlan(tuple(splits), (), records_per_task=max((split.offset_span for split in splits), default=1))


def with_constants(min_records_per_task: int, tasks_per_core: int) -> Way:
    """As it is, but with other constants in `source/plan.py`."""
    return lambda: mock.patch.multiple(plan, MIN_RECORDS_PER_TASK=min_records_per_task, _TASKS_PER_CORE=tasks_per_core)


WAYS: dict[str, Way] = {AS_IT_IS: nullcontext, ONE_FOR_EACH: lambda: mock.patch.object(api, "plan_tasks", one_for_each)}


class Landing:
    """Lands topics in tables that are thrown away.

    Args:
        bootstrap_servers: The broker.
        spark: A session.
        folder: Where tables are made.
    """

    def __init__(self, bootstrap_servers: str, spark: SparkSession, folder: Path) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._spark = spark
        self._folder = folder
        self._numbers = itertools.count()

    def land(self, topic: str, way: Way) -> _Run:
        """Lands a topic once.

        Args:
            topic: Its name.
            way: How it is dealt out to tasks.
        """
        source = KafkaSource.builder().set_bootstrap_servers(self._bootstrap_servers).set_topics(topic).build()
        table = self._folder / f"{topic}-{next(self._numbers)}"
        begin = time.monotonic()
        with way():
            result = ingest(source, str(table), spark=lambda: self._spark)
        seconds = time.monotonic() - begin
        files = len(list(table.rglob("*.parquet")))
        shutil.rmtree(table)
        (batch,) = result.batches
        return _Run(seconds, batch.read_and_write_seconds, batch.tasks, files, result.rows or 0)

    def compare(self, topic: str, ways: Mapping[str, Way], rounds: int, warm_up: int) -> list[Measurement]:
        """Lands a topic each way in turn.

        Args:
            topic: Its name.
            ways: How it is dealt out; the first is what the others are compared with.
            rounds: How often.
            warm_up: How often before that, without counting.
        """
        found: dict[str, list[_Run]] = {way: [] for way in ways}
        for number in range(-warm_up, rounds):
            # Back and forth, so that none of them is always the one that comes after another.
            for way in list(ways) if number % 2 else reversed(list(ways)):
                run = self.land(topic, ways[way])
                if number >= 0:
                    found[way].append(run)
        base = next(iter(found.values()))
        return [_summary(topic, way, runs, base) for way, runs in found.items()]


def _summary(topic: str, way: str, runs: Sequence[_Run], base: Sequence[_Run]) -> Measurement:
    pairs = list(zip(runs, base, strict=True))
    ratios = sorted(run.seconds / other.seconds for run, other in pairs)
    return Measurement(
        topic=topic,
        way=way,
        seconds=statistics.median(run.seconds for run in runs),
        read_and_write_seconds=statistics.median(run.read_and_write_seconds for run in runs),
        ratio=statistics.median(ratios),
        ratios=tuple(ratios),
        read_and_write_ratio=statistics.median(
            run.read_and_write_seconds / other.read_and_write_seconds for run, other in pairs
        ),
        tasks=runs[-1].tasks,
        files=runs[-1].files,
        rows=runs[-1].rows,
    )


def _texts() -> list[str]:
    """Ends of records, such that each record has about 200 bytes and does not repeat the one before."""
    numbers = random.Random(27)  # noqa: S311 - no secret depends on it, and every run is to be alike
    return [
        f'"carrier":"{numbers.choice("ABCDEFGH")}{numbers.choice("ABCDEFGH")}","origin":"{numbers.randrange(10**6)}",'
        f'"delay":{numbers.random():.6f},"distance":{numbers.randrange(10**4)},'
        f'"tail":"{numbers.getrandbits(96):024x}","note":"{numbers.getrandbits(200):050x}"}}'
        for _ in range(_TEXTS)
    ]


def _skewed(records: int) -> Iterator[tuple[TopicPartition, bytes, int]]:
    texts = _texts()
    fat = int(records * _SHARE_OF_FAT)
    for number in range(records):
        partition = 0 if number < fat else 1 + number % (_SKEWED_PARTITIONS - 1)
        value = f'{{"number":{number:09},{texts[number % _TEXTS]}'.encode()
        yield TopicPartition(_SKEWED, partition), value, _FIRST_MS + number


def _thin(partitions: int) -> Iterator[tuple[TopicPartition, bytes, int]]:
    texts = _texts()
    for number in range(partitions * _RECORDS_PER_THIN_PARTITION):
        value = f'{{"number":{number:09},{texts[number % _TEXTS]}'.encode()
        yield TopicPartition(_THIN, number % partitions), value, _FIRST_MS + number


def _tell(console: Console, measured: Sequence[Measurement]) -> None:
    head = ("", "seconds", "ratio", "from to", "read and write", "ratio", "tasks", "files", "rows")
    for topic in dict.fromkeys(each.topic for each in measured):
        rows = [
            (
                each.way,
                f"{each.seconds:.2f}",
                f"{each.ratio:.2f}",
                f"{each.ratios[0]:.2f} {each.ratios[-1]:.2f}",
                f"{each.read_and_write_seconds:.2f}",
                f"{each.read_and_write_ratio:.2f}",
                f"{each.tasks:,}",
                f"{each.files:,}",
                f"{each.rows:,}",
            )
            for each in measured
            if each.topic == topic
        ]
        print_table(console, f"The {topic} topic, medians", head, rows)


@click.command()
@click.option("--records", type=click.IntRange(min=100), default=2_000_000, show_default=True, help="Of the skewed.")
@click.option("--thin-partitions", type=click.IntRange(min=3), default=1_000, show_default=True, help="Of the thin.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="How often each is timed.")
@click.option("--warm-up", type=click.IntRange(min=0), default=1, show_default=True, help="Rounds that don't count.")
@click.option(
    "--alternative",
    type=(int, int),
    multiple=True,
    metavar="RECORDS TASKS",
    help="Compare with other constants too: least records of a task, and tasks for each core.",
)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the measurements to this file too.")
def main(
    records: int,
    thin_partitions: int,
    rounds: int,
    warm_up: int,
    alternative: tuple[tuple[int, int], ...],
    json_path: Path | None,
) -> None:
    """Measure how long it takes to land a skewed topic and one of very many topic partitions."""
    console = make_console()
    ways = WAYS | {
        f"at least {least:,}, {per_core} for each core": with_constants(least, per_core)
        for least, per_core in alternative
    }
    measured: list[Measurement] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with LocalBroker(folder / "kafka", jvm_options=("-Xmx1g",)) as broker:
            with busy(console, f"Writing {records:,} records and {thin_partitions:,} thin topic partitions"):
                topics = [(_SKEWED, _SKEWED_PARTITIONS), (_THIN, thin_partitions)]
                create_topics(broker.bootstrap_servers, topics)
                produce(broker.bootstrap_servers, _skewed(records))
                produce(broker.bootstrap_servers, _thin(thin_partitions))
            spark = build_session(
                master=_MASTER,
                config={
                    "spark.ui.enabled": "false",
                    "spark.sql.warehouse.dir": str(folder / "warehouse"),
                    "spark.driver.memory": _DRIVER_MEMORY,
                },
            )
            try:
                landing = Landing(broker.bootstrap_servers, spark, folder)
                for topic, rows in ((_SKEWED, records), (_THIN, thin_partitions * _RECORDS_PER_THIN_PARTITION)):
                    with busy(console, f"Landing the {topic} topic"):
                        found = landing.compare(topic, ways, rounds, warm_up)
                    if {each.rows for each in found} != {rows}:
                        msg = f"{topic}: {[each.rows for each in found]} rows were landed, and not {rows}"
                        raise click.ClickException(msg)
                    measured += found
            finally:
                spark.stop()
    _tell(console, measured)
    write_json(json_path, {"landings": measured})


if __name__ == "__main__":
    main()
