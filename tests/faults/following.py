"""Follows the advice of error messages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dagster_kafka_flip.source.offsets import OffsetsInitializer

if TYPE_CHECKING:
    import pytest

    from dagster_kafka_flip.errors import KafkaFlipError

AFTER_A_KILL = (
    ". If the last run was killed, failed, or could not check the logs, first check whether the stream's last commit "
    "already holds what this reads: if it does, RESTORE the table to the version before it instead, and run again"
)


def start_of(refused: pytest.ExceptionInfo[KafkaFlipError]) -> OffsetsInitializer:
    """The one start that a message tells."""
    (start,) = re.findall(r"offsets:\{.*\}\}", str(refused.value))
    return OffsetsInitializer.parse(start)
