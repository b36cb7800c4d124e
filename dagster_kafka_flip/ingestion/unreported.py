"""Finds commits of earlier runs that were not reported, because the runs failed or were killed afterwards."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.ingestion.result import Unreported
from dagster_kafka_flip.source.totals import total
from dagster_kafka_flip.table.history import commits_that_count, documented

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable

    from dagster_kafka_flip.table.anchor import Anchor
    from dagster_kafka_flip.table.commit import Commit
    from dagster_kafka_flip.table.delta_table import DeltaTable
    from dagster_kafka_flip.table.history import RestoredVersions
    from dagster_kafka_flip.table.target import DeltaTarget


def find_unreported(
    table: DeltaTable,
    target: DeltaTarget,
    anchor: Anchor,
    reported: int,
    log: logging.Logger | logging.LoggerAdapter[Any],
) -> Unreported | None:
    """Returns the stream's commits after the last reported one; None if there are none."""
    # Versions start again at 0 if the table was recreated.
    reported = reported if reported <= anchor.table_version else -1
    if anchor.state is None or anchor.version <= reported:
        return None
    found = unreported_commits(table.newest_commits(), target.stream, reported, table.restored_versions)
    if found is not None:
        # The origin is unknown: a copied table, or an asset with another name, looks like a killed run.
        one = found.commits == 1
        log.warning(
            "no earlier run reported %s of %s: the run %s died after %s, the asset was renamed, or something else "
            "writes to the stream. This run reports %s%s",
            f"1 commit (version {found.to_version})"
            if one
            else f"{found.commits} commits (versions {found.from_version} to {found.to_version})",
            target,
            ", ".join(found.runs) or "of an unknown id",
            "it" if one else "them",
            "it" if one else "them",
            "".join(f"\ntolerated {incident.error}: {incident.message}" for incident in found.incidents),
        )
    return found


def unreported_commits(
    commits: Iterable[Commit], stream: str, reported: int, restored: RestoredVersions
) -> Unreported | None:
    """Summarizes the stream's commits after the last reported one; None if there are none.

    Args:
        commits: The table's commits, newest first.
        stream: Id of the stream.
        reported: The table's version up to which commits were reported.
        restored: Returns the versions that a RESTORE to a timestamp may have restored; see `find_anchor`.
    """
    # A run lands the records of a commit that a RESTORE has undone again, and reports them itself.
    fresh = itertools.takewhile(lambda commit: commit.version > reported, commits_that_count(commits, restored))
    # Excludes manual moves, whose result the user has already seen.
    own = [(commit, document) for commit, document in documented(fresh, stream) if document.reason is None]
    if not own:
        return None
    return Unreported(
        commits=len(own),
        rows=total(commit.rows_written for commit, _ in own),
        from_version=own[-1][0].version,
        to_version=own[0][0].version,
        incidents=tuple(incident for _, document in reversed(own) for incident in document.incidents),
        runs=tuple(dict.fromkeys(document.run_id for _, document in reversed(own) if document.run_id)),
    )
