"""Keeps credentials out of logs at every log level.

Spark redacts a setting if its name or its value matches `spark.redaction.regex`: in plans, in its UI and REST API, and
in what its Kafka source logs. py4j, which carries the settings from Python to the JVM, logs each of them at DEBUG.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from dagster_kafka_flip.settings.hidden import CREDENTIALS

if TYPE_CHECKING:
    from collections.abc import Mapping

REDACTION = "spark.redaction.regex"

_PY4J_LOGGERS = ("py4j", "py4j.clientserver", "py4j.java_gateway")
_CONNECT_LOGGER = "pyspark.sql.connect.client.logging"
_MAY_HOLD_SECRETS = re.compile(r"kafka\.|" + CREDENTIALS)


def redaction_regex(config: Mapping[str, str]) -> str:
    """A Spark session's redaction regex: from its configuration, plus the credentials of Kafka's clients."""
    own = config.get(REDACTION)
    return CREDENTIALS if own is None else f"(?:{own})|{CREDENTIALS}"


def hide_from_logs() -> None:
    """Prevents the loggers of py4j and Spark Connect's client from printing a Kafka client's settings."""
    for name in (*_PY4J_LOGGERS, _CONNECT_LOGGER):
        logger = logging.getLogger(name)
        if _hide not in logger.filters:
            logger.addFilter(_hide)


def _hide(record: logging.LogRecord) -> bool:
    if _MAY_HOLD_SECRETS.search(record.getMessage()):
        record.msg, record.args = "(message about Kafka or credentials, not logged)", ()
    return True
