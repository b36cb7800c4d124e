"""Which records were rejected: one read of the batch's splits, made only after a write failed on one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import RecordsRejectedError, TooManyDeadLettersError
from dagster_kafka_flip.formats.decode import REJECTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from dagster_kafka_flip.formats.decode import Decoder

_NAMED = 5


def is_rejection(error: BaseException | None) -> bool:
    """Whether a write failed because a record was rejected."""
    while error is not None:
        if REJECTED in str(error):
            return True
        error = error.__cause__
    return False


def rejected_records(records: DataFrame, decoder: Decoder) -> RecordsRejectedError:
    """An error that counts the rejected records and names the first of them by topic partition and offset.

    The records' content is left out of the message: logs are read by more people than tables are.

    Args:
        records: The batch's records as they were read.
        decoder: What rejected them.
    """
    number, named = _first_rejected(records, decoder)
    if not number:
        return RecordsRejectedError(
            "a record was rejected while the batch was written, but reading it once more finds none; nothing was "
            "written. Was a record deleted by retention or compaction meanwhile? Run again"
        )
    records_word = "record" if number == 1 else "records"
    return RecordsRejectedError(
        f"{number} {records_word} can't be decoded, nothing was written: {named}. Correct the format or its "
        "schema; or land such records in a table of their own with dead_letter=, or keep them with their bytes and the "
        "reason with on_error='null'"
    )


def check_rejected(records: DataFrame, decoder: Decoder, *, max_records: int | None, max_share: float | None) -> None:
    """Makes sure that not too many of a batch's records are rejected, by decoding all of them.

    Args:
        records: The batch's records as they were read.
        decoder: What rejects them.
        max_records: How many may be; None for any number.
        max_share: Which part of all; None for any.

    Raises:
        TooManyDeadLettersError: More are.
    """
    from pyspark.sql import functions as f

    counted = decoder.stage(records).agg(f.count(f.lit(1)), f.count(decoder.problem())).first()
    read, number = (0, 0) if counted is None else counted
    limits: list[str] = []
    if max_records is not None and number > max_records:
        limits.append(f"max_records={max_records}")
    if max_share is not None and number > max_share * read:
        limits.append(f"max_share={max_share}")
    if limits:
        _, named = _first_rejected(records, decoder)
        msg = (
            f"{number} of the batch's {read} records can't be decoded, more than {' and '.join(limits)} allows; "
            f"nothing of the batch was written: {named}. Correct the format or its schema, or raise the limit"
        )
        raise TooManyDeadLettersError(msg)


def _first_rejected(records: DataFrame, decoder: Decoder) -> tuple[int, str]:
    """How many are rejected, and the first of them by name."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    counted = Observation()
    rejected = (
        decoder.stage(records)
        .withColumn("problem", decoder.problem())
        # Observed before it is filtered: Spark moves no filter past an observation, and so parses each record once.
        .observe(counted, f.count("problem").alias("rejected"))
        .where("problem IS NOT NULL")
        .orderBy("topic", "partition", "offset")
        .limit(_NAMED)
        .select("topic", "partition", "offset", *decoder.EXPLAINS)
    )
    first = rejected.collect()
    if not first:
        return 0, ""
    # Of these few alone: Spark would explain all records, and take the first of them then.
    few = records.sparkSession.createDataFrame(first, rejected.schema)
    first = few.select("topic", "partition", "offset", decoder.explained().alias("problem")).collect()
    number = int(counted.get["rejected"])
    named = "; ".join(f"{row['topic']}-{row['partition']} offset {row['offset']}: {row['problem']}" for row in first)
    return number, named + (f"; and {number - len(first)} more" if number > len(first) else "")
