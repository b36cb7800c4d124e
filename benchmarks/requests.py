"""How many requests a client really sends, by librdkafka's protocol log.

Its statistics would be the first thing to ask, but they leave out the connection to the bootstrap address, and for an
admin client OffsetFetch as well. The log (`debug=protocol`) has a line for each request that goes out.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from typing import TYPE_CHECKING

from dagster_kafka_flip.source import cluster
from dagster_kafka_flip.source.cluster import KafkaCluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from dagster_kafka_flip.source.connection import KafkaConnection

DEBUG = {"debug": "protocol"}
"""The setting that makes a client log its requests."""

# What KafkaCluster hands to its client.
_CLUSTERS_LOGGER = f"{cluster.__name__}.librdkafka"

_SENT = re.compile(r"Sent (\w+)Request")
_POLL_SECONDS = 0.05
_QUIET_POLLS = 3


class RequestCounter(logging.Handler):
    """Counts the requests in a client's log.

    As a context manager it listens to a logger from entering to leaving.

    Args:
        name: The logger's.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.logger = logging.getLogger(name)
        self._sent: Counter[str] = Counter()
        self._lines = 0

    def __enter__(self) -> Self:
        self.logger.addHandler(self)
        self.logger.setLevel(logging.DEBUG)
        self.logger.propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        self.logger.removeHandler(self)
        self.logger.setLevel(logging.NOTSET)
        self.logger.propagate = True

    def emit(self, record: logging.LogRecord) -> None:
        """Takes a line."""
        self._lines += 1
        if sent := _SENT.search(record.getMessage()):
            self._sent[sent[1]] += 1

    def count(self, poll: Callable[[float], object]) -> Counter[str]:
        """All requests so far, by type.

        Args:
            poll: The client's own, which hands out what it has logged.
        """
        quiet = 0
        while quiet < _QUIET_POLLS:
            before = self._lines
            poll(_POLL_SECONDS)
            quiet = quiet + 1 if self._lines == before else 0
        return self._sent.copy()


class ObservedCluster(KafkaCluster):
    """A cluster that tells how many requests were sent to it. Use one at a time: they share a logger."""

    def __init__(self, connection: KafkaConnection) -> None:
        super().__init__(connection, DEBUG)

    def requests(self, counter: RequestCounter) -> Counter[str]:
        """All requests so far, by type."""
        return counter.count(self._client.poll)

    @staticmethod
    def counter() -> RequestCounter:
        """What has to be entered before the cluster is made."""
        return RequestCounter(_CLUSTERS_LOGGER)
