"""Finds the version that a RESTORE to a timestamp restored, by comparing the table's files.

The timestamp is ambiguous: Delta writes it in the JVM's time zone and parses it in the session's, without either zone,
and commits get other times when a log is copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class FileChange:
    """A file that a commit added to a table or removed from it.

    Attributes:
        version: The commit's version.
        file: The file and its deletion vector.
        is_added: Whether it was added.
        is_new: Whether the commit wrote it, so no earlier version can have it.
    """

    version: int
    file: str
    is_added: bool
    is_new: bool = False


def restored_versions(changes: Iterable[FileChange], restore: int, oldest: int) -> tuple[int, ...]:
    """Returns the versions before a RESTORE with exactly the files after it, newest first.

    Always includes the restored version. Empty if that version may be older than the known changes.

    Args:
        changes: File changes of the commits from `oldest` to `restore`.
        restore: Version of the RESTORE.
        oldest: The oldest version whose changes are known.
    """
    by_version: dict[int, list[FileChange]] = {}
    # For each file, the state after each commit: present, absent, or unknown (None).
    courses: dict[str, list[bool | None]] = {}
    born: set[str] = set()
    for change in sorted(changes, key=lambda change: change.version):
        by_version.setdefault(change.version, []).append(change)
        course = courses.get(change.file)
        if course is None:
            # An add can also update the metadata of an existing file.
            before = None if change.is_added and oldest > 0 and not change.is_new else not change.is_added
            course = courses[change.file] = [before]
            if change.is_new:
                born.add(change.file)
        course.append(change.is_added)
    after = {file: course[-1] for file, course in courses.items()}
    if oldest > 0 and not any(after[file] for file in born):
        return ()
    different: set[str] = set()
    found: list[int] = []
    for version in range(restore - 1, oldest - 1, -1):
        for change in by_version.get(version + 1, ()):
            course = courses[change.file]
            course.pop()
            if course[-1] in {None, after[change.file]}:
                different.discard(change.file)
            else:
                different.add(change.file)
        if not different:
            found.append(version)
    return tuple(found)
