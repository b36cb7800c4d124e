"""A Spark session that can read Kafka and write Delta: local, on a cluster, or through Spark Connect."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import ConfigurationError, SparkSessionError
from dagster_kafka_flip.runtime.java import find_java
from dagster_kafka_flip.runtime.remote import server_advice, without_grpc
from dagster_kafka_flip.runtime.session_settings import (
    DELTA_CATALOG,
    DELTA_EXTENSION,
    PARQUET_SETTINGS,
    REDACTION,
    SESSION_ZONE,
    hide_from_logs,
    local_settings,
    own_settings,
    redaction_regex,
    session_settings,
)
from dagster_kafka_flip.runtime.spark_jars import fetch_jars, spark_packages
from dagster_kafka_flip.settings.hidden import hidden_parameters, is_credential, without_parameters

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from pyspark.sql import SparkSession

# Spark Connect caches analysed plans, and a cached plan loses its observations: after a request for the schema, the
# batch's metrics would never arrive.
_CONNECT_SETTINGS = {"spark.connect.session.planCache.enabled": "false"}

# Retries of a request to a Connect server that does not answer: after 50, 200 and 800 ms, then 3, 8, 8 and 8 seconds.
# By default the client retries each request silently for ten minutes, although a restarted server has lost the
# session.
_CONNECT_RETRIES = 7
_CONNECT_PAUSE_MS = 8000

_LOCAL_MASTER = re.compile(r"local(\[(?P<threads>\*|\d+)(\s*,\s*\d+)?\])?")

# The environment variable by which pyspark notes that its process uses Spark Connect.
_IS_REMOTE = "SPARK_CONNECT_MODE_ENABLED"

# What Spark needs to start its JVM, whatever the values are.
_OF_LAUNCH = re.compile(r"spark\.(?:archives|driver\.|files|jars|kerberos\.|master|submit\.|yarn\.)")

# If no setting gives the parallelism: enough to keep a small cluster busy, few enough for a laptop.
_UNKNOWN_PARALLELISM = 8


def build_session(
    *,
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, str] | None = None,
    packages: Sequence[str] = (),
    app_name: str = "dagster-kafka-flip",
) -> SparkSession:
    """Creates a session, or returns the active one of this process.

    Args:
        master: A cluster's master URL. Default: `local[*]`.
        remote: A Spark Connect server, such as `sc://host:15002`. Default: the environment variable SPARK_REMOTE,
            without a master.
        config: Additional Spark settings; they override the defaults.
        packages: Additional Maven coordinates (`group:name:version`), for a session with a master.
        app_name: The application's name in Spark's UI.

    Raises:
        ConfigurationError: Both master and remote are given.
        JarDownloadError: The jars could not be fetched.
        JavaNotFoundError: Spark did not start, and there is no Java, or it is too old.
        SparkSessionError: Spark did not start, the active session can't write Delta, or this process has the other kind
            of session.
    """
    if master is not None and remote is not None:
        msg = f"a Spark session has a master ({master}) or a remote ({hidden_parameters(remote)}), not both"
        raise ConfigurationError(msg)
    hide_from_logs()
    _say_errors_once()
    remote = connect_address(master, remote)
    if remote is not None:
        return _connect(remote, {**session_settings(), **PARQUET_SETTINGS, **_CONNECT_SETTINGS, **(config or {})})

    active = active_session()
    if active is not None:
        check_session(active)
        return active
    if _IS_REMOTE in os.environ:
        raise SparkSessionError(f"Spark can't start with master {master or 'local[*]'}: {_one_kind('Spark Connect')}")

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    given = dict(config or {})
    settings = {**own_settings(), "spark.app.name": app_name, "spark.master": master or "local[*]", **given}
    settings[REDACTION] = redaction_regex(given)
    brings_jars = "spark.jars" in given or "spark.jars.packages" in given
    jars = [] if brings_jars else fetch_jars(packages)
    if _LOCAL_MASTER.fullmatch(settings["spark.master"]):
        # Otherwise Spark runs a transform's Python functions with the `python3` on the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # The JVM of an earlier session keeps its class path. pyspark has no public way to find out.
        is_new_jvm = SparkContext._gateway is None  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        settings = local_settings(settings, jars, is_new_jvm=is_new_jvm)
    elif jars:
        settings["spark.jars"] = ",".join(jars)
    builder = SparkSession.builder
    try:
        with _without_remote(), _interrupts_kept(), _nothing_left_behind():
            for key, value in settings.items():
                builder = builder.config(key, value)
            _start_jvm(settings)
            return builder.getOrCreate()
    except Exception as error:
        # pyspark only says that its gateway ended.
        find_java()
        raise SparkSessionError(
            f"Spark did not start with master {settings['spark.master']}: {type(error).__name__}: "
            f"{str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"
        ) from error


def connect_address(master: str | None, remote: str | None) -> str | None:
    """The Spark Connect server that a session uses, or None: by default SPARK_REMOTE if there is no master either."""
    return os.environ.get("SPARK_REMOTE") or None if master is None and remote is None else remote


@contextlib.contextmanager
def _without_remote() -> Generator[None]:
    """Hides SPARK_REMOTE, because pyspark refuses a master where it is set, even to nothing."""
    remote = os.environ.pop("SPARK_REMOTE", None)
    try:
        yield
    finally:
        if remote is not None:
            os.environ["SPARK_REMOTE"] = remote


def _start_jvm(settings: Mapping[str, str]) -> None:
    """Starts the JVM without the settings that are credentials.

    pyspark starts it with all settings on its command line, which everyone on the machine can read.
    """
    from pyspark import SparkConf, SparkContext

    shown = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        if not is_credential(key) and (_OF_LAUNCH.match(key) or not is_credential(str(value))):
            shown.set(key, value)
    # Does nothing if there is a JVM. pyspark has no public way to start one.
    SparkContext._ensure_initialized(conf=shown)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]


def _say_errors_once() -> None:
    """Silences what pyspark prints of a failed query or request, besides raising its error.

    Expected errors, such as that of a table that does not exist yet, would appear there too, as JSON. And of each
    function with type hints, 4.2 says that these are not for pandas.
    """
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        # With pyspark's own function: its loggers take more arguments than Python's.
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    for text in (r"\[RETRIES_EXCEEDED\]", "Cannot infer the eval type from type hints"):
        warnings.filterwarnings("ignore", text, UserWarning)


@contextlib.contextmanager
def _interrupts_kept() -> Generator[None]:
    """Keeps the process's handler of SIGINT, which Spark's start replaces: Dagster cancels runs with it."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGINT, handler)


@contextlib.contextmanager
def _nothing_left_behind() -> Generator[None]:
    """Ends the JVM if its start is interrupted or fails.

    pyspark then drops the process, which would keep running: it ends by itself only after it has written its port, and
    the file for that is gone after the interrupt.
    """
    try:
        yield
    except BaseException as error:
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        if any(frame.f_code.co_name == "launch_gateway" for frame in frames):
            started = {id(value): value for frame in frames for value in frame.f_locals.values()}
            for process in started.values():
                # It may not have an id yet.
                if isinstance(process, subprocess.Popen) and getattr(process, "pid", None) is not None:
                    process.kill()
                    process.wait()
        raise


def active_session() -> SparkSession | None:
    """Returns the active session of this process, from any thread; None if there is none."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        with dead_spark_as_error():
            return SparkSession.active()
    except PySparkRuntimeError:
        return None


def check_alive(session: SparkSession) -> None:
    """Checks that a session, or its Connect server, still answers."""
    with dead_spark_as_error():
        # Spark is asked for it each time; a Connect client knows the server's version from before.
        session.conf.get(SESSION_ZONE)


def end_session(session: SparkSession) -> None:
    """Stops a session, unless its JVM has ended."""
    with contextlib.suppress(SparkSessionError), dead_spark_as_error():
        session.stop()


@contextlib.contextmanager
def temporary_session(
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, str] | None = None,
    packages: Sequence[str] = (),
    app_name: str = "dagster-kafka-flip",
) -> Generator[SparkSession]:
    """The active session of this process, or one as by `build_session` that ends with the block."""
    joined = active_session()
    session = build_session(master=master, remote=remote, config=config, packages=packages, app_name=app_name)
    try:
        yield session
    finally:
        if session is not joined:
            end_session(session)


@contextlib.contextmanager
def dead_spark_as_error() -> Generator[None]:
    """Translates pyspark's connection errors of a JVM, or of a Connect server, that has ended."""
    from py4j.protocol import Py4JError, Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        if (advice := server_advice(error)) is None:
            raise
        finding = f"the Spark session of this process (id {os.getpid()}) has ended: {type(error).__name__}"
        raise SparkSessionError(finding, advice) from error
    except (ConnectionError, Py4JError) as error:
        if isinstance(error, Py4JJavaError):
            raise  # the JVM is alive and answered
        raise SparkSessionError(
            f"the Spark session of this process (id {os.getpid()}) has ended: its JVM stopped, usually from too little "
            "memory, and pyspark can't start a second one in a process",
            "Run again: a new process starts a new session. If it happens again, give the driver more memory "
            "(spark.driver.memory)",
            outcome="Nothing was read or written since",
        ) from error


def _one_kind(used: str) -> str:
    """Why there is no session of the other kind, and what to do."""
    return (
        f"this process (id {os.getpid()}) has used {used}, and pyspark has one Spark per process. Run each in its own "
        "process, as Dagster's multiprocess executor does, or use the same Spark for both"
    )


# Before the stack trace in an error that the server raised.
_SERVERS_TRACE = "JVM stacktrace:"


def _connect(remote: str, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    if importlib.util.find_spec("grpc") is None:
        server = hidden_parameters(remote)
        msg = f"Spark Connect ({server}) needs more packages: pip install 'dagster-kafka-flip[connect]'"
        raise SparkSessionError(msg)
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.client.retries import DefaultPolicy

    try:
        session = SparkSession.builder.remote(remote).getOrCreate()
        # That of another server, if there was one. Of a user's own kind of channel, the address is unknown.
        used = getattr(session.client._builder, "endpoint", None)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
        if used not in {None, DefaultChannelBuilder(remote).endpoint}:
            kind = _one_kind(f"the server {used}")
            raise SparkSessionError(f"no Spark Connect session with {hidden_parameters(remote)}: {kind}")  # noqa: TRY301
        session.client.set_retry_policies([DefaultPolicy(max_retries=_CONNECT_RETRIES, max_backoff=_CONNECT_PAUSE_MS)])
        for key, value in settings.items():
            session.conf.set(key, value)
    except SparkSessionError:
        raise
    except Exception as error:
        if isinstance(error, PySparkRuntimeError) and error.getCondition() == "SESSION_ALREADY_EXIST":
            kind = _one_kind("a Spark of its own")
            raise SparkSessionError(f"no Spark Connect session with {hidden_parameters(remote)}: {kind}") from error
        reason = without_parameters(str(error), remote)
        advice = server_advice(error, remote) or "Check the address, the config and the server"
        finding = (
            f"no Spark Connect session with {hidden_parameters(remote)}: {type(error).__name__}: "
            f"{without_grpc(reason).partition(_SERVERS_TRACE)[0].rstrip().rstrip('.')}"
        )
        # A traceback would show the cause's text, which repeats the token.
        raise SparkSessionError(finding, advice) from (error if reason == str(error) else None)
    check_session(session)
    return session


def check_session(session: SparkSession) -> None:
    """Checks that a session can write Delta tables."""
    extensions = session.conf.get("spark.sql.extensions", "") or ""
    catalog = session.conf.get("spark.sql.catalog.spark_catalog", "") or ""
    missing = [
        f"{key}={value}"
        for key, value, found in (
            ("spark.sql.extensions", DELTA_EXTENSION, extensions),
            ("spark.sql.catalog.spark_catalog", DELTA_CATALOG, catalog),
        )
        if value not in found
    ]
    if missing:
        raise SparkSessionError(
            f"the active Spark session can't write Delta tables: it was started without {' and '.join(missing)}",
            f"Start it with them and with the packages {', '.join(spark_packages())}",
        )


def parallelism(session: SparkSession) -> int:
    """Returns the number of tasks that a session can run at once, from its settings; at least 1.

    A Connect session has no context to ask.
    """
    default = session.conf.get("spark.default.parallelism", None)
    if default is not None and default.isdecimal():
        return max(1, int(default))
    local = _LOCAL_MASTER.fullmatch(session.conf.get("spark.master", "") or "")
    if local:
        threads = local["threads"]
        return (os.cpu_count() or 1) if threads == "*" else int(threads or 1)
    cores = int(session.conf.get("spark.executor.cores", None) or 1)
    executors = session.conf.get("spark.executor.instances", None) or session.conf.get(
        "spark.dynamicAllocation.maxExecutors", None
    )
    # A standalone cluster gives an application so many cores, whatever its executors.
    most = session.conf.get("spark.cores.max", None)
    known = [int(most)] if most is not None and most.isdecimal() else []
    if executors is not None and executors.isdecimal():
        known.append(cores * int(executors))
    return max(1, min(known, default=_UNKNOWN_PARALLELISM))
