"""A server that speaks S3's and DynamoDB's protocols (moto), and checks signatures as they do.

A process of its own, because clients that are not Python's keep Python from answering while they wait. It says where it
is. Its orders are lines of JSON in standard input, and may have `is_busy`: whether it answers from then on that it has
too much to do. It answers each with how many requests it has had. The end of standard input ends it.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import sys
import threading
from typing import TYPE_CHECKING, Any
from unittest import mock
from urllib.parse import urlsplit

from moto.dynamodb.models.dynamo_type import DynamoType, Item
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
REGION = "eu-central-1"
ACCESS_KEY = "AKIAOFTHETESTS"
SECRET_KEY = "a-secret/of+the-tests"  # nothing outside of a test accepts it

# Requests to these are answered as those of a machine whose clock is wrong, and as those with an old session token.
SKEWED = "skewed"
EXPIRED = "expired"
_REFUSED = {
    SKEWED: (
        "403 Forbidden",
        "RequestTimeTooSkewed",
        "The difference between the request time and the current time is too large.",
    ),
    EXPIRED: ("400 Bad Request", "ExpiredToken", "The provided token has expired."),
}

_BUSY = ("503 Slow Down", "SlowDown", "Please reduce your request rate.")

_Environ = dict[str, Any]


class _Server:
    """The server.

    Attributes:
        requests: How many it has had.
        is_busy: Whether it has too much to do for any.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.is_busy = False
        self._moto: Any = DomainDispatcherApplication(create_backend_app)
        self._one_at_a_time = threading.Lock()

    def start(self) -> str:
        """Serves in a thread; returns the address."""
        name = "update_with_attribute_updates"
        mock.patch.object(Item, name, _with_booleans(Item.update_with_attribute_updates)).start()
        server: Any = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=_Quiet)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    def _answer(self, environ: _Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        self.requests += 1
        refusal = _BUSY if self.is_busy else _refusal(environ)
        if refusal is not None:
            status, code, message = refusal
            start_response(status, [("Content-Type", "application/xml")])
            text = f"<Error><Code>{code}</Code><Message>{message}</Message><RequestId>1</RequestId></Error>"
            return [] if environ["REQUEST_METHOD"] == "HEAD" else [text.encode()]
        if "HTTP_X_AMZ_TARGET" not in environ:
            return self._moto(environ, start_response)
        # DynamoDB checks and changes an item in one step, and moto in two.
        with self._one_at_a_time:
            return list(self._moto(environ, start_response))


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 - werkzeug's name
        """Prints no line for each request."""


def _refusal(environ: _Environ) -> tuple[str, str, str] | None:
    """Why S3 would not accept a request: status, code and message; None if it would."""
    scheme, _, fields = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
    given = dict(field.strip().split("=", 1) for field in fields.split(",") if "=" in field)
    if scheme != "AWS4-HMAC-SHA256":
        return "403 Forbidden", "AccessDenied", "Access Denied"
    key, day, region, service, _ = given["Credential"].split("/")
    if key != ACCESS_KEY:
        return ("403 Forbidden", "InvalidAccessKeyId", "The access key does not exist in our records.")
    # The coordinator's client takes us-east-1 for any address that isn't Amazon's.
    if region != REGION and service == "s3":
        expected = f"the region '{region}' is wrong; expecting '{REGION}'"
        return "400 Bad Request", "AuthorizationHeaderMalformed", f"The authorization header is malformed; {expected}"
    if refused := _REFUSED.get(environ["PATH_INFO"].split("/")[1]):
        return refused
    secret = f"AWS4{SECRET_KEY}".encode()
    for part in (day, region, service, "aws4_request"):
        secret = hmac.digest(secret, part.encode(), "sha256")
    scope = f"{day}/{region}/{service}/aws4_request"
    digest = hashlib.sha256(_canonical(environ, given["SignedHeaders"]).encode()).hexdigest()
    to_sign = f"AWS4-HMAC-SHA256\n{environ['HTTP_X_AMZ_DATE']}\n{scope}\n{digest}"
    if hmac.new(secret, to_sign.encode(), "sha256").hexdigest() != given["Signature"]:
        message = "The request signature we calculated does not match the signature you provided."
        return "403 Forbidden", "SignatureDoesNotMatch", message
    return None


def _canonical(environ: _Environ, signed: str) -> str:
    """A request as it is signed."""
    address = urlsplit(environ["REQUEST_URI"])
    query = "&".join(sorted(part if "=" in part else f"{part}=" for part in address.query.split("&") if part))
    in_environ = {"content-type": "CONTENT_TYPE", "content-length": "CONTENT_LENGTH"}
    headers = "".join(
        f"{name}:{' '.join(environ.get(in_environ.get(name, ''), environ.get(_variable(name), '')).split())}\n"
        for name in signed.split(";")
    )
    body = environ.get("HTTP_X_AMZ_CONTENT_SHA256")
    if body is None:
        content = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(content)
        body = hashlib.sha256(content).hexdigest()
    return f"{environ['REQUEST_METHOD']}\n{address.path}\n{query}\n{headers}\n{signed}\n{body}"


def _variable(header: str) -> str:
    return f"HTTP_{header.upper().replace('-', '_')}"


def _with_booleans(update: Callable[[Item, dict[str, Any]], None]) -> Callable[[Item, dict[str, Any]], None]:
    """Moto takes a boolean for a text in updates of the kind that Delta's coordinator sends."""

    def wrapped(item: Item, updates: dict[str, Any]) -> None:
        booleans = {name: one["Value"] for name, one in updates.items() if "BOOL" in one.get("Value", {})}
        update(item, {name: one for name, one in updates.items() if name not in booleans})
        for name, value in booleans.items():
            item.attrs[name] = DynamoType(value)

    return wrapped


def main() -> None:
    """Serves until the end of standard input."""
    server = _Server()
    print(f"@{json.dumps({'endpoint': server.start()})}", flush=True)
    for line in sys.stdin:
        server.is_busy = json.loads(line).get("is_busy", server.is_busy)
        print(f"@{json.dumps({'requests': server.requests})}", flush=True)


if __name__ == "__main__":
    main()
