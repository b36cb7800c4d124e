"""The rows of dead letters: the rejected records of a batch, read again, and which of them a table lacks."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.ingestion.dead_letters import DEAD_LETTER_SCHEMA, RECORD_COLUMNS
from dagster_kafka_flip.reader.kafka_reader import read
from dagster_kafka_flip.runtime.session_settings import SESSION_ZONE
from dagster_kafka_flip.table.sql import literal
from dagster_kafka_flip.table.uniqueness import RecordColumns, covering_predicate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, Observation, SparkSession
    from pyspark.sql.types import StructType

    from dagster_kafka_flip.formats.decode import Decoder
    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.api import SplitAssignment
    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.document import RoutedBatch


class DeadLetterRows:
    """The dead letters of one run, as rows."""

    def __init__(self, session: SparkSession, spec: RunSpec) -> None:
        self._session = session
        self._spec = spec

    def rules(self) -> dict[str, str]:
        """What decides besides the decoder which records are read and rejected, by the setting's name."""
        zone = self._session.conf.get(SESSION_ZONE)
        return {SESSION_ZONE: str(zone), "isolation_level": self._spec.source.isolation_level}

    def schema(self) -> StructType:
        """The columns of the rows."""
        return self._session.createDataFrame([], DEAD_LETTER_SCHEMA).schema

    def rejected(
        self, assignment: SplitAssignment, batch: RoutedBatch, decoder: Decoder, state: EnumeratorState, table_id: str
    ) -> tuple[DataFrame, Observation]:
        """The rejected records of a batch as rows, and an observation with their number (`rejected`)."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        number = Observation()
        staged = decoder.stage(read(self._spec.source, self._session, assignment))
        fields = [f.col(field).alias(column) for column, field in RECORD_COLUMNS.items()]
        rows = (
            staged.select(*fields, decoder.problem().alias("error"), *decoder.written_with())
            # The observation also prevents Spark from moving filters past it, so each record is parsed once.
            .observe(number, f.count("error").alias("rejected"))
            .where("error IS NOT NULL")
            .withColumns(
                {
                    "stream": f.lit(self._spec.target.stream),
                    "target_table": f.lit(str(self._spec.target)),
                    "run_id": f.lit(batch.run_id),
                    "attempt": f.lit(batch.attempt),
                    "landed_at": f.current_timestamp(),
                    "kafka_cluster_id": f.lit(state.cluster_id).cast("string"),
                    "kafka_topic_id": _by_topic(state, assignment),
                    "target_table_id": f.lit(table_id),
                }
            )
        )
        return rows, number

    def missing(
        self, rows: DataFrame, there: DataFrame, splits: Sequence[KafkaPartitionSplit], table_id: str
    ) -> DataFrame:
        """The dead letters that the table does not have yet; only compares rows of about these splits."""
        from pyspark.sql import functions as f

        columns = RecordColumns("kafka_topic", "kafka_partition", "kafka_offset")
        ranges = covering_predicate(splits, columns)
        of_stream = f"target_table_id = {literal(table_id)} AND stream = {literal(self._spec.target.stream)}"
        known = there.where(f"{of_stream} AND ({ranges})").alias("there")
        return rows.alias("new").join(known, f.expr(SAME_LETTER), "left_anti")


@functools.singledispatch
def dead_letter_rows(session: Any, spec: RunSpec) -> DeadLetterRows:
    """Returns the dead letters of a run in a session."""
    return DeadLetterRows(session, spec)


# An offset identifies a record only within one topic of one cluster, and after an unclean election with its time. If
# ids are unknown, the record's content identifies it, because it never changes.
SAME_LETTER = """
new.kafka_topic = there.kafka_topic AND new.kafka_partition = there.kafka_partition
AND new.kafka_offset = there.kafka_offset AND new.kafka_timestamp <=> there.kafka_timestamp
AND coalesce(new.kafka_cluster_id = there.kafka_cluster_id, true)
AND coalesce(
    new.kafka_topic_id = there.kafka_topic_id,
    new.kafka_key <=> there.kafka_key AND new.kafka_value <=> there.kafka_value
)
"""


def _by_topic(state: EnumeratorState, assignment: SplitAssignment) -> Column:
    from pyspark.sql import functions as f

    topics = {split.topic_partition.topic for split in assignment.plan.splits}
    column = f.lit(None).cast("string")
    for topic in sorted(topics & state.topic_ids.keys()):
        column = f.when(f.col("kafka_topic") == topic, f.lit(state.topic_ids[topic])).otherwise(column)
    return column
