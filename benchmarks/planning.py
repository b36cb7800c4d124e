"""What planning costs as topic partitions grow in number: `python -m benchmarks.planning`, or `make bench-planning`.

A plan is made by a new client, as in each run, so that connecting is part of it. Requests are counted by librdkafka's
own log, in a run of their own that is not timed. What stands next to it is what one would write without an enumerator:
a consumer's call for each topic partition.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as ClientPartition

from benchmarks.report import make_console, print_table, write_json
from benchmarks.requests import DEBUG, ObservedCluster, RequestCounter
from benchmarks.topics import QUIET, commit_offsets, create_topics, produce
from dagster_kafka_flip import KafkaSource, LocalBroker, OffsetsInitializer
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState, splits_to_json
from examples.progress import busy

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Generator, Iterator, Mapping, Sequence

    from rich.console import Console

# Thousands of topic partitions need room for their metadata, and indexes that are not made at their full size at once.
_BROKER_JVM = ("-Xmx2g",)
_BROKER_PROPERTIES = {
    "log.index.size.max.bytes": "4096",
    "log.segment.bytes": str(1024 * 1024),
    "offsets.topic.num.partitions": "1",
}

_PARTITIONS_PER_TOPIC = 1_000
_RECORDS_PER_PARTITION = 4
_GROUP = "benchmark"
_FIRST_MS = 1_700_000_000_000
_RECORD_EVERY_MS = 60_000
_DRIFT = timedelta(minutes=1)
# As in source/log.py: the slowest is found to this share of the drift.
_PRECISION = 64
_TIMEOUT = 60.0

_PLAN_EARLIEST = "first plan, at earliest"
_PLAN_TIMES = "timestamps"
_LOOP = "loop: watermarks"
_LOOP_TIMES = "loop: watermarks and timestamps"
_COMPARED = ((_LOOP, _PLAN_EARLIEST), (_LOOP_TIMES, _PLAN_TIMES))

# What the documents promise sizes for.
_TEN_DIGITS = 1_000_000_000
_A_MILLION = 1_000_000


@dataclass(frozen=True)
class Measurement:
    """One way to plan.

    Attributes:
        partitions: Number of topic partitions.
        what: Which way.
        seconds: Median.
        requests: What was sent, by type.
    """

    partitions: int
    what: str
    seconds: float
    requests: dict[str, int]

    @property
    def sent(self) -> int:
        """All requests."""
        return sum(self.requests.values())


@dataclass(frozen=True)
class Size:
    """The JSON that a commit carries.

    Attributes:
        partitions: Number of topic partitions.
        state: Bytes of the position, with offsets of ten digits.
        splits: Bytes of the splits, of a million records each.
    """

    partitions: int
    state: int
    splits: int


class Planning:
    """Measures planning on some topics.

    Args:
        bootstrap_servers: The broker.
        topics: All of them are planned together.
        partitions: Number of their topic partitions.
        rounds: How often each is timed.
    """

    def __init__(self, bootstrap_servers: str, topics: Sequence[str], partitions: int, rounds: int) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._topics = topics
        self._partitions = partitions
        self._rounds = rounds
        source = self._source()
        first = _enumerator(source, KafkaCluster(source.required_connection()), None).start()
        self.state = first.state
        self._all = tuple(first.end_offsets)
        if len(self._all) != partitions or first.offset_span != partitions * _RECORDS_PER_PARTITION:
            msg = f"{first.offset_span} records in {len(self._all)} topic partitions were planned, not {partitions}"
            raise AssertionError(msg)

    def measure(self) -> list[Measurement]:
        """One measurement for each way to plan, and for each loop that stands next to it."""
        stop = OffsetsInitializer.timestamp(_FIRST_MS + 2 * _RECORD_EVERY_MS)
        start = OffsetsInitializer.timestamp(_FIRST_MS + _RECORD_EVERY_MS)
        committed = OffsetsInitializer.committed_offsets()
        plans: dict[str, tuple[KafkaSource, EnumeratorState | None]] = {
            _PLAN_EARLIEST: (self._source(), None),
            "nothing new": (self._source(), self.state),
            _PLAN_TIMES: (self._source(start=start, stop=stop), None),
            "committed offsets": (self._source(start=committed), None),
            "alignment": (self._source(drift=_DRIFT), None),
        }
        loops: dict[str, Callable[[Consumer], None]] = {
            _LOOP: self._watermarks,
            _LOOP_TIMES: self._watermarks_and_times,
        }
        seconds: dict[str, list[float]] = {what: [] for what in (*plans, *loops)}
        # In turn, so that whatever else the machine does meanwhile hits all of them alike.
        for _ in range(self._rounds):
            for what, (source, state) in plans.items():
                seconds[what].append(self._seconds_of_plan(source, state))
            for what, loop in loops.items():
                seconds[what].append(self._seconds_of_loop(loop))
        requests = {what: self._requests_of_plan(*plan) for what, plan in plans.items()}
        requests |= {what: self._requests_of_loop(loop) for what, loop in loops.items()}
        return [
            Measurement(self._partitions, what, statistics.median(times), dict(requests[what]))
            for what, times in seconds.items()
        ]

    def size(self) -> Size:
        """The JSON of a plan's state and splits, with offsets as large as in a topic that has been there for long."""
        grown = EnumeratorState(
            {tp: _TEN_DIGITS * 5 + number for number, tp in enumerate(self._all)},
            self.state.cluster_id,
            self.state.topic_ids,
        )
        splits = tuple(KafkaPartitionSplit(tp, offset - _A_MILLION, offset) for tp, offset in grown.position.items())
        return Size(
            self._partitions,
            state=_bytes(grown.to_json()),
            splits=_bytes(splits_to_json(splits)),
        )

    def _source(
        self,
        *,
        start: OffsetsInitializer | None = None,
        stop: OffsetsInitializer | None = None,
        drift: timedelta | None = None,
    ) -> KafkaSource:
        builder = (
            KafkaSource.builder()
            .set_bootstrap_servers(self._bootstrap_servers)
            .set_topics(*self._topics)
            .set_group_id(_GROUP)
            .set_starting_offsets(start or OffsetsInitializer.earliest())
            .set_bounded(stop or OffsetsInitializer.latest())
        )
        return (builder if drift is None else builder.set_watermark_alignment(drift)).build()

    def _seconds_of_plan(self, source: KafkaSource, state: EnumeratorState | None) -> float:
        enumerator = _enumerator(source, KafkaCluster(source.required_connection()), state)
        begin = time.monotonic()
        enumerator.start()
        return time.monotonic() - begin

    def _requests_of_plan(self, source: KafkaSource, state: EnumeratorState | None) -> Counter[str]:
        with ObservedCluster.counter() as counter:
            cluster = ObservedCluster(source.required_connection())
            _enumerator(source, cluster, state).start()
            return cluster.requests(counter)

    def _seconds_of_loop(self, loop: Callable[[Consumer], None]) -> float:
        with self._consumer({}) as consumer:
            begin = time.monotonic()
            loop(consumer)
            return time.monotonic() - begin

    def _requests_of_loop(self, loop: Callable[[Consumer], None]) -> Counter[str]:
        with (
            RequestCounter(f"{__name__}.consumer") as counter,
            self._consumer({**DEBUG, "log_level": 7, "logger": counter.logger}) as consumer,
        ):
            loop(consumer)
            return counter.count(consumer.poll)

    @contextlib.contextmanager
    def _consumer(self, config: Mapping[str, Any]) -> Generator[Consumer]:
        settings: dict[str, Any] = {
            "bootstrap.servers": self._bootstrap_servers,
            "group.id": _GROUP,
            "isolation.level": "read_committed",
            **QUIET,
            **config,
        }
        consumer = Consumer(settings)
        try:
            yield consumer
        finally:
            consumer.close()

    def _watermarks(self, consumer: Consumer) -> None:
        for topic, partition in self._all:
            consumer.get_watermark_offsets(ClientPartition(topic, partition), timeout=_TIMEOUT)

    def _watermarks_and_times(self, consumer: Consumer) -> None:
        self._watermarks(consumer)
        for timestamp in (_FIRST_MS + _RECORD_EVERY_MS, _FIRST_MS + 2 * _RECORD_EVERY_MS):
            for topic, partition in self._all:
                consumer.offsets_for_times([ClientPartition(topic, partition, timestamp)], timeout=_TIMEOUT)


def _enumerator(source: KafkaSource, cluster: KafkaCluster, state: EnumeratorState | None) -> KafkaSourceEnumerator:
    return KafkaSourceEnumerator(source, cluster, SplitEnumeratorContext(), state)


def _bytes(document: Any) -> int:
    return len(json.dumps(document, separators=(",", ":")))


def alignment_bound() -> int:
    """The largest number of look-ups that alignment may take here, whatever the number of topic partitions."""
    precision = max(1, _DRIFT // timedelta(milliseconds=1) // _PRECISION)
    newest = _FIRST_MS + _RECORDS_PER_PARTITION * _RECORD_EVERY_MS
    # Halvings, and what is asked before and after: the highest times, the lowest, and the first that is too late.
    return math.ceil(math.log2(newest / precision)) + 3


def _make_topics(bootstrap_servers: str, partitions: int) -> tuple[str, ...]:
    sizes = [min(_PARTITIONS_PER_TOPIC, partitions - first) for first in range(0, partitions, _PARTITIONS_PER_TOPIC)]
    topics = [(f"planning-{partitions}-{number}", size) for number, size in enumerate(sizes)]
    create_topics(bootstrap_servers, topics)
    everything = [TopicPartition(topic, number) for topic, size in topics for number in range(size)]

    def records() -> Iterator[tuple[TopicPartition, bytes, int]]:
        for number in range(_RECORDS_PER_PARTITION):
            for tp in everything:
                # Every other topic partition is two records ahead, so that alignment has something to cut off.
                ahead = 2 * (tp.partition % 2)
                yield tp, b"x", _FIRST_MS + (number + ahead) * _RECORD_EVERY_MS

    produce(bootstrap_servers, records())
    commit_offsets(bootstrap_servers, _GROUP, everything, 1)
    return tuple(topic for topic, _ in topics)


def _tell(console: Console, measured: Sequence[Measurement], sizes: Sequence[Size]) -> None:
    counts = sorted({each.partitions for each in measured})
    ways = list(dict.fromkeys(each.what for each in measured))
    found = {(each.what, each.partitions): each for each in measured}
    head = ["topic partitions", *(f"{count:,}" for count in counts)]

    def rows(text: Callable[[Measurement], str]) -> list[list[str]]:
        return [[what, *(text(found[what, count]) for count in counts)] for what in ways]

    print_table(console, "Seconds, median", head, rows(lambda each: f"{each.seconds:.3f}"))
    print_table(console, "Requests", head, rows(lambda each: f"{each.sent:,}"))
    print_table(
        console,
        f"Requests by type, {counts[-1]:,} topic partitions",
        ["", "requests"],
        [
            [what, ", ".join(f"{sent:,} {kind}" for kind, sent in sorted(found[what, counts[-1]].requests.items()))]
            for what in ways
        ],
    )
    print_table(
        console,
        "How many times as long the loop takes",
        head,
        [
            [
                f"{loop} / {plan}",
                *(f"{found[loop, count].seconds / found[plan, count].seconds:.1f}" for count in counts),
            ]
            for loop, plan in _COMPARED
        ],
    )
    print_table(
        console,
        "Bytes of JSON in a commit, with offsets of ten digits and splits of a million",
        ["topic partitions", "state", "splits", "both", "for each"],
        [
            [
                f"{size.partitions:,}",
                f"{size.state:,}",
                f"{size.splits:,}",
                f"{size.state + size.splits:,}",
                f"{(size.state + size.splits) / size.partitions:.1f}",
            ]
            for size in sizes
        ],
    )
    console.print(f"Alignment may take {alignment_bound()} look-ups by time here, however many topic partitions.")


@click.command()
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    multiple=True,
    default=(10, 100, 1_000, 5_000),
    show_default=True,
    help="Numbers of topic partitions.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="How often each is timed.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the measurements to this file too.")
def main(partitions: tuple[int, ...], rounds: int, json_path: Path | None) -> None:
    """Measure plans for growing numbers of topic partitions, in seconds and in requests."""
    console = make_console()
    measured: list[Measurement] = []
    sizes: list[Size] = []
    with tempfile.TemporaryDirectory() as folder:
        broker = LocalBroker(Path(folder) / "kafka", jvm_options=_BROKER_JVM, properties=_BROKER_PROPERTIES)
        with broker:
            for count in sorted(set(partitions)):
                with busy(console, f"Making {count:,} topic partitions"):
                    topics = _make_topics(broker.bootstrap_servers, count)
                with busy(console, f"Planning {count:,} topic partitions"):
                    planning = Planning(broker.bootstrap_servers, topics, count, rounds)
                    measured += planning.measure()
                    sizes.append(planning.size())
    _tell(console, measured, sizes)
    write_json(json_path, {"plans": measured, "sizes": sizes})


if __name__ == "__main__":
    main()
