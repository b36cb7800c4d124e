"""Handles the remains of a run that dies while Delta creates a table on a local file system: a log without a commit.

Delta sees neither a table nor a free location, so nothing could be written there again.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_LOG = "_delta_log"
_FIRST_COMMIT = f"{0:020}.json"
# From Delta's protocol: a table exists once its log has a commit or a checkpoint.
_MAKES_A_TABLE = re.compile(r"\d{20}\.(json|checkpoint.*\.(parquet|json))")


def is_free(path: Path) -> bool:
    """Whether a table can be created here: the location is empty, or has only an incomplete log."""
    return not path.is_dir() or all(
        entry.name.startswith(".") or (entry.name == _LOG and _is_incomplete(entry)) for entry in path.iterdir()
    )


def has_log(path: Path) -> bool:
    """Whether there is a log here that may be a table's; only Delta can confirm it."""
    return (path / _LOG).is_dir() and not _is_incomplete(path / _LOG)


def has_first_commit(path: Path) -> bool:
    """Whether the log here has version 0, so that the location is a table from its start on."""
    return (path / _LOG / _FIRST_COMMIT).exists()


def remove_incomplete_log(path: Path | None) -> None:
    """Deletes an incomplete log. Only call under the table's lock: another run may be about to write.

    Args:
        path: The table's folder; None if it is not local.
    """
    if path is not None and path.is_dir() and is_free(path) and (path / _LOG).is_dir():
        shutil.rmtree(path / _LOG)


def _is_incomplete(log: Path) -> bool:
    return log.is_dir() and not any(_MAKES_A_TABLE.fullmatch(entry.name) for entry in log.iterdir())
