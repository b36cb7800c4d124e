"""A local server process and its data folder; the server may be started by this or an earlier process.

Used by the development broker and the local Spark server.
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

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.settings.arguments import expect

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from dagster_kafka_flip.errors import KafkaFlipError

LOCALHOST = "127.0.0.1"

PRIVATE_UMASK = 0o077
"""For servers whose files may contain secrets."""

_PORT_ATTEMPTS = 4
_KILL_SECONDS = 10.0
_FAILED_SECONDS = 5.0
_POLL_SECONDS = 0.05
_SHOWN_LINES = 8

# Ends a server when the process that started it ends in any way: only then does the pipe close. The server may have
# ended before, and another process may have its id: $2 is its `process_start`.
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

# Logs and state may contain secrets, so other users must not read the files.
_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700


@dataclass(frozen=True)
class Process:
    """A process, identified by id and start time; the start time is None if it has ended."""

    pid: int
    start: str | None


@dataclass(frozen=True)
class ServerState:
    """Recorded state of the last start."""

    ports: Mapping[str, int]
    process: Process
    started_at: datetime


class ServerFolder:
    """A server's folder, and the server if this process started it.

    Args:
        path: The folder; created by the first start.
        name: Name of its files, such as `broker`.
        what: Name of the server in messages.
        ports: Names of its ports.
        error: The error class.
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
        """The server's log of this run; the previous run's is `NAME.previous.log`."""
        return self.path / "logs" / f"{self._name}.log"

    @property
    def is_child(self) -> bool:
        """Whether this object started the server, and it still runs."""
        return self._process is not None and self._process.poll() is None

    @contextlib.contextmanager
    def lock(self, patience: float) -> Generator[None]:
        """Keeps other processes from starting or stopping the server; waits `patience` seconds for those that do."""
        lock = FileLock(self.path / f"{self._name}.lock", mode=_PRIVATE_FILE)
        try:
            self.path.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
            lock.acquire(timeout=patience)
        except Timeout as error:
            msg = f"Another process has been starting or stopping the {self._what} on {self.path} for too long."
            raise self._error(msg) from error
        except OSError as error:
            raise self._error(f"{self.path} can't be used as the data folder: {error}. Choose another one.") from error
        try:
            yield
        finally:
            lock.release()

    def last_start(self) -> ServerState | None:
        """The state of the last start; None if there is none."""
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
            raise self._error(
                f"{self._state_path} can't be read ({error!r}), so it is unknown whether a {self._what} is running on "
                "that folder: stop it if it runs, and delete the file."
            ) from error

    def running(self) -> ServerState | None:
        """The running server, started by any process; None if there is none."""
        state = self.last_start()
        return state if state is not None and self._is_alive(state.process) else None

    def start(
        self,
        asked: Mapping[str, int],
        command: Callable[[Mapping[str, int]], Sequence[str]],
        wait: Callable[[Mapping[str, int]], None],
        *,
        daemon: bool,
        umask: int = -1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Launches the server and waits for it; on other ports if another program was faster to take one.

        Args:
            asked: Ports by name; 0 for that of the last start, or a free one.
            command: Prepares the start on these ports, and returns the command.
            wait: Waits until the server answers on these ports.
            daemon: As for `launch`.
            umask: As for `launch`.
            environment: As for `launch`.
        """
        state = self.last_start()
        last: Mapping[str, int] = {} if state is None else state.ports
        for attempts_left in reversed(range(_PORT_ATTEMPTS)):
            ports = choose_ports(asked, last, self._error)
            process = self.launch(command(ports), ports, daemon=daemon, umask=umask, environment=environment)
            try:
                wait(ports)
            except BaseException as error:
                self._terminate(process, _FAILED_SECONDS)
                self.forget()
                taken = {port for port in ports.values() if not is_free(port)}
                is_lost = isinstance(error, self._error) and taken and not taken & set(asked.values())
                if not (is_lost and attempts_left):
                    raise
                last = {}
            else:
                return

    def launch(
        self,
        command: Sequence[str],
        ports: Mapping[str, int],
        *,
        daemon: bool,
        umask: int = -1,
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """Starts the server and records its state.

        Args:
            command: The command; it runs in the folder.
            ports: Ports by name.
            daemon: Whether it keeps running when this process ends.
            umask: The umask for its files. Default: this process's umask.
            environment: Its environment variables. Default: this process's.
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
                # In its own session, so that Ctrl-C in a terminal only reaches this process, which stops the server
                # cleanly.
                start_new_session=True,
                umask=umask,
            )
        process = Process(self._process.pid, process_start(self._process.pid))
        try:
            self._remember(ServerState(ports, process, started_at=datetime.now(timezone.utc)))
            if not daemon:
                self._guard = guard(process)
        except BaseException:
            self._terminate(process, _FAILED_SECONDS)
            self.forget()
            raise
        return process

    def wait_until_ready(self, answers: Callable[[], bool], address: str, patience: float) -> None:
        """Waits up to `patience` seconds until the server answers; messages show the address."""

        def is_ready() -> bool:
            if self.running() is None:
                raise self._error(f"The {self._what} on {self.path} ended during its start. {self.last_words()}")
            return answers()

        retrying = Retrying(
            stop=stop_after_delay(patience),
            wait=wait_fixed(_POLL_SECONDS),
            retry=retry_if_result(lambda ready: not ready),
        )
        try:
            retrying(is_ready)
        except RetryError as error:
            raise self._error(
                f"The {self._what} on {self.path} did not answer at {address} within {patience:g} s. "
                f"{self.last_words()}"
            ) from error

    def stop(self, patience: float) -> bool:
        """Stops the server, started by any process; returns whether it was running.

        Args:
            patience: Seconds for the shutdown before it is killed.
        """
        found = self._find_process()
        if found is not None:
            self._terminate(found, patience)
        self.forget()
        return found is not None

    def _terminate(self, process: Process, patience: float) -> None:
        """Ends a process; kills it if it does not end in time."""
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
            raise self._error(
                f"The {self._what} on {self.path} was not started by this process, so this process can't wait for "
                "its end."
            )
        return self._process.wait()

    def forget(self) -> None:
        """Cleans up after a process that has ended; keeps the state, for the ports of the next start."""
        if self._guard is not None:
            # First, because the process id may belong to another process from now on.
            self._guard.kill()
            self._guard.communicate()
        self._process = self._guard = None
        if self.running() is None:
            self._pid_path.unlink(missing_ok=True)

    def last_words(self) -> str:
        """The last lines of the log."""
        try:
            text = self.log_path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return f"There is no log in {self.log_path}."
        return f"Last relevant lines of {self.log_path}:\n{error_lines(text)}"

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
    """Writes a file that only the owner can read."""
    _make_private(path)
    path.write_text(text, encoding="utf-8")


def _make_private(path: Path) -> None:
    path.touch(mode=_PRIVATE_FILE)
    path.chmod(_PRIVATE_FILE)


def guard(process: Process) -> subprocess.Popen[bytes]:
    """Ends a process when this one ends, unless its id belongs to another process by then."""
    return subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, "sh", str(process.pid), process.start or ""],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def check_port(option: str, port: int) -> None:
    """Checks a port that was asked for."""
    expect(option, port, int, "9092")
    if not 0 <= port <= 65535:  # noqa: PLR2004
        raise ConfigurationError(f"Invalid port {port}: use 1 to 65535, or 0 for a free port.")


def is_free(port: int) -> bool:
    """Whether a port of the loopback address is free."""
    with socket.socket() as probe:
        # Like servers: a port with only closing connections is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOCALHOST, port))
        except OSError:
            return False
    return True


def choose_ports(asked: Mapping[str, int], last: Mapping[str, int], error: type[KafkaFlipError]) -> dict[str, int]:
    """Chooses the ports for a server's start.

    Args:
        asked: Ports by name; 0 for the last port, or a free one.
        last: Ports of the last start.
        error: The error class.
    """
    chosen: dict[str, int] = {}
    for name, port in asked.items():
        if port and not is_free(port):
            raise error(
                f"Port {port} on {LOCALHOST} is in use by another program: stop it, or choose another port (0 takes a "
                "free one)."
            )
        before = last.get(name, 0)
        is_taken = before in {0, *asked.values(), *chosen.values()}
        chosen[name] = port or (0 if is_taken or not is_free(before) else before)
    # Holds the sockets together, so that the system does not return a port twice.
    with contextlib.ExitStack() as stack:
        for name, port in chosen.items():
            if not port:
                held = stack.enter_context(socket.socket())
                held.bind((LOCALHOST, 0))
                chosen[name] = held.getsockname()[1]
    return chosen


def process_start(pid: int) -> str | None:
    """Returns a process's start, which distinguishes it from a later one with the same id; None if it has ended."""
    if Path("/proc/self/stat").exists():
        try:
            # The name in parentheses may contain anything; after it come the state and, as the 20th, the ticks since
            # boot.
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


def error_lines(text: str) -> str:
    """Extracts the errors of a log; its last lines if it has none, and all of a short one."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip() and not line.startswith(("\t", "Picked up "))]
    marks = (" ERROR ", " FATAL ", "Exception", "Error:", "Error occurred")
    errors = [line for line in lines if any(mark in line for mark in marks)]
    shown = lines if len(lines) <= _SHOWN_LINES else errors or lines
    return "\n".join(f"  {line}" for line in shown[-_SHOWN_LINES:])
