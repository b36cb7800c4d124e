"""A real Kafka Connect with a connector of Debezium, which writes a database's changes to topics."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dagster_kafka_flip.broker.local_broker import KAFKA_JARS, KAFKA_VERSION
from dagster_kafka_flip.errors import BrokerError
from dagster_kafka_flip.runtime.jars import retrieve, retrieve_unpacked
from dagster_kafka_flip.runtime.java import find_java
from dagster_kafka_flip.runtime.server_folder import LOCALHOST, ServerFolder, choose_ports
from tests.debezium.mariadb import Mariadb
from tests.debezium.postgres import Postgres
from tests.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

CONNECT_JARS = (
    f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
    f"org.apache.kafka:connect-json:{KAFKA_VERSION}",
    *(jar for jar in KAFKA_JARS if "log4j" in jar),
)

_START_SECONDS = 300.0
_STOP_SECONDS = 20.0
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


class Connect:
    """A worker with one connector, as a context manager; it can be killed and started again.

    Args:
        folder: For its settings, its log and how far it has got.
        bootstrap_servers: The broker.
        database: Whose changes are written.
        settings: Of the connector, but for how the database is reached.
    """

    def __init__(self, folder: Path, bootstrap_servers: str, database: Database, settings: Mapping[str, str]) -> None:
        self._path = folder
        self._folder = ServerFolder(folder, "connect", "Kafka Connect", ("port",), BrokerError)
        self._database = database
        self._port = 0
        self._worker = {
            "bootstrap.servers": bootstrap_servers,
            # Those of the connector count.
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "offset.storage.file.filename": "offsets",
            "plugin.discovery": "service_load",
        }
        self._connector = {
            **settings,
            **database.address,
            "poll.interval.ms": "50",
        }

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.stop(_STOP_SECONDS)

    def start(self, *, flush_ms: int = 100) -> None:
        """Starts the worker, and waits until the connector runs.

        Args:
            flush_ms: How often it notes how far it has got: from there it goes on when it has been killed.
        """
        jars, connector = retrieve(CONNECT_JARS), retrieve_unpacked(self._database.connector)
        self._port = choose_ports({"port": 0}, {}, BrokerError)["port"]
        settings = {
            **self._worker,
            "listeners": f"http://{LOCALHOST}:{self._port}",
            "plugin.path": str(connector),
            "offset.flush.interval.ms": str(flush_ms),
        }
        self._path.mkdir(parents=True, exist_ok=True)
        # JSON escapes are valid in Java properties.
        lines = [f"{name}={json.dumps(value)[1:-1]}\n" for name, value in settings.items()]
        (self._path / "worker.properties").write_text("".join(lines))
        (self._path / "connector.json").write_text(json.dumps({"name": _NAME, "config": self._connector}))
        (self._path / "log4j2.properties").write_text(_LOGGING)
        command = [
            str(find_java()),
            *_JVM_OPTIONS,
            "-Dlog4j2.configurationFile=log4j2.properties",
            "-cp",
            os.pathsep.join(str(jar) for jar in jars),
            "org.apache.kafka.connect.cli.ConnectStandalone",
            "worker.properties",
            "connector.json",
        ]
        self._folder.launch(command, {"port": self._port}, daemon=False)
        self._folder.wait_until_ready(self._runs, f"{LOCALHOST}:{self._port}", _START_SECONDS)

    def kill(self) -> None:
        """SIGKILL: what it has not noted is forgotten, and written once more after the next start."""
        state = self._folder.running()
        assert state is not None
        os.kill(state.process.pid, signal.SIGKILL)
        self._folder.wait()
        self._folder.forget()

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

    def _runs(self) -> bool:
        try:
            state = self.state()
        except (OSError, urllib.error.URLError):
            return False
        assert state != "FAILED", self._get(f"/connectors/{_NAME}/status")["tasks"]
        return state == "RUNNING"

    def _get(self, path: str) -> Any:
        # Without the proxies of the environment, which know nothing of this machine's ports.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{LOCALHOST}:{self._port}{path}", timeout=10) as answer:
            return json.load(answer)
