"""Checks lists of column names, suggests names for a misspelled one, shortens lists for messages, counts things."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


# The options of one class are fewer; the columns of a table can be thousands.
_MOST_NAMES = 50


def check_column_names(option: str, names: Sequence[str]) -> None:
    """Checks that no column name is empty or named twice. Spark and Delta compare them case-insensitively."""
    if not all(name.strip() for name in names):
        raise ValueError(f"{option}: empty column name")
    if (again := twice(names)) is not None:
        raise ValueError(f"{option}: duplicate column {again!r}")


def twice(names: Iterable[str]) -> str | None:
    """The first column name that was there before: Spark and Delta compare them case-insensitively."""
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            return name
        seen.add(name.lower())
    return None


def listed(names: str) -> frozenset[str]:
    """The names in a text, with commas between them."""
    return frozenset(" ".join(name.split()) for name in names.split(","))


def first_few(things: Iterable[object], most: int = 5, between: str = ", ") -> str:
    listed = list(things)
    return between.join(map(str, listed[:most])) + (f" and {len(listed) - most:,} more" if len(listed) > most else "")


def first_of(things: Sequence[object]) -> str:
    """The first of some topic partitions, and the number of the others."""
    more = f" and {counted(len(things) - 1, 'more topic partition')}" if len(things) > 1 else ""
    return f"{things[0]}{more}"


def counted(number: int, what: str) -> str:
    """A number of things, in words for one or for more of them: `1 commit`, `2,000 commits`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


# A shorter name is the start of too many.
_LEAST_START = 3


def near_names(name: str, names: Collection[str]) -> str:
    """Suggests names similar to an unknown one; lists the names if none is similar."""
    near = meant_by(name, names, most=3)
    return f"did you mean {' or '.join(near)}?" if near else f"valid names: {first_few(names, _MOST_NAMES)}"


def meant_by(name: str, names: Iterable[str], *, most: int = 1, likeness: float = 0.6) -> list[str]:
    """Valid names similar to an unknown one, ignoring case; if none begins with it, those that do come first."""
    written, wanted = {each.lower(): each for each in names}, name.lower()
    near = difflib.get_close_matches(wanted, written, most, likeness)
    if len(wanted) >= _LEAST_START and not any(each.startswith(wanted) for each in near):
        near = sorted((each for each in written if each.startswith(wanted)), key=len)[:most] or near
    return [written[each] for each in near]
