"""A real MariaDB on this machine that logs its changes, and its client to work with it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import BrokerError
from dagster_kafka_flip.runtime.local_server import LOCALHOST, LocalServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

USER = "debezium"
# Of Debian's package. The server does not like to be root.
_ACCOUNT = "mysql"
_START_SECONDS = 120.0
_STOP_SECONDS = 20.0

_SETTINGS = {
    "bind-address": LOCALHOST,
    "server-id": "1",
    "log-bin": "log",
    "binlog-format": "ROW",
    "binlog-row-image": "FULL",
    "character-set-server": "utf8mb4",
    # Nothing is to outlive a crash of the machine.
    "innodb-flush-log-at-trx-commit": "0",
    "sync-binlog": "0",
    "innodb-buffer-pool-size": "16M",
}


class Mariadb(LocalServer):
    """A server of its own with one database, as a context manager. As root it runs as Debian's user `mysql`.

    Args:
        database: The database's name.
    """

    name = "mariadb"
    what = "MariaDB"
    error = BrokerError
    umask = -1
    connector = "io.debezium:debezium-connector-mariadb:3.2.0.Final:plugin"

    def __init__(self, database: str) -> None:
        self._database = database
        self.password = secrets.token_hex(16)
        # Not in pytest's folder, which only root may enter; and the path of a socket must be short.
        super().__init__(tempfile.mkdtemp(prefix="dagster-kafka-flip-mariadb-"), {"port": 0}, _START_SECONDS)

    def _program(self) -> Sequence[str]:
        return ()

    def _command(self, program: Sequence[str], ports: Mapping[str, int]) -> Sequence[str]:
        account: list[str] = []
        if os.geteuid() == 0:
            shutil.chown(self.data_dir, _ACCOUNT, _ACCOUNT)
            account = [f"--user={_ACCOUNT}"]
        data, first = self.data_dir / "data", self.data_dir / "first.sql"
        make = [_program("mariadb-install-db"), "--no-defaults", *account, f"--datadir={data}", "--skip-test-db"]
        subprocess.run(make, cwd=self.data_dir, check=True, capture_output=True)
        first.write_text(
            f"CREATE USER {USER}@'%' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO {USER}@'%' WITH GRANT OPTION;\n"
            f"CREATE DATABASE {self._database};\n"
            f"CREATE TABLE {self._database}.markers (id BIGINT AUTO_INCREMENT PRIMARY KEY);\n"
        )
        settings = [f"--{name}={value}" for name, value in _SETTINGS.items()]
        places = [
            f"--datadir={data}",
            f"--socket={self.data_dir / 's'}",
            f"--port={ports['port']}",
            f"--init-file={first}",
        ]
        return [_program("mariadbd"), "--no-defaults", *account, *places, *settings]

    def __exit__(self, *_: object) -> None:
        self.stop(timeout=_STOP_SECONDS)
        shutil.rmtree(self.data_dir)

    def run(self, *statements: str) -> str:
        """Runs statements in one connection, each committed by itself, and returns what the client prints."""
        done = self._client(";\n".join(statements))
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def port(self) -> int:
        """Its port."""
        return self.running().port

    def rows(self, columns: str, table: str) -> list[tuple[Any, ...]]:
        """A table's rows, as JSON has their values, sorted."""
        reported = self.run(f"SELECT json_array({columns}) FROM {table}")
        return sorted(tuple(json.loads(line)) for line in reported.splitlines())

    @property
    def address(self) -> dict[str, str]:
        """How a connector reaches it."""
        return {
            "database.hostname": LOCALHOST,
            "database.port": str(self.port),
            "database.user": USER,
            "database.password": self.password,
        }

    def place(self) -> tuple[str, int]:
        """The end of its log."""
        file, position, *_ = self.run("SHOW MASTER STATUS").split("\t")
        return file, int(position)

    @staticmethod
    def noted_place(offset: Mapping[str, Any]) -> tuple[str, int]:
        """A place in its log, as the connector notes it."""
        return offset["file"], offset["pos"]

    def mark(self) -> None:
        """Logs a change that says nothing."""
        self.run("INSERT INTO markers VALUES ()")

    def _client(self, text: str) -> subprocess.CompletedProcess[str]:
        # --raw and --batch: values as they are, with tabs between them.
        options = ["--no-defaults", "--batch", "--raw", "--skip-column-names", "--default-character-set=utf8mb4"]
        server = [f"--host={LOCALHOST}", f"--port={self.port}", f"--user={USER}", f"--database={self._database}"]
        return subprocess.run(
            [_program("mariadb"), *options, *server],
            input=text,
            env={**os.environ, "MYSQL_PWD": self.password},
            check=False,
            capture_output=True,
            text=True,
        )

    def _answers(self, port: int) -> Callable[[], bool]:
        return lambda: self._client("SELECT 1").returncode == 0


def _program(name: str) -> str:
    """A program of MariaDB: Debian has the server among those of the system."""
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))
    assert found is not None, f"{name} is missing: install MariaDB (Debian and Ubuntu: apt-get install mariadb-server)"
    return found
