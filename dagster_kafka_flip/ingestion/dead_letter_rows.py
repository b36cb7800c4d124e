"""The rows of a dead-letter table: the rejected records of a batch, each once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import DeadLetterDecoderError
from dagster_kafka_flip.formats.description import decoder_of
from dagster_kafka_flip.ingestion.dead_letter_settlement import write_off
from dagster_kafka_flip.ingestion.dead_letters import RECORD_COLUMNS
from dagster_kafka_flip.reader.kafka_reader import read
from dagster_kafka_flip.table.sql import literal
from dagster_kafka_flip.table.uniqueness import RecordColumns, offset_ranges, offsets_predicate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, Observation, SparkSession

    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.api import SplitAssignment
    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.document import RoutedBatch
    from dagster_kafka_flip.table.target import DeltaTarget


def rejected_rows(
    spec: RunSpec,
    session: SparkSession,
    assignment: SplitAssignment,
    batch: RoutedBatch,
    state: EnumeratorState,
    table_id: str,
    target: DeltaTarget,
) -> tuple[DataFrame, Observation]:
    """Returns the rejected records of a batch as rows, and an observation with their number (`rejected`)."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    decoder = decoder_of(batch.route.decoder, spec.decoder)
    if decoder is None:
        raise DeadLetterDecoderError(
            f"the dead letters of version {batch.version} of {spec.target} were rejected by another decoder "
            "than this run's, and it can't be rebuilt from the description in the commit: "
            f"{dict(batch.route.decoder)}",
            f"Run once with that decoder. {write_off(target, batch.splits, 'latest')}",
        )
    counted = Observation()
    staged = decoder.stage(read(spec.source, session, assignment))
    fields = [f.col(field).alias(column) for column, field in RECORD_COLUMNS.items()]
    rows = (
        staged.select(*fields, decoder.problem().alias("error"), *decoder.written_with())
        # The observation also prevents Spark from moving filters past it, so each record is parsed once.
        .observe(counted, f.count("error").alias("rejected"))
        .where("error IS NOT NULL")
        .withColumns(
            {
                "stream": f.lit(spec.target.stream),
                "target_table": f.lit(str(spec.target)),
                "run_id": f.lit(batch.run_id),
                "attempt": f.lit(batch.attempt),
                "landed_at": f.current_timestamp(),
                "kafka_cluster_id": f.lit(state.cluster_id).cast("string"),
                "kafka_topic_id": _by_topic(state, assignment),
                "target_table_id": f.lit(table_id),
            }
        )
    )
    return rows, counted


def without_existing(
    rows: DataFrame, there: DataFrame, splits: Sequence[KafkaPartitionSplit], table_id: str, stream: str
) -> DataFrame:
    """Returns the dead letters that the table does not have yet; only compares rows of about these splits."""
    from pyspark.sql import functions as f

    columns = RecordColumns("kafka_topic", "kafka_partition", "kafka_offset")
    ranges = offsets_predicate(offset_ranges(splits), columns)
    known = there.where(f"target_table_id = {literal(table_id)} AND stream = {literal(stream)} AND ({ranges})").alias(
        "there"
    )
    return rows.alias("new").join(known, f.expr(SAME_LETTER), "left_anti")


# An offset identifies a record only within one topic of one cluster. If ids are unknown, the record's content
# identifies it, because it never changes.
SAME_LETTER = """
new.kafka_topic = there.kafka_topic AND new.kafka_partition = there.kafka_partition
AND new.kafka_offset = there.kafka_offset
AND coalesce(new.kafka_cluster_id = there.kafka_cluster_id, true)
AND coalesce(
    new.kafka_topic_id = there.kafka_topic_id,
    new.kafka_timestamp <=> there.kafka_timestamp AND new.kafka_key <=> there.kafka_key
    AND new.kafka_value <=> there.kafka_value
)
"""


def _by_topic(state: EnumeratorState, assignment: SplitAssignment) -> Column:
    """Each record's topic id, null if unknown."""
    from pyspark.sql import functions as f

    topics = {split.topic_partition.topic for split in assignment.plan.splits}
    column = f.lit(None).cast("string")
    for topic in sorted(topics & state.topic_ids.keys()):
        column = f.when(f.col("kafka_topic") == topic, f.lit(state.topic_ids[topic])).otherwise(column)
    return column
