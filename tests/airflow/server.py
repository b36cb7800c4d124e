"""A whole Airflow for tests: scheduler, triggerer, DAG processor and API server, in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.processes import LIGHT_JVM

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Self

# Only so that a test that waits for what never comes ends at all.
_PATIENCE_SECONDS = 1800.0

USER, PASSWORD = "night-shift", "of-no-one-else"

_ENDED = {"success", "failed", "upstream_failed", "skipped"}


class AirflowServer:
    """Airflow's processes, its command and its API.

    Args:
        home: Its folder, with the DAGs in `dags`.
        database: The address of its database. Not SQLite, which fails with "database is locked" on a busy machine.
        environment: Further variables of its processes, such as connections.
    """

    def __init__(self, home: Path, database: str, environment: dict[str, str]) -> None:
        self.home = home
        self._port, *log_ports = _free_ports(3)
        self.url = f"http://127.0.0.1:{self._port}"
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYSPARK_SUBMIT_ARGS": LIGHT_JVM,
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "3",
            # However slow the machine is.
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "120",
            "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "300",
            # How soon a killed worker is noticed.
            "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self._port),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(log_ports[0]),
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(log_ports[1]),
            "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
            **environment,
        }
        self.environment.pop("_AIRFLOW__AS_LIBRARY", None)
        (home / "passwords.json").write_text(json.dumps({USER: PASSWORD}), encoding="utf-8")
        self._process: subprocess.Popen[bytes] | None = None
        self._token = ""

    def __enter__(self) -> Self:
        log = (self.home / "standalone.log").open("wb")
        self._process = subprocess.Popen(
            ["airflow", "standalone"], env=self.environment, stdout=log, stderr=log, start_new_session=True
        )
        self.wait(self._is_healthy, "Airflow's processes")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        if process is None:
            return
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def command(self, *arguments: str) -> str:
        """Runs Airflow's command and returns what it prints."""
        done = subprocess.run(
            ["airflow", *arguments], env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Sends a request to the API."""
        request = urllib.request.Request(
            f"{self.url}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=_PATIENCE_SECONDS) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            msg = f"{method} {path}: {error.code} {error.read().decode()}"
            raise AssertionError(msg) from None
        return json.loads(text) if text else None

    def _is_healthy(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.home / "standalone.log").read_text(errors="replace")[-3000:]
        try:
            self._token = self.ask("POST", "/auth/token", {"username": USER, "password": PASSWORD})["access_token"]
            health = self.ask("GET", "/api/v2/monitor/health")
        except OSError:
            return False
        return all(health[each]["status"] == "healthy" for each in ("scheduler", "triggerer", "dag_processor"))

    def wait(self, holds: Callable[[], Any], what: str) -> Any:
        """Waits until something is there, and returns it."""
        end = time.monotonic() + _PATIENCE_SECONDS
        while not (found := holds()):
            assert time.monotonic() < end, f"waited in vain for {what}; see {self.home}"
            time.sleep(1)
        return found

    def unpause(self, dag: str) -> None:
        """Starts to schedule a DAG, as soon as it has been parsed."""
        self.wait(lambda: dag in {each["dag_id"] for each in self.ask("GET", "/api/v2/dags")["dags"]}, f"the DAG {dag}")
        self.ask("PATCH", f"/api/v2/dags/{dag}", {"is_paused": False})

    def pause(self, dag: str) -> None:
        """Schedules no more runs."""
        self.ask("PATCH", f"/api/v2/dags/{dag}", {"is_paused": True})

    def trigger(self, dag: str) -> str:
        """Starts a run by hand, and returns its id."""
        return self.ask("POST", f"/api/v2/dags/{dag}/dagRuns", {"logical_date": None})["dag_run_id"]

    def clear(self, dag: str, run: str) -> None:
        """Clears a run: as soon as the DAG may run, all its tasks run again."""
        self.ask("POST", f"/api/v2/dags/{dag}/dagRuns/{run}/clear", {"dry_run": False})

    def log(self, dag: str, run: str, task: str, tried: int) -> str:
        """The log of a try of a task; it may come after the task's end."""
        path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/logs/{tried}?full_content=true"
        return json.dumps(self.ask("GET", path))

    def runs(self, dag: str) -> list[dict[str, Any]]:
        """The DAG's runs, the oldest first."""
        return self.ask("GET", f"/api/v2/dags/{dag}/dagRuns?order_by=id")["dag_runs"]

    def ended(self, dag: str) -> list[dict[str, Any]]:
        """Those that ended."""
        return [run for run in self.runs(dag) if run["state"] in _ENDED]

    def task(self, dag: str, run: str, task: str) -> dict[str, Any]:
        """A task's instance in a run."""
        return self.ask("GET", f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}")

    def returned(self, dag: str, run: str, task: str) -> Any:
        """What a task returned."""
        path = f"/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}/xcomEntries/return_value?deserialize=true"
        return self.ask("GET", path)["value"]

    def events(self, dag: str) -> list[dict[str, Any]]:
        """The asset events of a DAG's runs, the oldest first."""
        path = f"/api/v2/assets/events?source_dag_id={dag}&order_by=timestamp"
        # Airflow 3.3.2 answers 500 while a run that an event started is still queued, and so has no start_date.
        answer = self.wait(lambda: self._unless_broken(path), "the events")
        return answer["asset_events"]

    def _unless_broken(self, path: str) -> Any:
        try:
            return self.ask("GET", path)
        except AssertionError as error:
            if ": 500 " not in str(error):
                raise
            return None


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
