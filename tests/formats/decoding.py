"""Records without Kafka, and what a format makes of them on Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.reader.kafka_reader import RECORD_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.formats.format import Format


def records(
    spark: SparkSession, values: Iterable[Any], *, keys: Sequence[Any] = (), headers: Any = None, at: Any = None
) -> DataFrame:
    """Records of one topic partition, t-3, as Kafka's reader gives them.

    Args:
        spark: The session.
        values: Bytes, texts, what is to be JSON, or None.
        keys: The same of the keys. Default: none has one.
        headers: Each record's, or None.
        at: The time of all.
    """
    rows = [
        (_bytes(keys[offset] if keys else None), _bytes(value), "t", 3, offset, at, 0, headers and headers[offset])
        for offset, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, RECORD_SCHEMA)


def _bytes(value: Any) -> bytearray | None:
    if value is None:
        return None
    text = value if isinstance(value, str | bytes | bytearray) else json.dumps(value)
    return bytearray(text.encode() if isinstance(text, str) else text)


def problems(frame: DataFrame, form: Format | None = None, key_format: Format | None = None) -> list[Any]:
    """Why each record is rejected; None of those that are not."""
    decoder = Decoder.of(key_format, form, KafkaColumns())
    staged = decoder.stage(frame).orderBy("offset")
    return [row[0] for row in staged.select(decoder.problem()).collect()]


def landed(
    spark: SparkSession, form: Any, values: Iterable[Any], headers: Any = None
) -> list[tuple[dict[str, Any], Any]]:
    """The decoded columns and the error of each value."""
    decoder = Decoder.of(None, form.model_copy(update={"on_error": "null"}), KafkaColumns(fields=("offset",)))
    rows = decoder.finish(decoder.stage(records(spark, values, headers=headers))).orderBy("kafka_offset").collect()
    names = form.column_names or ["kafka_value"]
    return [({name: plain(row[name]) for name in names}, row["kafka_error"]) for row in rows]


def plain(value: Any) -> Any:
    """A value of a row without Spark's classes."""
    if hasattr(value, "asDict"):
        return {name: plain(each) for name, each in value.asDict().items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return bytes(value) if isinstance(value, bytearray) else value
