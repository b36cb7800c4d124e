"""Which version a RESTORE to a timestamp brought back, told by the files that the table was left with.

Its text does not tell: Delta writes the time in the time zone of the JVM and reads it again in that of the session
(4.0), names neither, and commits get other times when a log is copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class FileChange:
    """A file that a commit added to a table, or took out of it.

    Attributes:
        version: The commit's version.
        file: The file and its deletion vector.
        is_added: Whether it was added.
        is_new: Whether the commit wrote it, so that no version before can have had it.
    """

    version: int
    file: str
    is_added: bool
    is_new: bool = False


def restored_versions(changes: Iterable[FileChange], restore: int, oldest: int) -> tuple[int, ...]:
    """The versions before a RESTORE that had the very files that it left, newest first.

    The version that was restored is always among them. None at all if it may be older than what is known.

    Args:
        changes: What the commits from `oldest` to `restore` changed.
        restore: Version of the RESTORE.
        oldest: The oldest version whose changes are known.
    """
    by_version: dict[int, list[FileChange]] = {}
    # Of each file, what each commit left it as, after what it was before: there, not there, or unknown (None).
    courses: dict[str, list[bool | None]] = {}
    born: set[str] = set()
    for change in sorted(changes, key=lambda change: change.version):
        by_version.setdefault(change.version, []).append(change)
        course = courses.get(change.file)
        if course is None:
            # An add can also be of a file that is there already, to tell more about it.
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
