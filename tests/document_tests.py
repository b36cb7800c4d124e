"""What documents say of this project's own tests, for tests that hold them to it."""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
_MARKER = re.compile(r"<!-- test: (.+) -->")


@dataclass(frozen=True)
class Block:
    """A fenced block of a document.

    Attributes:
        document: Where it is.
        line: The first one's number.
        language: What is behind the fence.
        code: What is in it.
        marker: How it is tested, where that is not by its language alone: the comment above it.
    """

    document: Path
    line: int
    language: str
    code: str
    marker: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def blocks(document: Path) -> list[Block]:
    """The fenced blocks of a document."""
    lines = document.read_text(encoding="utf-8").splitlines()
    fences = [index for index, line in enumerate(lines) if line.lstrip().startswith("```")]
    assert len(fences) % 2 == 0, f"{document}: a fence is not closed"
    return [
        Block(
            document=document,
            line=start + 1,
            language=lines[start].strip().removeprefix("```"),
            code=textwrap.dedent("\n".join(lines[start + 1 : end]) + "\n"),
            marker=found[1] if start > 0 and (found := _MARKER.fullmatch(lines[start - 1].strip())) else "",
        )
        for start, end in zip(fences[::2], fences[1::2], strict=True)
    ]


def commands(document: Path) -> list[str]:
    """The command lines of a document."""
    return [
        line.strip().removeprefix("$ ")
        for block in blocks(document)
        if block.language == "console"
        for line in block.code.splitlines()
    ]


def named_tests(document: str) -> list[tuple[str, str]]:
    """The tests that a document names, as `path::name` in backticks."""
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", document)


@cache
def tests_in(path: Path) -> frozenset[str]:
    """Names of the tests in a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    )


def written_tests(folder: str) -> set[tuple[str, str]]:
    """Path and name of the tests in the files of a folder."""
    return {
        (path.relative_to(ROOT).as_posix(), name)
        for path in (ROOT / folder).glob("test_*.py")
        for name in tests_in(path)
    }


def missing_tests(document: str) -> set[str]:
    """The tests that a document names and that are not there."""
    return {
        f"{path}::{name}"
        for path, name in named_tests(document)
        if not (ROOT / path).is_file() or name not in tests_in(ROOT / path)
    }
