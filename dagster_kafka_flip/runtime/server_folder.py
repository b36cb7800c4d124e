"""A server of its own process, and the folder with its files: started here, or by another process before.

The development broker and the local Spark server are such servers.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout
from tenacity import RetryError, Retrying, retry_if_result, stop_after_delay, wait_fixed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from dagster_kafka_flip.errors import KafkaFlipError

LOCALHOST = "127.0.0.1"

_KILL_SECONDS = 10.0
_FAILED_SECONDS = 5.0
_POLL_SECONDS = 0.05
_SHOWN_LINES = 8

# Ends a server when the process that started it is gone in whatever way: only then does the pipe reach its end. The
# server may have ended before that, and another process may have its id: $2 is what `process_start` said of it.
_GUARD = """\
read -r line
set -f
if [ -e /proc/self/stat ]; then
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || exit 0
  set -- "$1" "$2" ${stat##*)}
  start="$(cat /proc/sys/kernel/random/boot_id) ${22}"
else
  set -- "$1" "$2" $(LC_ALL=C ps -o lstart= -p "$1")
  pid=$1 server=$2
  shift 2
  start="$*"
  set -- "$pid" "$server"
fi
if [ -n "$2" ] && [ "$start" = "$2" ]; then kill -TERM "$1"; fi
"""

# A log and a state may hold anybody's secrets, and so nobody else on this machine gets to see the files.
_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700


@dataclass(frozen=True)
class Process:
    """A process, told from a later one with the same id by its start; None as the start of one that has ended."""

    pid: int
    start: str | None


@dataclass(frozen=True)
class ServerState:
    """What is kept in the folder about the last start.

    Attributes:
        ports: By name.
        process: The server.
        started_at: When, in UTC.
    """

    ports: Mapping[str, int]
    process: Process
    started_at: datetime


class ServerFolder:
    """The folder of a server, and the server if this process started it.

    Args:
        path: The folder; made with the first start.
        name: What its files are named after, such as `broker`.
        what: What it is called in messages.
        ports: Names of its ports.
        error: The class of what is raised.
    """

    def __init__(self, path: Path, name: str, what: str, ports: Sequence[str], error: type[KafkaFlipError]) -> None:
        self.path = path
        self._name = name
        self._what = what
        self._ports = tuple(ports)
        self._error = error
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def log_path(self) -> Path:
        """The server's log of this run; that of the run before lies beside it as `NAME.previous.log`."""
        return self.path / "logs" / f"{self._name}.log"

    @property
    def is_child(self) -> bool:
        """Whether this object started the server, and it runs."""
        return self._process is not None and self._process.poll() is None

    @contextlib.contextmanager
    def lock(self, patience: float) -> Generator[None]:
        """Keeps other processes from starting or stopping the server.

        Args:
            patience: Seconds to wait for it.
        """
        lock = FileLock(self.path / f"{self._name}.lock", mode=_PRIVATE_FILE)
        try:
            self.path.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
            lock.acquire(timeout=patience)
        except Timeout as error:
            msg = f"Another process has been starting or stopping the {self._what} on {self.path} for too long."
            raise self._error(msg) from error
        except OSError as error:
            msg = f"{self.path} can't be used as the data folder: {error}. Name another one."
            raise self._error(msg) from error
        try:
            yield
        finally:
            lock.release()

    def last_start(self) -> ServerState | None:
        """What is recorded of the last start; None if there was none."""
        try:
            state = json.loads(self._state_path.read_text(encoding="utf-8"))
            return ServerState(
                ports={name: int(state[name]) for name in self._ports},
                process=Process(int(state["pid"]), state["process_start"]),
                started_at=datetime.fromisoformat(state["started_at"]),
            )
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            msg = (
                f"{self._state_path} can't be read ({error!r}), so it is not known whether a {self._what} is running "
                "on that folder: end it if there is one, and delete the file."
            )
            raise self._error(msg) from error

    def running(self) -> ServerState | None:
        """The server that runs, whichever process started it; None if there is none."""
        state = self.last_start()
        return state if state is not None and self._is_alive(state.process) else None

    def launch(
        self,
        command: Sequence[str],
        ports: Mapping[str, int],
        *,
        daemon: bool,
        umask: int = -1,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """Starts the server, and records it.

        Args:
            command: What to run, in the folder.
            ports: By name.
            daemon: Whether it goes on when this process ends.
            umask: Of the files that it makes. Default: that of this process.
            environment: Its environment variables. Default: those of this process.
        """
        with contextlib.suppress(FileNotFoundError):
            self.log_path.replace(self.log_path.with_name(f"{self._name}.previous.log"))
        self.log_path.parent.mkdir(mode=_PRIVATE_FOLDER, exist_ok=True)
        _make_private(self.log_path)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.path,
                env=None if environment is None else dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # A session of its own, so that Ctrl-C in a terminal reaches us and we stop the server in good order.
                start_new_session=True,
                umask=umask,
            )
        process = Process(self._process.pid, process_start(self._process.pid))
        try:
            self._remember(ServerState(ports, process, started_at=datetime.now(timezone.utc)))
            if not daemon:
                self._guard = guard(process)
        except BaseException:
            self.end(process)
            raise
        return process

    def wait_until_ready(self, answers: Callable[[], bool], address: str, patience: float) -> None:
        """Waits until the server answers.

        Args:
            answers: Whether it does.
            address: Where, for messages.
            patience: Seconds to wait.
        """

        def is_ready() -> bool:
            if self.running() is None:
                msg = f"The {self._what} on {self.path} ended before it answered. {self.last_words()}"
                raise self._error(msg)
            return answers()

        retrying = Retrying(
            stop=stop_after_delay(patience),
            wait=wait_fixed(_POLL_SECONDS),
            retry=retry_if_result(lambda ready: not ready),
        )
        try:
            retrying(is_ready)
        except RetryError as error:
            msg = (
                f"The {self._what} on {self.path} did not answer at {address} within {patience:g} s. "
                f"{self.last_words()}"
            )
            raise self._error(msg) from error

    def end(self, process: Process) -> None:
        """Ends a server whose start has failed.

        Args:
            process: It.
        """
        self._terminate(process, _FAILED_SECONDS)
        self.forget()

    def stop(self, patience: float) -> bool:
        """Ends the server, whichever process started it; tells whether there was one.

        Args:
            patience: How many seconds it has to shut down before it is killed.
        """
        found = self._find_process()
        if found is not None:
            self._terminate(found, patience)
        self.forget()
        return found is not None

    def _terminate(self, process: Process, patience: float) -> None:
        """Ends a process, by force if it does not end by itself."""
        for number, seconds in ((signal.SIGTERM, patience), (signal.SIGKILL, _KILL_SECONDS)):
            if self._is_alive(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)
            deadline = time.monotonic() + seconds
            while self._is_alive(process) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
        if self._is_alive(process):
            msg = f"The {self._what}'s process {process.pid} did not end within {_KILL_SECONDS:.0f} s of being killed."
            raise self._error(msg)

    def wait(self) -> int:
        """Waits until the server that this object started has ended, and returns its exit code."""
        if self._process is None:
            msg = f"The {self._what} on {self.path} was not started here, so its end can't be waited for."
            raise self._error(msg)
        return self._process.wait()

    def forget(self) -> None:
        """Clears up after a process that has ended; the record of the start stays, for the ports of the next one."""
        if self._guard is not None:
            # First of all, because the id that it would send a signal to can be another process's from now on.
            self._guard.kill()
            self._guard.communicate()
        self._process = self._guard = None
        if self.running() is None:
            self._pid_path.unlink(missing_ok=True)

    def last_words(self) -> str:
        """What the log says at its end."""
        try:
            text = self.log_path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return f"It wrote no log to {self.log_path}."
        return f"The last telling lines of {self.log_path}:\n{telling_lines(text)}"

    @property
    def _state_path(self) -> Path:
        return self.path / f"{self._name}.json"

    @property
    def _pid_path(self) -> Path:
        return self.path / f"{self._name}.pid"

    def _remember(self, state: ServerState) -> None:
        document = {
            **state.ports,
            "pid": state.process.pid,
            "process_start": state.process.start,
            "started_at": state.started_at.isoformat(),
        }
        fresh = self._state_path.with_suffix(".json.new")
        write_private(fresh, json.dumps(document, indent=2))
        fresh.replace(self._state_path)
        write_private(self._pid_path, f"{state.process.pid}\n")

    def _find_process(self) -> Process | None:
        if self._process is not None and self._process.poll() is None:
            return Process(self._process.pid, start=None)
        state = self.running()
        return None if state is None else state.process

    def _is_alive(self, process: Process) -> bool:
        if self._process is not None and self._process.pid == process.pid:
            return self._process.poll() is None
        return process.start is not None and process_start(process.pid) == process.start


def write_private(path: Path, text: str) -> None:
    """Writes a file that nobody else on this machine may read.

    Args:
        path: Where.
        text: What.
    """
    _make_private(path)
    path.write_text(text, encoding="utf-8")


def _make_private(path: Path) -> None:
    path.touch(mode=_PRIVATE_FILE)
    path.chmod(_PRIVATE_FILE)


def guard(process: Process) -> subprocess.Popen[bytes]:
    """Ends a process as soon as this one is gone, unless another process has its id by then.

    Args:
        process: It.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "sh", str(process.pid), process.start or ""],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def is_free(port: int) -> bool:
    """Whether a port of this machine's loopback address is free."""
    with socket.socket() as probe:
        # As servers do: a port whose last connections are only being wound up is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOCALHOST, port))
        except OSError:
            return False
    return True


def choose_ports(asked: Mapping[str, int], last: Mapping[str, int], error: type[KafkaFlipError]) -> dict[str, int]:
    """Ports to start a server on.

    Args:
        asked: By name; 0 for that of the last time, or a free one.
        last: Those of the last time.
        error: The class of what is raised.
    """
    chosen: dict[str, int] = {}
    for name, port in asked.items():
        if port and not is_free(port):
            msg = (
                f"Port {port} on {LOCALHOST} is in use by another program: stop that one, or choose another port "
                "(0 takes a free one)."
            )
            raise error(msg)
        before = last.get(name, 0)
        chosen[name] = port or (before if before and is_free(before) else 0)
    # The sockets are held together, so that the system can't hand out one port twice.
    with contextlib.ExitStack() as stack:
        for name, port in chosen.items():
            if not port:
                held = stack.enter_context(socket.socket())
                held.bind((LOCALHOST, 0))
                chosen[name] = held.getsockname()[1]
    return chosen


def process_start(pid: int) -> str | None:
    """Returns what tells a process from a later one with the same id, or None if it has ended."""
    if Path("/proc/self/stat").exists():
        try:
            # The name in parentheses may hold anything; after it come the state and, as the 20th, the ticks since boot.
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return None if fields[0] in "ZX" else f"{boot} {fields[19]}"
    shown = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False, env={"LC_ALL": "C"}
    )
    state, _, started = shown.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else " ".join(started.split())


def telling_lines(text: str) -> str:
    """Picks the errors out of a log; its last lines if it has none, and all of a short one.

    Args:
        text: The log.
    """
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and not line.startswith(("\t", "Picked up "))]
    marks = (" ERROR ", " FATAL ", "Exception", "Error:", "Error occurred")
    errors = [line for line in lines if any(mark in line for mark in marks)]
    told = lines if len(lines) <= _SHOWN_LINES else errors or lines
    return "\n".join(f"  {line}" for line in told[-_SHOWN_LINES:])
