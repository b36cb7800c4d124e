"""A read that goes on until the run's log has told how far it is."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

# How long the records are waited with if nothing is ever told.
_PATIENCE_SECONDS = 120.0


class ToldOnce(logging.Handler):
    """Keeps what is logged of a read, and leaves a mark with the first line of it.

    Args:
        mark: The mark's path.

    Attributes:
        lines: What was logged of it.
    """

    def __init__(self, mark: Path) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._mark = mark

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line.startswith("read "):
            self.lines.append(line)
            self._mark.touch()


def until_told(mark: Path, offset: int) -> Callable[[DataFrame], DataFrame]:
    """A transform that keeps all records, and those from an offset on only once the mark is there.

    Args:
        mark: The mark's path.
        offset: The first offset that waits, in each topic partition.
    """
    path = str(mark)

    def transform(records: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f
        from pyspark.sql.types import BooleanType

        # From the batch on, not from when the test began; by the clock that all processes have in common.
        deadline = time.time() + _PATIENCE_SECONDS

        # It takes the value as well, so that no buffer before it holds all records: the read waits with it.
        def wait(number: int, _: bytes) -> bool:
            while number >= offset and not Path(path).exists() and time.time() < deadline:
                time.sleep(0.05)
            return True

        return records.where(f.udf(wait, BooleanType(), useArrow=False)("kafka_offset", "kafka_value"))

    return transform
