"""A real Kafka Connect with a connector of Debezium, which writes a database's changes to topics."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from dagster_kafka_flip.broker.local_broker import KAFKA_JARS, KAFKA_VERSION
from dagster_kafka_flip.errors import BrokerError
from dagster_kafka_flip.runtime.jars import retrieve, retrieve_unpacked
from dagster_kafka_flip.runtime.java import find_java
from dagster_kafka_flip.runtime.local_server import LOCALHOST, LocalServer
from tests.debezium.mariadb import Mariadb
from tests.debezium.postgres import Postgres
from tests.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

CONNECT_JARS = (
    f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
    f"org.apache.kafka:connect-json:{KAFKA_VERSION}",
    *(jar for jar in KAFKA_JARS if "log4j" in jar),
)

_START_SECONDS = 300.0
# However busy the machine is.
_PATIENCE_SECONDS = 300.0
_NAME = "changes"
_JVM_OPTIONS = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m")
_LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d] %p %m (%c)%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


def fetch() -> None:
    """Downloads Connect and the connectors unless they are in the cache."""
    retrieve(CONNECT_JARS)
    for database in (Postgres, Mariadb):
        retrieve_unpacked(database.connector)


class Database(Protocol):
    """What is asked of a database whose changes are written."""

    connector: str
    """The coordinates of its connector."""

    @property
    def address(self) -> Mapping[str, str]:
        """The connector's settings that say how it is reached."""
        ...

    def place(self) -> Any:
        """How far its log goes."""
        ...

    def noted_place(self, offset: Mapping[str, Any]) -> Any:
        """How far the connector has got, from what it notes."""
        ...

    def mark(self) -> None:
        """Logs a change that says nothing."""
        ...


class Connect(LocalServer):
    """A worker with one connector, as a context manager; it can be killed and started again.

    Args:
        folder: For its settings, its log and how far it has got.
        bootstrap_servers: The broker.
        database: Whose changes are written.
        settings: Of the connector, but for how the database is reached.
    """

    name = "connect"
    what = "Kafka Connect"
    error = BrokerError

    def __init__(self, folder: Path, bootstrap_servers: str, database: Database, settings: Mapping[str, str]) -> None:
        super().__init__(folder, {"port": 0}, _START_SECONDS)
        self._database = database
        self.flush_ms = 100
        """How often it notes how far it has got: from there it goes on when it has been killed."""
        self._worker = {
            "bootstrap.servers": bootstrap_servers,
            # Those of the connector count.
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.storage.file.filename": "offsets",
            "plugin.discovery": "service_load",
        }
        self._connector = {**settings, **database.address, "poll.interval.ms": "50"}

    def _program(self) -> Sequence[str]:
        jars = retrieve(CONNECT_JARS)
        logging = "-Dlog4j2.configurationFile=log4j2.properties"
        return [str(find_java()), *_JVM_OPTIONS, logging, "-cp", os.pathsep.join(map(str, jars))]

    def _command(self, program: Sequence[str], ports: Mapping[str, int]) -> Sequence[str]:
        settings = {
            **self._worker,
            "listeners": f"http://{LOCALHOST}:{ports['port']}",
            "plugin.path": str(retrieve_unpacked(self._database.connector)),
            "offset.flush.interval.ms": str(self.flush_ms),
        }
        # JSON escapes are valid in Java properties.
        lines = [f"{name}={json.dumps(value)[1:-1]}\n" for name, value in settings.items()]
        (self.data_dir / "worker.properties").write_text("".join(lines))
        (self.data_dir / "connector.json").write_text(json.dumps({"name": _NAME, "config": self._connector}))
        (self.data_dir / "log4j2.properties").write_text(_LOGGING)
        return [*program, "org.apache.kafka.connect.cli.ConnectStandalone", "worker.properties", "connector.json"]

    def _answers(self, port: int) -> Callable[[], bool]:
        return self._is_running

    def kill(self) -> None:
        """SIGKILL: what it has not noted is forgotten, and written once more after the next start."""
        os.kill(self.running().pid, signal.SIGKILL)
        with pytest.raises(BrokerError, match="ended with -9"):
            self.wait()

    def catch_up(self) -> None:
        """Waits until all that has been committed in the database is in its topics."""
        # Connect only notes what the broker has confirmed, and all before it, in the order of commits. What was logged
        # after all that is waited for is committed after it, too.
        target = self._database.place()
        self._database.mark()
        wait_until(lambda: self._has_noted(target), seconds=_PATIENCE_SECONDS, every=0.05)

    def _has_noted(self, target: Any) -> bool:
        noted = [each["offset"] for each in self._get(f"/connectors/{_NAME}/offsets")["offsets"]]
        # During a snapshot, the place is where the snapshot was begun, from the first record on.
        return any("snapshot" not in each and self._database.noted_place(each) >= target for each in noted)

    def state(self) -> str:
        """What the connector's task is doing: `RUNNING` or `FAILED`; empty before there is one."""
        tasks = self._get(f"/connectors/{_NAME}/status")["tasks"]
        return tasks[0]["state"] if tasks else ""

    def _is_running(self) -> bool:
        try:
            state = self.state()
        except (OSError, urllib.error.URLError):
            return False
        assert state != "FAILED", self._get(f"/connectors/{_NAME}/status")["tasks"]
        return state == "RUNNING"

    def _get(self, path: str) -> Any:
        # Without the proxies of the environment, which know nothing of this machine's ports.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{LOCALHOST}:{self.running().port}{path}", timeout=10) as answer:
            return json.load(answer)
