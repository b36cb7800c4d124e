"""Options of a table in Flink's SQL: strings by name, as in `WITH (...)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.arguments import expect

_EXAMPLE = '{"connector": "kafka", "topic": "orders", "scan.startup.mode": "earliest-offset"}'


def check_texts(options: Mapping[Any, Any]) -> None:
    """Checks that all are strings. The error does not show the values: they may be secrets."""
    expect("options", options, Mapping, _EXAMPLE)
    for name, value in options.items():
        if not isinstance(name, str) or not isinstance(value, str):
            msg = f"table option {name!r}: expected a string, as in Flink's WITH (...), got {type(value).__name__}"
            raise ConfigurationError(msg)


def truth(name: str, text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in {"true", "false"}:
        raise refused(name, f"expected true or false, not {text!r}")
    return lowered == "true"


def texts_of(name: str, text: str) -> tuple[str, ...]:
    found = tuple(each.strip() for each in text.split(";"))
    if not all(found):
        raise refused(name, f"expected names with semicolons between them, such as a;b, not {text!r}")
    return found


def refused(name: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"table option {name!r}: {why}")
