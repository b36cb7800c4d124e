"""A network that holds one request of a producer back, and lets it through to the broker later."""

from __future__ import annotations

import socket
import struct
import threading
from typing import NamedTuple

from tests.faults.network import Network

# Kafka's numbers of the requests that a transaction consists of, in their order.
INIT_PRODUCER_ID, ADD_PARTITIONS, PRODUCE, END_TXN = 22, 24, 0, 26
REQUESTS = {
    INIT_PRODUCER_ID: "InitProducerId",
    ADD_PARTITIONS: "AddPartitionsToTxn",
    PRODUCE: "Produce",
    END_TXN: "EndTxn",
}
_PATIENCE_SECONDS = 10.0


class Place(NamedTuple):
    """A request of a client.

    Attributes:
        kind: Kafka's number of such requests.
        number: The how manieth of its kind, from 1.
    """

    kind: int
    number: int

    def __str__(self) -> str:
        return f"{REQUESTS[self.kind]} {self.number}"


class HeldRequests(Network):
    """A network that does not forward one request, but closes its connection, and forwards it before a later one.

    Args:
        port: Where it forwards to, on this machine.
    """

    def __init__(self, port: int) -> None:
        self._requests = threading.Lock()
        self._counts = dict.fromkeys(REQUESTS, 0)
        self._hold: Place | None = None
        self._until: Place | None = None
        self._held: bytes | None = None
        self.is_released = False
        super().__init__(port)

    def hold(self, request: Place, until: Place) -> None:
        """From now on counts the requests, and holds one back.

        Args:
            request: Which one, as counted from now on.
            until: Which one it precedes then, as counted from there on.
        """
        with self._requests:
            self._counts = dict.fromkeys(REQUESTS, 0)
            self._hold, self._until, self._held, self.is_released = request, until, None, False

    def release(self) -> None:
        """Lets the request through now, if it is still held back; none is held back any more."""
        with self._requests:
            self._hold = None
            self._release()

    def _release(self) -> None:
        held, self._held, self._until = self._held, None, None
        if held is None:
            return
        # The connection it came by is closed, and brokers know a producer by the request alone.
        with socket.create_connection(("127.0.0.1", self._target), _PATIENCE_SECONDS) as broker:
            broker.sendall(held)
            assert _frame(broker)
        self.is_released = True

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        if sink.getpeername()[1] != self._target:
            super()._copy(source, sink)
            return
        while frame := _frame(source):
            with self._requests:
                if self._is_held(frame):
                    return
            sink.sendall(frame)

    def _is_held(self, frame: bytes) -> bool:
        """Counts a request; whether it is to be held back."""
        (kind,) = struct.unpack_from(">h", frame, 4)
        if kind not in REQUESTS:
            return False
        self._counts[kind] += 1
        place = Place(kind, self._counts[kind])
        if place == self._hold:
            self._hold, self._held = None, frame
            self._counts = dict.fromkeys(REQUESTS, 0)
            return True
        if self._hold is None and place == self._until:
            self._release()
        return False


def _frame(connection: socket.socket) -> bytes:
    """The next request or answer, with its size in front; empty at the end."""
    size = _exactly(connection, 4)
    return size and size + _exactly(connection, int.from_bytes(size, "big"))


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = bytearray()
    while len(found) < size:
        data = connection.recv(size - len(found))
        if not data:
            return b""
        found += data
    return bytes(found)
