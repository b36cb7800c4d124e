"""SparkSettings: the Spark session of a task."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.runtime.session_address import check_coordinates, check_session_address
from dagster_kafka_flip.settings.base import Settings
from dagster_kafka_flip.settings.hidden import hidden_parameters, hidden_values

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from pyspark.sql import SparkSession


class SparkSettings(Settings):
    """The Spark session of a task: it starts when there is something to read, and ends with the task.

    If the process already has an active session, the task uses it and does not stop it.

    Attributes:
        master: Master URL of a cluster. Default: `local[*]`.
        remote: Spark Connect server, such as `sc://host:15002`. Default: the environment variable SPARK_REMOTE.
        config: Additional Spark settings; they override the defaults. Values are never shown.
        packages: Additional Maven coordinates, group:name:version.
        app_name: The application's name in Spark's UI. Default: `dagster-kafka-flip`.
    """

    master: str | None = None
    remote: str | None = None
    config: Mapping[str, str] = Field(default_factory=dict[str, str])
    packages: tuple[str, ...] = ()
    app_name: str = "dagster-kafka-flip"

    def model_post_init(self, context: Any, /) -> None:
        """Checks addresses and coordinates.

        Raises:
            ConfigurationError: One is malformed, or master and remote are both set.
        """
        del context
        if self.master is not None and self.remote is not None:
            msg = "SparkSettings: master and remote are both set; a Spark Connect server has its own master"
            raise ConfigurationError(msg)
        check_session_address("SparkSettings: ", self.master, self.remote)
        check_coordinates("SparkSettings: ", self.packages)

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        shown: dict[str, Any] = {"config": hidden_values(self.config)}
        if self.remote is not None:
            shown["remote"] = hidden_parameters(self.remote)
        for name, value in super().__repr_args__():
            yield name, shown.get(name or "", value)

    def __str__(self) -> str:
        return repr(self)

    @contextlib.contextmanager
    def session(self, started: Callable[[SparkSession], None]) -> Generator[Callable[[], SparkSession]]:
        """Provides a function that returns the session, and starts it on the first call; ends what it started.

        Args:
            started: Called with the session once it is there.
        """
        from dagster_kafka_flip.runtime.session import active_session, build_session, end_session

        sessions: list[SparkSession] = []
        own: list[SparkSession] = []

        def get() -> SparkSession:
            if not sessions:
                found = None if self.remote is not None else active_session()
                session = build_session(
                    master=self.master,
                    remote=self.remote,
                    config=self.config,
                    packages=self.packages,
                    app_name=self.app_name,
                )
                sessions.append(session)
                if found is None:
                    own.append(session)
                started(session)
            return sessions[0]

        try:
            yield get
        finally:
            for session in own:
                end_session(session)
