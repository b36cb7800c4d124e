"""Asks the registry for the schemas that records name and that the run has not met before."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from dagster_kafka_flip.errors import RecordsRejectedError, error_text
from dagster_kafka_flip.formats.frames import schema_id
from dagster_kafka_flip.formats.schema_book import UNKNOWN_SCHEMA
from dagster_kafka_flip.settings.names import first_few

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from dagster_kafka_flip.formats.decode import Decoder

_T = TypeVar("_T")
_logger = logging.getLogger(__name__)

# More schemas than that have no single batch of records. It is noise that begins with a zero.
_MOST_SCHEMAS = 1000
# Maximum number of schemas in a log line.
_NAMED = 10


def knowing_schemas(
    run: Callable[[], _T],
    records: Callable[[], DataFrame],
    decoder: Decoder,
    log: logging.Logger | logging.LoggerAdapter[Any] = _logger,
) -> _T:
    """Returns a function's result. It is called again each time that records named schemas that were not asked for.

    Only the driver asks the registry, so it finds out about a schema id when the records are read. That stops the read:
    nothing of it is written.

    Args:
        run: Decodes the records with the decoder.
        records: The batch's records as read.
        decoder: The decoder; it learns the schemas.
        log: The log. Default: that of this module.

    Raises:
        RecordsRejectedError: The records name more than 1,000 schemas that are not known.
        SchemaRegistryError: The registry does not answer, refuses, or lacks a schema.
    """
    while True:
        try:
            return run()
        except Exception as error:  # noqa: PERF203 - each round reads a batch
            if not learns_from(error, records, decoder, log):
                raise


def learns_from(
    error: BaseException,
    records: Callable[[], DataFrame],
    decoder: Decoder,
    log: logging.Logger | logging.LoggerAdapter[Any] = _logger,
) -> bool:
    """Whether a read ended because records named schemas that were not asked for, and the decoder has them now."""
    if not has_mark(error, UNKNOWN_SCHEMA):
        return False
    learned = learn_schemas(records(), decoder)
    for side, frames in learned.items():
        if lacking := [digits for digits in frames if decoder.with_writers[side].book.known[digits] is None]:
            log.warning(
                "the registry does not have the schemas %s; the records whose %ss name them are rejected",
                first_few(map(schema_id, lacking), _NAMED),
                side,
            )
        log.info(
            "reading the batch again, because its %ss have schemas that were not yet requested: %s",
            side,
            first_few(map(schema_id, frames), _NAMED),
        )
    return bool(learned)


def has_mark(error: BaseException | None, mark: str) -> bool:
    """Whether an error, or one that caused it, has a mark in its message."""
    while error is not None:
        if mark in error_text(error):
            return True
        error = error.__cause__
    return False


def learn_schemas(records: DataFrame, decoder: Decoder) -> dict[str, list[str]]:
    """Asks the registry for all schemas that records name; returns the frames of the new ones, by `key` and `value`.

    A registry that has a new schema may have a newer one of the subject, too, which a record was written with: without
    it as the reader schema, that record would lose its new fields.
    """
    from pyspark.sql import functions as f

    new: dict[str, list[str]] = {}
    for side, form in decoder.with_writers.items():
        frame = form.frame(form.framed(f.col(side), f.col("headers")))
        unknown = frame.isNotNull() & ~frame.isin(["", *form.book.known])
        place = f.min(f.struct("topic", "partition", "offset"))
        found = records.where(unknown).groupBy(frame).agg(place).limit(_MOST_SCHEMAS + 1).collect()
        if len(found) > _MOST_SCHEMAS:
            raise RecordsRejectedError(
                f"the {side}s of the batch refer to more than {_MOST_SCHEMAS} schemas",
                "They were probably not written by a schema registry's serializer: choose another format",
            )
        places = {
            digits: f"the {side} of {topic}-{number} offset {offset}" for digits, (topic, number, offset) in found
        }
        if learned := form.book.learn(places):
            new[side] = learned
    if new:
        decoder.renew()
    return new
