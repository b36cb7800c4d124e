"""Identifies rejected records: reads a batch's splits again after a write failed on one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import (
    RecordsRejectedError,
    TableTruncatedError,
    TooManyDeadLettersError,
    WriteFailedError,
    error_text,
)
from dagster_kafka_flip.formats.decode import REJECTED, TRUNCATED
from dagster_kafka_flip.formats.learning import has_mark, knowing_schemas
from dagster_kafka_flip.settings.names import counted

if TYPE_CHECKING:
    import logging

    from pyspark.sql import DataFrame

    from dagster_kafka_flip.formats.decode import Decoder

_NAMED = 5
_TRUNCATED = re.compile(re.escape(TRUNCATED) + r" ([^\n]*?) \[end\]")


def is_rejection(error: BaseException | None) -> bool:
    """Whether a write failed because of a rejected record."""
    return has_mark(error, REJECTED)


def truncation(error: BaseException, table: str) -> TableTruncatedError | None:
    """Returns the error about a change that deletes all rows, if a write failed because of one."""
    found = _TRUNCATED.search(error_text(error))
    if found is None:
        return None
    return TableTruncatedError(
        f"the record {found[1]} says that the database's table was truncated, and {table} can't follow that: its rows "
        "have keys (Upsert)",
        "Read the topic into a new table, starting after this record; or, to keep the rows, set on_truncate='skip' in "
        "the format",
    )


def rejected_records(
    records: DataFrame, decoder: Decoder, *, dead_letters: bool = True, nulls: bool = True
) -> RecordsRejectedError | WriteFailedError:
    """The error about a batch's rejected records, with their number and the position of the first ones.

    Omits their content, because more people read logs than tables. Advises `dead_letter=` and `on_error='null'` where
    the run's table takes them.
    """
    number, named = knowing_schemas(lambda: _first_rejected(records, decoder), lambda: records, decoder)
    if not number:
        return WriteFailedError(
            "a record was rejected while the batch was written, but reading the batch again finds no rejected record",
            "Retention or compaction may have deleted it meanwhile. Run again",
        )
    ways: list[str] = []
    if dead_letters:
        ways.append("send such records to a separate table with dead_letter=")
    if nulls:
        ways.append(f"keep {'them' if ways else 'such records'} with their bytes and the error with on_error='null'")
    return RecordsRejectedError(
        f"{counted(number, 'record')} can't be decoded: {named}",
        f"Correct the format or its schema; or {', or '.join(ways)}",
    )


ALWAYS_SMALL = 10
"""So many records are not too large a share of any batch."""


def check_rejected(
    records: DataFrame,
    decoder: Decoder,
    log: logging.Logger | logging.LoggerAdapter[Any],
    *,
    max_records: int | None,
    max_share: float | None,
) -> None:
    """Checks a batch's rejected records against the limits (None: no limit), by decoding all of them."""
    from pyspark.sql import functions as f

    counted = knowing_schemas(
        lambda: decoder.stage(records).agg(f.count(f.lit(1)), f.count(decoder.problem())).first(),
        lambda: records,
        decoder,
        log,
    )
    read, number = (0, 0) if counted is None else counted
    limits: list[str] = []
    if max_records is not None and number > max_records:
        limits.append(f"max_records={max_records}")
    if max_share is not None and number > max(ALWAYS_SMALL, max_share * read):
        limits.append(f"max_share={max_share}")
    if limits:
        _, named = _first_rejected(records, decoder)
        raise TooManyDeadLettersError(
            f"{number} of the batch's {read} records can't be decoded, which exceeds {' and '.join(limits)}: {named}",
            "Correct the format or its schema, or raise the limit",
        )


def _first_rejected(records: DataFrame, decoder: Decoder) -> tuple[int, str]:
    """Number of rejected records, and the position of the first ones."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    counted = Observation()
    rejected = (
        decoder.stage(records)
        .withColumn("problem", decoder.problem())
        # Observed before the filter: Spark moves no filter past an observation, so each record is parsed once.
        .observe(counted, f.count("problem").alias("rejected"))
        .where("problem IS NOT NULL")
        .orderBy("topic", "partition", "offset")
        .limit(_NAMED)
        .select("topic", "partition", "offset", "problem")
    )
    first = rejected.collect()
    if not first:
        return 0, ""
    number = int(counted.get["rejected"])
    named = "; ".join(f"{row['topic']}-{row['partition']} offset {row['offset']}: {row['problem']}" for row in first)
    return number, named + (f"; and {number - len(first)} more" if number > len(first) else "")
