"""What earlier runs of a stream committed and did not report, because they failed or were killed afterwards."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.ingestion.result import Unreported
from dagster_kafka_flip.source.log_line import total
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
    """The commits of a stream behind the last one that was reported; None if there are none.

    Args:
        table: The table.
        target: The same, and the stream.
        anchor: Where the stream stands.
        reported: The table's version up to which commits were reported.
        log: Is told of them.
    """
    # Versions begin anew where the table was made anew.
    reported = reported if reported <= anchor.table_version else -1
    if anchor.state is None or anchor.version <= reported:
        return None
    commits = itertools.takewhile(lambda commit: commit.version > reported, table.newest_commits())
    found = unreported_commits(commits, target.stream)
    if found is not None:
        # Who made them is not known: a copied table, or an asset by another name, looks as a run that was killed.
        one = found.commits == 1
        log.warning(
            "%s of %s %s in no materialization of this asset: a run died behind %s, or another asset landed in the "
            "table. This run reports %s%s",
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
    """What runs of a stream committed; None if there is no such commit.

    Args:
        commits: Commits that no run reported, newest first.
        stream: Id of the stream.
    """
    # Whoever moves a position by hand has seen what came of it.
    own = [(commit, document) for commit, document in documented(commits, stream) if document.reason is None]
    if not own:
        return None
    return Unreported(
        commits=len(own),
        rows=total(commit.metric("numOutputRows") for commit, _ in own),
        from_version=own[-1][0].version,
        to_version=own[0][0].version,
        incidents=tuple(incident for _, document in reversed(own) for incident in document.incidents),
    )
