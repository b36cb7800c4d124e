"""Finds commits of earlier runs that were not reported, because the runs failed or were killed afterwards."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.ingestion.result import Unreported
from dagster_kafka_flip.source.totals import total
from dagster_kafka_flip.table.history import documented

if TYPE_CHECKING:
    import logging
    from collections.abc import Iterable

    from dagster_kafka_flip.table.delta_table import DeltaTable
    from dagster_kafka_flip.table.history import Anchor, Commit
    from dagster_kafka_flip.table.target import DeltaTarget


def find_unreported(
    table: DeltaTable,
    target: DeltaTarget,
    anchor: Anchor,
    reported: int,
    log: logging.Logger | logging.LoggerAdapter[Any],
) -> Unreported | None:
    """Returns the stream's commits after the last reported one; None if there are none.

    Args:
        table: The table.
        target: The table and the stream.
        anchor: The stream's anchor.
        reported: The table's version up to which commits were reported.
        log: The log.
    """
    # Versions start again at 0 if the table was recreated.
    reported = reported if reported <= anchor.table_version else -1
    if anchor.state is None or anchor.version <= reported:
        return None
    commits = itertools.takewhile(lambda commit: commit.version > reported, table.newest_commits())
    found = unreported_commits(commits, target.stream)
    if found is not None:
        # The origin is unknown: a copied table, or an asset with another name, looks like a killed run.
        one = found.commits == 1
        log.warning(
            "%s of %s %s in no earlier run's report: a run died after %s, the asset was renamed, or something else "
            "writes to the stream. This run reports %s%s",
            f"1 commit (version {found.to_version})"
            if one
            else f"{found.commits} commits (versions {found.from_version} to {found.to_version})",
            target,
            "is" if one else "are",
            "it" if one else "them",
            "it" if one else "them",
            "".join(f"\ntolerated {incident.error}: {incident.message}" for incident in found.incidents),
        )
    return found


def unreported_commits(commits: Iterable[Commit], stream: str) -> Unreported | None:
    """Summarizes the commits of a stream; None if there are none.

    Args:
        commits: Commits that no run reported, newest first.
        stream: Id of the stream.
    """
    # Excludes manual moves, whose result the user has already seen.
    own = [(commit, document) for commit, document in documented(commits, stream) if document.reason is None]
    if not own:
        return None
    return Unreported(
        commits=len(own),
        rows=total(commit.rows_written for commit, _ in own),
        from_version=own[-1][0].version,
        to_version=own[0][0].version,
        incidents=tuple(incident for _, document in reversed(own) for incident in document.incidents),
    )
