"""Compares a topic with the table that is published to it: by the last record of each key, or by counts of rows."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError, VersionsGoneError
from dagster_kafka_flip.reader.kafka_reader import no_records, reader_options
from dagster_kafka_flip.runtime.remote import kept_rows
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.sink.lane_failures import shown
from dagster_kafka_flip.sink.progress import Progress, Segment, are_even
from dagster_kafka_flip.sink.progress_topic import ProgressTopic
from dagster_kafka_flip.sink.registry_serializer import RegistrySerializer, frame_of
from dagster_kafka_flip.sink.row_transform import RowTransform
from dagster_kafka_flip.sink.serializers import JsonSerializer
from dagster_kafka_flip.sink.sink_status import sink_status
from dagster_kafka_flip.sink.table_rows import FEED_COLUMNS, SegmentRows
from dagster_kafka_flip.sink.table_versions import TableVersions, reading
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.split import READ_COMMITTED, READ_UNCOMMITTED, KafkaPartitionSplit, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

    from dagster_kafka_flip.sink.delta_source import DeltaSource
    from dagster_kafka_flip.sink.kafka_sink import KafkaSink
    from dagster_kafka_flip.source.connection import KafkaConnection

# Maximum number of keys to show for each kind of difference.
_SHOWN = 5
# Maximum number of differing values to check: with more, it is unknown whether a new column explains them.
_MOST_EXPLAINED = 1000
# So many keys are sent to all tasks, so that Spark does not sort the table by its keys.
_FEW_KEYS = 100_000


@dataclass
class Comparison:
    """What a comparison of a topic with its table found.

    Attributes:
        unknown: Why nothing, or not everything that was to be compared, could be; empty if it was.
        version: The table version that the topic was compared with; None if there was none.
        is_whole: Whether the whole topic was read, and the table has no rows that were never to be published.
        records: Records of the topic that were read.
        offsets: Offsets of the topic in all.
        keys: Keys that were compared; of appended rows, the rows.
        missing: Rows of the table that the topic does not have.
        surplus: Keys or rows of the topic that the table does not have.
        differing: Keys whose last record has another value than the table's row.
        earlier_columns: Keys whose record was written before the table got more columns, and is equal otherwise.
        examples: Some keys of what differs.
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


@dataclass(frozen=True)
class _State:
    """The state of a sink and its topic at one moment."""

    progress: tuple[Progress, ...]
    ends: Mapping[TopicPartition, int]
    is_open: bool


class TopicComparison:
    """Compares one topic with its table; of a topic with more than `max_records` offsets its end."""

    def __init__(
        self,
        source: DeltaSource,
        sink: KafkaSink,
        transform: Callable[[DataFrame], DataFrame] | None,
        connection: KafkaConnection,
        spark: SparkSession,
        max_records: int,
    ) -> None:
        self._source, self._sink, self._connection, self._spark = source, sink, connection, spark
        self._transform = None if transform is None else RowTransform(spark, transform).of
        self._max_records = max_records
        self._has_keys = source.content == "changes"
        self._types: StructType | None = None

    def compare(self) -> Comparison:
        """Compares, and reads only."""
        sink_status(self._source, self._sink, self._connection, lambda: self._spark)
        with contextlib.closing(KafkaCluster(self._connection)) as cluster:
            before = self._state(cluster)
            found = Comparison(offsets=sum(before.ends.values()), may_be_left_out=self._sink.may_leave_out)
            if before.is_open:
                found.unknown.append("a transaction is open in the topic: a run, or another producer, is writing")
            elif not before.progress:
                found.unknown.append("nothing is published yet")
            elif len(before.progress) < self._sink.lanes or not are_even(before.progress):
                found.unknown.append("the last run ended in the middle of a version; the next one publishes the rest")
            if found.unknown:
                return found
            found.version = before.progress[0].version
            self._compare(cluster, before, found)
            if found.differs and self._state(cluster) != before:
                # A run that published meanwhile, or a producer without transactions.
                return Comparison(unknown=["records arrived during the comparison"], offsets=found.offsets)
        return found

    def _state(self, cluster: KafkaCluster) -> _State:
        sink = self._sink
        topic = ProgressTopic(cluster, sink)
        partitions = cluster.describe_topics([sink.topic])[sink.topic].partitions
        there = cluster.describe_topics([topic.name], skip_missing=True)

        def progress() -> tuple[Progress, ...]:
            found = topic.read(settled=False) if there else {}
            return tuple(found[number] for number in sorted(found))

        first = progress()
        ends = cluster.end_offsets(partitions, READ_COMMITTED)
        is_open = cluster.end_offsets(partitions, READ_UNCOMMITTED) != ends
        # With a commit in between, the ends are those of one or of the other.
        return _State(first, ends, is_open or progress() != first)

    def _compare(self, cluster: KafkaCluster, state: _State, found: Comparison) -> None:
        begins = cluster.beginning_offsets(state.ends)
        starts = self._starts(begins, state.ends)
        origin = state.progress[0].origin
        is_all_read = starts == begins
        has_all = all(offset == 0 for offset in begins.values())
        starts_with_all = origin.snapshot or origin.version < 0
        found.is_whole = is_all_read and starts_with_all
        ranges = [
            KafkaPartitionSplit(tp, starts[tp], end) for tp, end in sorted(state.ends.items()) if starts[tp] < end
        ]
        last = state.progress[0]
        frames = self._frames(last, found)
        if found.unknown:
            return
        log = self._log(ranges, frames)
        if not self._is_comparable(log, last, found):
            return
        # With the schemas of the last run: a check registers none.
        segment = Segment(last.version, last.version, is_snapshot=True, schema_ids=last.schema_ids)
        try:
            with reading(TableVersions(self._spark, self._source), segment):
                expected = self._expected(segment)
                (self._compare_keys if self._has_keys else self._compare_rows)(expected, log, found)
        except VersionsGoneError:
            found.unknown.append(
                f"version {last.version} of the table, which is the published one, can't be read any more (VACUUM, log "
                "retention, or delta.deletedFileRetentionDuration)"
            )
            return
        if found.missing and not has_all:
            found.unknown.append(
                f"the topic, which no longer begins at offset 0, lacks {counted(found.missing, 'row')} of the table: "
                "retention deleted their records, or they were never published"
            )
            found.missing = 0

    def _frames(self, last: Progress, found: Comparison) -> tuple[bytes, bytes]:
        """What the last run's keys and values begin with."""
        frames: list[bytes] = []
        for each, number in zip((self._sink.key, self._sink.value), last.schema_ids, strict=True):
            is_registered = isinstance(each, RegistrySerializer)
            if is_registered and number is None:
                found.unknown.append(f"no run has published with the {type(each).__name__} yet")
            frames.append(frame_of(number) if is_registered and number is not None else b"")
        of_key, of_value = frames
        return of_key, of_value

    def _log(self, ranges: Sequence[KafkaPartitionSplit], frames: tuple[bytes, bytes]) -> DataFrame:
        """The topic, read once: the last record of each key, or how often each key and value are there.

        `other_key` and `other_value` say of key and value whether they don't begin as those of the last run.
        """
        from pyspark.sql import functions as f

        if ranges:
            options = reader_options(ranges, KafkaSource(topics=(self._sink.topic,), connection=self._connection))
            records = self._spark.read.format("kafka").options(**options).load()
        else:
            records = no_records(self._spark)

        def other(name: str, frame: bytes) -> Column:
            return f.coalesce(~f.startswith(name, f.lit(bytearray(frame))), f.lit(False))

        of_key, of_value = frames
        records = records.withColumnsRenamed({"key": "log_key", "value": "log_value"})
        log = records.groupBy("log_key", *(() if self._has_keys else ("log_value",))).agg(
            f.max_by("log_value", "offset").alias("last"),
            f.count("*").alias("records"),
            (f.min("partition") != f.max("partition")).alias("moved"),
        )
        log = log.select("log_key", f.col("last").alias("log_value"), "records", "moved")
        other_key, other_value = other("log_key", of_key), other("log_value", of_value)
        return kept_rows(log.select("*", other_key.alias("other_key"), other_value.alias("other_value")))

    def _is_comparable(self, log: DataFrame, last: Progress, found: Comparison) -> bool:
        """Whether the records can be compared with rows. Notes what can't be."""
        from pyspark.sql import functions as f

        def records(where: Column) -> Column:
            return f.coalesce(f.sum(f.when(where, f.col("records"))), f.lit(0))

        other_key, other_value = f.col("other_key"), f.col("other_value")
        counts = log.agg(
            records(f.lit(True)),
            records(other_key),
            records(other_value),
            f.count_if(other_value),
            f.count_if(f.col("moved")),
        )
        ((found.records, other_keys, other_values, earlier, moved),) = counts.collect()
        of_key, of_value = last.schema_ids
        if self._has_keys:
            other_values = 0
        for count, what, number in ((other_keys, "a key", of_key), (other_values, "a value", of_value)):
            if count:
                found.unknown.append(
                    f"{counted(count, 'record')} with {what} that is not of the last run's schema, {number}, can't be "
                    "compared with rows"
                )
        # Rows of such records would seem to be missing.
        is_comparable = not other_keys and not other_values
        if earlier and is_comparable:
            found.unknown.append(
                f"the last records of {counted(earlier, 'key')} are not of the last run's schema, {of_value}, so only "
                "the other keys were compared"
            )
        if moved and self._has_keys:
            found.unknown.append(
                f"{counted(moved, 'key')} with records in several topic partitions: it is unknown which record is the "
                "last"
            )
        return is_comparable

    def _starts(
        self, begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Where reading starts: at the beginning, or near the end, as far back in each topic partition."""
        spans = sorted(ends[tp] - begins[tp] for tp in ends)
        left, most = self._max_records, 0
        for number, span in enumerate(spans):
            # Longer topic partitions get what shorter ones leave.
            most = left // (len(spans) - number)
            left -= min(span, most)
        return {tp: max(begins[tp], end - max(most, 0)) for tp, end in ends.items()}

    def _expected(self, segment: Segment) -> DataFrame:
        """The table's rows at the published version, as records."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import StructType

        read = SegmentRows(self._spark, self._source, self._sink, segment, self._transform)
        self._types = StructType.fromJson(json.loads(read.types))
        key, value = (
            f.concat(f.lit(bytearray(frame)), name) for name, frame in zip(("key", "value"), read.frames, strict=True)
        )
        return read.rows.select(
            key.alias("key"), value.alias("value"), f.col("problem").isNotNull().alias("has_problem")
        )

    def _compare_keys(self, expected: DataFrame, log: DataFrame, found: Comparison) -> None:
        from pyspark.sql import functions as f

        same = f.col("key").eqNullSafe(f.col("log_key"))
        if not found.is_whole:
            keys = log.select("log_key")
            expected = expected.join(f.broadcast(keys) if found.records <= _FEW_KEYS else keys, same, "left_semi")
        of_table = expected.groupBy("key").agg(
            f.count("*").alias("rows"), f.first("value").alias("value"), f.first("has_problem").alias("has_problem")
        )
        both = of_table.join(log, same, "full" if found.is_whole else "right")
        has_row, has_record = f.col("rows").isNotNull(), f.col("records").isNotNull()
        # A row that can't be serialized has no value either, but nothing is equal to it.
        can_be = ~f.coalesce("has_problem", f.lit(False))
        kind = (
            f.when(f.col("moved") | f.col("other_value"), "unclear")
            .when(f.col("rows") > 1, "twice")
            .when(has_row & ~has_record & f.col("value").isNull() & can_be, "equal")
            .when(has_row & ~has_record, "missing")
            .when(~has_row & f.col("log_value").isNotNull(), "surplus")
            .when(f.col("value").eqNullSafe(f.col("log_value")) & can_be, "equal")
            .otherwise("differing")
        )
        judged = both.select(f.coalesce("key", "log_key").alias("key"), "value", "log_value", kind.alias("kind"))
        kept = kept_rows(judged)
        counts = {row["kind"]: row["count"] for row in kept.groupBy("kind").count().collect()}
        elsewhere = kept.where(f.col("kind").isin("missing", "surplus")).select("kind", "key").limit(_SHOWN).collect()
        differing = kept.where("kind = 'differing'").drop("kind").limit(_MOST_EXPLAINED + 1).collect()
        found.keys = sum(count for kind, count in counts.items() if kind != "unclear")
        found.missing, found.surplus = counts.get("missing", 0), counts.get("surplus", 0)
        found.differing = counts.get("differing", 0)
        if counts.get("twice"):
            found.unknown.append(
                f"{counted(counts['twice'], 'key')} with several rows in the table: it is unknown which row is the last"
            )
        others = [key for key, value, log_value in differing if not self._is_earlier(log_value, value)]
        found.earlier_columns = len(differing) - len(others)
        if len(differing) <= _MOST_EXPLAINED:
            found.differing = len(others)
        elif found.earlier_columns:
            found.unknown.append(
                f"{found.differing} records differ from the table's rows, some of them only because columns were added "
                "to the table"
            )
            found.differing = 0
        found.examples = [f"{kind}: {shown(key)}" for kind, key in elsewhere]
        found.examples += [f"differing: {shown(key)}" for key in others[:_SHOWN]]

    def _is_earlier(self, record: bytes | None, row: bytes | None) -> bool:
        """Whether a record is the row's, but for columns that the table got later, which are null in the row."""
        if record is None or row is None or not isinstance(self._sink.value, JsonSerializer):
            return False
        try:
            # A decimal has more digits than a float.
            before, now = (json.loads(bytes(each), parse_float=str) for each in (record, row))
        except ValueError:
            return False
        return before != now and is_earlier(before, now, self._types)

    def _compare_rows(self, expected: DataFrame, log: DataFrame, found: Comparison) -> None:
        from pyspark.sql import functions as f

        if self._source.skip_change_commits:
            found.unknown.append("skip_change_commits: the table may have rows that the sink never had to publish")
            return
        of_table = expected.groupBy("key", "value").agg(f.count("*").alias("rows"))
        same = f.col("key").eqNullSafe(f.col("log_key")) & f.col("value").eqNullSafe(f.col("log_value"))
        both = of_table.join(log, same, "full" if found.is_whole else "right")
        rows, records = f.coalesce("rows", f.lit(0)), f.coalesce("records", f.lit(0))
        key = f.coalesce("key", "log_key").alias("key")
        judged = both.select(key, (rows - records).alias("more"), records.alias("records"))
        kept = kept_rows(judged)
        more, none = f.col("more"), f.lit(0)
        (sums,) = kept.agg(f.sum(f.greatest(more, none)), f.sum(f.greatest(-more, none)), f.sum("records")).collect()
        wrong = kept.where("more <> 0" if found.is_whole else "more < 0").limit(_SHOWN).collect()
        missing, found.surplus, found.keys = (each or 0 for each in sums)
        # A part of the topic can only show surplus records, not missing ones.
        found.missing = missing if found.is_whole else 0
        found.examples = [f"{'missing' if row['more'] > 0 else 'surplus'}: {shown(row['key'])}" for row in wrong]


def is_earlier(before: Any, now: Any, kind: DataType | None) -> bool:
    """Whether a value is the same as another one, but for fields that its STRUCTs got later, which are null."""
    from pyspark.sql import types as t

    if isinstance(kind, t.StructType) and isinstance(before, dict) and isinstance(now, dict):
        kinds = {field.name: field.dataType for field in kind.fields}
        return before.keys() <= now.keys() and all(
            is_earlier(before[name], value, kinds.get(name)) if name in before else value is None
            for name, value in now.items()
        )
    if isinstance(kind, t.MapType) and isinstance(before, dict) and isinstance(now, dict):
        return before.keys() == now.keys() and all(
            is_earlier(before[key], value, kind.valueType) for key, value in now.items()
        )
    if isinstance(kind, t.ArrayType) and isinstance(before, list) and isinstance(now, list):
        return len(before) == len(now) and all(
            is_earlier(one, other, kind.elementType) for one, other in zip(before, now, strict=True)
        )
    return before == now
