"""One broker and one Spark session for the whole test session; topics and tables of its own for each test."""

from __future__ import annotations

import itertools
import os
import re
import signal
import tempfile
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from alembic.script import ScriptDirectory
from xdist.scheduler import LoadScopeScheduling

from tests.kafka_topic import Kafka
from tests.processes import HOW_ROWS_ARE_MADE, LASTING_JVM_OPTIONS, LIGHT_SPARK, QUICK_JVM, WITHOUT_CHECKSUMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from alembic.config import Config
    from dagster import DagsterInstance
    from pyspark.sql import SparkSession

    from dagster_kafka_flip.registry.schema_registry import SchemaRegistry
    from dagster_kafka_flip.source.connection import KafkaConnection

# Dagster and the browser tests must not phone home, nor a user's own settings leak in.
os.environ["DAGSTER_DISABLE_TELEMETRY"] = "yes"

# Every Spark that a test starts, but the session's own.
os.environ["PYSPARK_SUBMIT_ARGS"] = QUICK_JVM

# How long an example takes depends on what else the machine does, and says nothing about what is tested.
hypothesis.settings.register_profile("no-clock", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("no-clock")

# Started in the background by a shell, tests would ignore what a terminal sends, and so would all that they start.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number is signal.SIGINT else signal.SIG_DFL)

# Each of Dagster's instances in memory, of which `materialize` makes one, too, marks two databases as migrated. For
# that it loaded all of Dagster's migrations twice, which took a third of the CPU of a run without Spark.
_migrations_of = ScriptDirectory.from_config
_migrations: dict[tuple[str | None, str | None], ScriptDirectory] = {}


def _migrations_read_once(config: Config) -> ScriptDirectory:
    place = (config.config_file_name, config.get_main_option("script_location"))
    return _migrations.get(place) or _migrations.setdefault(place, _migrations_of(config))


ScriptDirectory.from_config = _migrations_read_once

_counter = itertools.count()

# Where Spark is as users have it: records are decoded, filtered and counted by code that it generates.
_READS_AND_DECODES = re.compile(
    r"tests/(formats/|reader/|sink/test_registry_formats|windows/test_exact|test_(ingest|ingest_broker|observation|unreadable_records)\.py)"
)

# What takes longest comes first, so that no worker is left alone with it at the end.
_SLOWEST_FIRST = ("ui", "nightly", "slow", "spark", "kafka")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts slow files first, and the tests of a file behind each other."""
    rank: dict[Path, int] = {}
    for item in items:
        marks = [index for index, mark in enumerate(_SLOWEST_FIRST) if item.get_closest_marker(mark)]
        rank[item.path] = min([*marks, rank.get(item.path, len(_SLOWEST_FIRST))])
    items.sort(key=lambda item: (rank[item.path], item.path))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> None:
    """Gives what a test logs the same form, whatever ran before.

    Spark's loggers turn each handler that they are given to JSON, and pytest gives its own to all that don't propagate.
    """
    logging_of_pytest: Any = pyfuncitem.config.pluginmanager.get_plugin("logging-plugin")
    for handler in (logging_of_pytest.caplog_handler, logging_of_pytest.report_handler):
        handler.setFormatter(logging_of_pytest.formatter)


class _FileScheduling(LoadScopeScheduling):
    """Gives a worker whole files, because the tests of a file share what is costly to make; the UI's tests all do."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "tests/ui" if file.startswith("tests/ui/") else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Asked by pytest-xdist when there are several workers."""
    return _FileScheduling(config, log)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real broker that lives as long as the test session."""
    from dagster_kafka_flip.broker.local_broker import LocalBroker

    # A topic that is to be compacted is looked at ten times a second, and not every 15 seconds.
    properties = {"log.cleaner.backoff.ms": "100"}
    with LocalBroker(tmp_path_factory.mktemp("kafka"), properties=properties) as local:
        yield local.bootstrap_servers


@pytest.fixture(scope="session")
def kafka(broker: str) -> Iterator[Kafka]:
    """Makes topics and records on the session's broker."""
    client = Kafka(broker)
    yield client
    client.close()


@pytest.fixture
def named_topic(kafka: Kafka) -> Iterator[Callable[..., str]]:
    """Makes a topic whose name is given, as an example's is; it ends with the test, for others have the same one."""
    made: list[str] = []

    def create(topic: str, partitions: int = 1) -> str:
        kafka.create(topic, partitions)
        made.append(topic)
        return topic

    yield create
    for topic in made:
        kafka.delete(topic)


@pytest.fixture(scope="session")
def connection(broker: str) -> KafkaConnection:
    """How to reach the session's broker."""
    from dagster_kafka_flip.source.connection import KafkaConnection

    return KafkaConnection(bootstrap_servers=broker)


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistry]:
    """A real schema registry that lives as long as the test session; subjects of its own for each test."""
    from dagster_kafka_flip.broker.local_registry import LocalRegistry
    from dagster_kafka_flip.registry.schema_registry import SchemaRegistry

    with LocalRegistry(tmp_path_factory.mktemp("registry")) as local:
        yield SchemaRegistry(url=local.url)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session's Spark, made as a user's would be, with settings for small tables."""
    from dagster_kafka_flip.runtime.session import build_session

    with tempfile.TemporaryDirectory() as folder:
        # Its settings name the options, and the archive of its classes is added to them.
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("PYSPARK_SUBMIT_ARGS")
            session = build_session(
                master="local[2]",
                config={
                    "spark.ui.enabled": "false",
                    "spark.sql.warehouse.dir": folder,
                    "spark.log.level": "FATAL",
                    "spark.driver.extraJavaOptions": LASTING_JVM_OPTIONS,
                    **LIGHT_SPARK,
                    **WITHOUT_CHECKSUMS,
                    # RESTORE, VACUUM and CONVERT look at files in this many tasks: 10,000, unless told otherwise.
                    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
                },
            )
        yield session
        session.stop()


@pytest.fixture(autouse=True)
def _as_users_run(request: pytest.FixtureRequest) -> Iterator[None]:
    """Spark generates code and plans adaptively, as it does for users, in the tests of what reads and decodes."""
    if request.node.get_closest_marker("spark") is None or not _READS_AND_DECODES.search(request.node.nodeid):
        yield
        return
    conf = request.getfixturevalue("spark").conf
    for name in HOW_ROWS_ARE_MADE:
        conf.unset(name)
    yield
    for name, value in HOW_ROWS_ARE_MADE.items():
        conf.set(name, value)


@pytest.fixture
def spark_of(spark: SparkSession) -> Callable[[], SparkSession]:
    """What `ingest(spark=...)` takes."""
    return lambda: spark


@pytest.fixture
def instance() -> Iterator[DagsterInstance]:
    """A Dagster instance that is gone with the test."""
    from dagster import DagsterInstance

    with DagsterInstance.ephemeral() as ephemeral:
        yield ephemeral


@pytest.fixture
def resources(broker: str, spark: SparkSession) -> dict[str, Any]:
    """What an asset asks for: the session's broker and the session's Spark."""
    from dagster_kafka_flip import KafkaResource, SparkResource

    del spark  # that it is there is enough
    return {"kafka": KafkaResource(bootstrap_servers=broker), "spark": SparkResource()}


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name that no other test uses."""
    name = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")[:80]
    return f"{name}-{os.getpid()}-{next(_counter)}"


@pytest.fixture
def table(tmp_path: Path) -> str:
    """The path of a table that is not there yet."""
    return str(tmp_path / "table")
