"""Which branches of the core the simulator reaches, by itself.

    SEEDS=200 FIRST=0 .venv/bin/python -m scripts.simulated_branches

Prints a table, and with LINES=1 the lines that no seed reaches. A branch is a conditional jump to another line.
"""

from __future__ import annotations

import dis
import inspect
import itertools
import os
import sys
from collections import defaultdict
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from tests.simulation.mutants import MUTANTS
from tests.simulation.story import play

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_ROOT = Path(__file__).resolve().parent.parent / "dagster_kafka_flip"
_CORE = tuple(f"{_ROOT}/{package}/" for package in ("source", "table", "ingestion", "sink"))

# The steps from line to line that were made in each file.
_made: defaultdict[str, set[tuple[int, int]]] = defaultdict(set)


def _trace(frame: FrameType, event: str, _: Any) -> Any:
    name = frame.f_code.co_filename
    if event != "call" or not name.startswith(_CORE):
        return None
    steps, before = _made[name], frame.f_code.co_firstlineno

    def step(inner: FrameType, kind: str, _: Any) -> Any:
        nonlocal before
        if kind == "line":
            steps.add((before, inner.f_lineno))
            before = inner.f_lineno
        return step

    return step


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _branches(code: CodeType) -> set[tuple[int, int]]:
    """The steps that conditional jumps can make, those within a line left out."""
    found: set[tuple[int, int]] = set()
    for one in _codes(code):
        lines = {offset: line for start, stop, line in one.co_lines() for offset in range(start, stop, 2)}
        for instruction in dis.get_instructions(one):
            if "JUMP" in instruction.opname and "IF" in instruction.opname:
                here = lines.get(instruction.offset)
                ends = (lines.get(instruction.offset + 2), lines.get(instruction.argval))
                if here is not None and None not in ends and len({here, *ends}) > 2:  # noqa: PLR2004 - two ways
                    found |= {(here, end) for end in ends if end is not None}
    return found


def _ranges(lines: list[int]) -> Iterator[str]:
    for _, group in itertools.groupby(enumerate(lines), lambda each: each[1] - each[0]):
        first, *others = [line for _, line in group]
        yield f"{first}-{others[-1]}" if others else str(first)


def main() -> None:
    """Plays the seeds, and prints the table."""
    first, seeds = int(os.environ.get("FIRST") or 0), int(os.environ.get("SEEDS") or 200)
    sys.settrace(_trace)
    for seed in range(first, first + seeds):
        for kind in MUTANTS:
            if (failed := play(seed, kind=kind)) is not None:
                print(f"{kind.__name__} {seed}: {failed[0]}", file=sys.stderr)
    sys.settrace(None)
    total = reached = 0
    for name in sorted(str(path) for package in _CORE for path in Path(package).rglob("*.py")):
        code = compile(Path(name).read_text(encoding="utf-8"), name, "exec")
        wanted, lines = _branches(code), {end for _, end in _made[name]}
        there = {
            line
            for one in _codes(code)
            if one.co_flags & inspect.CO_OPTIMIZED
            for _, _, line in one.co_lines()
            if line is not None and line > one.co_firstlineno
        }
        hit = wanted & _made[name]
        total, reached = total + len(wanted), reached + len(hit)
        share = f"{100 * len(hit) // len(wanted)} %" if wanted else "-"
        print(f"{len(hit):5} of {len(wanted):4} {share:>6}  {name.removeprefix(f'{_ROOT}/')}")
        if os.environ.get("LINES") and lines:
            print(f"      not reached: {', '.join(_ranges(sorted(there - lines)))}")
    print(f"{reached:5} of {total:4} branches")


if __name__ == "__main__":
    main()
