"""A network that can be cut: a broker, and a TCP proxy that all of a client's way to it goes through."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING

from dagster_kafka_flip.broker.local_broker import LocalBroker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from typing_extensions import Self

# For clients that are to find out soon. There are more records than a consumer fetches at once and Spark reads ahead of
# a Python function (two batches of 100), so that something is left to fetch when the network is gone.
IMPATIENT = {
    "max.partition.fetch.bytes": "300000",
    "max.poll.records": "10",
    "request.timeout.ms": "2000",
    "default.api.timeout.ms": "2500",
}
RECORDS = 400
RECORD_BYTES = 30_000

_HOST = "127.0.0.1"
# A socket that is closed with it says "connection reset", and waits for nobody.
_NO_LINGER = struct.pack("ii", 1, 0)


class Network:
    """A TCP proxy in threads, whose connections can be cut.

    Args:
        port: Where it forwards to, on this machine.

    Attributes:
        port: Where it listens.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server((_HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._is_cut = False
        self._is_cut_for_java = False
        self._flows = threading.Event()
        self._flows.set()
        self._connections: set[socket.socket] = set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cut()
        # Its threads are to come to their end, which they find at a closed socket and not at one that is silent.
        self._flows.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def cut(self) -> None:
        """Resets all connections, and each new one at once."""
        with self._lock:
            self._is_cut = True
            self._reset_all()

    def cut_java(self) -> None:
        """Resets all connections, and each new one of Kafka's Java client: Spark's reader is cut off, nobody else."""
        with self._lock:
            self._is_cut_for_java = True
            self._reset_all()

    def silence(self) -> None:
        """Holds back all that is sent, as where packets get lost: connections stay open, and nothing arrives."""
        self._flows.clear()

    def heal(self) -> None:
        """Forwards as before, also what was held back meanwhile."""
        with self._lock:
            self._is_cut = self._is_cut_for_java = False
        self._flows.set()

    def _reset_all(self) -> None:
        for connection in self._connections:
            _reset(connection)
        self._connections.clear()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                try:
                    broker = None if self._is_cut else socket.create_connection((_HOST, self._target))
                except OSError:
                    broker = None
                if broker is None:
                    _reset(client)
                    continue
                self._connections |= {client, broker}
            for source, sink in ((client, broker), (broker, client)):
                thread = threading.Thread(target=self._forward, args=(source, sink), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self._copy(source, sink)
        with self._lock:
            for connection in (source, sink):
                if connection in self._connections:
                    self._connections.remove(connection)
                    _reset(connection)

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        """Copies what one end sends to the other; both connections are closed when it ends."""
        while data := source.recv(65536):
            self._flows.wait()
            # Clients say who they are in their first request (KIP-511).
            if self._is_cut_for_java and b"apache-kafka-java" in data:
                break
            sink.sendall(data)


class DistantBroker(LocalBroker):
    """A broker with a second listener, which tells its clients that it is at the other end of a network.

    Args:
        data_dir: The folder for topics, settings and logs.
        network: What makes the network, given the port to forward to.
    """

    def __init__(self, data_dir: Path, network: Callable[[int], Network] = Network) -> None:
        with socket.socket() as probe:
            probe.bind((_HOST, 0))
            self._distant_port: int = probe.getsockname()[1]
        self.network = network(self._distant_port)
        super().__init__(data_dir)

    @property
    def distant_servers(self) -> str:
        """The address behind the network; `bootstrap_servers` is the one that needs none."""
        return f"{_HOST}:{self.network.port}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, traceback)
        finally:
            self.network.__exit__(kind, error, traceback)

    def _addressing(self, port: int, controller_port: int) -> dict[str, str]:
        settings = super()._addressing(port, controller_port)
        settings["listeners"] += f",DISTANT://{_HOST}:{self._distant_port}"
        settings["advertised.listeners"] += f",DISTANT://{self.distant_servers}"
        settings["listener.security.protocol.map"] += ",DISTANT:PLAINTEXT"
        return settings


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    # A thread that waits for what arrives is woken by this, and not by the socket's end.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
