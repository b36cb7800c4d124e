"""Logs a message with fields: as `name=value` in the line, and as attributes of the log record for JSON formatters."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import logging

# The attribute of a log record. JSON formatters, Dagster's among them, show each attribute that `extra` has set.
FIELD = "kafka_flip"


def log_with_fields(
    log: logging.Logger | logging.LoggerAdapter[Any], message: str, *args: object, **fields: str | float | None
) -> None:
    """Logs a message at level INFO, followed by `name=value` pairs; fields that are None are left out.

    The line shows floats with two decimals, and strings with spaces or quotes as in JSON.
    """
    known = {name: value for name, value in fields.items() if value is not None}
    shown = " ".join(f"{name}={_text(value)}" for name, value in known.items())
    log.info(message + ": %s", *args, shown, extra={FIELD: known})  # noqa: G003 - the message is a constant


def _text(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.2f}"
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or any(one in text for one in ' "=\n') else text
