"""rewrite_windows(): replaces the table's rows of time windows with the topic's records.

It is idempotent: the same windows give the same rows, and no other rows change. So it needs no position, and no fence
besides Delta's own conflict detection.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError, KafkaFlipError
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.ingestion.dead_letters import DeadLetters, dead_letters_of
from dagster_kafka_flip.ingestion.ingest import check_run_options
from dagster_kafka_flip.ingestion.keyed_stream import check_without_windows
from dagster_kafka_flip.ingestion.run_spec import RunSpec
from dagster_kafka_flip.ingestion.tolerance import tolerated_errors
from dagster_kafka_flip.ingestion.window_batch import WindowRun
from dagster_kafka_flip.settings.arguments import check_options, expect
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.window import Window, Windows, contiguous_groups
from dagster_kafka_flip.table.layout import NULL_AS_PARTITION
from dagster_kafka_flip.table.target import DeltaTarget

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.formats.format import Format
    from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
    from dagster_kafka_flip.ingestion.result import WindowsResult
    from dagster_kafka_flip.source.connection import KafkaConnection

_logger = logging.getLogger(__name__)


@check_options(inside={"table": DeltaTarget, "limits": Limits})
def rewrite_windows(
    source: KafkaSource | str | Sequence[str],
    table: DeltaTarget | str,
    windows: Iterable[Window],
    *,
    spark: Callable[[], SparkSession],
    rules: Windows | None = None,
    definition: str = "",
    connection: KafkaConnection | None = None,
    key_format: Format | None = None,
    value_format: Format | None = None,
    columns: KafkaColumns | None = None,
    transform: Callable[[DataFrame], DataFrame] | None = None,
    topics: Sequence[str] | None = None,
    limits: Limits | None = None,
    dead_letter: DeadLetters | str | None = None,
    tolerate: Iterable[type[KafkaFlipError]] = (),
    run_id: str = "",
    logger: logging.Logger | logging.LoggerAdapter[Any] | None = None,
) -> Iterator[WindowsResult]:
    """Writes time windows: replaces exactly their rows. Repeated calls give the same rows.

    Args:
        source: The source; its start and stop are not used.
        table: The table; a string is a DeltaTarget with defaults.
        windows: The windows; consecutive ones share a commit.
        spark: Returns a Spark session; called after the topics were found.
        rules: Which records a window has. Default: by the record's timestamp, up to one hour late.
        definition: What defines the windows, such as a cron schedule and a time zone. The table rejects others.
        connection: Kafka connection, unless the source has one.
        key_format: Format of keys. Default: RawFormat.
        value_format: Format of values. Default: RawFormat.
        columns: The record fields to keep as columns. Default: all but the value.
        transform: Function from a batch's records to the rows to write. Must keep the window column.
        topics: The source's topics whose rows are replaced. Default: all.
        limits: Limits of a commit; a window is never split. Default: everything.
        dead_letter: With `Windows(repair=True)`: table for the stream's rejected records. Default: the table in the
            stream's last commit.
        tolerate: Errors that don't fail the run. Default: none.
        run_id: Run id for the commits. Default: none.
        logger: Logger. Default: this module's.

    Returns:
        An iterator with one result per commit. If you stop iterating, no more windows are written.

    Raises:
        ConfigurationError: An option is invalid. Raised by the call, not by the first iteration.
        KafkaFlipError: The run failed; earlier commits stay.
    """
    rules = rules or Windows()
    check_run_options(rules=rules, connection=connection, limits=limits, spark=spark, transform=transform)
    expect("windows", windows, Iterable, '[Window.between("2026-01-31T00:00:00Z", "2026-02-01T00:00:00Z")]')
    windows = list(windows)
    for window in windows:
        expect("windows", window, Window, 'Window.between("2026-01-31T00:00:00Z", "2026-02-01T00:00:00Z")')
    target = DeltaTarget.of(table)
    decoder = Decoder.of(key_format, value_format, columns)
    spec = RunSpec(
        source=KafkaSource.of(source).connected(connection),
        target=target,
        spark=spark,
        decoder=decoder,
        transform=transform,
        dead_letters=dead_letters_of(dead_letter, target, decoder),
        limits=limits or Limits(),
        tolerated=tolerated_errors(tolerate),
        run_id=run_id,
        log=logger or _logger,
    )
    return run_windows(spec, windows, rules, definition=definition, topics=topics)


def run_windows(
    spec: RunSpec,
    windows: Iterable[Window],
    rules: Windows,
    *,
    definition: str = "",
    topics: Sequence[str] | None = None,
    commits: int = 0,
) -> Iterator[WindowsResult]:
    """Writes time windows for an existing run spec, after some commits of the same run; see `rewrite_windows`."""
    if spec.dead_letters is not None and not rules.repair:
        msg = "dead_letter is for streams and repairs of their tables, not for tables written in windows"
        raise ConfigurationError(msg)
    check_without_windows(spec.target)
    _check_columns(spec.decoder.columns, rules, with_topics=topics is not None)
    if topics is not None:
        spec = replace(spec, source=spec.source.only(topics))
    groups = contiguous_groups(windows)
    _check_can_be_found(groups)
    return WindowRun(spec, rules, definition, None if topics is None else tuple(topics), commits).results(groups)


def _check_can_be_found(groups: Iterable[tuple[Window, ...]]) -> None:
    """Checks that a run finds the rows of each window by its key, also where the table is partitioned by it."""
    for window in itertools.chain.from_iterable(groups):
        if window.key in NULL_AS_PARTITION:
            raise ConfigurationError(
                f"the window [{window.start}, {window.stop}) has the key {window.key!r}, which Delta stores as null in "
                "a partition column: a later run would not find its rows, and land them twice",
                "Give it another key",
            )
        # Delta makes SQL of the condition again, in which no escape is left.
        if "${" in window.key:
            raise ConfigurationError(
                f"the window [{window.start}, {window.stop}) has the key {window.key!r}, in which Spark would take ${{ "
                "for the start of a variable, also in the condition of the rows to replace",
                "Give it another key, such as by another format of the partitions (fmt)",
            )


def _check_columns(columns: KafkaColumns, rules: Windows, *, with_topics: bool) -> None:
    needed = {"topic", "partition", "offset"} if rules.repair else {"topic"} if with_topics else set[str]()
    missing = sorted(needed - set(columns.fields))
    if missing:
        what = "a repair needs them to find a record's rows" if rules.repair else "it is needed to find a topic's rows"
        raise ConfigurationError(f"KafkaColumns excludes {', '.join(missing)}; {what}, so keep it")
