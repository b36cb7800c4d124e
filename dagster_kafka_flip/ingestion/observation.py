"""What a batch tells about its records while it is written, without a pass of its own.

Spark answers an Observation from the first query that finishes with it. That need not be the write: a transform may
look at its records (`show(2)`), and then two records were counted. Nor need the write read the whole batch: a transform
may end in a limit. So a count is believed only if it is of the whole batch, and what isn't believed is unknown, not 0.
"""

from __future__ import annotations

import contextlib
import re
import threading
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.formats.fields import of_values_and_keys

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, Observation

    from dagster_kafka_flip.formats.decode import Decoder
    from dagster_kafka_flip.formats.fields import FieldsSeen, FieldWatch
    from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition

# Each watched topic partition costs an expression for every record; beyond this the watermark is not worth its price.
MAX_WATCHED_PARTITIONS = 256

COUNTED = "counted"
"""The metric of how many records of a batch were read."""

NOTHING_TOLD = "Spark told nothing of the records that the write read"

# What hands on or leaves out one row after the other, and so reads all that it is given.
_ONE_BY_ONE = re.compile(r" *(\+- )?(Project|Filter|SubqueryAlias|View|CollectMetrics) ")

# Of each offset, so that the sum of even a trillion of them fits into a BIGINT.
_LOW_BITS = 0xFFFFF


@dataclass(frozen=True)
class Observed:
    """What was seen of a batch's records as they were read.

    Attributes:
        records: Records that the write read; None if that is unknown.
        bytes: Bytes of their keys and values; None if that is unknown.
        rejected: Records that could not be decoded and were kept all the same; None if that is unknown.
        highest_timestamps: Highest record timestamp of each topic partition that was read, in milliseconds since the
            epoch; None if that is unknown, or if too many of them were read at once to be watched.
        fields: Which declared and undeclared fields were seen; None if that is unknown, or if none are declared.
        unknown: Why only a part of the batch was counted, so that the rest is unknown; None if all of it was.
    """

    records: int | None
    bytes: int | None
    rejected: int | None
    highest_timestamps: Mapping[TopicPartition, int] | None = field(default_factory=dict["TopicPartition", int])
    fields: FieldsSeen | None = None
    unknown: str | None = None

    @classmethod
    def nothing(cls, why: str) -> Observed:
        """Nothing is known of a batch.

        Args:
            why: Why that is so.
        """
        return cls(None, None, None, None, unknown=why)

    @property
    def is_whole(self) -> bool:
        """Whether the whole batch was counted."""
        return self.unknown is None


def tell_unknown(log: logging.Logger | logging.LoggerAdapter[Any], observed: Observed) -> None:
    """Says in the log why something of a batch is not known, and where the schema does not seem to fit it.

    Args:
        log: Where to tell.
        observed: What was seen of the batch.
    """
    if observed.unknown is not None:
        log.warning(
            "the batch is committed, but its records were not all counted on the way, so what is told of them is "
            "incomplete: %s",
            observed.unknown,
        )
    if observed.fields is not None and observed.fields.is_suspicious:
        log.warning(
            "the schema does not seem to be that of the records: %s. Compare the names, also their case",
            observed.fields,
        )


@dataclass(frozen=True)
class Coverage:
    """Which records of a batch a query counted.

    Attributes:
        records: How many.
        unknown: Why it is not known that these are all records of the batch; None if it is.
        is_of_the_write: Whether the write itself counted them.
    """

    records: int
    unknown: str | None
    is_of_the_write: bool


def observed_metrics(observation: Observation, patience: float) -> dict[str, Any]:
    """What an observation saw; nothing if Spark has nothing to tell in time.

    Args:
        observation: Of a DataFrame that has run.
        patience: Seconds to wait.
    """
    answer: dict[str, Any] = {}

    def ask() -> None:
        # Whatever Spark raises here, the write is over: what it does not tell is unknown.
        with contextlib.suppress(Exception):
            answer.update(observation.get)

    # Observation.get waits for ever for a plan that was never run as it was written.
    thread = threading.Thread(target=ask, daemon=True, name="observation")
    thread.start()
    thread.join(patience)
    return answer


class WholeBatch:
    """Tells whether an observation counted the whole batch.

    A count is of the whole batch if it is of as many records as the batch spans offsets, and the sum of their offsets
    is right too. Where the log has gaps (transaction markers, compaction) there are fewer records than offsets, and a
    part looks like a whole: then the count is believed only if nothing came between the records and the table that
    could leave some unread. Spark's plan tells what came between.

    Args:
        splits: What the batch reads.

    Attributes:
        name: Of the observation that has `metrics()`.
    """

    def __init__(self, splits: Sequence[KafkaPartitionSplit]) -> None:
        self.name = f"batch-{uuid.uuid4().hex}"
        self._splits = splits
        self._asked_at: int | None = None
        self._rows: DataFrame | None = None

    def transformed(self, rows: DataFrame) -> None:
        """Notes that a transform has had the records in hand, and when it gave them back, by the server's clock.

        Args:
            rows: What it made of them, as it is written.
        """
        asked = rows.sparkSession.sql("SELECT unix_micros(current_timestamp())").first()
        self._asked_at = None if asked is None else int(asked[0])
        self._rows = rows

    def metrics(self) -> list[Column]:
        """What is to be observed for it, of records with Kafka's own column names."""
        from pyspark.sql import functions as f

        return [
            f.count(f.lit(1)).alias(COUNTED),
            f.sum(f.col("offset").bitwiseAND(f.lit(_LOW_BITS))).alias("offsets"),
            # Spark fixes it once for each query, when it plans it: an earlier one is another query's than the write's.
            f.max(f.unix_micros(f.current_timestamp())).alias("planned_at"),
        ]

    def coverage(self, answer: Mapping[str, Any]) -> Coverage | None:
        """What was counted; None if nothing is known.

        Args:
            answer: What was observed.
        """
        if not self._splits:
            return Coverage(0, None, is_of_the_write=True)
        if COUNTED not in answer:
            return None
        counted, span = int(answer[COUNTED]), sum(split.offset_span for split in self._splits)
        planned_at = answer["planned_at"]
        is_of_the_write = self._asked_at is None or (planned_at is not None and planned_at > self._asked_at)
        is_all = counted == span and (answer["offsets"] or 0) == sum(map(_low_bits, self._splits))
        if is_all or (counted < span and is_of_the_write and self._reads_all()):
            return Coverage(counted, None, is_of_the_write=is_of_the_write)
        return Coverage(counted, self._doubt(counted, span, is_of_the_write=is_of_the_write), is_of_the_write)

    def _reads_all(self) -> bool:
        """Whether the write can't have left a record unread."""
        if self._asked_at is None:
            return True
        if self._rows is None:
            return False
        try:
            return is_read_whole(analyzed_plan(self._rows), self.name)
        except Exception:  # noqa: BLE001 - the batch is committed, and what Spark does not tell is unknown
            return False

    def _doubt(self, counted: int, span: int, *, is_of_the_write: bool) -> str:
        if not is_of_the_write:
            return (
                f"the transform looked at its records, so Spark counted {counted} of the batch's {span} offsets for "
                "that query and none for the write"
            )
        if counted >= span:
            return f"Spark counted {counted} records in {span} offsets: it read some of them more than once"
        return (
            f"the write read {counted} records in {span} offsets: either the log has gaps (transactions, compaction), "
            "or the transform left some records unread, and Spark's plan does not tell which"
        )


def analyzed_plan(rows: DataFrame) -> str:
    """How Spark understands a DataFrame, as text. Nothing is read.

    Args:
        rows: The DataFrame.
    """
    view = f"dagster_kafka_flip_{uuid.uuid4().hex}"
    rows.createOrReplaceTempView(view)
    try:
        explained = rows.sparkSession.sql(f"EXPLAIN EXTENDED TABLE {view}").first()
    finally:
        rows.sparkSession.catalog.dropTempView(view)
    text = "" if explained is None else str(explained[0])
    return text.partition("== Analyzed Logical Plan ==\n")[2].partition("\n== Optimized Logical Plan ==")[0]


def is_read_whole(plan: str, observation: str) -> bool:
    """Whether a query reads all that an observation sees: no limit, join or function of partitions stands above it.

    What is not known for sure not to leave anything unread counts as if it did.

    Args:
        plan: The query's analyzed plan.
        observation: The observation's name.
    """
    # The first line is the schema. From there on each line is a node below the one before, unless the plan branches.
    for line in plan.splitlines()[1:]:
        if (node := _ONE_BY_ONE.match(line)) is None:
            return False
        if node[2] == "CollectMetrics" and line[node.end() :].startswith(f"{observation}, "):
            return True
    return False


def _low_bits(split: KafkaPartitionSplit) -> int:
    """The sum of the low bits of a split's offsets."""

    def below(offset: int) -> int:
        rounds, rest = divmod(offset, _LOW_BITS + 1)
        return rounds * (_LOW_BITS * (_LOW_BITS + 1) // 2) + rest * (rest - 1) // 2

    return below(split.stopping_offset) - below(split.starting_offset)


class BatchObservation:
    """Watches one write of one batch.

    Args:
        splits: What the batch reads.
        whole: Tells whether it was counted whole.
        is_counted: Whether another observation, of all that is read, counts for that; else this one does.
    """

    def __init__(self, splits: Sequence[KafkaPartitionSplit], whole: WholeBatch, *, is_counted: bool = False) -> None:
        from pyspark.sql import Observation

        self.whole = whole
        self._is_counted = is_counted
        self._fields: list[FieldWatch] = []
        self._splits = splits
        # Where the other observation counts what is read, this one counts what is left of it.
        self._records = "records" if is_counted else COUNTED
        self._observation = Observation() if is_counted else Observation(whole.name)
        self._watched = [split.topic_partition for split in splits] if len(splits) <= MAX_WATCHED_PARTITIONS else None

    def watch(self, staged: DataFrame, decoder: Decoder) -> DataFrame:
        """The same DataFrame, watched when it runs.

        Args:
            staged: Records as the decoder has staged them.
            decoder: Tells what is wrong with a record.
        """
        from pyspark.sql import functions as f

        size = f.coalesce(f.length("key"), f.lit(0)) + f.coalesce(f.length("value"), f.lit(0))
        watched = self._watched or []
        of_one_topic = len({topic for topic, _ in watched}) == 1
        highest: list[Column] = []
        for index, (topic, partition) in enumerate(watched):
            is_it = f.col("partition") == partition
            is_it = is_it if of_one_topic else is_it & (f.col("topic") == topic)
            highest.append(f.max(f.when(is_it, f.unix_millis("timestamp"))).alias(f"t{index}"))
        self._fields = decoder.fields(sum(split.offset_span for split in self._splits))
        return staged.observe(
            self._observation,
            *([f.count(f.lit(1)).alias(self._records)] if self._is_counted else self.whole.metrics()),
            f.sum(size.cast("bigint")).alias("bytes"),
            f.count(decoder.problem()).alias("rejected"),
            *(metric for watch in self._fields for metric in watch.metrics()),
            *highest,
        )

    def get(self, patience: float, counted: Mapping[str, Any] | None = None) -> Observed:
        """What was seen. Call it only after a commit is known to have happened.

        The metrics are there when the commit is, give or take a moment; only a plan that Spark optimised away to
        nothing never yields any.

        Args:
            patience: Seconds to wait for them.
            counted: What the other observation saw, where that one counts.
        """
        if not self._splits:
            return Observed(records=0, bytes=0, rejected=0)
        answer = observed_metrics(self._observation, patience)
        coverage = self.whole.coverage((counted or {}) if self._is_counted else answer)
        if self._records not in answer or coverage is None:
            return Observed.nothing(NOTHING_TOLD)
        if coverage.unknown is not None and not coverage.is_of_the_write:
            return Observed.nothing(coverage.unknown)
        is_whole = coverage.unknown is None
        highest = {
            topic_partition: int(milliseconds)
            for index, topic_partition in enumerate(self._watched or ())
            if (milliseconds := answer[f"t{index}"]) is not None
        }
        return Observed(
            records=answer[self._records],
            bytes=answer["bytes"] or 0,
            rejected=answer["rejected"] if is_whole else None,
            highest_timestamps=highest if is_whole and self._watched is not None else None,
            fields=of_values_and_keys(watch.seen(answer) for watch in self._fields)
            if is_whole and self._fields
            else None,
            unknown=coverage.unknown,
        )
