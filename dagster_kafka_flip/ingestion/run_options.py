"""Validates the types of options of a run outside Dagster."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from dagster_kafka_flip.ingestion.result import KnownPosition
from dagster_kafka_flip.settings.arguments import expect
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.limits import Limits
from dagster_kafka_flip.source.offsets import OffsetsInitializer

_KINDS: dict[str, tuple[type, str]] = {
    "connection": (KafkaConnection, 'KafkaConnection(bootstrap_servers="host:9092")'),
    "known": (KnownPosition, "the `known` of an earlier run's result"),
    "limits": (Limits, "Limits(max_records_per_batch=1_000_000)"),
    "starting_offsets": (OffsetsInitializer, "OffsetsInitializer.earliest()"),
}


_FUNCTIONS = {"spark": "lambda: session", "transform": "a function of a DataFrame"}


def check_run_options(**options: Any) -> None:
    """Checks the types.

    Args:
        **options: Options by name; None if not set.

    Raises:
        ConfigurationError: An option has the wrong type.
    """
    for option, value in options.items():
        if option not in _FUNCTIONS:
            if value is not None:
                expect(option, value, *_KINDS[option])
        elif value is not None and not callable(value):
            expect(option, value, FunctionType, _FUNCTIONS[option])
