"""A soak: `make soak`, or `python -m tests.soak --seconds 600 --seed 1`.

Numbered records go to a topic that grows, some of them in transactions that abort or stay open for a while, and some of
them no text that a format can decode. Processes land it, one or two at once, in one of five ways: raw in a table; as
text, with dead letters, through a transform that looks at its records; in windows of time, through such a transform; as
changes, in a table that follows its keys; and back from that table to another topic, by a sink. They are killed by
SIGKILL: at a step of the run, or at any moment; the Python process, its JVM, or both. A sink's process is also stopped,
and resumed after another run of the sink. In between the tables are optimised. At the end one run of each kind is left
alone, and the tables are compared with what a consumer reads that sees committed records only; the one with keys with a
fold of it, and what such a consumer reads of the sink's topic with the table's changes.
"""

from __future__ import annotations

import io
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from confluent_kafka import Consumer, Message, TopicPartition

from dagster_kafka_flip.broker.local_broker import LocalBroker
from dagster_kafka_flip.runtime.session import build_session
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.target import DeltaTarget
from tests.faults.ingester import Ingester
from tests.faults.ingesting import (
    DELETES,
    KEYED,
    LETTERS,
    PUBLISHED,
    RAW,
    SINK,
    SINK_STEPS,
    SLOTS,
    SOAK_START,
    SPARK_CONFIG,
    STEPS,
    TABLE_MADE,
    WINDOW_MS,
    WINDOWS,
    WRITING,
    land,
    outcome,
)
from tests.kafka_topic import QUIET, Kafka

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import Producer
    from pyspark.sql import SparkSession

    from tests.kafka_topic import Record

_TOPIC = "numbered"
_MAX_PARTITIONS = 8
_BATCH = 300
# So many runs a process makes in a round; in the last one it is killed.
_RUNS = (1, 1, 2)
# What a run may come to when its JVM is killed, or another process was faster.
_EXPECTED = frozenset({"ConcurrentIngestionError", "WriteFailedError", "WindowNotCompleteError"})
# What a sink's run says whose lanes another one has taken just before it reads its progress.
_JUST_TAKEN = "a transaction of another producer is open"
# One record in so many is no text.
_BROKEN = 7
_NO_TEXT = "\xff"
_KINDS = (RAW, RAW, LETTERS, LETTERS, WINDOWS, KEYED, KEYED, KEYED, SINK, SINK, SINK)
# The names of the tables that each kind of run lands, after that of the kind.
_TABLES = {RAW: ("",), LETTERS: ("", "-letters"), WINDOWS: ("",), KEYED: ("",)}

Key = tuple[int, int]
# The offset and the value of a keyed row; None for a deleted one.
Change = tuple[int, str] | None


@dataclass
class Outcome:
    """What a soak has found.

    Attributes:
        rounds: Number of rounds.
        kills: How often a process was killed, by the step that it had got to.
        processes: Number of processes that ingested.
        endings: What their runs came to.
        records: Records that a consumer of committed records reads.
        optimised: Number of times that the table was optimised.
        lost: Of these, how many the table lacks; of a table with keys, how many current rows.
        doubled: Rows beyond the first one of a record.
        aborted: Rows of records that were never committed; of a table with keys, rows that are not current, too.
        wrong: Rows whose value is another one than the record's.
        disordered: Rows whose number is not above that of the row before, in a topic partition and by offset.
        behind: Offsets between the position and the topic's end.
        misplaced: Rows of records that can't be decoded outside of the dead-letter table, and others in it.
        tables: What was found in each table.
        unexpected: Runs that ended in another way than they may.
    """

    rounds: int = 0
    processes: int = 0
    optimised: int = 0
    kills: Counter[str] = field(default_factory=Counter[str])
    endings: Counter[str] = field(default_factory=Counter[str])
    records: int = 0
    transactions: Counter[str] = field(default_factory=Counter[str])
    partitions: int = 0
    lost: int = 0
    doubled: int = 0
    aborted: int = 0
    wrong: int = 0
    disordered: int = 0
    behind: int = 0
    misplaced: int = 0
    tables: dict[str, str] = field(default_factory=dict[str, str])
    unexpected: list[str] = field(default_factory=list[str])

    @property
    def zeros(self) -> dict[str, int]:
        """All that has to be zero."""
        return {
            "lost": self.lost,
            "doubled": self.doubled,
            "aborted": self.aborted,
            "wrong value": self.wrong,
            "out of order": self.disordered,
            "offsets behind": self.behind,
            "misplaced": self.misplaced,
            "unexpected ends": len(self.unexpected),
        }

    def to_text(self) -> str:
        """What is printed at the end."""
        killed = sum(self.kills.values())
        lines = [
            f"{self.rounds} rounds, {self.processes} processes, {self.optimised} times OPTIMIZE; {killed} kills",
            *(f"  killed {step}: {count}" for step, count in sorted(self.kills.items())),
            *(f"  a run came to {end}: {count}" for end, count in sorted(self.endings.items())),
            f"{self.records} committed records in {self.partitions} topic partitions; transactions: "
            + ", ".join(f"{count} {how}" for how, count in sorted(self.transactions.items())),
            *(f"  {name}: {text}" for name, text in self.tables.items()),
            ", ".join(f"{what} {count}" for what, count in self.zeros.items()),
            *(f"  unexpected: {message}" for message in self.unexpected),
        ]
        return "\n".join(lines)


class Numbers:
    """Writes numbered records, so that each is another one, and the numbers of a topic partition only rise."""

    def __init__(self, kafka: Kafka, chance: random.Random, outcome: Outcome) -> None:
        self._kafka = kafka
        self._chance = chance
        self._outcome = outcome
        self._number = 0
        self._open: Producer | None = None
        self._idle: list[Producer] = []
        self._made = 0
        self._lock = threading.Lock()
        self.partitions = 2
        # The records are dated long ago.
        kafka.create(_TOPIC, partitions=self.partitions, **{"retention.ms": "-1"})
        kafka.create(PUBLISHED, partitions=2)

    def grow(self) -> None:
        """Adds a topic partition."""
        if self.partitions < _MAX_PARTITIONS:
            self.partitions += 1
            self._kafka.grow(_TOPIC, self.partitions)

    def write(self) -> None:
        """Writes some records outside of transactions, and some inside of one that ends in one way or another."""
        with self._lock:
            self._write()

    def _write(self) -> None:
        for partition in self._some_partitions():
            time_ms = self._time
            records = self._records("plain", self._chance.randint(1, 400))
            self._kafka.produce(_TOPIC, records, partition=partition, timestamp=time_ms)
        self.end_open_transaction()
        producer = self._idle.pop() if self._idle else self._new_producer()
        # It would go on believing in the number of topic partitions that it saw first.
        producer.list_topics(_TOPIC, timeout=30)
        producer.begin_transaction()
        how = self._chance.choice(["committed", "aborted", "left open"])
        for partition in self._some_partitions():
            time_ms = self._time
            for key, value in self._records(how, self._chance.randint(1, 100)):
                producer.produce(_TOPIC, value, key, partition=partition, timestamp=time_ms)
        if producer.flush(30) != 0:
            raise TimeoutError("the broker took no records")
        if how == "left open":
            self._open = producer
        else:
            self._end(producer, how)

    def end_open_transaction(self) -> None:
        """Commits or aborts what was left open."""
        if self._open is not None:
            producer, self._open = self._open, None
            self._end(producer, self._chance.choice(["committed later", "aborted later"]))

    def _end(self, producer: Producer, how: str) -> None:
        if how.startswith("committed"):
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
        self._outcome.transactions[how] += 1
        self._idle.append(producer)

    def _new_producer(self) -> Producer:
        self._made += 1
        producer = self._kafka.producer(**{"transactional.id": f"soak-{self._made}", "transaction.timeout.ms": 600_000})
        producer.init_transactions(60)
        return producer

    def _some_partitions(self) -> list[int]:
        return self._chance.sample(range(self.partitions), self._chance.randint(1, self.partitions))

    def _records(self, how: str, count: int) -> list[Record]:
        self._number += count
        numbers = range(self._number - count, self._number)
        return [(None, f"{number:012d} {how}".encode() + b"\xff" * (number % _BROKEN == 0)) for number in numbers]

    @property
    def _time(self) -> int:
        """When the next record was written, so that records are in order of time, but for those of transactions."""
        return SOAK_START + self._number * 1_000

    @property
    def windows(self) -> int:
        """How many windows hold all that was written up to now."""
        return (self._time - SOAK_START) // WINDOW_MS + 1


@dataclass
class Soak:
    """One soak, on a broker and in a folder of its own."""

    folder: Path
    kafka: Kafka
    spark: SparkSession
    chance: random.Random
    tell: Callable[[str], None]
    kinds: tuple[str, ...] = _KINDS
    outcome: Outcome = field(default_factory=Outcome)
    # How long the last run took that was left alone: a kill at any moment is to hit any step, on a slow machine too.
    run_seconds: float = 4.0

    def table(self, kind: str, more: str = "") -> str:
        """The table that a kind of run writes; that a sink reads."""
        return str(self.folder / f"{KEYED if kind == SINK else kind}{more}")

    def _is_there(self, kind: str) -> bool:
        # A run that was killed while it made the table leaves a log's folder without a commit in it.
        return any(Path(self.table(kind), "_delta_log").glob("*.json"))

    def run(self, *, seconds: float, rounds: int | None) -> Outcome:
        """Goes round until the time or the number of rounds is over, and compares."""
        numbers = Numbers(self.kafka, self.chance, self.outcome)
        deadline = time.monotonic() + seconds
        # Without a kill nothing was shown, however little time there was.
        while (time.monotonic() < deadline or not self.outcome.kills) and self.outcome.rounds != rounds:
            numbers.write()
            self._round(numbers)
            self.tell(f"round {self.outcome.rounds}: {sum(self.outcome.kills.values())} kills so far")
            if self.chance.random() < 0.3:
                numbers.grow()
            kind = self.chance.choice(self.kinds)
            if self.chance.random() < 0.4 and self._is_there(kind):
                # With no process at the table: on a local file system nothing keeps OPTIMIZE and a writer apart.
                self.spark.sql(f"OPTIMIZE delta.`{self.table(kind)}`")
                self.outcome.optimised += 1
            self.outcome.rounds += 1
        numbers.end_open_transaction()
        self._compare(numbers)
        return self.outcome

    def _round(self, numbers: Numbers) -> None:
        count = self.chance.choice([1, 1, 2])
        with ExitStack() as stack:
            ingesters = [stack.enter_context(self._start(number)) for number in range(count)]
            for ingester in ingesters:
                ingester.wait_until_ready()
            # Each gets its chance now, so that a seed means the same however threads take turns.
            # Two at once land the same tables.
            kind = self.chance.choice(self.kinds)
            if kind == SINK and not self._is_there(KEYED):
                kind = KEYED
            lives = [(ingester, numbers, kind, random.Random(self.chance.random())) for ingester in ingesters]
            threads = [threading.Thread(target=self._live, args=life) for life in lives]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _start(self, number: int) -> Ingester:
        self.outcome.processes += 1
        return Ingester(self.folder, f"{self.outcome.rounds}-{number}", bootstrap_servers=self.kafka.bootstrap_servers)

    def _live(self, ingester: Ingester, numbers: Numbers, kind: str, chance: random.Random) -> None:
        """Some runs, until one is killed: at a step, or after a time that has nothing to do with steps."""
        try:
            for left in reversed(range(chance.choice(_RUNS))):
                if left:
                    begin = time.monotonic()
                    self._order(ingester, numbers, kind)
                    if not self._count(ingester, ingester.answer(), kind, killed=False):
                        return
                    self.run_seconds = time.monotonic() - begin
                    continue
                numbers.write()
                self._kill(ingester, numbers, kind, chance)
        except Exception as error:  # noqa: BLE001 - a thread has nobody else to tell
            self.outcome.unexpected.append(f"{type(error).__name__}: {error}")

    def _order(self, ingester: Ingester, numbers: Numbers, kind: str, deadly_step: str = "") -> None:
        table, windows = self.table(kind), numbers.windows
        ingester.order(_TOPIC, table, deadly_step=deadly_step, max_records=_BATCH, kind=kind, windows=windows)

    def _kill(self, ingester: Ingester, numbers: Numbers, kind: str, chance: random.Random) -> None:
        how = chance.choice(["at a step", "at a moment", "at a moment", "JVM", "both"])
        if kind == SINK and chance.random() < 0.3:
            self._stop_and_resume(ingester, numbers, chance)
            return
        if how == "at a step":
            steps = SINK_STEPS if kind == SINK else [step for step in STEPS if step not in (TABLE_MADE, WRITING)]
            step = chance.choice(steps)
            self._order(ingester, numbers, kind, step)
            answer = ingester.answer()
            if answer is None:
                self.outcome.kills[step] += 1
            # A run that had nothing to write ended before it.
            self._count(ingester, answer, kind, killed=answer is None)
            return
        self._order(ingester, numbers, kind)
        time.sleep(chance.uniform(0, self.run_seconds))
        step = ingester.step
        if how != "JVM":
            ingester.kill()
        if how != "at a moment":
            ingester.kill(java=True)
        answer = ingester.answer()
        if answer is None or step != "after the run":
            self.outcome.kills[step if how == "at a moment" else f"{step} ({how})"] += 1
        self._count(ingester, answer, kind, killed=True)

    def _stop_and_resume(self, ingester: Ingester, numbers: Numbers, chance: random.Random) -> None:
        """Stops a sink's process at any moment, lets another run of the sink end, and resumes it."""
        self._order(ingester, numbers, SINK)
        time.sleep(chance.uniform(0, self.run_seconds))
        ingester.stop()
        step = ingester.step
        try:
            ended = outcome(lambda: self._land(SINK, numbers))
        finally:
            ingester.resume()
        if ended["error"] is not None and not _is_expected(SINK, ended):
            self.outcome.unexpected.append(f"{ended['error']}: {ended['message']}")
        if step != "after the run":
            self.outcome.kills[f"{step} (stopped and resumed)"] += 1
        self._count(ingester, ingester.answer(), SINK, killed=False)

    def _land(self, kind: str, numbers: Numbers) -> dict[str, Any]:
        """One run in this process, which nobody kills."""
        source = KafkaSource.builder().set_topics(_TOPIC).build()
        with redirect_stdout(io.StringIO()):
            return land(
                kind,
                source,
                self.table(kind),
                session=self.spark,
                bootstrap_servers=self.kafka.bootstrap_servers,
                windows=numbers.windows,
            )

    def _count(self, ingester: Ingester, answer: dict[str, Any] | None, kind: str, *, killed: bool) -> bool:
        """Notes what a run came to; whether its process is still there."""
        if answer is None:
            self.outcome.endings["its process's end"] += 1
            if not killed:
                self.outcome.unexpected.append(f"the process ended by itself: {ingester.log()}")
            return False
        if answer["error"] is None:
            self.outcome.endings["nothing new" if answer["is_idle"] else "a commit"] += 1
            return True
        self.outcome.endings[answer["error"]] += 1
        if not killed and not _is_expected(kind, answer):
            self.outcome.unexpected.append(f"{answer['error']}: {answer['message']}")
        return True

    def _compare(self, numbers: Numbers) -> None:
        """Lands what is left with one run of each kind, and holds each table against the topic."""
        found, partitions = self.outcome, numbers.partitions
        # A sink has nothing to publish without the run before it.
        tables = {kind: tables for kind, tables in _TABLES.items() if kind in self.kinds}
        for kind in (*tables, *({SINK} & {*self.kinds})):
            self._land(kind, numbers)
        if SINK in self.kinds:
            self._compare_published()
        committed = committed_records(self.kafka.bootstrap_servers, partitions)
        broken = {key for key, value in committed.items() if value.endswith(_NO_TEXT)}
        for kind, names in tables.items():
            landed: list[tuple[Key, str]] = []
            for more in names:
                rows = self._rows(self.table(kind, more))
                # The dead letters are what the table lacks.
                landed += rows
                if kind == LETTERS:
                    found.misplaced += sum((key in broken) != bool(more) for key, _ in rows)
            self._judge(kind, last_changes(committed) if kind == KEYED else committed, landed)
        ends = {partition: self.kafka.end_offset(_TOPIC, partition) for partition in range(partitions)}
        for kind in tables.keys() - {WINDOWS}:
            anchor = DeltaTable(self.spark, DeltaTarget(table=self.table(kind))).anchor()
            position = {} if anchor is None or anchor.state is None else anchor.state.position
            reached = {tp.partition: offset for tp, offset in position.items()}
            found.behind += sum(abs(end - reached.get(partition, 0)) for partition, end in ends.items())
        found.records, found.partitions = len(committed), partitions

    def _compare_published(self) -> None:
        """Holds what readers of the sink's topic see against the changes of its table, as Delta tells them."""
        columns = ("kafka_partition", "slot", "kafka_offset", "base64(kafka_value)", "_change_type", "_commit_version")
        feed = self.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
        changes = feed.load(self.table(KEYED)).selectExpr(*columns).collect()
        wanted: dict[Key, dict[int, Change]] = {}
        for partition, slot, offset, value, change, version in changes:
            if change in ("insert", "update_postimage"):
                wanted.setdefault((partition, slot), {})[version] = (offset, value)
            elif change == "delete":
                wanted.setdefault((partition, slot), {}).setdefault(version, None)
        published: dict[Key, list[Change]] = {}
        for message in committed_messages(self.kafka.bootstrap_servers, PUBLISHED, 2):
            key, record = message.key(), message.value()
            of = json.loads(key or b"")
            row = None if record is None else json.loads(record)
            change = None if row is None else (row["kafka_offset"], row["kafka_value"])
            published.setdefault((of["kafka_partition"], of["slot"]), []).append(change)
        found = Outcome()
        in_order = {key: [by_version[version] for version in sorted(by_version)] for key, by_version in wanted.items()}
        compare_changes(in_order, published, found)
        self._add(SINK, found, f"{sum(map(len, published.values()))} records")

    def _rows(self, table: str) -> list[tuple[Key, str]]:
        rows = self.spark.read.format("delta").load(table)
        columns = rows.selectExpr("kafka_partition", "kafka_offset", "CAST(kafka_value AS BINARY) AS value")
        return [((row[0], row[1]), bytes(row[2]).decode("latin-1")) for row in columns.collect()]

    def _judge(self, name: str, committed: dict[Key, str], landed: list[tuple[Key, str]]) -> None:
        found = Outcome()
        compare(committed, landed, found)
        self._add(name, found, f"{len(landed)} rows")

    def _add(self, name: str, found: Outcome, what: str) -> None:
        for number in ("lost", "doubled", "aborted", "wrong", "disordered"):
            setattr(self.outcome, number, getattr(self.outcome, number) + getattr(found, number))
        reported = f"lost {found.lost}, doubled {found.doubled}, aborted {found.aborted}, wrong {found.wrong}"
        self.outcome.tables[name] = f"{what}, {reported}, out of order {found.disordered}"


def _is_expected(kind: str, answer: dict[str, Any]) -> bool:
    """Whether a run that nobody killed may end like this."""
    if kind == SINK:
        return answer["error"] == "SinkFencedError" or _JUST_TAKEN in answer["message"]
    return answer["error"] in _EXPECTED


def compare_changes(wanted: dict[Key, list[Change]], published: dict[Key, list[Change]], found: Outcome) -> None:
    """Holds the records of each key against the changes of its row, in their order."""
    for key in wanted.keys() | published.keys():
        of_table, of_topic = wanted.get(key, []), published.get(key, [])
        found.lost += sum((Counter(of_table) - Counter(of_topic)).values())
        found.doubled += sum((Counter(of_topic) - Counter(of_table)).values())
        found.disordered += Counter(of_table) == Counter(of_topic) and of_table != of_topic


def last_changes(committed: dict[Key, str]) -> dict[Key, str]:
    """The records that the keyed table has rows of: the last one of each key, unless it deletes."""
    last: dict[tuple[int, int], tuple[Key, str] | None] = {}
    for (partition, offset), value in sorted(committed.items()):
        number = int(value.split()[0])
        last[partition, number % SLOTS] = None if number % DELETES == 0 else ((partition, offset), value)
    return dict(change for change in last.values() if change is not None)


def compare(committed: dict[Key, str], landed: list[tuple[Key, str]], found: Outcome) -> None:
    """Holds the rows of a table against the records of a topic, by topic partition and offset."""
    counts = Counter(key for key, _ in landed)
    found.records = len(committed)
    found.lost = len(committed.keys() - counts.keys())
    found.doubled = sum(count - 1 for count in counts.values())
    found.aborted = len(counts.keys() - committed.keys())
    found.wrong = sum(committed.get(key, value) != value for key, value in landed)
    highest: dict[int, str] = {}
    for (partition, _), value in sorted(landed):
        # Numbers of one length, so that text compares as they do.
        found.disordered += value <= highest.get(partition, "")
        highest[partition] = max(value, highest.get(partition, ""))


def committed_records(bootstrap_servers: str, partitions: int) -> dict[Key, str]:
    """The committed records of the numbered topic."""
    records: dict[Key, str] = {}
    for message in committed_messages(bootstrap_servers, _TOPIC, partitions):
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert value is not None
        records[partition, offset] = value.decode("latin-1")
    return records


def committed_messages(bootstrap_servers: str, topic: str, partitions: int) -> list[Message]:
    """A topic's committed records, as another client than Spark's reads them; in order of each topic partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "soak",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **QUIET,
        }
    )
    messages: list[Message] = []
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        ended: set[int] = set()
        while len(ended) < partitions:
            message = consumer.poll(60)
            if message is None:
                raise TimeoutError("the broker gave no records")
            error, partition = message.error(), message.partition()
            if error is None:
                messages.append(message)
            elif error.name() == "_PARTITION_EOF" and partition is not None:
                ended.add(partition)
            else:
                raise RuntimeError(error.str())
    finally:
        consumer.close()
    return messages


def soak(
    folder: Path,
    *,
    seconds: float,
    seed: int,
    rounds: int | None = None,
    spark: SparkSession | None = None,
    tell: Callable[[str], None] = print,
    kinds: tuple[str, ...] = _KINDS,
) -> Outcome:
    """Runs a soak on a broker of its own, which is stopped at the end."""
    with LocalBroker(folder / "kafka") as broker:
        session = spark or build_session(master="local[2]", config=SPARK_CONFIG)
        kafka = Kafka(broker.bootstrap_servers)
        try:
            return Soak(folder, kafka, session, random.Random(seed), tell, kinds).run(seconds=seconds, rounds=rounds)
        finally:
            kafka.close()
            if spark is None:
                session.stop()


@click.command()
@click.option("--seconds", default=600.0, show_default=True, help="How long new rounds are begun.")
@click.option(
    "--seed", default=None, type=int, help="For the same choices once more; by default another one each time."
)
@click.option("--rounds", default=None, type=int, help="How many rounds at most.")
@click.option("--sinks", is_flag=True, help="Only the table with keys, and its sink.")
def main(seconds: float, seed: int | None, rounds: int | None, sinks: bool) -> None:
    """Ingests and kills for some time, and tells whether a record was lost or doubled."""
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    click.echo(f"seed {seed}, {seconds:g} seconds")
    begin = time.monotonic()
    kinds = (KEYED, SINK, SINK) if sinks else _KINDS
    with tempfile.TemporaryDirectory(prefix="dagster-kafka-flip-soak-", ignore_cleanup_errors=True) as folder:
        found = soak(Path(folder), seconds=seconds, seed=seed, rounds=rounds, tell=click.echo, kinds=kinds)
    click.echo(f"{found.to_text()}\n{time.monotonic() - begin:.0f} seconds")
    sys.exit(any(found.zeros.values()))


if __name__ == "__main__":
    main()
