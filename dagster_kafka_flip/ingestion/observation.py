"""Counts a batch's records while they are written, without reading them a second time.

Spark answers an Observation from the first query that finishes with it. That may not be the write: if a transform
queries its records (`show(2)`), two records are counted. And the write may not read the whole batch: a transform may
end in a limit. So a count is used only if it is of the whole batch. Otherwise the number is unknown, not 0.
"""

from __future__ import annotations

import contextlib
import json
import threading
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from dagster_kafka_flip.formats.fields import of_values_and_keys
from dagster_kafka_flip.runtime.spark_functions import f
from dagster_kafka_flip.table.spark_error import error_summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import Column, DataFrame, Observation

    from dagster_kafka_flip.formats.decode import Decoder
    from dagster_kafka_flip.formats.fields import FieldsSeen, FieldWatch
    from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
    from dagster_kafka_flip.telemetry.repeatedly import Log

# Each watched topic partition costs an expression for every record; beyond this the watermark costs too much.
MAX_WATCHED_PARTITIONS = 256

COUNTED = "counted"
"""The metric with the number of records that were read of a batch."""

NOTHING_REPORTED = "Spark reported nothing about the records that the write read"

# Column with the bytes of a record's key and value.
_SIZE = "_dagster_kafka_flip_size"

# The low bits of each offset that are summed, so that even a trillion of them fit into a BIGINT.
_LOW_BITS = 0xFFFFF


@dataclass(frozen=True)
class WindowsSeen:
    """Counts of a batch's windows, from the read.

    Attributes:
        late: Records of each window that came after a record of a later window, by the window's number in the batch.
        stragglers: Records that came later than the maximum lateness allows, and are in no window.
        timeless: Records without a timestamp, which are in no window.
    """

    late: Mapping[int, int]
    stragglers: int
    timeless: int


def windows_seen(metrics: Mapping[str, Any]) -> WindowsSeen | None:
    if "stragglers" not in metrics:
        return None
    late: dict[int, int] = {}
    for step in json.loads(metrics["late"] or "[]"):
        # Partial histograms can give several steps of the same value.
        late[round(step["x"])] = late.get(round(step["x"]), 0) + round(step["y"])
    return WindowsSeen(late, metrics["stragglers"], metrics["timeless"])


@dataclass(frozen=True)
class Observed:
    """Counts of a batch's records as they were read.

    Attributes:
        records: Records that the write read; None if that is unknown.
        bytes: Bytes of their keys and values; None if that is unknown.
        rejected: Records that could not be decoded and were kept; None if that is unknown.
        highest_timestamps: Highest record timestamp of each topic partition that was read, in milliseconds since the
            epoch; None if that is unknown, or if too many of them were read at once to be watched.
        fields: Which declared and undeclared fields were seen; None if that is unknown, or if none are declared.
        unknown: Why only a part of the batch was counted, so that the rest is unknown; None if all of it was.
        events: Records without a row, by what they are, if values are changes of a database; None if that is unknown.
        windows: Counts of the batch's windows; None if they are not told apart, or unknown.
    """

    records: int | None
    bytes: int | None
    rejected: int | None
    highest_timestamps: Mapping[TopicPartition, int] | None = field(default_factory=dict["TopicPartition", int])
    fields: FieldsSeen | None = None
    unknown: str | None = None
    events: Mapping[str, int] | None = field(default_factory=dict[str, int])
    windows: WindowsSeen | None = None

    @classmethod
    def nothing(cls, why: str) -> Observed:
        return cls(None, None, None, None, unknown=why, events=None)

    @property
    def is_whole(self) -> bool:
        return self.unknown is None

    @property
    def events_without_row(self) -> int | None:
        return None if self.events is None else sum(self.events.values())


def observed_by_write(watch: BatchObservation, rows: int | None) -> Observed:
    """What a write of so many rows has counted; whatever goes wrong here takes nothing away from the commit."""
    try:
        return watch.get(patience=2.0 if rows == 0 else 10.0)
    except Exception as error:  # noqa: BLE001 - as above
        return Observed.nothing(f"Spark's count of them can't be read: {error_summary(error)}")


def log_observed(log: Log, observed: Observed) -> None:
    """Logs why counts of a batch are unknown, what did not land, and whether the schema seems not to fit the batch."""
    if observed.unknown is not None:
        log.warning(
            "the batch is committed, but not all of its records were counted, so its numbers are incomplete: %s",
            observed.unknown,
        )
    if observed.events:
        counts = ", ".join(f"{number} {event}" for event, number in observed.events.items())
        log.info("records without a row, which were counted and not landed: %s", counts)
    if observed.fields is not None and observed.fields.is_suspicious:
        log.warning(
            "the schema does not seem to match the records: %s. Compare the field names, including their case",
            observed.fields,
        )


class Coverage(NamedTuple):
    """Why a query has not counted all records of a batch, if so, and whether it may be the write."""

    unknown: str | None
    is_of_the_write: bool


def observed_metrics(observation: Observation, patience: float) -> dict[str, Any]:
    """Returns the metrics of an observation; empty if Spark does not report them in time."""
    answer: dict[str, Any] = {}

    def ask() -> None:
        # The write is over: whatever Spark raises here, the metrics are only unknown.
        with contextlib.suppress(Exception):
            answer.update(observation.get)

    # Observation.get never returns if Delta skipped the write, nor, before Spark 4.2, if Spark optimised it away.
    thread = threading.Thread(target=ask, daemon=True, name="observation")
    thread.start()
    thread.join(patience)
    return answer


class WholeBatch:
    """Decides whether an observation counted the whole batch.

    A count is of the whole batch if it has as many records as the batch spans offsets, and the sum of their offsets is
    right, too. In a log with gaps (transaction markers, compaction) there are fewer records than offsets, so a part
    looks like a whole. Then the count is used only without a transform, which could leave some unread.
    """

    def __init__(self, splits: Sequence[KafkaPartitionSplit]) -> None:
        self.name = f"batch-{uuid.uuid4().hex}"
        self._splits = splits
        self._asked_at: int | None = None

    def transformed(self, rows: DataFrame) -> None:
        """Notes when a transform has returned its rows, by the server's clock."""
        if not self._splits:
            return
        asked = rows.sparkSession.sql("SELECT unix_micros(now())").first()
        self._asked_at = None if asked is None else int(asked[0])

    def metrics(self) -> list[Column]:
        return [
            f.count(f.lit(1)).alias(COUNTED),
            f.sum(f.col("offset").bitwiseAND(f.lit(_LOW_BITS))).alias("offsets"),
            # Spark fixes it once for each query, when it plans it: an earlier time belongs to another query than the
            # write. Not as a maximum of it: that would be computed for each record.
            f.unix_micros(f.current_timestamp()).alias("planned_at"),
        ]

    def coverage(self, answer: Mapping[str, Any]) -> Coverage | None:
        """Returns which records were counted; None if nothing is known."""
        if not self._splits:
            return Coverage(None, is_of_the_write=True)
        if COUNTED not in answer:
            return None
        counted, span = int(answer[COUNTED]), sum(split.offset_span for split in self._splits)
        planned_at = answer["planned_at"]
        is_of_the_write = self._asked_at is None or (planned_at is not None and int(planned_at) > self._asked_at)
        is_all = counted == span and (answer["offsets"] or 0) == sum(map(_low_bits, self._splits))
        if is_all or (counted < span and self._asked_at is None):
            return Coverage(None, is_of_the_write)
        doubt = (
            f"the write read {counted} records in {span} offsets: either the log has gaps (transactions, compaction), "
            "or the transform left some records unread"
        )
        if not is_of_the_write:
            doubt = (
                f"the transform queried its records, so Spark counted {counted} of the batch's {span} offsets for "
                "that query and none for the write"
            )
        elif counted >= span:
            doubt = f"Spark counted {counted} records in {span} offsets: it read some of them more than once"
        return Coverage(doubt, is_of_the_write)


def _low_bits(split: KafkaPartitionSplit) -> int:
    def below(offset: int) -> int:
        rounds, rest = divmod(offset, _LOW_BITS + 1)
        return rounds * (_LOW_BITS * (_LOW_BITS + 1) // 2) + rest * (rest - 1) // 2

    return below(split.stopping_offset) - below(split.starting_offset)


class BatchObservation:
    """Observes one write of one batch: the records as they were read, and how they were decoded.

    `is_counted`: the observation of the windows, of all records that are read, counts for `whole`.
    """

    def __init__(self, splits: Sequence[KafkaPartitionSplit], whole: WholeBatch, *, is_counted: bool = False) -> None:
        from pyspark.sql import Observation

        self.whole = whole
        self.windows: Observation | None = None
        self._is_counted = is_counted
        self._splits = splits
        # If the other observation counts what is read, this one counts what a filter left of it.
        self._records = "records" if is_counted else COUNTED
        self._read = Observation() if is_counted else Observation(whole.name)
        self._can_reject = False
        self._fields: list[FieldWatch] = []
        self._events: list[str] = []
        self._watched = [split.topic_partition for split in splits] if len(splits) <= MAX_WATCHED_PARTITIONS else None

    def stage(
        self, records: DataFrame, decoder: Decoder, carry: Iterable[str] = (), *, keyed: bool = False
    ) -> DataFrame:
        """What `decoder.finish` needs of records that `decoder` stages, observed when they run."""
        size = f.coalesce(f.length("key"), f.lit(0)) + f.coalesce(f.length("value"), f.lit(0))
        self._can_reject = decoder.can_reject
        if not self._can_reject:
            return decoder.stage(records.observe(self._read, *self._of_records(size)))
        events = decoder.event_counts(keyed=keyed)
        self._events = list(events)
        self._fields = decoder.fields(sum(split.offset_span for split in self._splits))
        # An Observation needs each row as a whole, so columns that are no longer needed are dropped before it: most of
        # all the bytes that were decoded.
        staged = decoder.stage(records.withColumn(_SIZE, size)).select(
            *decoder.needed(carry), _SIZE, *(column for watch in self._fields for column in watch.columns())
        )
        return staged.observe(
            self._read,
            *self._of_records(f.col(_SIZE)),
            f.count(decoder.problem()).alias("rejected"),
            *(count.alias(f"event{number}") for number, count in enumerate(events.values())),
            *(metric for watch in self._fields for metric in watch.metrics()),
        )

    def _of_records(self, size: Column) -> list[Column]:
        watched = self._watched or []
        of_one_topic = len({topic for topic, _ in watched}) == 1
        highest: list[Column] = []
        for index, (topic, partition) in enumerate(watched):
            # As SQL: one call to the JVM for each topic partition, not ten. Topic names have no quotes.
            is_it = f"`partition` = {partition}" + ("" if of_one_topic else f" AND `topic` = '{topic}'")
            # Kafka's "no timestamp" is -1 (KIP-32).
            time = f"max(CASE WHEN {is_it} THEN nullif(unix_millis(`timestamp`), -1) END)"
            highest.append(f.expr(time).alias(f"t{index}"))
        return [
            *([f.count(f.lit(1)).alias(self._records)] if self._is_counted else self.whole.metrics()),
            f.sum(size.cast("bigint")).alias("bytes"),
            *highest,
        ]

    def get(self, patience: float) -> Observed:
        """Call it after the commit: the metrics come with it or later, or never if Spark optimised the plan away."""
        if not self._splits:
            return Observed(records=0, bytes=0, rejected=0)
        of_windows = {} if self.windows is None else observed_metrics(self.windows, patience)
        answer = observed_metrics(self._read, patience)
        coverage = self.whole.coverage(of_windows if self._is_counted else answer)
        if self._records not in answer or coverage is None:
            return Observed.nothing(NOTHING_REPORTED)
        if coverage.unknown is not None and not coverage.is_of_the_write:
            return Observed.nothing(coverage.unknown)
        is_whole = coverage.unknown is None
        highest = {
            topic_partition: int(milliseconds)
            for index, topic_partition in enumerate(self._watched or ())
            if (milliseconds := answer[f"t{index}"]) is not None
        }
        rejected, fields = self._of_decoded(answer) if is_whole else (None, None)
        events = {event: int(answer[f"event{number}"]) for number, event in enumerate(self._events)}
        return Observed(
            records=answer[self._records],
            bytes=answer["bytes"] or 0,
            rejected=rejected,
            highest_timestamps=highest if is_whole and self._watched is not None else None,
            fields=fields,
            unknown=coverage.unknown,
            events={event: number for event, number in events.items() if number} if is_whole else None,
            windows=windows_seen(of_windows) if is_whole else None,
        )

    def _of_decoded(self, answer: Mapping[str, Any]) -> tuple[int, FieldsSeen | None]:
        if not self._can_reject:
            return 0, None
        fields = of_values_and_keys(watch.seen(answer) for watch in self._fields) if self._fields else None
        return int(answer["rejected"]), fields
