"""Follows the advice of error messages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dagster_kafka_flip.source.offsets import OffsetsInitializer

if TYPE_CHECKING:
    import pytest

    from dagster_kafka_flip.errors import KafkaFlipError


def start_of(refused: pytest.ExceptionInfo[KafkaFlipError]) -> OffsetsInitializer:
    """The one start that a message tells."""
    (start,) = re.findall(r"offsets:\{.*\}\}", str(refused.value))
    return OffsetsInitializer.parse(start)
