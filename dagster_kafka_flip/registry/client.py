"""Sends requests to a schema registry through confluent-kafka's client, with limited retries."""

from __future__ import annotations

import base64
import logging
from typing import TYPE_CHECKING, Any, TypeVar

import tenacity

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.registry.failures import Asked, Question, may_pass, without_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from confluent_kafka.schema_registry import SchemaRegistryClient


T = TypeVar("T")

_FIRST_WAIT_SECONDS = 0.25
_LONGEST_WAIT_SECONDS = 2.0
_logger = logging.getLogger(__name__)


class RegistryClient:
    """A connection to one registry. Creating it sends no request.

    Args:
        config: Settings of confluent-kafka's client, without retries of its own.
        login: Who asks, for messages.
        max_retries: How often a request is repeated after a transient error.
        secrets: What no message may show.

    Attributes:
        asked: The registry and these settings, for messages.

    Raises:
        ConfigurationError: The packages of the extra `registry` are missing, or a PEM file can't be used.
    """

    def __init__(self, config: Mapping[str, Any], *, login: str, max_retries: int, secrets: Sequence[str]) -> None:
        basic = str(config.get("basic.auth.user.info", ""))
        hidden = {*secrets, base64.b64encode(basic.encode()).decode()} - {""}
        self.asked = Asked(
            url=config["url"],
            login=login,
            timeout=config["timeout"],
            # A secret may begin with another one.
            secrets=sorted(hidden, key=len, reverse=True),
        )
        self._tries = max_retries + 1
        try:
            self._client = _client_class()(dict(config))
        except OSError as error:
            why = without_line(str(error))
            files = [f"{name.replace('.', '_')} {path}" for name, path in config.items() if name.endswith("location")]
            raise ConfigurationError(
                f"the TLS files of the schema registry's client ({', '.join(files) or 'SSL_CERT_FILE'}): {why}",
                "Check that they can be read, are PEM and belong together, and ssl_key_password",
            ) from None

    def ask(self, question: Question, call: Callable[[SchemaRegistryClient], T]) -> T:
        """Sends a request, and repeats it after transient errors, for up to about one timeout.

        Raises:
            SchemaRegistryError: There is no schema, or no answer.
        """
        tries = 0

        def asked() -> T:
            nonlocal tries
            tries += 1
            return call(self._client)

        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(may_pass),
            wait=tenacity.wait_exponential(multiplier=_FIRST_WAIT_SECONDS, max=_LONGEST_WAIT_SECONDS),
            stop=tenacity.stop_after_attempt(self._tries) | tenacity.stop_after_delay(self.asked.timeout),
            before_sleep=lambda _: _logger.info(
                "the schema registry at %s did not answer; retrying the request for %s", self.asked.url, question
            ),
            reraise=True,
        )
        try:
            return retrying(asked)
        except Exception as error:  # noqa: BLE001 - the client raises what an answer that is no registry's leads to
            failure = self.asked.failure(error, question, tries)
        # Without the client's error, which may quote what a server echoed.
        raise failure

    def close(self) -> None:
        """Closes the connection."""
        self._client.close()


def _client_class() -> type[SchemaRegistryClient]:
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        raise ConfigurationError(
            f"a schema registry needs packages that are not installed ({error.name or 'confluent-kafka'}): pip install "
            "'dagster-kafka-flip[registry]'"
        ) from None
    return SchemaRegistryClient
