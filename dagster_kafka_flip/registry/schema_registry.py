"""SchemaRegistry: address and login of a schema registry that speaks Confluent's API."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.registry.client import RegistryClient
from dagster_kafka_flip.registry.schemas import Schemas
from dagster_kafka_flip.settings.base import Settings

_LONGEST_SECONDS = 3600.0
_MOST_RETRIES = 10

# Characters that an HTTP header can have. A token from a file often has a line end; the client's error would show the
# token.
_HEADER = re.compile(r"[!-~]+")
_OAUTH = ("oauth_token_url", "oauth_client_id", "oauth_client_secret")
_KEY = ("ssl_key_location", "ssl_key_password")
_TLS = ("ssl_ca_location", "ssl_certificate_location", *_KEY)


class SchemaRegistry(Settings):
    """Addresses and credentials of one schema registry. Passwords, tokens and secrets are never shown.

    Attributes:
        url: Comma-separated `http` or `https` URLs of one registry, tried in this order. A user name and a password in
            them are moved to `username` and `password`.
        username: User name, or API key. Needs `password`.
        password: Password, or API secret.
        bearer_token: A token that is sent as it is.
        oauth_token_url: OAuth: the token endpoint, for a client's credentials.
        oauth_client_id: OAuth: the client's id.
        oauth_client_secret: OAuth: the client's secret.
        oauth_scope: OAuth: the scope to ask for. Default: none.
        logical_cluster: Confluent Cloud's id of the registry, `lsrc-...`. Only with a token or OAuth.
        identity_pool_id: Confluent Cloud's id of the identity pool, `pool-...`. Only with a token or OAuth.
        ssl_ca_location: PEM file with the CA certificates to trust. Default: those of `SSL_CERT_FILE`, or else of
            certifi.
        ssl_certificate_location: PEM file of the client's certificate chain, for mutual TLS.
        ssl_key_location: PEM file of the client's private key, for mutual TLS. Default: the key in
            `ssl_certificate_location`.
        ssl_key_password: The private key's password.
        request_timeout: Seconds to wait for one URL's answer.
        max_retries: How often a request is repeated after an error that may pass: no connection, or the statuses 408,
            429, 500, 502, 503 and 504. Default: 3.
    """

    url: str
    username: str | None = None
    password: SecretStr | None = None
    bearer_token: SecretStr | None = None
    oauth_token_url: str | None = None
    oauth_client_id: str | None = None
    oauth_client_secret: SecretStr | None = None
    oauth_scope: str | None = None
    logical_cluster: str | None = None
    identity_pool_id: str | None = None
    ssl_ca_location: str | None = None
    ssl_certificate_location: str | None = None
    ssl_key_location: str | None = None
    ssl_key_password: SecretStr | None = None
    request_timeout: float = Field(default=20.0, gt=0, le=_LONGEST_SECONDS)
    max_retries: int = Field(default=3, ge=0, le=_MOST_RETRIES)

    @model_validator(mode="before")
    @classmethod
    def _take_login_out_of_urls(cls, values: Any) -> Any:
        # HTTP clients log the URLs that they ask, credentials included.
        if not isinstance(values, dict) or not isinstance(values.get("url"), str):
            return values
        parts = [_split("url", text) for text in values["url"].split(",")]
        logins = {(each.username, each.password) for each in parts} - {(None, None)}
        cleaned = values | {"url": ",".join(_without_login(each) for each in parts)}
        if not logins:
            return cleaned
        if len(logins) > 1:
            raise ValueError("url: the URLs have different logins; set username and password, which all of them share")
        if any(values.get(name) is not None for name in ("username", "password")):
            raise ValueError("url: it has a login, and so have username and password; remove one of the two")
        user, password = next(iter(logins))
        return cleaned | {
            "username": None if user is None else unquote(user),
            "password": None if password is None else SecretStr(unquote(password)),
        }

    @field_validator("oauth_token_url")
    @classmethod
    def _check_token_url(cls, value: str | None) -> str | None:
        if value is not None and "@" in _split("oauth_token_url", value).netloc:
            raise ValueError("oauth_token_url: it has a login; set oauth_client_id and oauth_client_secret")
        return value

    @field_validator("username")
    @classmethod
    def _check_username(cls, value: str | None) -> str | None:
        if value is not None and (not value or ":" in value):
            raise ValueError("username: empty, or with a colon, which a user name can't have over HTTP")
        return value

    @field_validator("bearer_token", "logical_cluster", "identity_pool_id")
    @classmethod
    def _check_header(cls, value: SecretStr | str | None, info: ValidationInfo) -> SecretStr | str | None:
        if value is not None and not _HEADER.fullmatch(_reveal(value)):
            raise ValueError(f"{info.field_name}: empty, or with white space, a line end or a letter outside ASCII")
        return value

    def model_post_init(self, context: Any, /) -> None:
        """Checks rules that involve several fields.

        Raises:
            ConfigurationError: Half a login, several logins, half a client certificate, or TLS settings without an
                `https` URL.
        """
        del context
        self._check_login()
        key = next((name for name in _KEY if getattr(self, name) is not None), None)
        if key is not None and self.ssl_certificate_location is None:
            raise ConfigurationError(f"{key} is given without ssl_certificate_location: set both")
        tls = next((name for name in _TLS if getattr(self, name) is not None), None)
        if tls is not None and "https://" not in self.url:
            raise ConfigurationError(f"{tls} is given, but url uses no TLS: write https://, or remove {tls}")

    def _check_login(self) -> None:
        oauth = [name for name in _OAUTH if getattr(self, name) is not None]
        ways = {
            "username and password": self.username is not None or self.password is not None,
            "bearer_token": self.bearer_token is not None,
            "oauth_client_id": bool(oauth),
        }
        if sum(ways.values()) > 1:
            msg = f"several logins are given, {' and '.join(way for way in ways if ways[way])}: keep one"
            raise ConfigurationError(msg)
        if (self.username is None) != (self.password is None):
            raise ConfigurationError("a login needs both username and password")
        if oauth and len(oauth) < len(_OAUTH):
            missing = [name for name in _OAUTH if name not in oauth]
            raise ConfigurationError(f"OAuth needs {', '.join(_OAUTH)}: set {' and '.join(missing)}")
        if self.oauth_scope is not None and not oauth:
            raise ConfigurationError(f"oauth_scope is given without OAuth's client: set {', '.join(_OAUTH)}")
        confluent = next((name for name in ("logical_cluster", "identity_pool_id") if getattr(self, name)), None)
        if confluent is not None and not oauth and self.bearer_token is None:
            msg = f"{confluent} is given, but only sent with a token: set bearer_token or oauth_client_id, or remove it"
            raise ConfigurationError(msg)

    @property
    def login(self) -> str:
        """Who asks, for messages."""
        if self.username is not None:
            return f"the user {self.username}"
        if self.bearer_token is not None:
            return "the bearer_token"
        if self.oauth_client_id is not None:
            return f"the OAuth client {self.oauth_client_id}"
        if self.ssl_certificate_location is not None:
            return f"the owner of the certificate {self.ssl_certificate_location}"
        return "a client without a login"

    def client_config(self) -> dict[str, Any]:
        """Settings of confluent-kafka's SchemaRegistryClient. Contains secrets: pass them to its constructor only."""
        has_oauth, has_certificate = self.oauth_client_id is not None, self.ssl_certificate_location is not None
        has_token = self.bearer_token is not None
        config = {
            "url": self.url,
            "timeout": self.request_timeout,
            # It would also repeat permanent errors, and the time-outs of a silent server.
            "max.retries": 0,
            # It would cache the latest version of a subject forever.
            "cache.latest.ttl.sec": 0,
            "basic.auth.user.info": self.username and f"{self.username}:{_reveal(self.password)}",
            # The client insists on it, and only Confluent Cloud reads it.
            "bearer.auth.logical.cluster": self.logical_cluster or "" if has_token or has_oauth else None,
            "bearer.auth.identity.pool.id": self.identity_pool_id,
            "bearer.auth.credentials.source": "STATIC_TOKEN" if has_token else "OAUTHBEARER" if has_oauth else None,
            "bearer.auth.token": _reveal(self.bearer_token) if has_token else None,
            "bearer.auth.issuer.endpoint.url": self.oauth_token_url,
            "bearer.auth.client.id": self.oauth_client_id,
            "bearer.auth.client.secret": _reveal(self.oauth_client_secret) if has_oauth else None,
            "bearer.auth.scope": self.oauth_scope or "" if has_oauth else None,
            "ssl.ca.location": self.ssl_ca_location,
            "ssl.certificate.location": self.ssl_certificate_location,
            "ssl.key.location": self.ssl_key_location,
            # Without a password, OpenSSL would ask the terminal for that of an encrypted key.
            "ssl.key.password": _reveal(self.ssl_key_password) if has_certificate else None,
        }
        return {name: value for name, value in config.items() if value is not None}

    def schemas(self) -> Schemas:
        """Returns a reader of this registry's schemas. It connects when it is first asked for one.

        Raises:
            ConfigurationError: The packages of the extra `registry` are missing, or a PEM file can't be used.
        """
        secrets = (self.password, self.bearer_token, self.oauth_client_secret, self.ssl_key_password)
        client = RegistryClient(
            self.client_config(),
            login=self.login,
            max_retries=self.max_retries,
            secrets=[_reveal(each) for each in secrets if each is not None],
        )
        return Schemas(client)


def _split(field: str, text: str) -> SplitResult:
    """The parts of a URL; its error shows nothing of the text, which may hold a password."""
    expected = (
        f"{field}: expected http or https URLs, such as https://registry.example.com:8081; special characters in a "
        "login are written as %XX"
    )
    stripped = text.strip()
    try:
        parts = urlsplit(stripped)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ValueError(expected) from None
    # A password with a slash or a question mark that isn't encoded ends up in the path or the query.
    if (
        parts.scheme not in {"http", "https"}
        or not host
        or port == 0
        or "@" in parts.path
        or not stripped.isprintable()
    ):
        raise ValueError(expected)
    if " " in stripped or parts.netloc.count("@") > 1:
        raise ValueError(expected)
    if parts.query or parts.fragment:
        raise ValueError(f"{field}: it has a query or a fragment; remove them")
    return parts


def _without_login(parts: SplitResult) -> str:
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


def _reveal(value: SecretStr | str | None) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else value or ""
