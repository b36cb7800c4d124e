"""Compares a topic with the table that is published to it: by the last record of each key, or by counts of rows."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError, VersionsGoneError
from dagster_kafka_flip.reader.kafka_reader import no_records, reader_options
from dagster_kafka_flip.runtime.remote import kept_rows
from dagster_kafka_flip.runtime.spark_functions import f
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.sink.delta_source import FEED_COLUMNS
from dagster_kafka_flip.sink.lane_failures import shown
from dagster_kafka_flip.sink.progress import Progress, ProgressTopic, Segment, are_even
from dagster_kafka_flip.sink.serializers import (
    JSON_OPTIONS,
    JsonSerializer,
    RegistrySerializer,
    fields_of,
    json_of,
)
from dagster_kafka_flip.sink.sink_status import sink_status
from dagster_kafka_flip.sink.table_rows import SegmentRows
from dagster_kafka_flip.sink.table_versions import TableVersions, reading
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.split import READ_COMMITTED, READ_UNCOMMITTED, KafkaPartitionSplit, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.sink.delta_source import DeltaSource
    from dagster_kafka_flip.sink.kafka_sink import KafkaSink
    from dagster_kafka_flip.source.connection import KafkaConnection

# Maximum number of differing keys to show.
_SHOWN = 10
# So many keys are sent to all tasks, so that Spark does not sort the table by its keys.
_FEW_KEYS = 100_000
# Members of a JSON object that are null.
_NULLS = r',?"[^"\\]*":null'


@dataclass
class Comparison:
    """What a comparison of a topic with its table found.

    Attributes:
        unknown: Why nothing, or not everything that was to be compared, could be; empty if it was.
        is_whole: Whether the whole topic was read, and the table has no rows that were never to be published.
        keys: Keys that were compared; of appended rows, the rows.
        earlier_columns: Keys whose record lacks columns that are null: it was written before the table got them.
        may_be_left_out: Whether what differs may be rows that the sink left out, or earlier values of their keys.
    """

    unknown: list[str] = field(default_factory=list[str])
    version: int | None = None
    is_whole: bool = False
    records: int = 0
    offsets: int = 0
    keys: int = 0
    missing: int = 0
    surplus: int = 0
    differing: int = 0
    earlier_columns: int = 0
    examples: list[str] = field(default_factory=list[str])
    may_be_left_out: bool = False

    @property
    def differs(self) -> bool:
        """Whether topic and table are different, as far as they were compared."""
        return bool(self.missing or self.surplus or self.differing)


def check_comparable(source: DeltaSource, sink: KafkaSink) -> None:
    """Checks that a topic's records can be derived from the table's rows."""
    why = None
    named = {name for each in (sink.key, sink.value) if each is not None for name in each.columns_of(())}
    if sink.topic_column is not None:
        why = "topic_column: the records are in several topics"
    elif source.content == "all_images" or (source.content == "changes" and sink.deletes == "row"):
        why = 'its records are changes; only deletes="tombstone" and content="appended_rows" publish rows'
    elif changed := sorted(named & set(FEED_COLUMNS)):
        why = f"key or value has {changed[0]}, which belongs to the change and not to the row"
    if why is not None:
        raise ConfigurationError(
            f"published_equals_table can't compare the topic {sink.topic} with {source}: {why}",
            "Leave out the check (equals_table=False)",
        )


@dataclass
class TopicComparison:
    """Compares one topic with its table, and only reads; of a topic with more than `max_records` offsets its end."""

    source: DeltaSource
    sink: KafkaSink
    transform: Callable[[DataFrame], DataFrame] | None
    connection: KafkaConnection
    spark: SparkSession
    max_records: int

    @property
    def _has_keys(self) -> bool:
        return self.source.content == "changes"

    def compare(self) -> Comparison:
        sink_status(self.source, self.sink, self.connection, lambda: self.spark)
        with contextlib.closing(KafkaCluster(self.connection)) as cluster:
            before = progress, ends, is_open = self._state(cluster)
            found = Comparison(offsets=sum(ends.values()), may_be_left_out=self.sink.may_leave_out)
            if is_open:
                found.unknown.append("a transaction is open in the topic: a run, or another producer, is writing")
            elif not progress:
                found.unknown.append("nothing is published yet")
            elif len(progress) < self.sink.lanes or not are_even(progress):
                found.unknown.append("the last run ended in the middle of a version; the next one publishes the rest")
            elif self.source.skip_change_commits and not self._has_keys:
                found.unknown.append("skip_change_commits: the table may have rows that the sink never had to publish")
            if found.unknown:
                return found
            found.version = progress[0].version
            self._compare(cluster, progress[0], ends, found)
            if found.differs and self._state(cluster) != before:
                # A run that published meanwhile, or a producer without transactions.
                return Comparison(unknown=["records arrived during the comparison"], offsets=found.offsets)
        return found

    def _state(self, cluster: KafkaCluster) -> tuple[Sequence[Progress], Mapping[TopicPartition, int], bool]:
        """The progress, the ends of the topic, and whether a transaction is open in it, all at one moment."""
        topic = ProgressTopic(cluster, self.sink)
        partitions = cluster.describe_topics([self.sink.topic])[self.sink.topic].partitions
        there = cluster.describe_topics([topic.name], skip_missing=True)

        def progress() -> Sequence[Progress]:
            found = topic.read(settled=False) if there else {}
            return [found[number] for number in sorted(found)]

        first = progress()
        ends = cluster.end_offsets(partitions, READ_COMMITTED)
        is_open = cluster.end_offsets(partitions, READ_UNCOMMITTED) != ends
        # With a commit in between, the ends are those of one or of the other.
        return first, ends, is_open or progress() != first

    def _compare(
        self, cluster: KafkaCluster, last: Progress, ends: Mapping[TopicPartition, int], found: Comparison
    ) -> None:
        begins = cluster.beginning_offsets(ends)
        spans = {tp: end - begins[tp] for tp, end in ends.items()}
        # The same share of each topic partition.
        read = {tp: min(span, span * self.max_records // sum(spans.values())) for tp, span in spans.items() if span}
        ranges = [KafkaPartitionSplit(tp, ends[tp] - size, ends[tp]) for tp, size in sorted(read.items()) if size]
        found.is_whole = sum(read.values()) == sum(spans.values()) and (last.origin.snapshot or last.origin.version < 0)
        for serializer, number in zip((self.sink.key, self.sink.value), last.schema_ids, strict=True):
            if isinstance(serializer, RegistrySerializer) and number is None:
                found.unknown.append(f"no run has published with the {type(serializer).__name__} yet")
                return
        # With the schemas of the last run: a check registers none.
        segment = Segment(last.version, last.version, is_snapshot=True, schema_ids=last.schema_ids)
        versions = TableVersions(self.spark, self.source)
        try:
            with reading(versions, segment):
                rows = SegmentRows(self.spark, self.source, self.sink, segment, self.transform)
            log = self._log(ranges, rows.frames)
            with reading(versions, segment):
                self._take(kept_rows(self._judged(rows, log, found)), last, found)
        except VersionsGoneError:
            found.unknown.append(
                f"version {last.version} of the table, which is the published one, can't be read any more (VACUUM, log "
                "retention, or delta.deletedFileRetentionDuration)"
            )
            return
        if found.missing and any(begins.values()):
            found.unknown.append(
                f"the topic, which no longer begins at offset 0, lacks {counted(found.missing, 'row')} of the table: "
                "retention deleted their records, or they were never published"
            )
            found.missing = 0

    def _log(self, ranges: Sequence[KafkaPartitionSplit], frames: Sequence[bytes]) -> DataFrame:
        """The topic, read once: the last record of each key, or how often each key and value are there.

        `other_key` and `other_value` say of key and value whether they don't begin as those of the last run.
        """
        records = no_records(self.spark)
        if ranges:
            options = reader_options(ranges, KafkaSource(topics=(self.sink.topic,), connection=self.connection))
            records = self.spark.read.format("kafka").options(**options).load()
        log = records.groupBy("key", *(() if self._has_keys else ("value",))).agg(
            f.max_by("value", "offset").alias("log_value"),
            f.count("*").alias("records"),
            (f.min("partition") != f.max("partition")).alias("moved"),
        )
        log = log.select(f.col("key").alias("log_key"), "log_value", "records", "moved")
        others = {
            f"other_{side}": f.coalesce(~f.startswith(f"log_{side}", f.lit(bytearray(frame))), f.lit(False))
            for side, frame in zip(("key", "value"), frames, strict=True)
        }
        return kept_rows(log.withColumns(others))

    def _judged(self, read: SegmentRows, log: DataFrame, found: Comparison) -> DataFrame:
        """Each key, or each key and value, of the table's rows as records or of the topic; and how the two differ."""
        key, value = (
            f.concat(f.lit(bytearray(frame)), name) for name, frame in zip(("key", "value"), read.frames, strict=True)
        )
        expected = read.rows.select(
            key.alias("key"), value.alias("row_value"), f.col("problem").isNotNull().alias("wrong")
        )
        same = f.col("key").eqNullSafe(f.col("log_key"))
        is_equal = f.col("row_value").eqNullSafe(f.col("log_value"))
        how, by = "full" if found.is_whole else "right", ["key"]
        if not self._has_keys:
            by, same = ["key", "row_value"], same & is_equal
        elif not found.is_whole:
            keys = log.select("log_key")
            few = f.broadcast(keys) if self.max_records <= _FEW_KEYS else keys
            expected = expected.join(few, same, "left_semi")
        of_table = expected.groupBy(*by).agg(
            f.count("*").alias("rows"),
            *(f.first(name).alias(name) for name in ("row_value", "wrong") if name not in by),
        )
        both = of_table.join(log, same, how).withColumns(
            {name: f.coalesce(name, f.lit(0)) for name in ("rows", "records")}
        )
        rows, records = f.col("rows"), f.col("records")
        kind = f.when(f.col("other_key"), "other key").when(f.col("other_value"), "other value")
        if self._has_keys:
            # A row that can't be serialized has no value either, but nothing is equal to it.
            can_be = ~f.coalesce("wrong", f.lit(False))
            kind = (
                kind.when(f.col("moved"), "moved")
                .when(rows > 1, "twice")
                .when((records == 0) & ~(f.col("row_value").isNull() & can_be), "missing")
                .when((rows == 0) & f.col("log_value").isNotNull(), "surplus")
                .when(is_equal & can_be, "equal")
            )
            if isinstance(self.sink.value, JsonSerializer):
                columns = fields_of(read.schema, self.sink.value.columns_of(read.columns))
                kind = kind.when(is_earlier(f.col("log_value"), f.col("row_value"), columns), "earlier")
            kind = kind.otherwise("differing")
            size = f.lit(1)
        else:
            # A part of the topic can only show surplus records, not missing ones.
            kind = kind.when((rows > records) & f.lit(found.is_whole), "missing").when(rows < records, "surplus")
            size = f.abs(rows - records)
        return both.select(f.coalesce("key", "log_key").alias("key"), kind.alias("kind"), size.alias("size"), "records")

    def _take(self, judged: DataFrame, last: Progress, found: Comparison) -> None:
        """Notes how many there are of each kind, and what can't be compared."""
        sums = judged.groupBy("kind").agg(f.sum("size").alias("size"), f.sum("records").alias("records")).collect()
        sizes, records = ({row["kind"]: row[name] for row in sums} for name in ("size", "records"))
        found.records = sum(records.values())
        uncomparable = ["other key"] if self._has_keys else ["other key", "other value"]
        for kind, number in zip(uncomparable, last.schema_ids, strict=False):
            if kind in records:
                found.unknown.append(
                    f"{counted(records[kind], 'record')} with {kind.replace('other', 'a')} that is not of the last "
                    f"run's schema, {number}, can't be compared with rows"
                )
        if found.unknown:
            # Rows of such records would seem to be missing.
            return
        reasons = {
            "other value": f"whose last record is not of the last run's schema, {last.schema_ids[1]}: not compared",
            "moved": "with records in several topic partitions: it is unknown which record is the last",
            "twice": "with several rows in the table: it is unknown which row is the last",
        }
        found.unknown += [f"{counted(sizes[kind], 'key')} {why}" for kind, why in reasons.items() if kind in sizes]
        found.keys = found.records
        if self._has_keys:
            found.keys = sum(size for kind, size in sizes.items() if kind not in {"other value", "moved"})
        found.missing, found.surplus, found.differing, found.earlier_columns = (
            sizes.get(kind, 0) for kind in ("missing", "surplus", "differing", "earlier")
        )
        wrong = judged.where(f.col("kind").isin("missing", "surplus", "differing"))
        found.examples = [f"{kind}: {shown(key)}" for key, kind in wrong.select("key", "kind").limit(_SHOWN).collect()]


def is_earlier(record: Column, row: Column, columns: StructType) -> Column:
    """Whether a record as JSON is a row's, but for fields that are null: of columns that the table got later."""
    record, row = (each.cast("string") for each in (record, row))
    with_all = json_of(f.from_json(record, columns, JSON_OPTIONS)).cast("string")
    # That does not show what the record has of columns that the table lacks.
    own, of_row = (f.regexp_replace(f.regexp_replace(each, _NULLS, ""), r"\{,", "{") for each in (record, row))
    return f.coalesce((with_all == row) & (own == of_row), f.lit(False))
