"""Subjects that depend on the topic."""

from __future__ import annotations

import re

from dagster_kafka_flip.errors import ConfigurationError

_CONTEXT = re.compile(":[^:]+:")

TOPIC = "{topic}"
"""Stands for the topic in the name of a subject."""


def check_subject(owner: str, subject: str | None) -> str | None:
    """Checks the name of a subject, and returns it.

    Args:
        owner: Name of the class with the option.
        subject: The name, maybe with `{topic}` in it; None if it is not set.

    Raises:
        ConfigurationError: The name is empty, or has other braces.
    """
    if subject is not None and (not subject or {"{", "}"} & set(subject.replace(TOPIC, ""))):
        msg = f"a {owner}'s subject is a name such as 'orders-value', or has {TOPIC} in it; not {subject!r}"
        raise ConfigurationError(msg)
    return subject


def context_of(subject: str | None) -> str:
    """What begins the name of a subject that is in a context, such as `:.eu:`; empty for one in the default context."""
    found = _CONTEXT.match(subject or "")
    return "" if found is None else found[0]
