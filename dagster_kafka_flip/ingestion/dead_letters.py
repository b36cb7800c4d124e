"""The `dead_letter` option, and decoding of a dead-letter table's rows."""

from __future__ import annotations

import contextlib
import os
from os import PathLike
from typing import TYPE_CHECKING, cast

from pydantic import Field

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.learning import learn_schemas
from dagster_kafka_flip.settings.arguments import expect
from dagster_kafka_flip.settings.base import Settings
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_kafka_flip.formats.format import Format
    from dagster_kafka_flip.formats.kafka_columns import KafkaColumns

# Columns of the dead-letter table, and the record field (RECORD_SCHEMA) of each.
RECORD_COLUMNS = {
    "kafka_topic": "topic",
    "kafka_partition": "partition",
    "kafka_offset": "offset",
    "kafka_timestamp": "timestamp",
    "kafka_timestamp_type": "timestampType",
    "kafka_headers": "headers",
    "kafka_key": "key",
    "kafka_value": "value",
}
DEAD_LETTER_SCHEMA = (
    "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, kafka_timestamp TIMESTAMP_LTZ, "
    "kafka_timestamp_type INT, kafka_headers ARRAY<STRUCT<key: STRING, value: BINARY>>, kafka_key BINARY, "
    "kafka_value BINARY, error STRING, stream STRING, target_table STRING, run_id STRING, attempt STRING, "
    "landed_at TIMESTAMP_LTZ, kafka_cluster_id STRING, kafka_topic_id STRING, target_table_id STRING, "
    "key_schema STRING, key_schema_id STRING, value_schema STRING, value_schema_id STRING"
)


class DeadLetters(Settings):
    """Table and limits for records that can't be decoded.

    Attributes:
        table: Its path or catalog name. Several streams may share it.
        stream: Id of the stream in it. Default: the stream's own id with the suffix `-dead-letters`.
        max_records: Maximum number of rejected records in a batch. Default: no limit.
        max_share: Maximum fraction of rejected records in a batch, such as 0.01. Ten are always allowed. Default: no
            limit.
        single_writer: See DeltaTarget.

    With a limit, each batch's records are decoded an additional time before the commit, to count them.
    """

    table: str = Field(min_length=1)
    stream: str | None = None
    max_records: int | None = Field(default=None, ge=0)
    max_share: float | None = Field(default=None, ge=0, le=1)
    single_writer: bool = False

    def target(self, main: DeltaTarget) -> DeltaTarget:
        stream = f"{main.stream}-dead-letters" if self.stream is None else self.stream
        return DeltaTarget(
            table=self.table,
            stream=stream,
            single_writer=self.single_writer,
            # Delta's default: of few rows, statistics of texts cost little, and each file is of one stream.
            properties={"delta.dataSkippingNumIndexedCols": "32"},
        )


def dead_letters_of(
    dead_letter: DeadLetters | str | PathLike[str] | None, target: DeltaTarget, decoder: Decoder
) -> DeadLetters | None:
    if dead_letter is None:
        return None
    expect("dead_letter", dead_letter, (DeadLetters, str, PathLike), '"lake/orders_rejected"')
    letters = dead_letter if isinstance(dead_letter, DeadLetters) else DeadLetters(table=os.fspath(dead_letter))
    if letters.target(target).identity == target.identity:
        raise ConfigurationError(f"the dead-letter table is the stream's own table {target}; use a separate table")
    if letters.target(target).is_nested_with(target):
        raise ConfigurationError(
            f"of the dead-letter table {letters.table} and the stream's own table {target} one is in the folder of "
            "the other, whose VACUUM would delete its files; put them side by side"
        )
    for what, one in (("key", decoder.key_format), ("value", decoder.value_format)):
        if one.on_error != "fail":
            raise ConfigurationError(
                f"on_error={one.on_error!r} of the {what} format keeps rejected records in the stream's own table, "
                f"but dead_letter sends them to {letters.table}; choose one"
            )
    return letters


def decode_dead_letters(
    dead_letters: DataFrame,
    *,
    key_format: Format | None = None,
    value_format: Format | None = None,
    columns: KafkaColumns | None = None,
) -> DataFrame:
    """Decodes rows of a dead-letter table again, for example with a corrected format.

    Args:
        dead_letters: Rows of a dead-letter table, with all of its record's columns.
        key_format: Format of keys. Default: RawFormat.
        value_format: Format of values. Default: RawFormat.
        columns: The record fields to keep as columns. Default: all but the value.

    Returns:
        A DataFrame like the input of the stream's transform. Its execution fails on a record that still can't be
        decoded, unless the format has `on_error="null"`.

    Raises:
        ConfigurationError: The rows lack a column of the record, or have it twice or with another type.
        KafkaFlipError: The formats' schemas can't be asked for.
    """
    decoder = Decoder.of(key_format, value_format, columns)
    _check_columns(dead_letters)
    records = dead_letters.select(*(dead_letters[column].alias(field) for column, field in RECORD_COLUMNS.items()))
    if decoder.registered:
        # Two are enough to know that there is not one.
        topics = {topic for (topic,) in records.select("topic").distinct().limit(2).collect()}
        decoder = decoder.bound(topics, may_lack=True)
    with contextlib.closing(decoder):
        learn_schemas(records, decoder)
    return decoder.finish(decoder.stage(records))


def _check_columns(dead_letters: DataFrame) -> None:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    expect("dead_letters", dead_letters, DataFrame, 'spark.read.table("lake.orders_rejected")')
    wanted = cast("StructType", StructType.fromDDL(DEAD_LETTER_SCHEMA))
    found = [(field.name.lower(), field.dataType.simpleString()) for field in dead_letters.schema.fields]
    for name in RECORD_COLUMNS:
        kinds, kind = [each for column, each in found if column == name], wanted[name].dataType.simpleString()
        if kinds == [kind]:
            continue
        wrong = f"{name} is {kinds[0]} and not {kind}" if len(kinds) == 1 else f"they have {len(kinds)} columns {name}"
        raise ConfigurationError(
            f"dead_letters: these are not rows of a dead-letter table with the whole record: {wrong}",
            f"Read them from the dead-letter table, and keep its columns {', '.join(RECORD_COLUMNS)} as they are",
        )
