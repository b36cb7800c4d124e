"""A real PostgreSQL on this machine that tells of its changes, and `psql` to work with it."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import BrokerError
from dagster_kafka_flip.runtime.local_server import LOCALHOST, LocalServer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

USER = "postgres"
_START_SECONDS = 60.0
# What is connected keeps it from ending when it is asked to.
_STOP_SECONDS = 5.0

_SETTINGS = {
    "listen_addresses": LOCALHOST,
    "unix_socket_directories": "",
    "wal_level": "logical",
    # Nothing is to outlive a crash of the machine.
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "log_min_messages": "error",
}


class Postgres(LocalServer):
    """A database server of its own, as a context manager. As root it runs as Debian's user `postgres`."""

    name = "postgres"
    what = "PostgreSQL"
    error = BrokerError
    umask = -1
    connector = "io.debezium:debezium-connector-postgres:3.2.0.Final:plugin"

    def __init__(self) -> None:
        self.password = secrets.token_hex(16)
        # Not in pytest's folder, which only root may enter.
        super().__init__(tempfile.mkdtemp(prefix="dagster-kafka-flip-postgres-"), {"port": 0}, _START_SECONDS)

    def _program(self) -> Sequence[str]:
        return ()

    def _command(self, program: Sequence[str], ports: Mapping[str, int]) -> Sequence[str]:
        as_user: list[str] = []
        if os.geteuid() == 0:
            shutil.chown(self.data_dir, USER, USER)
            as_user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        data, secret = self.data_dir / "data", self.data_dir / "password"
        secret.write_text(self.password)
        options = ["-A", "scram-sha-256", f"--pwfile={secret}", "--no-sync", "--locale=C", "--encoding=UTF8"]
        subprocess.run(
            [*as_user, _program("initdb"), "-D", data, "-U", USER, *options],
            cwd=self.data_dir,
            check=True,
            capture_output=True,
        )
        secret.unlink()
        settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        return [*as_user, _program("postgres"), "-D", str(data), "-p", str(ports["port"]), *settings]

    def __exit__(self, *_: object) -> None:
        self.stop(timeout=_STOP_SECONDS)
        shutil.rmtree(self.data_dir)

    @property
    def port(self) -> int:
        """Its port."""
        return self.running().port

    def run(self, *statements: str) -> str:
        """Runs statements, each committed by itself, and returns what `psql` prints."""
        with self.session() as session:
            return "".join(session.run(statement) for statement in statements)

    def rows(self, query: str) -> list[dict[str, Any]]:
        """A query's rows, as JSON has their values."""
        return json.loads(self.run(f"SELECT coalesce(json_agg(row_to_json(r)), '[]') FROM ({query}) r"))

    @contextmanager
    def session(self) -> Generator[Session]:
        """A connection, so that several transactions are open at the same time."""
        session = Session(self._psql(), {**os.environ, "PGPASSWORD": self.password})
        try:
            yield session
        finally:
            session.close()

    @property
    def address(self) -> dict[str, str]:
        """How a connector reaches it."""
        return {
            "database.hostname": LOCALHOST,
            "database.port": str(self.port),
            "database.user": USER,
            "database.password": self.password,
        }

    @property
    def url(self) -> str:
        """How SQLAlchemy reaches it."""
        return f"postgresql+psycopg2://{USER}:{self.password}@{LOCALHOST}:{self.port}/{USER}"

    def place(self) -> int:
        """The end of its log."""
        high, low = self.run("SELECT pg_current_wal_insert_lsn()").strip().split("/")
        return (int(high, 16) << 32) + int(low, 16)

    @staticmethod
    def noted_place(offset: Mapping[str, Any]) -> int:
        """A place in its log, as the connector notes it."""
        return offset["lsn"]

    def mark(self) -> None:
        """Logs a change that says nothing."""
        self.run("INSERT INTO markers DEFAULT VALUES")

    def _psql(self) -> list[str]:
        # -X: without the user's own settings; -q, -A and -t: only values.
        return [_program("psql"), "-XqAt", "-v", "ON_ERROR_STOP=1", "-h", LOCALHOST, "-p", str(self.port), "-U", USER]

    def _answers(self, port: int) -> Callable[[], bool]:
        asked = [_program("pg_isready"), "-q", "-h", LOCALHOST, "-p", str(port)]
        return lambda: subprocess.run(asked, check=False).returncode == 0


class Session:
    """One connection, by a `psql` that is told one statement after the other."""

    _END = "--end of the answer--"

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, statement: str) -> str:
        """Runs a statement and returns what it prints, once it is done."""
        write, read = self._process.stdin, self._process.stdout
        assert write is not None
        assert read is not None
        write.write(f"{statement};\n\\echo {self._END}\n")
        write.flush()
        reported: list[str] = []
        for line in read:
            if line.rstrip() == self._END:
                return "".join(reported)
            reported.append(line)
        raise AssertionError(f"{statement}: {''.join(reported)}")

    def close(self) -> None:
        """Ends the connection; what is not committed is rolled back."""
        self._process.communicate(timeout=30)


def _program(name: str) -> str:
    """A program of PostgreSQL: Debian has the server's in a folder for each version."""
    found = shutil.which(name, path=os.pathsep.join([*_folders(), os.environ.get("PATH", os.defpath)]))
    assert found is not None, f"{name} is missing: install PostgreSQL (Debian and Ubuntu: apt-get install postgresql)"
    return found


def _folders() -> list[str]:
    return [str(folder) for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
