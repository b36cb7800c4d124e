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
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from rich.console import Console

    from dagster_kafka_flip.source.split import KafkaPartitionSplit, Position
    from dagster_kafka_flip.window_result import WindowsResult

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
_SMALL_FETCH_BYTES = 1024 * 1024
_SECONDS = 120.0

AS_IT_IS = "as it is"
SMALL_FETCHES = "max.partition.fetch.bytes of 1 MiB"
PLAIN_CONSUMER = "a plain consumer"
ONE_RUN = "one run of all windows"
RUN_FOR_EACH = "a run for each window"


@dataclass(frozen=True)
class Read:
    """One way to read some days.

    Attributes:
        days: How many days are read.
        percent: Of the topic's days.
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
    percent: float
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


@dataclass(frozen=True)
class _Read:
    records: int
    record_bytes: int
    fetched_bytes: int
    seconds: float


@dataclass(frozen=True)
class _Backfill:
    results: list[WindowsResult]
    fetched_bytes: int
    seconds: float


class SentBytes:
    """What a broker has sent of a topic to consumers, by its JMX counter `BytesOutPerSec`.

    It counts record batches as they go over the wire, without what the protocol puts around them. Spark's JVM asks the
    broker's JVM for it; the counter costs the broker nothing that it does not pay anyway.

    Args:
        spark: A session with a JVM of its own.
        pid: The broker's process.
        topic: The topic.
    """

    def __init__(self, spark: SparkSession, pid: int, topic: str) -> None:
        self._gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        jvm = self._gateway.jvm
        machine = self._call("com.sun.tools.attach.VirtualMachine", "attach", None, str(pid))
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
        while same < 3:  # noqa: PLR2004
            time.sleep(0.2)
            now = self._count()
            same, last = (same + 1 if now == last else 0), now
        return last

    def _count(self) -> int:
        connection = "javax.management.MBeanServerConnection"
        # The counter is there from the first fetch on.
        if not self._call(connection, "isRegistered", self._server, self._name):
            return 0
        return int(self._call(connection, "getAttribute", self._server, self._name, "Count"))

    def _call(self, class_name: str, method: str, target: Any, *arguments: Any) -> Any:
        """Calls a method as a public class or interface has it: what implements it is not public, and so refused."""
        jvm = self._gateway.jvm
        types = [
            jvm.java.lang.String._java_lang_class  # noqa: SLF001
            if isinstance(argument, str)
            else argument.getClass()
            for argument in arguments
        ]
        found = jvm.java.lang.Class.forName(class_name).getMethod(method, self._array(jvm.java.lang.Class, types))
        return found.invoke(target, self._array(jvm.java.lang.Object, arguments))

    def _array(self, of: Any, items: Sequence[Any]) -> Any:
        array = self._gateway.new_array(of, len(items))
        for index, item in enumerate(items):
            array[index] = item
        return array


class LogFiles:
    """What a topic's log holds, by the headers of its batches.

    Args:
        data_dir: The broker's folder.
        topic: The topic; its records are not deleted or compacted meanwhile.
        partitions: Number of its topic partitions.
    """

    # Base offset, length of what follows, then epoch, magic, checksum and attributes, and the last offset's delta.
    _HEADER = struct.Struct(">qi4xb4x2xi")
    _BEFORE_LENGTH_COUNTS = 12

    def __init__(self, data_dir: Path, topic: str, partitions: int) -> None:
        self._batches = [
            [batch for path in sorted((data_dir / "data" / f"{topic}-{partition}").glob("*.log")) for batch in _scan(path)]
            for partition in range(partitions)
        ]


