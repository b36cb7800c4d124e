"""Checks of what stands in a table: whether a stream's commits join, and whether a record is there twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster import (
    AssetCheckKey,
    AssetCheckResult,
    AssetCheckSeverity,
    MetadataValue,
    TableRecord,
)
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus

from dagster_kafka_flip.assets.position_record import read_record
from dagster_kafka_flip.table.commit_chain import continuity
from dagster_kafka_flip.table.delta_table import MOST_COMMITS, DeltaTable
from dagster_kafka_flip.table.duplicates import RecordColumns, find_duplicates, offset_ranges, remade_topics
from dagster_kafka_flip.table.history_pages import TableNotThereError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from dagster import AssetKey, DagsterInstance
    from pyspark.sql import SparkSession

    from dagster_kafka_flip.assets.asset_ingestion import Ingestion
    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.commit_chain import Break, Continuity
    from dagster_kafka_flip.table.history import Commit

NO_GAP = "no_gap"
NO_DUPLICATE = "no_duplicate"

# History is read in pages from its newest end, and these many commits take about a second.

_SHOWN_BREAKS = 20

_VERSION = "delta/version"
_LOOKED_AT = "looked_at"
# Whether the table was only seen to be at the version that passed before.
_UNCHANGED = "unchanged"

_AGAIN = " The table has not changed since; Spark was not started."

_FINISHED = {AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED}


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

    def results(
        self, names: Collection[str], spark: Callable[[], SparkSession], instance: DagsterInstance
    ) -> Iterator[AssetCheckResult]:
        """Looks, and tells what was found.

        Where each check has passed at the table's newest version, as far as that can be told without Spark, Spark is
        not started: nothing has changed that they look at.

        Args:
            names: The checks that are asked for.
            spark: Gives a session to read the table and its history with.
            instance: Tells what was found before, and whether there ought to be a table.

        Raises:
            KafkaFlipError: The table can't be looked at.
        """
        version = self._version_without_spark(instance)
        passed = [] if version is None else [self._passed_at(version, name, instance) for name in names]
        if passed and all(passed):
            yield from (found for found in passed if found is not None)
            return
        yield from self._looked(names, spark(), instance)

    def _version_without_spark(self, instance: DagsterInstance) -> int | None:
        """The table's newest version, if its log can be seen from here and is the one that the last run saw."""
        known = read_record(instance, self.key).known
        found = known.seen_in_log() if known is not None and known.is_of(self.ingestion.target) else None
        return None if found is None else found[0]

    def _passed_at(self, version: int, name: str, instance: DagsterInstance) -> AssetCheckResult | None:
        """What a check found when it looked at this version in the same way; None unless it passed."""
        key = AssetCheckKey(self.key, name)
        finished = instance.event_log_storage.get_asset_check_execution_history(key, limit=1, status=_FINISHED)
        before = finished[0].evaluation if finished else None
        if before is None or not before.passed:
            return None
        told = {each: value.value for each, value in before.metadata.items()}
        if (told.get(_VERSION), told.get(_LOOKED_AT)) != (version, self._looks_at(name)):
            return None
        return AssetCheckResult(
            check_name=name,
            asset_key=self.key,
            passed=True,
            severity=before.severity,
            description=f"{(before.description or '').removesuffix(_AGAIN)}{_AGAIN}",
            metadata={**before.metadata, _UNCHANGED: True},
        )

    def _looks_at(self, name: str) -> str:
        """What a check looks at: a verdict counts only for the same."""
        target = self.ingestion.target
        if name == NO_GAP:
            return f"{target.identity}, stream {target.stream}"
        last = "last commit" if self.duplicate_commits == 1 else f"last {self.duplicate_commits} commits"
        what = "all rows" if self.duplicate_commits is None else f"the {last}"
        return f"{target.identity}, stream {target.stream}: {what} by {', '.join(self._record_columns)}"

    @property
    def _record_columns(self) -> RecordColumns:
        columns = self.ingestion.decoder.columns
        return RecordColumns(*(columns.name(field) for field in ("topic", "partition", "offset")))

    def _looked(
        self, names: Collection[str], spark: SparkSession, instance: DagsterInstance
    ) -> Iterator[AssetCheckResult]:
        target = self.ingestion.target
        table = DeltaTable(spark, target)
        try:
            commits = list(table.newest_commits())
        except TableNotThereError:
            table.check_place_is_free()
            for name in names:
                yield self._no_table(name, instance)
            return
        if NO_GAP in names:
            found = self._no_gap(continuity(commits, target.stream, table.restored_versions))
            yield self._at(commits, NO_GAP, found)
        if NO_DUPLICATE in names:
            yield self._at(commits, NO_DUPLICATE, self._no_duplicate(spark, commits))

    def _at(self, commits: Sequence[Commit], name: str, found: AssetCheckResult) -> AssetCheckResult:
        """A verdict with the version that it is of."""
        if not commits:
            return found
        return found._replace(
            metadata={**found.metadata, _VERSION: commits[0].version, _LOOKED_AT: self._looks_at(name)}
        )

    def _no_table(self, name: str, instance: DagsterInstance) -> AssetCheckResult:
        target = self.ingestion.target
        landed = instance.fetch_materializations(self.key, limit=1).records
        # A window that has no records makes no table; a stream's first run makes it in any case.
        if landed and self.ingestion.partitions is None:
            return self._untold(
                name,
                f"There is no table {target}, although Dagster has a materialization of it (run {landed[0].run_id}). "
                "Nothing was checked: the table was removed, or this Spark session looks elsewhere",
                AssetCheckSeverity.ERROR,
            )
        return self._untold(name, f"There is no table {target} yet, so nothing was checked. Materialize the asset")

    def _no_gap(self, found: Continuity) -> AssetCheckResult:
        wrong = found.unexplained
        skipped = sum(each.skipped for each in wrong)
        repeated = sum(each.repeated for each in wrong)
        span = f"versions {found.from_version} to {found.to_version}"
        number = "1 commit" if found.commits == 1 else f"{found.commits} commits"
        commits = f"{number} of the stream {self.ingestion.target.stream!r} in {span}"
        # The stream's first commit of all has nothing before it that it could join.
        if not found.breaks and not found.compared and (found.from_version or not found.commits):
            return self._untold(
                NO_GAP,
                f"Nothing was compared: {span} of the table's history have {found.commits} commits of the stream "
                f"{self.ingestion.target.stream!r}. The check reads the newest {MOST_COMMITS:,} commits, as far as "
                "history goes back (delta.logRetentionDuration); run it more often than others change the table",
            )
        if wrong:
            description = (
                f"Of {commits}, {len(wrong)} places don't join, and nothing says why; {skipped} offsets are skipped, "
                f"{repeated} repeated. {_listed(wrong)}. What was skipped can be landed by mode: replace, where the "
                "topic still holds it"
            )
        else:
            description = (
                f"The only commit of the stream {self.ingestion.target.stream!r} is in {span}: nothing to compare yet"
                if found.commits == 1
                else f"The {commits} join: each begins where the one before it ended"
            )
        if found.explained:
            description += f". With a reason in the commit: {_listed(found.explained)}"
        metadata: dict[str, Any] = {
            "commits": found.commits,
            "compared": found.compared,
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
        columns = self._record_columns
        table = spark.table(target.identifier)
        there = {name.lower() for name in table.columns}
        missing = [name for name in columns if name.lower() not in there]
        if missing:
            return self._untold(
                NO_DUPLICATE,
                f"The table has no column {', '.join(missing)}, which the asset's function leaves out or renames, so "
                "that nothing tells which record a row is of. Keep it, or say duplicates=False",
            )
        reads = [read for commit in commits if (read := _read(commit, target.stream)) is not None]
        remade = remade_topics(state for _, state in reads)
        batches = [splits for splits, _ in reads if splits][: self.duplicate_commits]
        if not batches and self.duplicate_commits is not None and commits[-1].version:
            return self._untold(
                NO_DUPLICATE,
                f"Nothing was compared: none of the {len(commits)} newest commits (versions {commits[-1].version} to "
                f"{commits[0].version}) landed a batch of the asset. duplicate_commits=None compares the whole table",
            )
        ranges = None
        where = "in the whole table"
        if self.duplicate_commits is not None:
            ranges = offset_ranges(split for splits in batches for split in splits)
            where = (
                "with offsets of the last commit"
                if len(batches) == 1
                else f"with offsets of the last {len(batches)} commits"
            )
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
        elif found.rows:
            description = f"{found.rows} rows {where} are each of another record"
        elif batches or ranges is None:
            description = f"There are no rows {where}, so there was nothing to compare"
        else:
            description = "The table's history goes back to its beginning, and no batch was landed yet"
        return AssetCheckResult(
            check_name=NO_DUPLICATE,
            asset_key=self.key,
            passed=not found.records and not remade,
            severity=AssetCheckSeverity.ERROR if found.records else AssetCheckSeverity.WARN,
            description=f"{description}. {left_out}." if remade else f"{description}.",
            metadata=metadata,
        )

    def _untold(self, name: str, why: str, severity: AssetCheckSeverity = AssetCheckSeverity.WARN) -> AssetCheckResult:
        """What a check says that could not look at anything: it does not pass."""
        return AssetCheckResult(
            check_name=name,
            asset_key=self.key,
            passed=False,
            severity=severity,
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
