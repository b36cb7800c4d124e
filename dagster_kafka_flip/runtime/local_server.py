"""A server of this machine for development, and its folder. This or an earlier process has started it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import psutil
from filelock import FileLock, Timeout

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.runtime.java import without_options
from dagster_kafka_flip.settings.arguments import expect

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence
    from types import TracebackType

    from typing_extensions import Self

    from dagster_kafka_flip.errors import KafkaFlipError

LOCALHOST = "127.0.0.1"

_PORT_ATTEMPTS = 4
# The holder of the lock may wait for its server as long as this process would, and then has to end it.
_LOCK_SECONDS = 30.0
_FAILED_SECONDS = 5.0
_KILL_SECONDS = 10.0
_POLL_SECONDS = 0.05
_SHOWN_LINES = 8

# What a JVM that is told to end exits with, and a process that SIGTERM ends.
_ENDED = (0, 128 + signal.SIGTERM, -signal.SIGTERM)

# Logs and state may contain secrets, so other users must not read the files.
_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700

# Waits until the process that started it ends in any way: only then does the pipe close. If the id is another process's
# by then, psutil ends nothing.
_GUARD = "import psutil, sys; server = psutil.Process(int(sys.argv[1])); sys.stdin.read(); server.terminate()"


@dataclass(frozen=True)
class ServerStatus:
    """A running server.

    Attributes:
        address: Its address for clients.
        port: Its port for clients.
        pid: Its process id.
        data_dir: The folder with its data and logs.
        started_at: When it was started, in UTC.
    """

    address: str
    port: int
    pid: int
    data_dir: Path
    started_at: datetime

    @property
    def uptime(self) -> timedelta:
        """The time since the start."""
        return datetime.now(timezone.utc) - self.started_at


@dataclass(frozen=True)
class _Start:
    """The last start: also that of a server that has ended, whose ports the next one takes."""

    ports: Mapping[str, int]
    pid: int
    started_at: datetime
    options: str


class LocalServer(ABC):
    """A server with a folder of its own, and ports by name (`port` for clients).

    A context manager; a server that was running before is used and keeps running.
    """

    name: ClassVar[str]
    """Of its files."""
    what: ClassVar[str]
    """Its name in messages."""
    error: ClassVar[type[KafkaFlipError]]
    umask: ClassVar[int] = 0o077
    """For its files, which may contain secrets; -1 for this process's."""

    def __init__(
        self, data_dir: str | Path, ports: Mapping[str, int], timeout: float, options: Sequence[Any] = ()
    ) -> None:
        expect("data_dir", data_dir, (str, Path), f'".{self.name}"')
        expect("timeout", timeout, (int, float), "60.0")
        if not timeout > 0:
            raise ConfigurationError(f"timeout: invalid value {timeout!r}; use a number of seconds above 0.")
        for option, port in ports.items():
            expect(option, port, int, "9092")
            if not 0 <= port <= 65535:  # noqa: PLR2004
                raise ConfigurationError(f"Invalid port {port}: use 1 to 65535, or 0 for a free port.")
        self.data_dir = Path(data_dir).expanduser().absolute()
        self.timeout = timeout
        self._asked = dict(ports)
        # Not themselves: they may have secrets. Without any, a running server is used whatever its own are.
        digest = hashlib.sha256(json.dumps(options, sort_keys=True, default=str).encode()).hexdigest()
        self._options = digest if any(options) else ""
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def log_path(self) -> Path:
        """The server's log of this run; the previous run's is `NAME.previous.log`."""
        return self.data_dir / "logs" / f"{self.name}.log"

    def start(self, *, daemon: bool = False) -> ServerStatus:
        """Starts the server and waits until it answers; returns a running one unchanged.

        The very first start of a kind downloads its jars.

        Args:
            daemon: Whether it keeps running when this process ends. Otherwise it ends with this object at the latest,
                even if this process is killed.

        Raises:
            KafkaFlipError: The port is in use, the folder can't be written, the server ended or did not answer in
                time, or it already runs on another port or with other options.
            JavaNotFoundError: Java was not found, or is too old.
            JarDownloadError: A download failed.
        """
        program = self._program()
        with self._lock():
            running = self.status()
            if running is None:
                self._forget()
                self._start(program, daemon=daemon)
                return self.running()
            if self._asked["port"] not in (0, running.port):
                raise self.error(
                    f"A {self.what} is already running on {self.data_dir}, at {running.address} and not on port "
                    f"{self._asked['port']}: stop it first, or use that address."
                )
            last = self._last_start()
            if self._options and (last is None or last.options != self._options):
                raise self.error(
                    f"A {self.what} is already running on {self.data_dir} with other options: stop it first, or leave "
                    "them out."
                )
            # Whoever started it may have been killed before it answered.
            self._wait_until_ready(running.port)
            return running

    def stop(self, *, timeout: float = 30.0) -> bool:
        """Stops the server, started by any process; returns whether it was running. Its data stay.

        Args:
            timeout: Seconds for the shutdown before it is killed.

        Raises:
            KafkaFlipError: The process did not end, or another process is still starting the server.
        """
        # If the folder was deleted, no lock is needed, and it must not be created again.
        with self._lock() if self.data_dir.is_dir() else contextlib.nullcontext():
            # That of a deleted folder has no state.
            running = self._process if self.is_child else self.status()
            if running is not None:
                self._end(running.pid, timeout)
            self._forget()
            return running is not None

    def status(self) -> ServerStatus | None:
        """The running server, started by any process; None if there is none.

        Only looks at the process: a server that was just started may not answer yet.

        Raises:
            KafkaFlipError: The state of the last start can't be read.
        """
        last = self._last_start()
        if last is None or not self._runs(last.pid):
            return None
        port = last.ports["port"]
        return ServerStatus(self._address(port), port, last.pid, self.data_dir, last.started_at)

    def running(self) -> ServerStatus:
        """The running server.

        Raises:
            KafkaFlipError: There is none.
        """
        status = self.status()
        if status is None:
            raise self.error(f"No {self.what} is running on {self.data_dir}: start it first.")
        return status

    def wait(self) -> None:
        """Waits until the server that this object started has ended.

        Raises:
            KafkaFlipError: This object did not start it, or it ended without being stopped.
        """
        if self._process is None:
            raise self.error(
                f"The {self.what} on {self.data_dir} was not started by this process, so this process can't wait for "
                "its end."
            )
        code = self._process.wait()
        with self._lock():
            self._forget()
        if code not in _ENDED:
            raise self.error(f"The {self.what} on {self.data_dir} ended with {code}. {self._last_words()}")

    @property
    def is_child(self) -> bool:
        """Whether this object started the server, and it still runs."""
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.is_child:
            self.stop()

    # --- what each kind of server says of itself --------------------------------------------------------------------

    @abstractmethod
    def _program(self) -> Sequence[str]:
        """Finds what the command begins with; downloads what is missing."""

    @abstractmethod
    def _command(self, program: Sequence[str], ports: Mapping[str, int]) -> Sequence[str]:
        """Prepares a start on these ports, and returns the command. It runs in the folder."""

    @abstractmethod
    def _answers(self, port: int) -> Callable[[], bool]:
        """Returns a function that tells whether clients can connect."""

    def _address(self, port: int) -> str:
        return f"{LOCALHOST}:{port}"

    def _environment(self) -> dict[str, str] | None:
        """Its environment variables. Default: this process's."""
        return None

    # --- starting and ending ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _lock(self) -> Generator[None]:
        """Keeps other processes from starting or stopping the server."""
        lock = FileLock(self.data_dir / f"{self.name}.lock", mode=_PRIVATE_FILE)
        try:
            self.data_dir.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
            lock.acquire(timeout=self.timeout + _LOCK_SECONDS)
        except Timeout as error:
            msg = f"Another process has been starting or stopping the {self.what} on {self.data_dir} for too long."
            raise self.error(msg) from error
        except OSError as error:
            msg = f"{self.data_dir} can't be used as the data folder: {error}. Choose another one."
            raise self.error(msg) from error
        try:
            yield
        finally:
            lock.release()

    def _start(self, program: Sequence[str], *, daemon: bool) -> None:
        """Starts the server and waits for it; on other ports if another program was faster to take one."""
        before = self._last_start()
        last: Mapping[str, int] = {} if before is None else before.ports
        for attempts_left in reversed(range(_PORT_ATTEMPTS)):
            ports = choose_ports(self._asked, last, self.error)
            try:
                self._launch(self._command(program, ports), ports, daemon=daemon)
                self._wait_until_ready(ports["port"])
            except BaseException as error:
                if self._process is not None:
                    self._end(self._process.pid, _FAILED_SECONDS)
                self._forget()
                taken = {port for port in ports.values() if not _is_free(port)}
                is_lost = isinstance(error, self.error) and taken and not taken & set(self._asked.values())
                if not (is_lost and attempts_left):
                    raise
                last = {}
            else:
                return

    def _launch(self, command: Sequence[str], ports: Mapping[str, int], *, daemon: bool) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.log_path.replace(self.log_path.with_name(f"{self.name}.previous.log"))
        self.log_path.parent.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)
        write_private(self.log_path, "")
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.data_dir,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # In its own session, so that Ctrl-C in a terminal only reaches this process, which stops the server
                # cleanly.
                start_new_session=True,
                umask=self.umask,
            )
        now = datetime.now(timezone.utc).isoformat()
        state = {"ports": dict(ports), "pid": self._process.pid, "started_at": now, "options": self._options}
        fresh = self._state_path.with_suffix(".json.new")
        write_private(fresh, json.dumps(state, indent=2))
        fresh.replace(self._state_path)
        if not daemon:
            self._guard = guard(self._process.pid)

    def _wait_until_ready(self, port: int) -> None:
        answers, deadline = self._answers(port), time.monotonic() + self.timeout
        while True:
            if self.status() is None:
                raise self.error(f"The {self.what} on {self.data_dir} ended during its start. {self._last_words()}")
            if answers():
                return
            if time.monotonic() > deadline:
                raise self.error(
                    f"The {self.what} on {self.data_dir} did not answer at {self._address(port)} within "
                    f"{self.timeout:g} s. {self._last_words()}"
                )
            time.sleep(_POLL_SECONDS)

    def _end(self, pid: int, patience: float) -> None:
        """Ends a process; kills it if it does not end in time."""
        for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, _KILL_SECONDS)):
            if self._runs(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            deadline = time.monotonic() + seconds
            while self._runs(pid) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        if self._runs(pid):
            raise self.error(
                f"The {self.what}'s process {pid} did not end within {_KILL_SECONDS:.0f} s of being killed."
            )

    def _forget(self) -> None:
        """Forgets a process that has ended, and its guard."""
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
        self._process = self._guard = None

    def _runs(self, pid: int) -> bool:
        """Whether a process is the server: another one that got its id works elsewhere."""
        if self._process is not None and self._process.pid == pid:
            return self._process.poll() is None
        try:
            process = psutil.Process(pid)
            return process.status() != psutil.STATUS_ZOMBIE and self.data_dir.samefile(process.cwd())
        except (psutil.Error, OSError):
            return False

    def _last_start(self) -> _Start | None:
        try:
            state = json.loads(self._state_path.read_text(encoding="utf-8"))
            ports = {name: int(state["ports"][name]) for name in self._asked}
            started_at = datetime.fromisoformat(state["started_at"])
            return _Start(ports, int(state["pid"]), started_at, state.get("options", ""))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self.error(
                f"{self._state_path} can't be read ({error!r}), so it is unknown whether a {self.what} is running on "
                "that folder: stop it if it runs, and delete the file."
            ) from error

    def _last_words(self) -> str:
        try:
            text = self.log_path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return f"There is no log in {self.log_path}."
        return f"Last relevant lines of {self.log_path}:\n{error_lines(text)}"

    @property
    def _state_path(self) -> Path:
        return self.data_dir / f"{self.name}.json"


def guard(pid: int) -> subprocess.Popen[bytes]:
    """Ends a process when this one ends, unless its id belongs to another process by then."""
    return subprocess.Popen(
        [sys.executable, "-c", _GUARD, str(pid)],
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def write_private(path: Path, text: str) -> None:
    """Writes a file that only the owner can read."""
    path.touch(mode=_PRIVATE_FILE)
    path.chmod(_PRIVATE_FILE)
    path.write_text(text, encoding="utf-8")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Like servers: a port with only closing connections is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOCALHOST, port))
        except OSError:
            return False
    return True


def choose_ports(asked: Mapping[str, int], last: Mapping[str, int], error: type[KafkaFlipError]) -> dict[str, int]:
    """Chooses the ports for a server's start: those asked for; for 0 that of the last start, or a free one."""
    chosen: dict[str, int] = {}
    for name, port in asked.items():
        if port and not _is_free(port):
            raise error(
                f"Port {port} on {LOCALHOST} is in use by another program: stop it, or choose another port (0 takes a "
                "free one)."
            )
        before = last.get(name, 0)
        is_taken = before in {0, *asked.values(), *chosen.values()}
        chosen[name] = port or (0 if is_taken or not _is_free(before) else before)
    # Holds the sockets together, so that the system does not return a port twice.
    with contextlib.ExitStack() as stack:
        for name, port in chosen.items():
            if not port:
                held = stack.enter_context(socket.socket())
                held.bind((LOCALHOST, 0))
                chosen[name] = held.getsockname()[1]
    return chosen


def error_lines(text: str) -> str:
    """Extracts the errors of a log; its last lines if it has none, and all of a short one."""
    lines = [line.rstrip() for line in without_options(text).splitlines() if line.strip() and line[0] != "\t"]
    marks = (" ERROR ", " FATAL ", "Exception", "Error:", "Error occurred")
    errors = [line for line in lines if any(mark in line for mark in marks)]
    shown = lines if len(lines) <= _SHOWN_LINES else errors or lines
    return "\n".join(f"  {line}" for line in shown[-_SHOWN_LINES:])
