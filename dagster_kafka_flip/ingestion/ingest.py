"""ingest(): one bounded run of one stream, from its position to the stop. Independent of Dagster."""

from __future__ import annotations

import logging
from datetime import timedelta
from types import FunctionType
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.ingestion.dead_letters import dead_letters_of
from dagster_kafka_flip.ingestion.keyed_stream import check_keyed
from dagster_kafka_flip.ingestion.run_spec import RunSpec
from dagster_kafka_flip.ingestion.stream_run import run_stream
from dagster_kafka_flip.ingestion.tolerance import tolerated_errors
from dagster_kafka_flip.settings.arguments import check_options, expect
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.window import Windows
from dagster_kafka_flip.table.known_position import KnownPosition
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.errors import KafkaFlipError
    from dagster_kafka_flip.formats.format import Format
    from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
    from dagster_kafka_flip.ingestion.dead_letters import DeadLetters
    from dagster_kafka_flip.ingestion.result import IngestResult

_KINDS: dict[str, tuple[type, str]] = {
    "connection": (KafkaConnection, 'KafkaConnection(bootstrap_servers="host:9092")'),
    "known": (KnownPosition, "the `known` of an earlier run's result"),
    "limits": (Limits, "Limits(max_records_per_batch=1_000_000)"),
    "rules": (Windows, "Windows(max_lateness=timedelta(hours=1))"),
    "spark": (FunctionType, "lambda: session"),
    "starting_offsets": (OffsetsInitializer, "OffsetsInitializer.earliest()"),
    "transform": (FunctionType, "a function of a DataFrame"),
    "verify_after": (timedelta, "timedelta(hours=1)"),
}


def check_run_options(**options: Any) -> None:
    for option, value in options.items():
        kind, example = _KINDS[option]
        is_unset = value is None and option not in {"spark", "verify_after"}
        if not is_unset and not (kind is FunctionType and callable(value)):
            expect(option, value, kind, example)


_logger = logging.getLogger(__name__)

DEFAULT_VERIFY_AFTER = timedelta(hours=24)


@check_options(inside={"table": DeltaTarget, "limits": Limits})
def ingest(
    source: KafkaSource | str | Sequence[str],
    table: DeltaTarget | str,
    *,
    spark: Callable[[], SparkSession],
    connection: KafkaConnection | None = None,
    key_format: Format | None = None,
    value_format: Format | None = None,
    columns: KafkaColumns | None = None,
    transform: Callable[[DataFrame], DataFrame] | None = None,
    dead_letter: DeadLetters | str | None = None,
    limits: Limits | None = None,
    starting_offsets: OffsetsInitializer | None = None,
    known: KnownPosition | None = None,
    verify_after: timedelta = DEFAULT_VERIFY_AFTER,
    tolerate: Iterable[type[KafkaFlipError]] = (),
    run_id: str = "",
    reported: int | None = None,
    logger: logging.Logger | logging.LoggerAdapter[Any] | None = None,
) -> IngestResult:
    """Ingests a source from the stream's position to the source's stop into a Delta table, exactly once.

    Args:
        source: What to read: topics, from the earliest offset, or a KafkaSource.
        table: The table; a string is a DeltaTarget with defaults.
        spark: Returns a Spark session; only called if there is something to do.
        connection: Kafka connection, unless the source has one.
        key_format: Format of keys. Default: RawFormat.
        value_format: Format of values. Default: RawFormat.
        columns: The record fields to keep as columns. Default: all but the value.
        transform: Function from a batch's records to the rows to write.
        dead_letter: Table for records that can't be decoded. Default: the format's `on_error` decides.
        limits: Limits of batches and runs. Default: everything new in one commit.
        starting_offsets: Start that overrides the position: records in between are read again or skipped.
        known: `known` of the last run's result: with it an idle run starts no Spark, and a position that the table's
            history no longer has is not lost.
        verify_after: How long to trust it. Default: 24 hours.
        tolerate: Errors that don't fail the run, but are in the result's `incidents`. Default: none.
        run_id: Run id for the commits. Default: none.
        reported: The table's version up to which commits were reported, -1 for none: `unreported` of the result has
            later ones of earlier runs. Default: not checked.
        logger: Logger. Default: this module's.

    Returns:
        The run's result.

    Raises:
        KafkaFlipError: The run failed; see the classes in `dagster_kafka_flip.errors`.
    """
    check_run_options(
        verify_after=verify_after,
        connection=connection,
        limits=limits,
        spark=spark,
        transform=transform,
        starting_offsets=starting_offsets,
        known=known,
    )
    target = DeltaTarget.of(table)
    decoder = Decoder.of(key_format, value_format, columns)
    tolerated = tolerated_errors(tolerate)
    check_keyed(target, decoder, tolerated, has_transform=transform is not None)
    source = KafkaSource.of(source).connected(connection)
    spec = RunSpec(
        source=source,
        target=target,
        spark=spark,
        decoder=decoder,
        transform=transform,
        dead_letters=dead_letters_of(dead_letter, target, decoder),
        limits=limits or Limits(),
        tolerated=tolerated,
        run_id=run_id,
        log=logger or _logger,
    )
    return run_stream(
        spec, known=known, starting_offsets=starting_offsets, reported=reported, verify_after=verify_after
    )
