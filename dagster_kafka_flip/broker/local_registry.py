"""A real schema registry on this machine, without Docker, for development and tests.

Apicurio Registry speaks Confluent's API and keeps its schemas in memory. It only listens on 127.0.0.1, without
authentication.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import BrokerError
from dagster_kafka_flip.runtime.jars import retrieve_unpacked
from dagster_kafka_flip.runtime.java import find_java
from dagster_kafka_flip.runtime.server_folder import LOCALHOST, PRIVATE_UMASK, ServerFolder, check_port
from dagster_kafka_flip.settings.arguments import expect

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self

APICURIO_VERSION = "2.5.11.Final"
"""The version of Apicurio Registry."""

APICURIO_ARCHIVE = f"io.apicurio:apicurio-registry-app:{APICURIO_VERSION}:all"
"""Maven coordinate of Apicurio Registry; `retrieve_unpacked(APICURIO_ARCHIVE)` downloads it ahead of time (140 MB)."""

_PATH = "/apis/ccompat/v7"
_ANSWER_SECONDS = 2.0
_STOP_SECONDS = 10.0

# As for the broker: it lives for a short time, so it has to start fast.
_JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:+ExitOnOutOfMemoryError",
    "-Xmx256m",
)


class LocalRegistry:
    """A schema registry that starts empty, and ends with this process at the latest.

    As a context manager, it starts the registry on entry and stops it on exit.

    Args:
        data_dir: The folder for its log; created if it does not exist.
        port: Its port. 0, the default, reuses the last port, or takes a free one.
        cache_dir: The cache folder for Apicurio. Default: `jars.default_cache_dir()`.
        timeout: Seconds to wait for its answer.

    Raises:
        ConfigurationError: A port is out of range, or an option has another type.
    """

    def __init__(
        self, data_dir: str | Path, *, port: int = 0, cache_dir: Path | None = None, timeout: float = 120.0
    ) -> None:
        expect("data_dir", data_dir, (str, Path), '".registry"')
        check_port("port", port)
        expect("timeout", timeout, (int, float), "120.0")
        path = Path(data_dir).expanduser().absolute()
        self._folder = ServerFolder(path, "registry", "schema registry", ("port",), BrokerError)
        self._port = port
        self._cache_dir = cache_dir
        self._timeout = timeout

    @property
    def log_path(self) -> Path:
        """The registry's log."""
        return self._folder.log_path

    @property
    def url(self) -> str:
        """The URL of its Confluent API."""
        state = self._folder.running()
        if state is None:
            raise BrokerError(f"No schema registry is running on {self._folder.path}: start it first.")
        return _url(state.ports["port"])

    def start(self) -> str:
        """Starts the registry, waits until it answers, and returns its URL. The very first start downloads it (140 MB).

        Raises:
            BrokerError: The port is in use, the folder can't be written, a registry already runs on the folder, or it
                ended or did not answer in time.
            JavaNotFoundError: Java was not found, or is too old.
            JarDownloadError: Apicurio could not be downloaded.
        """
        java, content = find_java(), retrieve_unpacked(APICURIO_ARCHIVE, cache_dir=self._cache_dir)
        (jar,) = content.glob("*-runner.jar")
        with self._folder.lock(self._timeout + 30.0):
            if self._folder.running() is not None:
                raise BrokerError(
                    f"A schema registry is already running on {self._folder.path}: choose another folder."
                )
            self._folder.forget()
            self._folder.start(
                {"port": self._port},
                lambda ports: self._command(java, jar, ports["port"]),
                lambda ports: self._wait(ports["port"]),
                daemon=False,
                umask=PRIVATE_UMASK,
            )
        return self.url

    def stop(self) -> bool:
        """Stops the registry, which forgets its schemas; returns whether it was running.

        Raises:
            BrokerError: The process did not end.
        """
        return self._folder.stop(_STOP_SECONDS)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _command(self, java: Path, jar: Path, port: int) -> list[str]:
        settings = {
            "quarkus.http.host": LOCALHOST,
            "quarkus.http.port": str(port),
            # Where its web server keeps files while it runs.
            "java.io.tmpdir": str(self._folder.path),
        }
        return [str(java), *_JVM_OPTIONS, *(f"-D{name}={value}" for name, value in settings.items()), "-jar", str(jar)]

    def _wait(self, port: int) -> None:
        self._folder.wait_until_ready(lambda: _answers(port), _url(port), self._timeout)


def _url(port: int) -> str:
    return f"http://{LOCALHOST}:{port}{_PATH}"


def _answers(port: int) -> bool:
    # Without the proxies of the environment, which know nothing of this machine's ports.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{_url(port)}/subjects", timeout=_ANSWER_SECONDS) as answer:
            return answer.status == 200  # noqa: PLR2004
    except (OSError, urllib.error.URLError):
        return False
