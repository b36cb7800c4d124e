"""Checks of what stands in a table: whether a stream's commits join, and whether a record is there twice."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster import AssetCheckResult, AssetCheckSeverity, MetadataValue, TableRecord

from dagster_kafka_flip.reader.columns import KafkaColumns
from dagster_kafka_flip.table.continuity import continuity
from dagster_kafka_flip.table.delta_table import DeltaTable, TableNotThereError
from dagster_kafka_flip.table.duplicates import RecordColumns, find_duplicates, offset_ranges, remade_topics

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from dagster import AssetKey
    from pyspark.sql import SparkSession

    from dagster_kafka_flip.asset_ingestion import Ingestion
    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.continuity import Break, Continuity
    from dagster_kafka_flip.table.history import Commit

NO_GAP = "no_gap"
NO_DUPLICATE = "no_duplicate"

# History is read in pages from its newest end, and these many commits take about a second.
_MOST_COMMITS = 1000

_SHOWN_BREAKS = 20


@dataclass(frozen=True)
class TableChecks:
    """What is looked at in a table.

    Attributes:
        ingestion: What lands in it.
        key: The asset.
        duplicate_commits: How many of the last commits' offsets are looked for twice; None for all rows.
    """

    ingestion: Ingestion
    key: AssetKey
    duplicate_commits: int | None

    def results(self, names: Collection[str], spark: SparkSession) -> Iterator[AssetCheckResult]:
        """Looks, and tells what was found.

        Args:
            names: The checks that are asked for.
            spark: To read the table and its history with.

        Raises:
            KafkaFlipError: The table can't be looked at.
        """
        target = self.ingestion.target
        table = DeltaTable(spark, target)
        try:
            commits = list(itertools.islice(table.commits(), _MOST_COMMITS))
        except TableNotThereError:
            table.check_place_is_free()
            for name in names:
                # A check that passes says that it has looked.
                yield AssetCheckResult(
                    check_name=name,
                    asset_key=self.key,
                    passed=False,
                    severity=AssetCheckSeverity.WARN,
                    description=f"There is no table {target} yet, so that nothing was looked at.",
                )
            return
        if NO_GAP in names:
            yield self._no_gap(continuity(commits, target.stream, table.restored_versions))
        if NO_DUPLICATE in names:
            yield self._no_duplicate(spark, commits)

    def _no_gap(self, found: Continuity) -> AssetCheckResult:
        wrong = found.unexplained
        skipped = sum(each.skipped for each in wrong)
        repeated = sum(each.repeated for each in wrong)
        span = f"versions {found.from_version} to {found.to_version}"
        commits = f"{found.commits} commits of the stream {self.ingestion.target.stream!r} in {span}"
        if wrong:
            description = (
                f"Of {commits}, {len(wrong)} places don't join, and nothing says why; {skipped} offsets are skipped, "
                f"{repeated} repeated. {_listed(wrong)}. What was skipped can be landed by mode: replace, where the "
                "topic still holds it"
            )
        else:
            description = f"The {commits} join: each begins where the one before it ended"
        if found.explained:
            description += f". With a reason in the commit: {_listed(found.explained)}"
        metadata: dict[str, Any] = {
            "commits": found.commits,
            "gaps": len(wrong),
            "skipped_offsets": skipped,
            "repeated_offsets": repeated,
            "explained": len(found.explained),
            "explained_skipped_offsets": sum(each.skipped for each in found.explained),
            "explained_repeated_offsets": sum(each.repeated for each in found.explained),
            "restores": found.restores,
            "changes_of_others": found.changes,
        }
        if found.from_version is not None and found.to_version is not None:
            metadata |= {"from_version": found.from_version, "to_version": found.to_version}
        if found.breaks:
            metadata["breaks"] = _breaks_table(found.breaks)
        return AssetCheckResult(
            check_name=NO_GAP,
            asset_key=self.key,
            passed=not wrong,
            severity=AssetCheckSeverity.ERROR,
            description=f"{description}.",
            metadata=metadata,
        )

    def _no_duplicate(self, spark: SparkSession, commits: Sequence[Commit]) -> AssetCheckResult:
        target = self.ingestion.target
        kafka_columns = self.ingestion.columns or KafkaColumns()
        columns = RecordColumns(*(kafka_columns.name(field) for field in ("topic", "partition", "offset")))
        table = spark.table(target.identifier)
        there = {name.lower() for name in table.columns}
        missing = [name for name in columns if name.lower() not in there]
        if missing:
            return self._untold(
                f"The table has no column {', '.join(missing)}, which the asset's function leaves out or renames, so "
                "that nothing tells which record a row is of. Keep it, or say duplicates=False"
            )
        reads = [read for commit in commits if (read := _read(commit, target.stream)) is not None]
        remade = remade_topics(state for _, state in reads)
        batches = [splits for splits, _ in reads if splits][: self.duplicate_commits]
        ranges = None
        where = "in the whole table"
        if self.duplicate_commits is not None:
            ranges = offset_ranges(split for splits in batches for split in splits)
            where = f"with offsets of the last {len(batches)} commits"
        found = find_duplicates(table, columns, ranges, remade)
        metadata: dict[str, Any] = {
            "rows_compared": found.rows,
            "duplicate_records": found.records,
            "surplus_rows": found.surplus,
            "topics_left_out": len(remade),
        }
        if ranges is not None:
            metadata["commits"] = len(batches)
        left_out = f"{', '.join(remade)}: made again, so that an offset stands for two records, and left out"
        if found.records:
            description = (
                f"{found.records} records are there more than once, {found.surplus} rows too many, such as "
                f"{found.example}; {found.rows} rows {where} were compared. If the asset's function makes several rows "
                "of a record, say duplicates=False. Delta's time travel shows since which version they are there"
            )
        else:
            description = f"{found.rows} rows {where} are each of another record"
        return AssetCheckResult(
            check_name=NO_DUPLICATE,
            asset_key=self.key,
            passed=not found.records and not remade,
            severity=AssetCheckSeverity.ERROR if found.records else AssetCheckSeverity.WARN,
            description=f"{description}. {left_out}." if remade else f"{description}.",
            metadata=metadata,
        )

    def _untold(self, why: str) -> AssetCheckResult:
        return AssetCheckResult(
            check_name=NO_DUPLICATE,
            asset_key=self.key,
            passed=False,
            severity=AssetCheckSeverity.WARN,
            description=f"{why}.",
        )


def _read(commit: Commit, stream: str) -> tuple[tuple[KafkaPartitionSplit, ...], EnumeratorState] | None:
    """What a commit of the stream, or of windows, has read, and of which logs."""
    document = commit.document()
    if document is not None:
        return (document.splits, document.state) if document.stream == stream else None
    windows = commit.windows()
    return None if windows is None else (windows.splits, windows.state)


def _listed(breaks: Sequence[Break]) -> str:
    shown = "; ".join(str(each) for each in breaks[-3:])
    return shown if len(breaks) <= len(breaks[-3:]) else f"{shown}; and {len(breaks) - 3} before"


def _breaks_table(breaks: Sequence[Break]) -> Any:
    records = [
        TableRecord(
            {
                "version": each.version,
                "skipped_offsets": each.skipped,
                "repeated_offsets": each.repeated,
                "what": each.what,
                "reason": each.reason or "",
            }
        )
        for each in breaks[-_SHOWN_BREAKS:]
    ]
    return MetadataValue.table(records)
