"""Publication: the lanes of one run, its batches, and their commits."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from dagster_kafka_flip.errors import (
    RowMisplacedError,
    RowNotSerializableError,
    RowTooLargeError,
    RowWithoutKeyError,
    UnpublishableRowError,
)
from dagster_kafka_flip.runtime.session import dead_spark_as_error
from dagster_kafka_flip.sink.batches import Batches
from dagster_kafka_flip.sink.lane import Lane, Lanes
from dagster_kafka_flip.sink.lane_failures import shown, unseen
from dagster_kafka_flip.sink.progress import (
    Progress,
    ProgressTopic,
    are_even,
    check_all_there,
    check_known,
    check_same_history,
    check_settings,
    check_sink,
    check_table,
    plan_segments,
)
from dagster_kafka_flip.sink.record_router import RecordRouter
from dagster_kafka_flip.sink.result import PublishResult
from dagster_kafka_flip.sink.table_rows import LEFT, PREVIOUS, RowStream, SegmentRows, TableRow, settings_text
from dagster_kafka_flip.sink.table_versions import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.sink.delta_source import DeltaSource
    from dagster_kafka_flip.sink.kafka_sink import KafkaSink
    from dagster_kafka_flip.sink.progress import Segment
    from dagster_kafka_flip.sink.table_versions import TableVersions
    from dagster_kafka_flip.source.cluster import KafkaCluster
    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.source.plan import Limits
    from dagster_kafka_flip.telemetry.repeatedly import Log

# A correction of the table is a later version, before which this one is published.
_WAYS_ON = "Correct the row in the sink's function, or leave it out with tolerate or dead_letter_topic"
# Rows that are left out are in the log one by one, up to this many.
_MOST_WARNINGS = 10
_LONGEST_MESSAGE = 2000

# Longest wait for rows before the clock of the open transaction is looked at.
_LOOK_SECONDS = 1.0


@dataclass
class Publication:
    """One run's way from progress to progress. `run` may be repeated: it begins at what is committed."""

    source: DeltaSource
    sink: KafkaSink
    connection: KafkaConnection
    cluster: KafkaCluster
    limits: Limits
    known: Mapping[int, tuple[int, int]]
    transform: Callable[[DataFrame], DataFrame] | None
    log: Log
    committed: list[Progress] = field(default_factory=list[Progress])
    batches: int = 0
    first: int | None = None
    _partitions_added: int = 0
    _warnings: int = 0

    def __post_init__(self) -> None:
        self.topic = ProgressTopic(self.cluster, self.sink)
        self._settings = settings_text(self.source, self.sink)
        # For each row this would cost more than everything else.
        self._table = str(self.source)
        self._folds = self.source.content == "changes" and self.sink.deletes == "tombstone"
        # Half of the time is left for the commit.
        self._longest = self.sink.transaction_timeout.total_seconds() / 2
        # For each lane: what its open transaction has, and the progress of a commit without an answer. Counted are
        # records, tombstones, bytes, dead_letters, and by the names of their errors rows that are left out.
        self._open: list[Counter[str]] = []
        self._tried: dict[int, Progress] = {}
        self._done = Counter[str]()

    def run(self, spark: SparkSession, versions: TableVersions, topic_id: str | None, last: int) -> None:
        """Publishes all rows up to a version, or up to the limits of the run."""
        self._spark, self._versions, self._topic_id = spark, versions, topic_id
        router = self._router = RecordRouter(self.cluster, self.sink, self.log)
        lanes = [Lane(self.connection, self.sink, number, router, self.log) for number in range(self.sink.lanes)]
        self._lanes = Lanes(lanes, self.sink, self.topic)
        try:
            self.committed = self._owned_progress()
            self._settle()
            segments = plan_segments(self.committed, self.committed[0].origin, last)
            self._check(segments)
            if segments:
                # A commit remembers the number, so that the warning comes once.
                self._look_for_growth()
            for segment in segments:
                self.log.info("publishing %s of %s", segment, self.source)
                if not self._publish(segment):
                    return
        finally:
            self._lanes.close()

    @property
    def published(self) -> tuple[int, int]:
        """Records that are known to be committed, and bytes of their keys and values."""
        return self._done["records"], self._done["bytes"]

    def outcome(self) -> str:
        """What readers see of a run that fails now."""
        if self.first is None:
            return "Nothing was published"
        return unseen(self.sink, may_be_committed=bool(self._tried))

    def result(
        self, planned: int, newest: int, table_id: str, seconds: float, spark_seconds: float | None = None
    ) -> PublishResult:
        last = min(progress.version for progress in self.committed)
        return PublishResult(
            table=str(self.source),
            table_id=table_id,
            topic=self.sink.topic,
            first_version=self.first,
            last_version=last,
            newest_version=newest,
            rows_left=last < planned,
            batches=self.batches,
            records=self._done["records"],
            tombstones=self._done["tombstones"],
            bytes=self._done["bytes"],
            left_out=_left_out(self._done),
            dead_letters=self._done["dead_letters"],
            partitions_added=self._partitions_added,
            spark_seconds=spark_seconds,
            seconds=seconds,
            progress=tuple(self.committed),
            sink=self.sink.transactional_id_prefix,
            progress_topic=self.sink.progress_name,
        )

    def _look_for_growth(self) -> None:
        now = self._router.keyed_partitions
        before = max((lane.topic_partitions or 0 for lane in self.committed), default=0)
        if now is None or not 0 < before < now or self._partitions_added:
            return
        self._partitions_added = now - before
        self.log.warning(
            "the topic %s had %d topic partitions when the sink %s last published, and has %d now: keys move to other "
            "topic partitions, so readers may see a key's new records before its old ones. No record is lost or "
            "doubled. If readers need the order, publish all rows to a new topic under another "
            "transactional_id_prefix",
            self.sink.topic,
            before,
            self.sink.transactional_id_prefix,
            now,
        )

    def _owned_progress(self) -> list[Progress]:
        """The progress of all lanes, which only this run can change now; lanes without one get it."""
        sink, versions = self.sink, self._versions
        found = self._lanes.own()
        check_sink(found, sink.transactional_id_prefix, sink.lanes, sink.topic, self._topic_id)
        # Only now: what a run has just committed may not be visible to one that does not own the lanes.
        check_known(found, sink.transactional_id_prefix, self.topic.name, self.known)
        check_all_there(found, sink.transactional_id_prefix, sink.lanes, self.topic.name)
        check_table(found, sink.transactional_id_prefix, str(self.source), versions.table_id)
        if any(progress.reached > versions.newest for progress in found.values()):
            # Another run may have published what was committed since this one planned.
            versions.look_again()
        check_same_history(found, sink.transactional_id_prefix, versions.newest, versions.mark_of)
        # A run may have died between the first commits of two lanes: all start where the first one did.
        origin = next(iter(found.values())).origin if found else versions.origin()
        for lane in self._lanes.each:
            if lane.number not in found:
                begun = Progress(
                    lane=lane.number,
                    lanes=sink.lanes,
                    topic=sink.topic,
                    topic_id=self._topic_id,
                    table=str(self.source),
                    table_id=versions.table_id,
                    origin=origin,
                    version=origin.before,
                    rows=0,
                    types="",
                    settings=self._settings,
                )
                lane.commit(begun)
                found[lane.number] = begun
        lanes = [found[number] for number in range(sink.lanes)]
        if not are_even(lanes):
            check_settings(lanes, sink.transactional_id_prefix, self._settings)
        return lanes

    def _settle(self) -> None:
        """Counts what was committed although the answer did not come, and forgets what was not."""
        for number, tried in self._tried.items():
            if self.committed[number] == tried:
                self._done += self._open[number]
                self.batches += 1
        self._tried.clear()
        self._open = [Counter() for _ in range(self.sink.lanes)]

    def _check(self, segments: list[Segment]) -> None:
        changes = [segment for segment in segments if not segment.is_snapshot]
        if changes:
            self._versions.check_there(changes[0].first, changes[-1].last)
            self._versions.check_feed()
        elif segments and self.source.stop is None and self._versions.lacks_feed is not None:
            self.log.warning(
                "the table %s has no change data feed. A snapshot needs none, but a run after the table's next change "
                "will fail, and the sink must then start over: run %s before that change",
                self.source,
                self._versions.lacks_feed,
            )

    def _publish(self, segment: Segment) -> bool:
        """Publishes a segment; returns whether the run continues."""
        self._is_same_table = False
        with reading(self._versions, segment):
            with dead_spark_as_error():
                self._read = SegmentRows(self._spark, self.source, self.sink, segment, self.transform)
            self._rows = Batches(self.committed, folds=self._folds)
            with RowStream(self._spark, self._read.rows) as stream:
                for chunk in stream.chunks(_LOOK_SECONDS):
                    if not all(map(self._take, map(TableRow._make, chunk))) or not self._look():
                        return False
        self._end_version(segment.last + 1)
        return self._commit()

    def _take(self, row: TableRow) -> bool:
        """Publishes a row; returns whether the run continues."""
        if row.version != self._rows.version:
            self._end_version(row.version)
            # A small version is not torn apart: it waits for the next batch if this one is half full.
            if self._is_full(0.5) and not self._commit():
                return False
        for taken in self._rows.take(row):
            self._write(taken)
        return not self._is_full(1.0) or self._commit()

    def _is_full(self, share: float) -> bool:
        most, size, counts = self.limits.max_records_per_batch, self.limits.max_bytes_per_batch, self._open
        return (
            most is not None and sum(each["records"] + each["dead_letters"] for each in counts) >= most * share
        ) or (size is not None and sum(each["bytes"] for each in counts) >= size * share)

    def _end_version(self, following: int) -> None:
        for held in self._rows.turn_to(following):
            self._write(held)

    def _look(self) -> bool:
        """Handles answers, and commits what was open long enough; returns whether the run continues."""
        for lane in self._lanes.each:
            lane.serve()
        return max(lane.age for lane in self._lanes.each) < self._longest or self._commit()

    def _write(self, row: TableRow) -> None:
        key_frame, value_frame = self._read.frames
        key = None if row.key is None else key_frame + bytes(row.key)
        value = None if row.value is None else value_frame + bytes(row.value)
        lane = self._lanes.each[row.lane]
        if not lane.is_open:
            self._lanes.own_again(self.committed)
        if self.first is None or row.version < self.first:
            self.first = row.version
        try:
            is_published = self._publish_row(row, key, value, lane)
        except UnpublishableRowError as error:
            # Refused records have failed already, and so has the transaction.
            if lane.has_failed or not self.sink.leaves_out(error):
                error.advice = ". ".join(filter(None, (error.advice, _WAYS_ON)))
                raise
            self._leave_out(row, key, value, lane, error)
        else:
            counts = self._open[row.lane]
            counts["records"] += is_published
            counts["tombstones"] += is_published and value is None
            counts["bytes"] += is_published * (len(key or b"") + len(value or b""))

    def _publish_row(self, row: TableRow, key: bytes | None, value: bytes | None, lane: Lane) -> bool:
        label = _RowLabel(row.version, self._table, key)
        if row.problem is not None:
            raise RowNotSerializableError(
                f"{label}: it can't be serialized: {row.problem}",
                "Use another schema or serializer",
            )
        if row.value is None and self.sink.deletes == "tombstone" and key is None:
            raise RowWithoutKeyError(
                f"{label}: key and value are null, because the row was deleted or its value column is null. Kafka "
                "can't delete a record without a key",
                'Use a key that is never null, a value that is never null, or deletes="row"',
            )
        try:
            topic, partition = self._router.of(row, key, value, label)
        except RowMisplacedError:
            if row.value is None and row.rank in (PREVIOUS, LEFT):
                # Where no record can be, the row before the change was left out.
                return False
            raise
        headers = self._router.headers(row, label)
        self._router.check(topic, key, value, headers, label)
        lane.write(topic, key, value, partition, self._router.time(topic, row, label), headers, row=label)
        return True

    def _leave_out(
        self, row: TableRow, key: bytes | None, value: bytes | None, lane: Lane, error: UnpublishableRowError
    ) -> None:
        self._warnings += 1
        if self._warnings <= _MOST_WARNINGS:
            self.log.warning("left out: %s", error)
        counts = self._open[row.lane]
        counts[type(error).__name__] += 1
        topic = self.sink.dead_letter_topic
        if topic is None:
            return
        for letter in _dead_letters(row, key, value, self._table, self.sink, error):
            if self._wrote(letter, topic, lane):
                counts["dead_letters"] += 1
                counts["bytes"] += len(letter.key or b"") + len(letter.value or b"")
                return
        # Without key and value it is some hundred bytes.
        msg = f"the dead-letter topic {topic} does not even accept the reason for a row: {error}"
        raise RowTooLargeError(msg) from error

    def _wrote(self, letter: _DeadLetter, topic: str, lane: Lane) -> bool:
        """Writes a dead letter; whether the topic takes one so large."""
        try:
            self._router.check(topic, letter.key, letter.value, letter.headers, "a dead letter")
            lane.write(topic, letter.key, letter.value, headers=letter.headers, row="a dead letter")
        except RowTooLargeError:
            if lane.has_failed:
                raise
            return False
        return True

    def _commit(self) -> bool:
        """Commits each lane's transaction with its progress; whether the run may do another batch."""
        read, before = self._read, self.committed
        moved = [
            replace(
                each,
                types=read.types,
                settings=self._settings,
                schema_ids=read.schema_ids,
                topic_partitions=self._router.keyed_partitions,
                commit=self._versions.mark_of(each.version),
                # For those of runs that fail, which report nothing to Dagster.
                left_out=before[each.lane].left_out + sum(_left_out(self._open[each.lane]).values()),
            )
            for each in self._rows.reached()
            if each.at != before[each.lane].at
        ]
        if moved:
            self._check_same_table()
        if not all(self._lanes.each[progress.lane].is_open for progress in moved):
            # They have no rows, but progress.
            self._lanes.own_again(self.committed)
        for progress in moved:
            lane = progress.lane
            self._tried[lane] = progress
            try:
                self._lanes.each[lane].commit(progress)
            except UnpublishableRowError:
                # The transaction failed with its record.
                del self._tried[lane]
                raise
            self.committed[lane] = self._tried.pop(lane)
            self._done += self._open[lane]
            self._open[lane] = Counter()
        self.batches += bool(moved)
        self.log.info("committed: version %d", min(progress.version for progress in self.committed))
        return self.limits.max_batches is None or self.batches < self.limits.max_batches

    def _check_same_table(self) -> None:
        """Checks once for each segment that the table was not recreated between the plan and the read.

        Only when rows are there: until Spark reads, it may still find another table.
        """
        if not self._is_same_table:
            now = self._versions.table_id_now()
            check_table(dict(enumerate(self.committed)), self.sink.transactional_id_prefix, str(self.source), now)
            self._is_same_table = True


def _left_out(counts: Counter[str]) -> dict[str, int]:
    return {name: number for name, number in sorted(counts.items()) if name.endswith("Error")}


class _RowLabel(NamedTuple):
    """A row, for messages: most rows have none, so the text is made only then."""

    version: int
    table: str
    key: bytes | None

    def __str__(self) -> str:
        return f"version {self.version} of {self.table}, key {shown(self.key)}"


class _DeadLetter(NamedTuple):
    """A record of the dead-letter topic."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def _dead_letters(
    row: TableRow, key: bytes | None, value: bytes | None, table: str, sink: KafkaSink, error: UnpublishableRowError
) -> list[_DeadLetter]:
    """What can be sent of a row that is left out, the most of it first: the next if the topic does not take it."""
    why = {
        "error": type(error).__name__,
        "message": str(error)[:_LONGEST_MESSAGE],
        "table": table,
        "version": str(row.version),
        "topic": (row.topic or "")[:249] if sink.topic_column is not None else sink.topic,
        "sink": sink.transactional_id_prefix,
    }

    def headers(content: str) -> list[tuple[str, bytes | None]]:
        return [(f"kafka_flip.{name}", text.encode()) for name, text in {**why, "value": content}.items()]

    # A row that can't be serialized is there as JSON.
    whole, what = (value, "record") if row.text is None else (row.text.encode(), "row as JSON")
    return [
        _DeadLetter(key, whole, [*row.named_headers, *headers(what)]),
        _DeadLetter(key, None, [*row.named_headers, *headers("left out: too large")]),
        _DeadLetter(key, None, headers("left out: too large")),
        _DeadLetter(None, None, headers("left out: too large, as the key")),
    ]
