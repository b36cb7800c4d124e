"""How fast changes get into a table that follows its keys: `python -m benchmarks.merges`, or `make bench-merges`.

A large table, and for each share of its keys a topic with one change of each, spread over the whole table. The changes
are merged by `ingest()` with `Upsert`, and by a stream whose foreachBatch merges the last change of each key, as the
documentation of Delta shows it: into a table with Delta's defaults, and into one with deletion vectors, which a table
of `ingest()` has. In turn, in one warm session, each time into the table as it was before.
"""

from __future__ import annotations

import itertools
import math
import statistics
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.cpu import cpu_seconds
from benchmarks.report import make_console, print_table, write_json
from benchmarks.topics import create_topics, produce
from dagster_kafka_flip import DeltaTarget, JsonFormat, KafkaSource, LocalBroker, Upsert, build_session, ingest
from dagster_kafka_flip.source.split import TopicPartition
from examples.progress import busy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from rich.console import Console

_PARTITIONS = 4
_DRIVER_MEMORY = "6g"
_KEY_SCHEMA = "id BIGINT"
_SCHEMA = "id BIGINT, name STRING, amount DOUBLE, note STRING"
_COLUMNS = ("id", "name", "amount", "note")
# Not a number of the table: the record that makes the table is none of its rows.
_FIRST = -1

OURS = "ingest(), Upsert"
PLAIN = "foreachBatch MERGE"
PLAIN_VECTORS = "foreachBatch MERGE, deletion vectors"


@dataclass(frozen=True)
class Measurement:
    """One way to merge the changes of one share of the keys.

    Attributes:
        share: The part of the keys that change, in percent.
        way: How they are merged.
        seconds: Median.
        cpu_seconds: What Spark's process took of the cores, median; 0 where that can't be told.
        ratio: How many times as long as `ingest()`: median of the pairs.
        ratios: Of each pair, from the lowest to the highest.
        changes: Number of changes.
        rows: Rows of the table afterwards.
        contents: A hash of all rows afterwards.
    """

    share: float
    way: str
    seconds: float
    cpu_seconds: float
    ratio: float
    ratios: tuple[float, ...]
    changes: int
    rows: int
    contents: int


class Merging:
    """Makes tables and merges topics into them.

    Args:
        bootstrap_servers: The broker.
        spark: A session.
        folder: Where tables are made.
        rows: Number of rows of a table.
    """

    def __init__(self, bootstrap_servers: str, spark: SparkSession, folder: Path, rows: int) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._spark = spark
        self._folder = folder
        self._rows = rows
        self._checkpoints = itertools.count()
        self._filled: dict[str, int] = {}

    def compare(self, share: float, rounds: int, warm_up: int) -> list[Measurement]:
        """Merges the changes of a share of the keys each way in turn.

        Args:
            share: In percent.
            rounds: How often.
            warm_up: How often before that, without counting.
        """
        topic = f"changes-{share:g}"
        create_topics(self._bootstrap_servers, [(topic, _PARTITIONS)])
        ways: Mapping[str, tuple[str, Callable[[str], None]]] = {
            OURS: (self._keyed_table(topic), partial(self._ingest, topic)),
            PLAIN: (self._plain_table("plain", vectors=False), partial(self._merge_stream, topic)),
            PLAIN_VECTORS: (self._plain_table("vectors", vectors=True), partial(self._merge_stream, topic)),
        }
        changes = self._write_changes(topic, share)
        taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for number in range(-warm_up, rounds):
            # Back and forth, so that none of them is always the one that comes after another.
            for way in list(ways) if number % 2 else reversed(list(ways)):
                table, merge = ways[way]
                self._spark.sql(f"RESTORE TABLE delta.`{table}` TO VERSION AS OF {self._filled[table]}")
                cpu, begin = cpu_seconds(self._spark), time.monotonic()
                merge(table)
                seconds, cpu = time.monotonic() - begin, cpu_seconds(self._spark) - cpu
                if number >= 0:
                    taken[way].append((seconds, cpu))
        return [self._summary(share, way, taken, changes, ways[way][0]) for way in ways]

    def _summary(
        self, share: float, way: str, taken: Mapping[str, Sequence[tuple[float, float]]], changes: int, table: str
    ) -> Measurement:
        from pyspark.sql import functions as f

        ratios = sorted(one / other for (one, _), (other, _) in zip(taken[way], taken[OURS], strict=True))
        found = self._spark.read.format("delta").load(table).where(f.col("id") != _FIRST)
        hashes = f.xxhash64(*_COLUMNS).cast("decimal(38, 0)")
        rows, contents = next(iter(found.agg(f.count(f.lit(1)), f.sum(hashes)).collect()))
        return Measurement(
            share=share,
            way=way,
            seconds=statistics.median(seconds for seconds, _ in taken[way]),
            cpu_seconds=statistics.median(cpu for _, cpu in taken[way]),
            ratio=statistics.median(ratios),
            ratios=tuple(ratios),
            changes=changes,
            rows=int(rows),
            contents=int(contents),
        )

    # --- tables and topics ------------------------------------------------------------------------------------------

    def _base(self) -> DataFrame:
        """The rows before any change, in files by their number."""
        return self._spark.range(self._rows).selectExpr(
            "id", "concat('name ', id) AS name", "id / 8.0D AS amount", "md5(CAST(id AS STRING)) AS note"
        )

    def _plain_table(self, name: str, *, vectors: bool) -> str:
        table = str(self._folder / name)
        if table not in self._filled:
            self._spark.sql(
                f"CREATE TABLE delta.`{table}` ({_SCHEMA}) USING DELTA "
                f"TBLPROPERTIES ('delta.enableDeletionVectors' = '{str(vectors).lower()}')"
            )
            self._base().write.format("delta").mode("append").save(table)
            self._note(table)
        return table

    def _keyed_table(self, topic: str) -> str:
        """A table that `ingest()` makes from a first record, and that is filled by somebody else."""
        from pyspark.sql import functions as f

        table = str(self._folder / topic)
        first = f'{{"id":{_FIRST}}}'.encode()
        produce(self._bootstrap_servers, [(TopicPartition(topic, 0), first, 0)])
        self._ingest(topic, table)
        rows = self._base().withColumns(
            {
                "kafka_topic": f.lit(topic),
                "kafka_partition": (f.col("id") % _PARTITIONS).cast("int"),
                # Every change is newer.
                "kafka_offset": f.lit(-1).cast("bigint"),
            }
        )
        rows.write.format("delta").mode("append").save(table)
        self._note(table)
        return table

    def _note(self, table: str) -> None:
        history = self._spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT 1").collect()
        self._filled[table] = int(history[0]["version"])

    def _write_changes(self, topic: str, share: float) -> int:
        """Writes one change of each of some keys, in an order that has nothing to do with that of the table."""
        count = max(1, int(self._rows * share / 100))
        step = next(step for step in range(7_368_787, 7_468_787) if math.gcd(step, self._rows) == 1)
        changed = self._spark.range(count).selectExpr(f"(id * {step}) % {self._rows} AS id")
        value = changed.selectExpr(
            f"CAST(id % {_PARTITIONS} AS INT) AS partition",
            "to_json(named_struct('id', id)) AS key",
            "to_json(named_struct('id', id, 'name', concat('new ', id), 'amount', id / 16.0D, "
            "'note', md5(concat('new ', id)))) AS value",
        )
        options = {
            "kafka.bootstrap.servers": self._bootstrap_servers,
            "topic": topic,
            "kafka.compression.type": "lz4",
            "kafka.linger.ms": "50",
        }
        value.write.format("kafka").mode("append").options(**options).save()
        return count

    # --- ways -------------------------------------------------------------------------------------------------------

    def _ingest(self, topic: str, table: str) -> None:
        ingest(
            KafkaSource.builder().set_bootstrap_servers(self._bootstrap_servers).set_topics(topic).build(),
            DeltaTarget(table=table, mode=Upsert(key=("id",))),
            spark=lambda: self._spark,
            key_format=JsonFormat(schema=_KEY_SCHEMA),
            value_format=JsonFormat(schema=_SCHEMA),
        )

    def _merge_stream(self, topic: str, table: str) -> None:
        from delta.tables import DeltaTable
        from pyspark.sql import functions as f

        def merge(batch: DataFrame, _: int) -> None:
            newest = f.max(f.struct("offset", "deleted", "value"))
            latest = batch.groupBy("id").agg(newest.alias("latest")).select("id", "latest.deleted", "latest.value.*")
            values: dict[str, str | Column] = {name: f"s.{name}" for name in _COLUMNS[1:]}
            merging = DeltaTable.forPath(self._spark, table).alias("t").merge(latest.alias("s"), "s.id = t.id")
            merging = merging.whenMatchedDelete("s.deleted").whenMatchedUpdate(set=values)
            merging.whenNotMatchedInsert("NOT s.deleted", values={"id": "s.id", **values}).execute()

        records = (
            self._spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self._bootstrap_servers)
            .option("subscribe", topic)
            .option("startingOffsets", "earliest")
            .load()
        )
        changes = records.select(
            f.from_json(f.col("key").cast("string"), _KEY_SCHEMA)["id"].alias("id"),
            f.from_json(f.col("value").cast("string"), _SCHEMA.partition(", ")[2]).alias("value"),
            f.col("value").isNull().alias("deleted"),
            "offset",
        ).where(f.col("id") != _FIRST)
        stream = (
            changes.writeStream.foreachBatch(merge)
            .option("checkpointLocation", str(self._folder / f"checkpoint-{next(self._checkpoints)}"))
            .trigger(availableNow=True)
            .start()
        )
        stream.awaitTermination()


def _tell(console: Console, measured: Sequence[Measurement], rows: int) -> None:
    """Prints what was measured of one share."""
    head = ("", "changes", "seconds", "times ingest()", "from to", "CPU")
    shown = [
        (
            each.way,
            f"{each.changes:,}",
            f"{each.seconds:.2f}",
            f"{each.ratio:.2f}",
            f"{each.ratios[0]:.2f} {each.ratios[-1]:.2f}",
            f"{each.cpu_seconds:.1f}",
        )
        for each in measured
    ]
    print_table(console, f"{measured[0].share:g} % of {rows:,} rows, medians", head, shown)


@click.command()
@click.option("--rows", type=click.IntRange(min=100), default=10_000_000, show_default=True, help="Of each table.")
@click.option(
    "--share",
    "shares",
    type=click.FloatRange(min=0, min_open=True, max=100),
    multiple=True,
    default=(1, 10, 100),
    show_default=True,
    help="Percent of the keys that change.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=1, show_default=True, help="How often each is timed.")
@click.option("--warm-up", type=click.IntRange(min=0), default=1, show_default=True, help="Rounds that don't count.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the measurements to this file too.")
def main(rows: int, shares: tuple[float, ...], rounds: int, warm_up: int, json_path: Path | None) -> None:
    """Measure how long it takes to merge changes of some and of all keys into a large table."""
    console = make_console()
    measured: list[Measurement] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with LocalBroker(folder / "kafka", jvm_options=("-Xmx1g",)) as broker:
            spark = build_session(
                master="local[*]",
                config={
                    "spark.ui.enabled": "false",
                    "spark.sql.warehouse.dir": str(folder / "warehouse"),
                    "spark.driver.memory": _DRIVER_MEMORY,
                },
            )
            try:
                merging = Merging(broker.bootstrap_servers, spark, folder, rows)
                for share in shares:
                    with busy(console, f"Merging changes of {share:g} % of {rows:,} rows"):
                        found = merging.compare(share, rounds, warm_up)
                    if len({(each.rows, each.contents) for each in found}) != 1 or found[0].rows != rows:
                        msg = f"{share:g} %: the tables differ, or don't have {rows} rows: {found}"
                        raise click.ClickException(msg)
                    measured += found
                    # At once: the next share may take many minutes.
                    _tell(console, found, rows)
                    write_json(json_path, {"merges": measured})
            finally:
                spark.stop()


if __name__ == "__main__":
    main()
