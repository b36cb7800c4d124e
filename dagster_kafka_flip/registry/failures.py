"""Converts failures of a schema registry to this package's errors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import (
    IncompatibleSchemaError,
    SchemaNotFoundError,
    SchemaRegistryError,
    SchemaRegistryLoginError,
    SchemaRegistryUnreachableError,
)
from dagster_kafka_flip.settings.hidden import HIDDEN

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# The statuses that pass, as Confluent's clients see it.
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
_UNAUTHORIZED = 401
_FORBIDDEN = 403
_NOT_FOUND = 404
_CONFLICT = 409
_REDIRECTS = range(300, 400)
_LONGEST_WORDS = 300
_TOKEN = re.compile(r"(?i:(bearer|basic)\s+)[\w.~+/=-]{6,}|\beyJ[\w-]+\.[\w.-]+")


@dataclass(frozen=True)
class Question:
    """A request to a registry.

    Attributes:
        schema_id: A schema's id.
        guid: A schema's guid.
        subject: A subject's name.
        version: A version of the subject. Default: the latest.
        registers: Whether a schema is to be registered in the subject.
    """

    schema_id: int | None = None
    guid: str | None = None
    subject: str | None = None
    version: int | None = None
    registers: bool = False

    def __str__(self) -> str:
        if self.registers:
            return f"a schema of the subject {self.subject!r}"
        if self.schema_id is not None:
            place = "" if self.subject is None else f" in the subject {self.subject!r}"
            return f"the schema with the id {self.schema_id}{place}"
        if self.guid is not None:
            return f"the schema with the guid {self.guid}"
        if self.version is not None:
            return f"version {self.version} of the subject {self.subject!r}"
        return f"the latest schema of the subject {self.subject!r}"


@dataclass(frozen=True, repr=False)
class Asked:
    """A registry and its client's settings, for messages.

    Attributes:
        url: Its URLs, without a login.
        login: Who asks.
        timeout: Seconds to wait for an answer.
        secrets: What no message may show.
    """

    url: str
    login: str
    timeout: float
    secrets: Sequence[str]

    def not_found(
        self, question: Question, *, status: int | None = None, code: int | None = None, message: str | None = None
    ) -> SchemaNotFoundError:
        """The error about a schema that the registry doesn't have."""
        if question.guid is not None:
            advice = "Check that it is the registry that the records' producers use; not every registry knows guids"
        elif question.schema_id is not None:
            advice = "Check that it is the registry, and the context, that the records' producers use"
        else:
            advice = "Check the subject's name, letter by letter, and that it is the registry that the producers use"
        return SchemaNotFoundError(
            f"the schema registry at {self.url} does not have {question}{self._quoted(status, code, message)}",
            advice,
            status=status,
            code=code,
            schema_id=question.schema_id,
            guid=question.guid,
            subject=question.subject,
        )

    def not_a_registry(self, question: Question, how: str) -> SchemaRegistryError:
        """The error about an answer that is not a registry's."""
        return SchemaRegistryError(
            f"{self.url} gave an answer {how} to the request for {question}: it is not a schema registry, or url lacks "
            f"the path of its API",
            _PATHS,
        )

    def failure(self, error: Exception, question: Question, tries: int) -> SchemaRegistryError:
        """Returns this package's error for one of Confluent's client."""
        if _is_answer(error):
            return self._answered(error, question, tries)
        if _is_tokenless(error):
            return self._tokenless(error, question, tries)
        if isinstance(error, KeyError) and error.args == ("expires_in",):
            return SchemaRegistryLoginError(
                f"{self.login} got a token without expires_in from oauth_token_url; Confluent's client, which asks the "
                f"schema registry at {self.url}, needs it",
                "Configure the OAuth server to send how long a token is valid",
            )
        if _tls_error(error) is not None or _is_transport(error):
            return self._unanswered(f"the schema registry at {self.url}", "url", error, question, tries)
        return self.not_a_registry(question, f"that can't be read ({type(error).__name__})")

    def _answered(self, error: Exception, question: Question, tries: int) -> SchemaRegistryError:
        status, code, message = _answer(error)
        if (code is not None and code // 100 == _NOT_FOUND) or (question.guid is not None and status == _NOT_FOUND):
            return self.not_found(question, status=status, code=code, message=message)
        kind, does = SchemaRegistryError, f"did not {'register' if question.registers else 'return'} {question}"
        advice = "Check the registry's log"
        if status == _UNAUTHORIZED:
            kind, does, advice = SchemaRegistryLoginError, f"refused the login of {self.login} for {question}", _LOGIN
        elif status == _FORBIDDEN:
            right = "write to" if question.registers else "read"
            kind, does = SchemaRegistryLoginError, f"refuses {self.login} the right to {right} {question}"
            advice = f"Grant the right to {right} the subject, or use another login"
        elif question.registers and status == _CONFLICT:
            kind, does = (
                IncompatibleSchemaError,
                f"refuses {question}: it is not compatible with the registered schemas",
            )
            advice = (
                "Change the table, the columns or the schema, change the subject's compatibility level, or use another "
                "subject"
            )
        elif status in _PASSING:
            advice = (
                f"This may be temporary, but it persisted for {_times(tries)}: check the registry's log, then run again"
            )
        elif status in _REDIRECTS:
            advice = "It redirects to another address: set url to that one"
        elif code is None or status == _NOT_FOUND:
            advice = f"It is not a schema registry, or url lacks the path of its API. {_PATHS}"
        finding = f"the schema registry at {self.url} {does}{self._quoted(status, code, message)}"
        return kind(finding, advice, status=status, code=code)

    def _tokenless(self, error: Exception, question: Question, tries: int) -> SchemaRegistryError:
        cause = error.__context__
        if isinstance(cause, Exception) and (_tls_error(cause) is not None or _is_transport(cause)):
            return self._unanswered("the server of OAuth tokens", "oauth_token_url", cause, question, tries)
        message = self._hidden(str(cause if cause is not None else error))
        return SchemaRegistryLoginError(
            f"{self.login} got no token from oauth_token_url ({message}), so the schema registry at {self.url} was not "
            f"asked for {question}",
            "Correct oauth_token_url, oauth_client_id, oauth_client_secret or oauth_scope",
        )

    def _unanswered(
        self, where: str, field: str, error: Exception, question: Question, tries: int
    ) -> SchemaRegistryError:
        tls = _tls_error(error)
        if tls is not None:
            return SchemaRegistryError(
                f"{where}: TLS connection failed in the request for {question}: {self._hidden(str(tls))}", _TLS
            )
        if _is_timeout(error):
            how = f"did not answer within {self.timeout:g} s" if field == "url" else "did not answer in time"
        else:
            how = f"can't be reached ({self._hidden(str(error)) or type(error).__name__}; {_times(tries)})"
        return SchemaRegistryUnreachableError(
            f"{where} {how}; the request was for {question}",
            f"Check {field}, the network and any proxy (HTTPS_PROXY, NO_PROXY), and that the server runs, then run "
            "again",
        )

    def _quoted(self, status: int | None, code: int | None, message: str | None) -> str:
        parts = [f"HTTP {status}"] if status is not None else []
        parts += [f"code {code}"] if code is not None else []
        words = "" if message is None else self._hidden(message)
        return f" ({', '.join(parts)}{': ' if words else ''}{words})" if parts else ""

    def _hidden(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN)
        text = _TOKEN.sub(HIDDEN, " ".join(without_line(text).split()))
        return text if len(text) <= _LONGEST_WORDS else f"{text[:_LONGEST_WORDS]} ..."


_PATHS = (
    "Correct url: Confluent's registry, Karapace and Redpanda are at the root, Apicurio's Confluent API is at "
    "/apis/ccompat/v7"
)
_TLS = (
    "Check that url has http:// if the port has no TLS, and a host name that is in the server's certificate; renew an "
    "expired one; set ssl_ca_location to the CA that signed it, and ssl_certificate_location if the server wants one"
)
_LOGIN = (
    "Correct username and password, bearer_token, or the oauth_ fields (Confluent Cloud also needs logical_cluster)"
)


def may_pass(error: BaseException) -> bool:
    """Whether the same request may succeed within seconds."""
    if _is_answer(error):
        return _answer(error)[0] in _PASSING
    cause = error.__context__ if _is_tokenless(error) else error
    # A request that has waited for a whole timeout has waited long enough.
    return cause is not None and _is_transport(cause) and not _is_timeout(cause) and _tls_error(cause) is None


def _is_answer(error: BaseException) -> bool:
    return hasattr(error, "http_status_code")


def _is_tokenless(error: BaseException) -> bool:
    return _is_a(error, "OAuthTokenError")


def _is_transport(error: BaseException) -> bool:
    return _is_a(error, "TransportError")


def _is_timeout(error: BaseException) -> bool:
    return _is_a(error, "TimeoutException")


def _is_a(error: BaseException, name: str) -> bool:
    # By name: the client uses httpx2, or httpx, depending on what is installed.
    return any(each.__name__ == name for each in type(error).__mro__)


def _answer(error: BaseException) -> tuple[int, int | None, str | None]:
    status, code, message = (getattr(error, name) for name in ("http_status_code", "error_code", "error_message"))
    # The client's -1 means an answer that is not JSON, and its message quotes all of it. Apicurio's 0 means nothing.
    return (
        status,
        code if isinstance(code, int) and code > 0 else None,
        message if isinstance(message, str) and code != -1 else None,
    )


def without_line(text: str) -> str:
    """OpenSSL's words, without the line of Python's source that ends them."""
    return re.sub(r" \(_ssl\.c:\d+\)", "", text)


def _tls_error(error: BaseException) -> Exception | None:
    import ssl

    return next((each for each in _chain(error) if isinstance(each, ssl.SSLError)), None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _times(tries: int) -> str:
    return "one try" if tries == 1 else f"{tries} tries"
