"""Tells from a table's commits which still count, which are a stream's, and what came between two of them.

Pure functions on commits, newest first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import PositionLostError, TableChangedError
from dagster_kafka_flip.table.commit import Effect, effect_of
from dagster_kafka_flip.table.other_writers import check_alone

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from dagster_kafka_flip.table.commit import Commit
    from dagster_kafka_flip.table.document import CommitDocument

FIRST_PAGE = 10
"""Number of commits that the first look at a history reads."""


def with_undone(history: Sequence[Commit]) -> Iterator[tuple[Commit, bool]]:
    """Yields each commit, newest first, and whether a later RESTORE to a version undid it."""
    counting = {commit.version for commit in commits_that_count(history)}
    for commit in history:
        yield commit, commit.version not in counting


def commits_that_count(commits: Iterable[Commit]) -> Iterator[Commit]:
    """Yields a table's commits, newest first, without those that a later RESTORE to a version has undone."""
    visible: int | None = None
    for commit in commits:
        if visible is not None and commit.version > visible:
            continue
        yield commit
        if commit.restored_version is not None:
            visible = commit.restored_version


def check_restore(commit: Commit, table: str) -> None:
    """Refuses a RESTORE to a timestamp.

    Delta writes it in the JVM's time zone and reads it in the session's, without either, and the commits of a copied
    log have other times: no text tells which version it was.
    """
    if effect_of(commit) is Effect.RESTORES and commit.restored_version is None:
        raise PositionLostError(
            f"version {commit.version} of the table {table} is a RESTORE to a timestamp "
            f"({commit.parameters.get('timestamp')}), and history does not record to which version",
            "Restore the table once more, TO VERSION AS OF the version you want",
        )


def documented(commits: Iterable[Commit], stream: str | None = None) -> Iterator[tuple[Commit, CommitDocument]]:
    """Yields the commits of streams, each with its document."""
    for commit in commits:
        document = commit.document()
        if document is not None and stream in {None, document.stream}:
            yield commit, document


def other_streams(commits: Iterable[Commit], stream: str) -> dict[str, CommitDocument]:
    """The newest documents of the other streams of a table, from all commits in the history."""
    found: dict[str, CommitDocument] = {}
    for _, document in documented(commits):
        if document.stream != stream:
            found.setdefault(document.stream, document)
    return found


def page_with(number: int) -> int:
    """Size of the first page of history that has more than so many commits: each is ten times larger than the last."""
    size = FIRST_PAGE
    while size <= number:
        size *= 10
    return size


def back_to(version: int, commits: Iterable[Commit]) -> Iterator[Commit]:
    """Yields commits down to the first one that is not newer than a version, and reads no more."""
    for commit in commits:
        yield commit
        if commit.version <= version:
            return


def takes_back(commit: Commit) -> bool:
    """Whether a commit may have brought a table back to before what a plan rests on."""
    return commit.document() is None and effect_of(commit) in {Effect.RESTORES, Effect.REPLACES, Effect.UNKNOWN}


def restorable(between: Commit, version: int) -> int:
    """The version to restore to, if a commit came between a plan and what was written by it."""
    is_removal = effect_of(between) in {Effect.REPLACES, Effect.UNKNOWN}
    return (between.version if is_removal else version) - 1


def is_anchor(commit: Commit, document: CommitDocument) -> bool:
    """Whether a commit of the anchor's version is the anchor, and not one of a later table of this name."""
    if document.after is None or effect_of(commit) is Effect.RESTORES:
        return True
    own = commit.document()
    return own is not None and own.attempt == document.after


def check_between(commits: Iterable[Commit], document: CommitDocument, version: int, table: str) -> None:
    """Checks that nobody deleted rows or wrote the same ones between the reading of the position and a stream's commit.

    The commits are those between the two, and those from the anchor on, as far as they are known.
    """
    if version <= document.base_version:
        raise TableChangedError(
            f"version {version} of the table {table} is a batch of the stream {document.stream!r} that was planned at "
            f"version {document.base_version}: the table was dropped and created again in between, so it lacks what "
            "the stream wrote before this batch",
            "Drop it, and the next run creates it and begins at starting_offsets; or use another table",
        )
    for commit in commits:
        if commit.version == document.anchor_version and not is_anchor(commit, document):
            raise TableChangedError(
                f"version {version} of the table {table} is a batch of the stream {document.stream!r} that continues "
                f"from the batch in version {commit.version}, but version {commit.version} is another commit "
                f"({commit.operation}): the table was dropped and created again, or another one was put in its place, "
                "so it lacks what the stream wrote before this batch",
                f"RESTORE it to version {version - 1}, which removes this batch; or use another table",
            )
        if commit.version >= version or commit.version <= document.base_version:
            continue
        own = commit.document()
        if own is not None and own.stream == document.stream:
            # The fence works while Delta keeps transaction versions; a table property can shorten this time.
            raise TableChangedError(
                f"versions {commit.version} and {version} of the table {table} both belong to the stream "
                f"{document.stream!r}, and the later one was planned at version {document.base_version}, before the "
                "earlier one was committed: the table may hold duplicates. Delta removed the transaction version of "
                "the earlier one (delta.setTransactionRetentionDuration)",
                f"Set this property to longer than any run takes, and RESTORE the table to version {version - 1}, from "
                "which the next run continues",
            )
        if takes_back(commit):
            raise TableChangedError(
                f"version {commit.version} of the table {table} is a {commit.operation}{commit.shown_parameters} "
                f"between the reading of the position (version {document.base_version}) and the commit of the batch "
                f"(version {version}). Rows in between may be missing",
                f"RESTORE the table to version {restorable(commit, version)} or earlier, from which the next run "
                "continues",
            )
        check_alone(commit, document, version, table)
