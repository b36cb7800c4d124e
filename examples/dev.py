"""Starts all services of the example project until Ctrl-C: `python -m examples.dev`, or `make dev`.

A Kafka broker with half a year of flights, a Spark Connect server that keeps Spark warm between runs, and Dagster with
its web UI and its daemon on the example project.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import click
import psutil
from dagster import DagsterInstance
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn
from rich.table import Table

from dagster_kafka_flip import KafkaFlipError, LocalBroker
from dagster_kafka_flip.errors import BrokerError
from dagster_kafka_flip.runtime.local_server import guard
from dagster_kafka_flip.runtime.spark_server import SparkServer
from examples.progress import busy, progress

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HOST = "127.0.0.1"
_WEBSERVER = "dagster-webserver"
_DAEMON = "dagster-daemon"
_BROKER_PORT = 9092
_LOAD_SECONDS = 180.0
_END_SECONDS = 20.0
_POLL_SECONDS = 0.2
_SHOWN_LINES = 15

_WORKSPACE = Path(__file__).resolve().parent.parent / "workspace.yaml"

_DAGSTER_YAML = """\
telemetry:
  enabled: false
# Hide Dagster's introduction dialog.
nux:
  enabled: false
# Materialize the assets of a pool one at a time.
concurrency:
  pools:
    default_limit: 1
"""

_LOCATIONS = """
{
  workspaceOrError {
    ... on PythonError { message }
    ... on Workspace {
      locationEntries { name loadStatus locationOrLoadError { ... on PythonError { message } } }
    }
  }
}
"""


class DevError(Exception):
    """A process did not start, or ended unexpectedly."""


@dataclass(frozen=True)
class _Child:
    """A process group that was started here."""

    name: str
    process: subprocess.Popen[bytes]
    guard: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Checks that it is running.

        Raises:
            DevError: It is not running.
        """
        code = self.process.poll()
        if code is not None:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:]
            raise DevError(f"{self.name} ended with {code}. The end of its log, {self.log}:\n" + "\n".join(lines))

    def listens(self, port: int) -> bool:
        """Whether one of its processes listens on a port."""
        with contextlib.suppress(psutil.Error):
            own = psutil.Process(self.process.pid)
            sockets = [each for process in (own, *own.children()) for each in process.net_connections("tcp")]
            return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in sockets)
        return False

    def is_there(self) -> bool:
        """Whether any process of the group is running."""
        self.process.poll()
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True


def _end(children: Sequence[_Child]) -> None:
    """Ends all groups at the same time, and waits for all of their processes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.process.pid, number)
        deadline = time.monotonic() + _END_SECONDS
        while any(child.is_there() for child in children) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    for child in children:
        child.guard.kill()
        child.guard.communicate()


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), default=3000, show_default=True, help="The web UI's port.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".dev"),
    show_default=True,
    help="The broker's data, Dagster's history, the tables and the logs; kept between runs.",
)
def main(port: int, data_dir: Path) -> None:
    """Run a Kafka broker with flights in it, and Dagster on the example project, until Ctrl-C.

    If a port is in use, a free one is used instead.
    """
    interrupts: list[int] = []

    def interrupt(number: int, _: object) -> NoReturn:
        interrupts.append(number)
        raise KeyboardInterrupt

    # All stop everything like Ctrl-C, the last one when a terminal is closed.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # In the background, a shell has Ctrl-C ignored.
        if number != signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)
    console = Console(highlight=False)
    try:
        with contextlib.ExitStack() as started:
            try:
                _start(console, started, port, data_dir.absolute())
            except BaseException as error:
                # A library may make an error of its own of the interrupt, as pandas does while it reads a file.
                if not interrupts:
                    raise
                console.print("Stopping Dagster, Spark and Kafka, which takes up to half a minute.")
                raise KeyboardInterrupt from error
    except KeyboardInterrupt:
        console.print("Everything is stopped.")
    except (KafkaFlipError, DevError) as error:
        console.print(str(error), style="red", markup=False, soft_wrap=True)
        sys.exit(1)


def _start(console: Console, started: contextlib.ExitStack, port: int, folder: Path) -> None:
    broker = LocalBroker(folder / "kafka", port=_free_port(_BROKER_PORT))
    running = broker.status()
    if running is not None:
        raise DevError(
            f"a broker is already running in {folder}, as process {running.pid}: first stop the program that started it"
        )
    logs = folder / "logs"
    for name in (_WEBSERVER, _DAEMON):
        _open_log(name, logs).close()
    with busy(console, "Starting Kafka"):
        try:
            started.enter_context(broker)
        except BrokerError:
            if _free_port(_BROKER_PORT) == _BROKER_PORT:
                raise
            # Another program took the port after it was found free.
            broker = started.enter_context(LocalBroker(folder / "kafka"))
    spark = SparkServer(folder / "spark")
    started.callback(spark.stop)
    with ThreadPoolExecutor(1) as aside:
        starting = aside.submit(spark.start)
        records = _fill(console, broker.bootstrap_servers)
        with busy(console, "Starting Spark"):
            server = starting.result()

    port = _free_port(port)
    environment = {**_environment(folder, broker), "SPARK_REMOTE": server.address}
    children: list[_Child] = []
    started.callback(_end, children)
    with busy(console, "Starting Dagster"):
        webserver = _child(_WEBSERVER, ["-h", _HOST, "-p", str(port), "-w", str(_WORKSPACE)], environment, logs)
        children.append(webserver)
        _wait_until_loaded(port, webserver)
        # After the web server has loaded: with a new history, both would create the database tables.
        children.append(_child(_DAEMON, ["run", "-w", str(_WORKSPACE)], environment, logs))

    table = Table.grid(padding=(0, 2))
    table.add_row("Dagster", f"http://{_HOST}:{port}")
    table.add_row("Kafka", f"{broker.bootstrap_servers}, {records:,} records in the topic flights")
    table.add_row("Spark", f"{server.address}, as SPARK_REMOTE")
    table.add_row("Tables", str(folder / "warehouse"))
    table.add_row("Logs", f"{logs}, {broker.log_path}, {server.data_dir}")
    console.print(table, soft_wrap=True)
    console.print("Ctrl-C stops everything.")
    while True:
        for child in children:
            child.check()
        if broker.status() is None:
            raise DevError(f"the broker ended unexpectedly. Its log: {broker.log_path}")
        if spark.status() is None:
            raise DevError(f"the Spark server ended unexpectedly. Its log is in {server.data_dir}")
        time.sleep(_POLL_SECONDS)


def _fill(console: Console, bootstrap_servers: str) -> int:
    """Writes the flights to the topic if missing; returns their number."""
    from examples.flights_data import TOPIC, count_records, create_topic, load_flights, produce

    create_topic(bootstrap_servers)
    count = count_records(bootstrap_servers)
    if count:
        return count
    with busy(console, "Reading the flights of 2013"):
        flights, _ = load_flights()
    with progress(console, BarColumn(), MofNCompleteColumn()) as shown:
        task = shown.add_task(f"Writing to the topic {TOPIC}", total=len(flights))
        produce(bootstrap_servers, flights, lambda done: shown.update(task, completed=done))
    return len(flights)


def _environment(folder: Path, broker: LocalBroker) -> dict[str, str]:
    home = folder / "dagster_home"
    home.mkdir(exist_ok=True)
    settings = home / "dagster.yaml"
    if not settings.exists():
        settings.write_text(_DAGSTER_YAML, encoding="utf-8")
    # Creates the databases first, because the web server and the daemon would both try to.
    with DagsterInstance.from_config(str(home)):
        pass
    return {
        # Dagster marks a run as failed that it can't start in this time, by default 60 seconds.
        "DAGSTER_GRPC_TIMEOUT_SECONDS": "600",
        **os.environ,
        "DAGSTER_HOME": str(home),
        "KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers,
    }


def _open_log(name: str, logs: Path) -> BinaryIO:
    """Opens the log of one of Dagster's programs, locked until the last of its processes has ended.

    Raises:
        DevError: One of an earlier start still has it.
    """
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{name}.log"
    output = log.open("ab")
    try:
        # The lock is that of the open file, which all processes of the group share.
        fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        output.close()
        msg = f"{name} of an earlier start still runs, and writes to {log}. Find it with `pgrep -f {name}`, and end it"
        raise DevError(msg) from None
    return output


def _child(name: str, arguments: list[str], environment: Mapping[str, str], logs: Path) -> _Child:
    """Runs one of Dagster's programs from this Python environment."""
    with _open_log(name, logs) as output:
        output.truncate(0)
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name(name)), *arguments],
            # The tables of the example have relative paths.
            cwd=logs.parent,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # Ends it where this process can't, because it is killed.
    watched = guard(process.pid)
    return _Child(name, process, watched, logs / f"{name}.log")


def _wait_until_loaded(port: int, webserver: _Child) -> None:
    """Waits until the web server answers and has loaded the example project."""
    deadline = time.monotonic() + _LOAD_SECONDS
    while time.monotonic() < deadline:
        webserver.check()
        # Another program's may have taken the port, and would answer.
        workspace = _ask(f"http://{_HOST}:{port}/graphql") if webserver.listens(port) else {}
        entries: list[dict[str, Any]] = workspace.get("locationEntries", [])
        problems = [
            problem["message"]
            for problem in (workspace, *(e["locationOrLoadError"] or {} for e in entries))
            if "message" in problem
        ]
        if problems:
            raise DevError(f"Dagster can't load {_WORKSPACE}: {problems[0]}")
        if entries and all(entry["loadStatus"] == "LOADED" for entry in entries):
            return
        time.sleep(_POLL_SECONDS)
    raise DevError(f"Dagster did not load {_WORKSPACE} within {_LOAD_SECONDS:.0f} s")


def _ask(address: str) -> dict[str, Any]:
    """The workspace from the web server; empty until it answers."""
    request = urllib.request.Request(  # noqa: S310 - our own server
        address, data=json.dumps({"query": _LOCATIONS}).encode(), headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=_END_SECONDS) as answer:  # noqa: S310
            return json.load(answer)["data"]["workspaceOrError"]
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return {}


def _free_port(preferred: int) -> int:
    """The port, or a free one if it is in use."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            # Like servers: a port with only closing connections is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((_HOST, port))
                return probe.getsockname()[1]
    raise DevError(f"there is no free port on {_HOST}")


if __name__ == "__main__":
    main()
