"""Table rows as records: one query for a segment, in an order that each run repeats, and the stream of its rows."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import time
import uuid
from typing import TYPE_CHECKING, Any, NamedTuple

from dagster_kafka_flip.errors import ConfigurationError, NotAppendedError, SinkProgressError
from dagster_kafka_flip.formats.column_types import WHOLE, of_spark
from dagster_kafka_flip.runtime.jvm_library import use_library
from dagster_kafka_flip.runtime.relied_settings import check_settings
from dagster_kafka_flip.runtime.remote import stop_jobs, tagged_jobs
from dagster_kafka_flip.runtime.session import dead_spark_as_error
from dagster_kafka_flip.runtime.spark_functions import f
from dagster_kafka_flip.settings.names import first_few
from dagster_kafka_flip.sink.delta_source import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, FEED_COLUMNS
from dagster_kafka_flip.sink.progress import ANEW
from dagster_kafka_flip.sink.row_transform import checked_rows
from dagster_kafka_flip.sink.serializers import (
    Encoded,
    RowsToEncode,
    check_key,
    json_of,
    serialized,
    struct_of,
    type_of,
)
from dagster_kafka_flip.table.sql import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType
    from typing_extensions import Self

    from dagster_kafka_flip.sink.delta_source import DeltaSource
    from dagster_kafka_flip.sink.kafka_sink import KafkaSink
    from dagster_kafka_flip.sink.progress import Segment

# What becomes of a key comes behind what becomes of its earlier row. In an overwrite one version deletes and inserts
# a key; in an update one row may take over the key that another leaves. LEFT is the tombstone of a key behind the
# previous value, which counts if no row takes the key over.
DELETE, PREVIOUS, LEFT, UPDATED, INSERT = range(5)
_RANKS = {"delete": DELETE, "update_preimage": PREVIOUS, "update_postimage": UPDATED, "insert": INSERT}


class TableRow(NamedTuple):
    """One row of a segment as a record.

    Attributes:
        rank: What the change is: DELETE, PREVIOUS, LEFT, UPDATED or INSERT.
        key: The record's key, without what `SegmentRows.frames` has; so the value.
        headers: Names and values, as the column has them.
        problem: Why key or value can't be serialized; None if they are.
        text: The whole row as JSON, if there is a problem and a dead-letter topic.
    """

    version: int
    rank: int
    key: bytes | None
    value: bytes | None
    lane: int
    topic: str | None
    partition: int | None
    timestamp_ms: int | None
    headers: list[tuple[str | None, bytes | None] | None] | None
    problem: str | None = None
    text: str | None = None

    @property
    def named_headers(self) -> list[tuple[str, bytes | None]]:
        """The headers that are not null and have a name."""
        return [
            (each[0], None if each[1] is None else bytes(each[1]))
            for each in self.headers or ()
            if each is not None and each[0] is not None
        ]


def settings_text(source: DeltaSource, sink: KafkaSink) -> str:
    """The settings that decide lane and order of rows, for comparison with another run's."""
    # Without the registry, which may hold secrets.
    serializers = {
        name: None if each is None else [type(each).__name__, each.model_dump(mode="json", exclude={"registry"})]
        for name, each in (("key", sink.key), ("value", sink.value))
    }
    columns = [sink.headers, sink.timestamp, sink.topic_column, sink.partition_column]
    return json.dumps([serializers, columns, sink.deletes, source.content, source.skip_change_commits])


class SegmentRows:
    """The rows of one segment, as a lazy DataFrame of `TableRow`.

    Attributes:
        columns: The table's columns that the rows are serialized with, their `types` as Spark's JSON, and the `schema`
            with those of the change.
        rows: The rows, sorted by version, key and rank, then by everything else: only equal rows may change places.
        frames: The bytes before each key and each value.
        schema_ids: Ids of the registered schemas of key and value.
    """

    def __init__(
        self,
        spark: SparkSession,
        source: DeltaSource,
        sink: KafkaSink,
        segment: Segment,
        transform: Callable[[DataFrame], DataFrame] | None = None,
    ) -> None:
        self._spark, self._source, self._sink, self._segment = spark, source, sink, segment
        changes = self._changes()
        if transform is not None:
            changes = checked_rows(changes, transform)
        if segment.types is not None:
            changes = self._as_before(changes, segment.types)
        else:
            self.columns = tuple(name for name in changes.columns if name not in FEED_COLUMNS)
        self.schema = changes.schema
        self.types = _types_text(self.schema, self.columns)
        self.rows = self._serialized(changes)

    def _as_before(self, changes: DataFrame, before: str) -> DataFrame:
        """The rows with the types that a version was published with in part: a new field would change all rows."""
        from pyspark.sql.types import StructType

        struct = StructType.fromJson(json.loads(before))
        self.columns = tuple(struct.names)
        gone = [name for name in self.columns if name not in changes.columns]
        if gone:
            raise SinkProgressError(
                f"the sink {self._sink.transactional_id_prefix} has published {self._segment} of {self._source} in "
                f"part, with the column {gone[0]}, which the table or the sink's function no longer has",
                f"Add the column again. Else {ANEW}",
            )
        if before == _types_text(changes.schema, self.columns):
            return changes
        others = [field for field in changes.schema.fields if field.name not in self.columns]
        return changes.to(StructType([*struct.fields, *others]))

    def _changes(self) -> DataFrame:
        segment, target = self._segment, self._source.target
        options: dict[str, Any] = {"versionAsOf": segment.last}
        if not segment.is_snapshot:
            options = {"readChangeFeed": "true", "startingVersion": segment.first, "endingVersion": segment.last}
        reader = self._spark.read.format("delta").options(**options)
        found = reader.load(target.location) if target.is_path else reader.table(target.identifier)
        if segment.is_snapshot:
            taken = [name for name in found.columns if name.lower() in FEED_COLUMNS]
            if taken:
                raise ConfigurationError(
                    f"the table {self._source} has a column {taken[0]}, a name that Delta's change data feed reserves",
                    "Rename the column, or publish a copy of the table without it",
                )
            return found.select(
                "*",
                f.lit("insert").alias(CHANGE_TYPE),
                f.lit(segment.last).cast("long").alias(COMMIT_VERSION),
                f.lit(None).cast("timestamp_ltz").alias(COMMIT_TIMESTAMP),
            )
        return self._wanted(found)

    def _wanted(self, changes: DataFrame) -> DataFrame:
        kind = f.col(CHANGE_TYPE)
        content = self._source.content
        if content == "all_images":
            return changes
        if content == "changes":
            # Tombstones need the previous keys: an update may change the key.
            return changes if self._sink.deletes == "tombstone" else changes.where(kind != "update_preimage")
        changed = [row[0] for row in changes.where(kind != "insert").select(COMMIT_VERSION).distinct().collect()]
        if changed and not self._source.skip_change_commits:
            versions = f"version{'s' * (len(changed) > 1)} {first_few(sorted(changed))}"
            raise NotAppendedError(
                f"{versions} of the table {self._source} updated or deleted rows, but the sink publishes only appended "
                "rows",
                'Set content="changes" of the DeltaSource to publish updates and deletes, or skip_change_commits=True '
                "to leave out these commits",
                outcome="Nothing of the versions was published",
            )
        return changes.where(~f.col(COMMIT_VERSION).isin(changed)) if changed else changes

    def _serialized(self, changes: DataFrame) -> DataFrame:
        sink, schema = self._sink, self.schema
        kind = f.col(CHANGE_TYPE)
        rank = f.lit(None).cast("int")
        for name, number in _RANKS.items():
            rank = f.when(kind == name, f.lit(number)).otherwise(rank)
        shows_kind = self._source.content == "all_images" or (
            self._source.content == "changes" and sink.deletes == "row"
        )
        key, value = self._encoded(schema, (*self.columns, CHANGE_TYPE) if shows_kind else self.columns)
        self.frames = b"" if key is None else key.frame, value.frame
        self.schema_ids = None if key is None else key.schema_id, value.schema_id
        nothing = serialized(f.lit(None).cast("binary"))
        whole_value = value.whole
        if self._source.content != "appended_rows" and sink.deletes == "tombstone":
            no_value = ["delete"] if self._source.content == "all_images" else ["delete", "update_preimage"]
            whole_value = f.when(~kind.isin(no_value), whole_value)
        text = f.lit(None).cast("string")
        if sink.dead_letter_topic is not None:
            text = json_of(struct_of(self.columns)).cast("string")
        # In two steps: else Spark would encode a row once for the content, and once for the problem.
        rows = changes.select(
            f.col(COMMIT_VERSION).alias("version"),
            rank.alias("rank"),
            (nothing if key is None else key.whole).alias("_key"),
            whole_value.alias("_value"),
            text.alias("_text"),
            *self._places(schema),
        )
        key_problem, value_problem = f.col("_key.problem"), f.col("_value.problem")
        rows = rows.select(
            "*",
            f.col("_key.content").alias("key"),
            f.col("_value.content").alias("value"),
            f.coalesce(f.concat(f.lit("key: "), key_problem), f.concat(f.lit("value: "), value_problem)).alias(
                "problem"
            ),
        )
        if self._source.content == "all_images" and sink.deletes == "tombstone":
            is_previous, is_left = f.col("rank") == PREVIOUS, f.col("rank") == LEFT
            ranks = f.when(is_previous & f.col("key").isNotNull(), f.array(f.lit(PREVIOUS), f.lit(LEFT)))
            rows = rows.withColumn("rank", f.explode(f.coalesce(ranks, f.array("rank")))).withColumns(
                {name: f.when(~is_left, f.col(name)) for name in ("value", "problem")}
            )
        rows = rows.withColumn("text", f.when(f.col("problem").isNotNull(), f.col("_text")))
        # Without a key, equal values share a lane. A frame has no say: a key keeps its lane if its schema changes.
        lane = f.pmod(f.xxhash64(f.coalesce("key", "value")), f.lit(sink.lanes)).cast("int")
        return in_order(rows.withColumn("lane", lane).select(*TableRow._fields))

    def _encoded(self, schema: StructType, columns: tuple[str, ...]) -> tuple[Encoded | None, Encoded]:
        sink = self._sink
        of_key, of_value = self._segment.schema_ids
        check_settings(self._spark)
        if sink.value.uses_library or (sink.key is not None and sink.key.uses_library):
            use_library(self._spark)
        key = None
        if sink.key is not None:
            check_key(schema, sink.key.columns_of(self.columns))
            key = sink.key.encode(RowsToEncode(schema, self.columns, sink.topic, "key", of_key))
        return key, sink.value.encode(RowsToEncode(schema, columns, sink.topic, "value", of_value))

    def _places(self, schema: StructType) -> list[Column]:
        def column(option: str, kinds: Collection[str], cast: str, what: str) -> Column:
            name = getattr(self._sink, option)
            if name is None:
                return f.lit(None).cast(cast)
            kind = of_spark(type_of(schema, name))
            if kind.name not in kinds:
                raise ConfigurationError(f"{option}: the column {name} is {kind}; use {what} column")
            return f.col(quoted(name))

        return [
            column("topic_column", {"STRING"}, "string", "a string").alias("topic"),
            column("partition_column", WHOLE, "int", "an integer").cast("long").alias("partition"),
            f.unix_millis(column("timestamp", {"TIMESTAMP_LTZ"}, "timestamp_ltz", "a timestamp")).alias("timestamp_ms"),
            self._headers(schema).alias("headers"),
        ]

    def _headers(self, schema: StructType) -> Column:
        name = self._sink.headers
        empty = "array<struct<key:string,value:binary>>"
        if name is None:
            return f.lit(None).cast(empty)
        kind = of_spark(type_of(schema, name))
        entries = kind.inner.type if kind.name == "ARRAY" and kind.inner.type.name == "STRUCT" else kind
        parts = [field.type.name for field in entries.fields]
        if kind.name in {"ARRAY", "MAP"} and parts in (["STRING", "STRING"], ["STRING", "BINARY"]):
            return (f.map_entries(quoted(name)) if kind.name == "MAP" else f.col(quoted(name))).cast(empty)
        raise ConfigurationError(
            f"headers: the column {name} is {kind}; use array<struct<key:string,value:binary>>, as the "
            "source reads headers, or map<string,binary>"
        )


def in_order(rows: DataFrame) -> DataFrame:
    """Rows sorted by version, key and rank, then by everything else.

    As `orderBy` does it, but that takes a sample of what it sorts by to the driver: 2,400 whole values. Only rows that
    begin alike are in one partition, in which they are sorted by the whole.
    """
    key, value = (f.substring(name, 1, _BEGINNING) for name in ("key", "value"))
    # Behind the beginning of a longer key its rest would come first.
    is_whole = f.coalesce(f.length("key") <= _BEGINNING, f.lit(True))
    rank = f.when(is_whole, f.col("rank"))
    ranges = f.col("version"), key, rank.asc_nulls_last(), f.when(is_whole, value)
    return rows.repartitionByRange(*ranges).sortWithinPartitions("version", "key", "rank", *_REST)


def _types_text(schema: StructType, columns: tuple[str, ...]) -> str:
    """Columns and their types as Spark's JSON; what may be null does not matter, and is left open."""
    from pyspark.sql import types as t

    text = t.StructType([t.StructField(name, type_of(schema, name)) for name in columns]).json()
    return re.sub(r'"(nullable|containsNull|valueContainsNull)":false', r'"\1":true', text)


# Bytes of keys and values by which rows are distributed.
_BEGINNING = 200

_REST = ("value", "topic", "partition", "timestamp_ms", "headers", "problem", "text")


# Rows of a chunk, bytes of their values, and chunks that wait: enough that the two threads seldom wait for each other,
# and a bound for memory.
_ROWS = 2000
_BYTES = 4_000_000
_CHUNKS = 4

_VALUE = TableRow._fields.index("value")

# Seconds that a stopped query may take to end, and after which its thread is looked at.
_PATIENCE_SECONDS = 30.0
_LOOK_SECONDS = 0.1


class RowStream:
    """The rows of a query of `SegmentRows`, read by a thread of its own. Use as a context manager."""

    def __init__(self, spark: SparkSession, rows: DataFrame) -> None:
        from pyspark import InheritableThread

        self._spark, self._rows, self._tag = spark, rows, f"dagster-kafka-flip-{uuid.uuid4().hex}"
        self._queue: queue.Queue[list[tuple[Any, ...]] | BaseException | None] = queue.Queue(_CHUNKS)
        self._is_left = False
        self._thread = InheritableThread(self._read, session=spark, name="dagster-kafka-flip-rows", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_left = True
        deadline = time.monotonic() + _PATIENCE_SECONDS
        if self._thread.is_alive():
            with contextlib.suppress(Exception):
                stop_jobs(self._spark, self._tag)
        while self._thread.is_alive() and time.monotonic() < deadline:
            # Nobody takes what it still puts there.
            with contextlib.suppress(queue.Empty):
                self._queue.get(timeout=_LOOK_SECONDS)

    def chunks(self, wait: float) -> Iterator[list[tuple[Any, ...]]]:
        """Yields the rows in chunks; an empty chunk if none came in time."""
        while True:
            try:
                came = self._queue.get(timeout=wait)
            except queue.Empty:
                yield []
                continue
            if came is None:
                return
            if isinstance(came, BaseException):
                raise came
            yield came

    def _read(self) -> None:
        chunk: list[tuple[Any, ...]] = []
        size = 0
        try:
            with dead_spark_as_error(), tagged_jobs(self._spark, self._tag):
                for row in self._rows.toLocalIterator():
                    chunk.append(row)
                    size += len(row[_VALUE] or b"")
                    if len(chunk) == _ROWS or size > _BYTES:
                        self._queue.put(chunk)
                        chunk, size = [], 0
                    if self._is_left:
                        return
        except BaseException as error:  # noqa: BLE001 - it is raised again in the thread that takes the rows
            self._queue.put(error)
        else:
            self._queue.put(chunk)
            self._queue.put(None)
