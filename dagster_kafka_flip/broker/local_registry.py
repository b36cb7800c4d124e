"""A real schema registry on this machine, without Docker, for development and tests.

Apicurio Registry speaks Confluent's API and keeps its schemas in memory. It only listens on 127.0.0.1, without
authentication.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import BrokerError
from dagster_kafka_flip.runtime.jars import retrieve_unpacked
from dagster_kafka_flip.runtime.java import find_java
from dagster_kafka_flip.runtime.local_server import LOCALHOST, LocalServer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

APICURIO_VERSION = "2.5.11.Final"
"""The version of Apicurio Registry."""

APICURIO_ARCHIVE = f"io.apicurio:apicurio-registry-app:{APICURIO_VERSION}:all"
"""Maven coordinate of Apicurio Registry; `retrieve_unpacked(APICURIO_ARCHIVE)` downloads it ahead of time (140 MB)."""

_PATH = "/apis/ccompat/v7"
_ANSWER_SECONDS = 2.0

# As for the broker: it lives for a short time, so it has to start fast.
_JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:+ExitOnOutOfMemoryError",
    "-Xmx256m",
)


class LocalRegistry(LocalServer):
    """A schema registry that starts empty, and ends with this process at the latest.

    A context manager; a registry that was running before is used and keeps running.

    Args:
        data_dir: The folder for its log; created if it does not exist.
        port: Its port. 0, the default, reuses the last port, or takes a free one.
        cache_dir: The cache folder for Apicurio. Default: `jars.default_cache_dir()`.
        timeout: Seconds to wait for its answer.

    Raises:
        ConfigurationError: A port is out of range, or an option has another type.
    """

    name = "registry"
    what = "schema registry"
    error = BrokerError

    def __init__(
        self, data_dir: str | Path, *, port: int = 0, cache_dir: Path | None = None, timeout: float = 120.0
    ) -> None:
        super().__init__(data_dir, {"port": port}, timeout)
        self._cache_dir = cache_dir

    @property
    def url(self) -> str:
        """The URL of its Confluent API."""
        return self.running().address

    def _program(self) -> list[str]:
        java, content = find_java(), retrieve_unpacked(APICURIO_ARCHIVE, cache_dir=self._cache_dir)
        (jar,) = content.glob("*-runner.jar")
        return [str(java), *_JVM_OPTIONS, "-jar", str(jar)]

    def _command(self, program: Sequence[str], ports: Mapping[str, int]) -> list[str]:
        settings = {
            "quarkus.http.host": LOCALHOST,
            "quarkus.http.port": str(ports["port"]),
            # Where its web server keeps files while it runs.
            "java.io.tmpdir": str(self.data_dir),
        }
        java, *options = program
        return [java, *(f"-D{name}={value}" for name, value in settings.items()), *options]

    def _address(self, port: int) -> str:
        return f"http://{LOCALHOST}:{port}{_PATH}"

    def _answers(self, port: int) -> Callable[[], bool]:
        # Without the proxies of the environment, which know nothing of this machine's ports.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def answers() -> bool:
            try:
                with opener.open(f"{self._address(port)}/subjects", timeout=_ANSWER_SECONDS) as answer:
                    return answer.status == 200  # noqa: PLR2004
            except (OSError, urllib.error.URLError):
                return False

        return answers
