"""A real HTTP server that answers as a test says, and keeps what it was asked."""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Generator, Mapping

    Reply = Callable[["Request"], tuple[int, str]]

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Request:
    """What the server was asked."""

    path: str
    headers: Mapping[str, str]
    body: str = ""


@dataclass
class HttpServer:
    """A server on a free port; `reply` gives status and body."""

    url: str
    reply: Reply = lambda _: (200, "{}")
    requests: list[Request] = field(default_factory=list[Request])

    def says(self, status: int, body: Any) -> None:
        """Makes it answer everything alike."""
        text = body if isinstance(body, str) else json.dumps(body)
        self.reply = lambda _: (status, text)


@contextlib.contextmanager
def http_server(context: ssl.SSLContext | None = None) -> Generator[HttpServer]:
    """Runs a server in a thread.

    Args:
        context: Its TLS settings. Default: no TLS.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            request = Request(self.path, dict(self.headers), self.rfile.read(length).decode())
            server.requests.append(request)
            status, text = server.reply(request)
            body = text.encode()
            with contextlib.suppress(OSError):  # a client that no longer waits
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - the name is http.server's

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is http.server's
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # a handshake that a test lets fail

    with Server((HOST, 0), Handler) as listening:
        if context is not None:
            # The handshake is each connection's own, so that one that fails does not end the server.
            listening.socket = context.wrap_socket(listening.socket, server_side=True, do_handshake_on_connect=False)
        server = HttpServer(f"{'http' if context is None else 'https'}://{HOST}:{listening.server_port}")
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield server
        listening.shutdown()
        thread.join()
