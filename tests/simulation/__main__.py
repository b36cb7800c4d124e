"""Plays many seeds on all cores: `make simulate`, with SEEDS=, MINUTES=, FIRST= or SEED= for one."""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import sys
import time

from tests.simulation.mutants import MUTANTS
from tests.simulation.story import Story, first_failure, play, shrunk

# Each seed has a story of each kind.
_KINDS = tuple(MUTANTS)

_AT_ONCE = 20


def _report(kind: type[Story], seed: int, finding: str, schedule: list[str]) -> int:
    finding, schedule = play(seed, shrunk(seed, kind), kind) or (finding, schedule)
    print("\n".join(schedule))
    print(f"simulate: FAILED seed {seed}: {finding}\nOnce more: make simulate SEED={seed}")
    return 1


def main() -> int:
    """Plays the seeds that the environment asks for; returns the exit status."""
    if one := os.environ.get("SEED"):
        seed = int(one)
        if (found := first_failure(seed, 1, _KINDS)) is not None:
            return _report(*found)
        print(f"simulate: OK seed {seed}")
        return 0
    minutes, seeds = os.environ.get("MINUTES"), int(os.environ.get("SEEDS") or "5000")
    end = time.monotonic() + float(minutes) * 60 if minutes else float("inf")
    first = int(os.environ.get("FIRST") or "0")
    chunks = iter(range(first, sys.maxsize if minutes else first + seeds, _AT_ONCE))
    chunks = itertools.takewhile(lambda _: time.monotonic() < end, chunks)
    done = 0
    with concurrent.futures.ProcessPoolExecutor() as pool:
        # A few at a time: a time limit has no last seed.
        while group := list(itertools.islice(chunks, 50)):
            for failed in pool.map(first_failure, group, itertools.repeat(_AT_ONCE), itertools.repeat(_KINDS)):
                if failed is not None:
                    pool.shutdown(wait=False, cancel_futures=True)
                    return _report(*failed)
                done += _AT_ONCE
                if sys.stderr.isatty():
                    print(f"\r{done:,} seeds", end="", file=sys.stderr, flush=True)
    print(f"simulate: OK {done:,} seeds, 0 lost, 0 doubled, 0 misplaced, 0 stuck")
    return 0


if __name__ == "__main__":
    sys.exit(main())
