"""The extra of one of Airflow's connections."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import ConfigurationError

if TYPE_CHECKING:
    from airflow.sdk import Connection


def extra_of(connection: Connection) -> dict[str, Any]:
    """Returns the extra of a connection; Airflow masks what has a secret's name.

    Raises:
        ConfigurationError: It is not a JSON object. Airflow would treat it as empty, so a task would run
            without the login or the queue that it names.
    """
    try:
        found = json.loads(connection.extra or "{}")
    except ValueError as error:
        # The parser's message has the place, but none of the text, which may be a secret.
        msg = f"the connection {connection.conn_id!r}: its extra is not JSON: {error}"
        raise ConfigurationError(msg) from None
    if not isinstance(found, dict):
        msg = f'the connection {connection.conn_id!r}: its extra is not a JSON object: write {{"name": "value"}}'
        raise ConfigurationError(msg)
    return connection.extra_dejson
