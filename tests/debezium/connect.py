"""A real Kafka Connect with Debezium's PostgreSQL connector, which writes a database's changes to topics."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.broker.local_broker import KAFKA_JARS, KAFKA_VERSION
from dagster_kafka_flip.errors import BrokerError
from dagster_kafka_flip.runtime.jars import retrieve, retrieve_unpacked
from dagster_kafka_flip.runtime.java import find_java
from dagster_kafka_flip.runtime.server_folder import LOCALHOST, ServerFolder, choose_ports
from tests.debezium.postgres import USER
from tests.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from tests.debezium.postgres import Postgres

CONNECTOR = "io.debezium:debezium-connector-postgres:3.2.0.Final:plugin"
CONNECT_JARS = (
    f"org.apache.kafka:connect-runtime:{KAFKA_VERSION}",
    f"org.apache.kafka:connect-json:{KAFKA_VERSION}",
    *(jar for jar in KAFKA_JARS if "log4j" in jar),
)

_START_SECONDS = 300.0
_STOP_SECONDS = 20.0
# However busy the machine is.
_PATIENCE_SECONDS = 300.0
_NAME = "pg"
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


def fetch() -> tuple[list[Path], Path]:
    """Downloads Connect and the connector unless they are in the cache: Connect's jars, and the connector's folder."""
    return retrieve(CONNECT_JARS), retrieve_unpacked(CONNECTOR)


class Connect:
    """A worker with one connector, as a context manager; it can be killed and started again.

    Args:
        folder: For its settings, its log and how far it has got.
        bootstrap_servers: The broker.
        database: Whose changes are written.
        settings: Of the connector, but for how the database is reached.
    """

    def __init__(self, folder: Path, bootstrap_servers: str, database: Postgres, settings: Mapping[str, str]) -> None:
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
            "database.hostname": LOCALHOST,
            "database.port": str(database.port),
            "database.user": USER,
            "database.password": database.password,
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
        jars, connector = fetch()
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
        target = _lsn(self._database.run("SELECT pg_current_wal_insert_lsn()").strip())
        self._database.run("INSERT INTO markers DEFAULT VALUES")
        wait_until(lambda: self._noted() >= target, seconds=_PATIENCE_SECONDS, every=0.05)

    def _noted(self) -> int:
        offsets = self._get(f"/connectors/{_NAME}/offsets")["offsets"]
        # During a snapshot, the place is where the snapshot was begun, from the first record on.
        return max((each["offset"]["lsn"] for each in offsets if "snapshot" not in each["offset"]), default=0)

    def _runs(self) -> bool:
        try:
            status = self._get(f"/connectors/{_NAME}/status")
        except (OSError, urllib.error.URLError):
            return False
        failed = [task["trace"] for task in status["tasks"] if task["state"] == "FAILED"]
        assert not failed, failed
        return [task["state"] for task in status["tasks"]] == ["RUNNING"]

    def _get(self, path: str) -> Any:
        # Without the proxies of the environment, which know nothing of this machine's ports.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://{LOCALHOST}:{self._port}{path}", timeout=10) as answer:
            return json.load(answer)


def _lsn(text: str) -> int:
    """A place in PostgreSQL's log, as the connector notes it."""
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)
