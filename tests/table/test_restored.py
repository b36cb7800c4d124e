"""Which version a RESTORE brought back, told by files: the right one is never left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from dagster_kafka_flip.table.delta_log import FileChange, restored_versions

if TYPE_CHECKING:
    from collections.abc import Iterator

_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "write nothing", "compact", "tell more", "wipe", "restore"]), st.integers(0, 2**16)
    ),
    min_size=1,
    max_size=12,
)


class _Table:
    """A table's files at each version, and what each commit changed, as Delta logs it."""

    def __init__(self) -> None:
        self.versions: list[frozenset[str]] = [frozenset()]
        self.changes: list[FileChange] = []

    def do(self, step: str, number: int) -> None:
        now = self.versions[-1]
        version = len(self.versions)
        then = {
            "write": now | {f"new {version}"},
            "write nothing": now,
            "compact": frozenset({f"compact {version}"}) if now else now,
            "tell more": now,
            "wipe": frozenset(),
            "restore": self.versions[number % version],
        }[step]
        added = sorted(now)[: number % 3] if step == "tell more" else sorted(then - now)
        self.changes += [FileChange(version, file, True, step == "write") for file in added]
        self.changes += [FileChange(version, file, False) for file in sorted(now - then)]
        self.versions.append(then)


def _tables(steps: list[tuple[str, int]]) -> Iterator[_Table]:
    table = _Table()
    for step in steps:
        table.do(*step)
        yield table


@given(_STEPS, st.integers(0, 2**16))
def test_a_whole_log_gives_exactly_the_versions_with_the_same_files(steps, number):
    *_, table = _tables(steps)
    restore = len(table.versions)
    target = number % restore
    table.do("restore", target)
    expected = [version for version in reversed(range(restore)) if table.versions[version] == table.versions[target]]
    assert list(restored_versions(table.changes, restore, 0)) == expected


@given(_STEPS, st.integers(0, 2**16), st.integers(0, 2**16))
def test_the_rest_of_a_log_gives_the_right_version_or_none(steps, number, cut):
    *_, table = _tables(steps)
    restore = len(table.versions)
    target = number % restore
    table.do("restore", target)
    oldest = cut % restore
    known = [change for change in table.changes if change.version >= oldest]
    found = restored_versions(known, restore, oldest)
    assert not found or target in found


def test_a_file_of_a_remaining_commit_shows_that_nothing_older_was_restored():
    changes = [
        FileChange(7, "old", False),
        FileChange(7, "compacted", True),
        FileChange(8, "a", True, True),
        FileChange(9, "b", True, True),
        FileChange(10, "b", False),
    ]
    assert restored_versions(changes, 10, 7) == (8,)
    to_before = [*changes, FileChange(10, "a", False)]
    assert restored_versions(to_before, 10, 7) == (), "an older version may have had no other files"
