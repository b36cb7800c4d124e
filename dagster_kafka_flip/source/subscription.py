"""Which topics a source reads."""

from __future__ import annotations

import re

from pydantic import field_validator

from dagster_kafka_flip.settings import Settings

# Kafka's own rule for a topic's name, from org.apache.kafka.common.internals.Topic.
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class TopicListSubscription(Settings):
    """A fixed list of topics, all of whose partitions are read.

    Attributes:
        topics: The topics' names, sorted and each once.
    """

    topics: tuple[str, ...]

    @field_validator("topics")
    @classmethod
    def _check_topics(cls, topics: tuple[str, ...]) -> tuple[str, ...]:
        if not topics:
            msg = "a source needs at least one topic"
            raise ValueError(msg)
        for topic in topics:
            if not _LEGAL_NAME.fullmatch(topic) or topic in {".", ".."}:
                msg = f"{topic!r} can't be a topic's name: Kafka allows 1 to 249 letters, digits, '.', '_' and '-'"
                raise ValueError(msg)
        return tuple(sorted(set(topics)))

    def __str__(self) -> str:
        return ", ".join(self.topics)
