"""SparkSettings: the Spark session of a task or a resource."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.runtime.session_settings import check_coordinates, check_session_address
from dagster_kafka_flip.settings.base import Settings
from dagster_kafka_flip.settings.hidden import hidden_parameters, hidden_values

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from pyspark.sql import SparkSession


class SparkSettings(Settings):
    """The Spark session of a task: it starts when there is something to read, and ends with the task.

    If the process already has an active session, the task uses it and does not stop it. Values of `config` are never
    shown.

    Attributes:
        master: Master URL of a cluster. Default: `local[*]`.
        remote: Spark Connect server, such as `sc://host:15002`. Default: the environment variable SPARK_REMOTE.
        config: Additional Spark settings; they override the defaults.
        packages: Additional Maven coordinates, group:name:version.
        app_name: The application's name in Spark's UI.
    """

    master: str | None = None
    remote: str | None = None
    config: Mapping[str, str] = Field(default_factory=dict[str, str])
    packages: tuple[str, ...] = ()
    app_name: str = "dagster-kafka-flip"

    def model_post_init(self, context: Any, /) -> None:
        """Checks addresses and coordinates."""
        del context
        if self.master is not None and self.remote is not None:
            raise ConfigurationError("master and remote are both set; a Spark Connect server has its own master")
        check_session_address(self.master, self.remote)
        check_coordinates(self.packages)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return without_values(super().__repr_args__())

    def __str__(self) -> str:
        return repr(self)

    @contextlib.contextmanager
    def session(self, started: Callable[[SparkSession], None]) -> Generator[Callable[[], SparkSession]]:
        """Provides a function that returns the session, and starts it on the first call; ends what it started."""
        from dagster_kafka_flip.runtime.session import temporary_session

        with contextlib.ExitStack() as stack:

            @functools.cache
            def get() -> SparkSession:
                session = stack.enter_context(
                    temporary_session(self.master, self.remote, self.config, self.packages, self.app_name)
                )
                started(session)
                return session

            yield get


def without_values(fields: Iterable[tuple[str | None, Any]]) -> Iterable[tuple[str | None, Any]]:
    """Hides what may be secret in the fields of such settings."""
    for name, value in fields:
        if name == "config":
            yield name, hidden_values(value)
        else:
            yield name, hidden_parameters(value) if name == "remote" and value is not None else value
