"""What a run leaves on a local file system that dies while Delta makes a table: a log without a commit.

Delta takes it neither for a table nor for a free place, so that nothing could ever be landed there again.
"""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_LOG = "_delta_log"
# From Delta's protocol: a table is there once its log has a commit or a checkpoint.
_MAKES_A_TABLE = re.compile(r"\d{20}\.(json|checkpoint.*\.(parquet|json))")


def is_free(path: Path) -> bool:
    """Whether a table can be made here: nothing is there, or no more than a log that was only begun."""
    return not path.is_dir() or all(
        entry.name.startswith(".") or (entry.name == _LOG and _is_remnant(entry)) for entry in path.iterdir()
    )


def remove_remnant(path: Path | None) -> None:
    """Takes a log away that was only begun. Only under the table's lock: another run may be about to write to it.

    Args:
        path: The table's folder; None where there is no local one.
    """
    if path is not None and path.is_dir() and is_free(path) and (path / _LOG).is_dir():
        shutil.rmtree(path / _LOG)


def _is_remnant(log: Path) -> bool:
    return log.is_dir() and not any(_MAKES_A_TABLE.fullmatch(entry.name) for entry in log.iterdir())
