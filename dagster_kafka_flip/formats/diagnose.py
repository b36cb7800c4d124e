"""Which records were rejected: one read of the batch's splits, made only after a write failed on one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import RecordsRejectedError
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
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    counted = Observation()
    first = (
        decoder.stage(records)
        .select("topic", "partition", "offset", decoder.problem().alias("problem"))
        # Observed before it is filtered: Spark moves no filter past an observation, and so parses each record once.
        .observe(counted, f.count("problem").alias("rejected"))
        .where("problem IS NOT NULL")
        .orderBy("topic", "partition", "offset")
        .limit(_NAMED)
        .collect()
    )
    if not first:
        return RecordsRejectedError(
            "a record was rejected while the batch was written, but reading it once more finds none; nothing was "
            "written. Was a record deleted by retention or compaction meanwhile? Run again"
        )
    number = int(counted.get["rejected"])
    named = "; ".join(f"{row['topic']}-{row['partition']} offset {row['offset']}: {row['problem']}" for row in first)
    more = f"; and {number - len(first)} more" if number > len(first) else ""
    records_word = "record" if number == 1 else "records"
    return RecordsRejectedError(
        f"{number} {records_word} can't be decoded, nothing was written: {named}{more}. Correct the format or its "
        "schema, or set on_error='null' to keep such records with their bytes and the reason"
    )
