"""Checks of a table: gaps between a stream's commits, duplicate records, and keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster import AssetCheckKey, AssetCheckResult, AssetCheckSeverity, MetadataValue, TableRecord

from dagster_kafka_flip.assets.position_record import read_record
from dagster_kafka_flip.assets.run_checks import check_result
from dagster_kafka_flip.assets.step_events import FINISHED, UNCHANGED
from dagster_kafka_flip.checks.table_contents import (
    continuity,
    find_duplicates,
    look_at_history,
    look_at_keys,
    topics_with_several_logs,
)
from dagster_kafka_flip.settings.names import counted
from dagster_kafka_flip.source.instants import instant
from dagster_kafka_flip.table.changes import IS_CURRENT, VALIDITY
from dagster_kafka_flip.table.delta_log import TableNotThereError
from dagster_kafka_flip.table.delta_table import MOST_COMMITS, DeltaTable
from dagster_kafka_flip.table.local_log import commits_between
from dagster_kafka_flip.table.mode import Scd2
from dagster_kafka_flip.table.window_rows import RecordColumns

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from dagster import AssetKey, DagsterInstance
    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.assets.asset_ingestion import Ingestion
    from dagster_kafka_flip.checks.table_contents import Break, Continuity
    from dagster_kafka_flip.source.split import KafkaPartitionSplit
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.table.commit import Commit

NO_GAP = "no_gap"
NO_DUPLICATE = "no_duplicate"
NO_DUPLICATE_KEY = "no_duplicate_key"
KEYS_NOT_NULL = "keys_not_null"
NO_OVERLAP = "no_overlap"
_OF_KEYS = frozenset({NO_DUPLICATE_KEY, KEYS_NOT_NULL, NO_OVERLAP})

_SHOWN_BREAKS = 20

_VERSION = "delta/version"
_COMMITTED_AT = "delta/committed_at"
_SCOPE = "scope"

# Suffix for a result that is reused, because the table's version has not changed since it passed.
_AGAIN = " The table has not changed since; Spark was not started."


@dataclass(frozen=True)
class TableChecks:
    """The subject of the checks, and the number of latest commits to check for duplicates; None for all rows."""

    ingestion: Ingestion
    key: AssetKey
    duplicate_commits: int | None

    def results(
        self, names: Collection[str], spark: Callable[[], SparkSession], instance: DagsterInstance
    ) -> Iterator[AssetCheckResult]:
        """Runs the checks.

        If every check already passed at the table's newest version, and this is known without Spark, Spark is not
        started.
        """
        newest = self._newest_without_spark(instance)
        passed = [] if newest is None else [self._passed_at(newest, name, instance) for name in names]
        if passed and all(passed):
            yield from (found for found in passed if found is not None)
            return
        yield from self._looked(names, spark(), instance)

    def _newest_without_spark(self, instance: DagsterInstance) -> Commit | None:
        """The table's newest commit, if its log is accessible here and is the one of the last run."""
        known = read_record(instance, self.key).known
        if known is None or known.log is None or not known.is_of(self.ingestion.target):
            return None
        seen = known.seen_in_log()
        if seen is None:
            return None
        newest, _ = seen
        commits = commits_between(known.log, newest, newest)
        return commits[0] if commits else None

    def _passed_at(self, newest: Commit, name: str, instance: DagsterInstance) -> AssetCheckResult | None:
        """The check's earlier result for this commit and scope; None unless it passed."""
        key = AssetCheckKey(self.key, name)
        finished = instance.event_log_storage.get_asset_check_execution_history(key, limit=1, status=FINISHED)
        before = finished[0].evaluation if finished else None
        if before is None or not before.passed:
            return None
        recorded = {each: value.value for each, value in before.metadata.items()}
        now = {**_commit_metadata(newest), _SCOPE: self._scope(name)}
        if {each: recorded.get(each) for each in now} != now:
            return None
        return check_result(
            self.key,
            name,
            f"{(before.description or '').removesuffix(_AGAIN)}{_AGAIN}",
            passed=True,
            severity=before.severity,
            metadata={**before.metadata, UNCHANGED: True},
        )

    def _scope(self, name: str) -> str:
        """Scope of a check: a result can only be reused for the same scope."""
        target = self.ingestion.target
        if name == NO_GAP:
            return f"{target.identity}, stream {target.stream}"
        if name in _OF_KEYS:
            return f"{target.identity}: all rows by {', '.join(target.key)}"
        last = self.duplicate_commits
        what = "all rows" if last is None else "the last commit" if last == 1 else f"the last {counted(last, 'commit')}"
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
            table.port.check_place_is_free()
            for name in names:
                yield self._no_table(name, instance)
            return
        if NO_GAP in names:
            found = self._no_gap(continuity(commits, target.stream))
            yield self._at(commits, NO_GAP, found)
        if NO_DUPLICATE in names:
            yield self._at(commits, NO_DUPLICATE, self._no_duplicate(table, commits))
        for name, result in self._of_keys(table, _OF_KEYS.intersection(names)):
            yield self._at(commits, name, result)

    def _at(self, commits: Sequence[Commit], name: str, found: AssetCheckResult) -> AssetCheckResult:
        """Adds the newest commit to a result."""
        if not commits:
            return found
        at = {**_commit_metadata(commits[0]), _SCOPE: self._scope(name)}
        return found._replace(metadata={**found.metadata, **at})

    def _no_table(self, name: str, instance: DagsterInstance) -> AssetCheckResult:
        target = self.ingestion.target
        landed = instance.fetch_materializations(self.key, limit=1).records
        # A window without records creates no table; a stream's first run always creates it.
        if landed and self.ingestion.partitions is None:
            return self._inconclusive(
                name,
                f"The table {target} does not exist, but Dagster has a materialization of it (run "
                f"{landed[0].run_id}). Nothing was checked: the table was removed, or this Spark session uses another "
                "location",
                AssetCheckSeverity.ERROR,
            )
        return self._inconclusive(
            name, f"The table {target} does not exist yet, so nothing was checked. Materialize the asset"
        )

    def _no_gap(self, found: Continuity) -> AssetCheckResult:
        wrong = found.unexplained
        skipped = sum(each.skipped for each in wrong)
        repeated = sum(each.repeated for each in wrong)
        span = f"versions {found.from_version} to {found.to_version}"
        commits = f"{counted(found.commits, 'commit')} of the stream {self.ingestion.target.stream!r} in {span}"
        # The stream's very first commit has no predecessor.
        if not found.breaks and not found.compared and (found.from_version or not found.commits):
            return self._inconclusive(
                NO_GAP,
                f"Nothing was compared: {span} of the table have {counted(found.commits, 'commit')} of the stream "
                f"{self.ingestion.target.stream!r}. The check reads the newest {MOST_COMMITS:,} commits of the "
                "history (delta.logRetentionDuration); run it more often than others change the table",
            )
        if wrong:
            description = (
                f"Unexplained gaps or overlaps in {commits}: {len(wrong):,}, with {counted(skipped, 'offset')} skipped "
                f"and {repeated:,} repeated. {_listed(wrong)}. To write skipped records that the topic still holds, "
                f"{'move the position back, or rebuild it' if self.ingestion.target.key else 'use mode: replace'}"
            )
        else:
            description = (
                f"The stream {self.ingestion.target.stream!r} has only one commit in {span}: nothing to compare yet"
                if found.commits == 1
                else f"No gaps in {commits}: each begins where the previous one ended"
            )
        if found.explained:
            description += f". Explained by the commit: {_listed(found.explained)}"
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
            "other_changes": found.changes,
        }
        if found.from_version is not None and found.to_version is not None:
            metadata |= {"from_version": found.from_version, "to_version": found.to_version}
        if found.breaks:
            metadata["breaks"] = _breaks_table(found.breaks)
        return check_result(
            self.key, NO_GAP, f"{description}.", passed=not wrong, severity=AssetCheckSeverity.ERROR, metadata=metadata
        )

    def _no_duplicate(self, table: DeltaTable, commits: Sequence[Commit]) -> AssetCheckResult:
        target = self.ingestion.target
        columns = self._record_columns
        rows = table.rows()
        there = {name.lower() for name in rows.columns}
        missing = [name for name in columns if name.lower() not in there]
        if missing:
            return self._inconclusive(
                NO_DUPLICATE,
                f"The table has no column {', '.join(missing)}, because the asset's function drops or renames it, so "
                "rows can't be matched with records. Keep it, or set duplicates=False",
            )
        reads = [read for commit in commits if (read := _read(commit, target.stream)) is not None]
        remade = topics_with_several_logs(state for _, state in reads)
        batches = [batch for batch, _ in reads if batch][: self.duplicate_commits]
        if not batches and self.duplicate_commits is not None and commits[-1].version:
            return self._inconclusive(
                NO_DUPLICATE,
                f"Nothing was compared: no batch of the asset in {counted(len(commits), 'commit')} (versions "
                f"{commits[-1].version} to {commits[0].version}). duplicate_commits=None compares the whole table",
            )
        splits = None
        where = "in the whole table"
        if self.duplicate_commits is not None:
            splits = [split for batch in batches for split in batch]
            where = (
                "with offsets of the last commit"
                if len(batches) == 1
                else f"with offsets of the last {len(batches)} commits"
            )
        found = find_duplicates(rows, columns, splits, remade)
        metadata: dict[str, Any] = {
            "rows_compared": found.rows,
            "duplicate_records": found.records,
            "surplus_rows": found.surplus,
            "topics_left_out": len(remade),
        }
        if splits is not None:
            metadata["commits"] = len(batches)
        left_out = f"{', '.join(remade)}: recreated, so two records can have one offset; not compared"
        if found.records:
            description = (
                f"{counted(found.records, 'duplicated record')}, {counted(found.surplus, 'row')} too many, such as "
                f"{found.example}; compared {counted(found.rows, 'row')} {where}. If the asset's function returns "
                "several rows per record, set duplicates=False. Use Delta's time travel to find the version that "
                "added them"
            )
        elif found.rows:
            description = f"No duplicates in {counted(found.rows, 'row')} {where}"
        elif batches or splits is None:
            description = f"No rows {where}: nothing to compare"
        else:
            description = "The table's history is complete, and no batch was written yet"
        return check_result(
            self.key,
            NO_DUPLICATE,
            f"{description}. {left_out}." if remade else f"{description}.",
            passed=not found.records and not remade,
            severity=AssetCheckSeverity.ERROR if found.records else AssetCheckSeverity.WARN,
            metadata=metadata,
        )

    def _of_keys(self, table: DeltaTable, names: Collection[str]) -> Iterator[tuple[str, AssetCheckResult]]:
        """The results of the checks of keys, from one look at the table."""
        if not names:
            return
        target = self.ingestion.target
        looked_at = table.rows()
        there = {name.lower() for name in looked_at.columns}
        validity = VALIDITY if isinstance(target.mode, Scd2) else ()
        missing = [name for name in (*target.key, *self._record_columns, *validity) if name.lower() not in there]
        if missing:
            for name in sorted(names):
                yield name, self._inconclusive(name, f"The table has no column {', '.join(missing)}")
            return
        if NO_OVERLAP in names:
            yield NO_OVERLAP, self._no_overlap(looked_at)
        if isinstance(target.mode, Scd2):
            looked_at = looked_at.where(IS_CURRENT)
        seen = look_at_keys(looked_at, target.key, self._record_columns)
        columns = ", ".join(target.key)
        rows = f"in {counted(seen.rows, 'current row' if isinstance(target.mode, Scd2) else 'row')} by {columns}"
        doubled = (
            f"{counted(seen.duplicate_keys, 'key')} with several rows, {counted(seen.surplus, 'row')} too many {rows}, "
            f"such as those of {seen.example}. Runs never add a second row: look for another writer in the table's "
            "history, and RESTORE the table to the version before"
        )
        nulls = (
            f"{counted(seen.null_rows, 'row')} without a value in {columns}, {rows}. Runs never write such a row: look "
            "for another writer in the table's history"
        )
        for name, wrong, why, numbers in (
            (
                NO_DUPLICATE_KEY,
                seen.duplicate_keys,
                doubled,
                {"duplicate_keys": seen.duplicate_keys, "surplus_rows": seen.surplus},
            ),
            (KEYS_NOT_NULL, seen.null_rows, nulls, {"null_rows": seen.null_rows}),
        ):
            if name in names:
                what = "No key has several rows" if name == NO_DUPLICATE_KEY else "No key is null"
                description = f"{why if wrong else f'{what} {rows}'}."
                metadata = {"rows_compared": seen.rows, **numbers}
                yield (
                    name,
                    check_result(
                        self.key,
                        name,
                        description,
                        passed=not wrong,
                        severity=AssetCheckSeverity.ERROR,
                        metadata=metadata,
                    ),
                )

    def _no_overlap(self, table: DataFrame) -> AssetCheckResult:
        seen = look_at_history(table, self.ingestion.target.key, self._record_columns)
        rows = f"in {counted(seen.rows, 'row')} by {', '.join(self.ingestion.target.key)}"
        why = (
            f"{counted(seen.overlaps, 'row')} whose validity overlaps with that of the key's next row, or whose "
            f"valid_from, valid_to and is_current contradict each other, {rows}, such as that of {seen.example}. Runs "
            "never write such rows: look for another writer in the table's history, and RESTORE the table to the "
            "version before"
        )
        return check_result(
            self.key,
            NO_OVERLAP,
            f"{why if seen.overlaps else f'No row overlaps with another one of its key {rows}'}.",
            passed=not seen.overlaps,
            severity=AssetCheckSeverity.ERROR,
            metadata={"rows_compared": seen.rows, "overlaps": seen.overlaps},
        )

    def _inconclusive(
        self, name: str, why: str, severity: AssetCheckSeverity = AssetCheckSeverity.WARN
    ) -> AssetCheckResult:
        """Result of a check that could not run: it does not pass."""
        return check_result(self.key, name, f"{why}.", passed=False, severity=severity)


def _commit_metadata(commit: Commit) -> dict[str, Any]:
    """Identifies a commit: a table that was dropped and created again has the same versions again."""
    at = commit.timestamp_ms
    return {_VERSION: commit.version, _COMMITTED_AT: None if at is None else instant(at)}


def _read(commit: Commit, stream: str) -> tuple[tuple[KafkaPartitionSplit, ...], EnumeratorState] | None:
    """The ranges and logs that a commit of the stream, or of windows, has read."""
    document = commit.document()
    if document is not None:
        return (document.splits, document.state) if document.stream == stream else None
    windows = commit.windows()
    return None if windows is None else (windows.splits, windows.state)


def _listed(breaks: Sequence[Break]) -> str:
    shown = "; ".join(str(each) for each in breaks[-3:])
    return shown if len(breaks) <= len(breaks[-3:]) else f"{shown}; and {len(breaks) - 3} earlier"


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
