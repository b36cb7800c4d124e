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


def check_run_options(*, transform: Any = None, **options: Any) -> None:
    """Checks the types.

    Args:
        transform: A function; None if there is none.
        **options: Options by name; None if not set.

    Raises:
        ConfigurationError: An option has the wrong type.
    """
    if transform is not None and not callable(transform):
        expect("transform", transform, FunctionType, "a function of a DataFrame")
    for option, value in options.items():
        if value is not None:
            expect(option, value, *_KINDS[option])
