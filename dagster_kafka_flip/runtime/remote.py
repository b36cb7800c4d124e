"""Whether a Spark Connect server does the work, what to do when it has ended, and queries that Spark may not change."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from dagster_kafka_flip.errors import error_text

if TYPE_CHECKING:
    from collections.abc import Generator

    from pyspark.sql import Column, DataFrame, SparkSession


def is_remote(of: SparkSession | DataFrame) -> bool:
    """Whether a session or a DataFrame is Spark Connect's.

    Spark Connect has separate classes, in a module that needs packages which may be missing.
    """
    return "connect" in type(of).__module__


# Its client gives up; its address is in the cause. A server that ends in the middle of an answer resets the stream,
# which clients do not try again. A started server does not know the sessions of the one before.
_NO_ANSWER = re.compile(r"RETRIES_EXCEEDED|StatusCode\.UNAVAILABLE|RST_STREAM|failed to connect to all addresses")
_OTHER_SERVER = re.compile(r"INVALID_HANDLE\.SESSION_(?:NOT_FOUND|CHANGED|CLOSED)|NO_ACTIVE_SESSION")
# A server that is told to end first stops Spark, and still answers until its JVM has ended.
_SHUTTING_DOWN = re.compile(r"stopped SparkContext|SparkContext was shut down|No active or default Spark session found")
# An error of gRPC that pyspark did not translate begins with the name of its Python class.
_OF_GRPC = re.compile(r'<_\w+ of RPC .*?details = "(?P<details>[^\n]*)"', re.DOTALL)
_HERE = re.compile(r"(?:ipv[46]:|sc://)(?:127\.|localhost\b|\[::1\]|%5B::1%5D)")


def without_grpc(text: str) -> str:
    """The text of an error; of one of gRPC only what it says."""
    of_grpc = _OF_GRPC.match(text)
    return text if of_grpc is None else of_grpc["details"]


def server_advice(error: BaseException, address: str = "") -> str | None:
    """What to do about an error that means that the Connect server has ended; None for other errors."""
    text = " ".join(error_text(each) for each in (error, error.__cause__) if each is not None)
    if _OTHER_SERVER.search(text):
        return (
            "The Spark Connect server was started again meanwhile, or has closed this session: run again in a new "
            "process. If it ends often, look at its log, and give it more memory"
        )
    # Said by Spark itself, it means a session of this process.
    if "connect" in type(error).__module__ and _SHUTTING_DOWN.search(text):
        return (
            "The Spark Connect server is shutting down: when it has ended, start it again (dagster-kafka-flip spark "
            "start --daemon, if it is that one), and run again"
        )
    if not _NO_ANSWER.search(text):
        return None
    own = " (dagster-kafka-flip spark start --daemon, if it is that one)" if _HERE.search(f"{text} {address}") else ""
    return (
        "The Spark Connect server does not answer: check its address and the network to it, and whether it still runs. "
        f"If it has ended, look at its log (it may need more memory), start it again{own}, and run again"
    )


# Tags of Spark jobs, by which any thread can stop them.
#
# Without Spark Connect these are the SparkContext's tags: `SparkSession.interruptTag` finds only jobs that its own
# thread has tagged (Spark 4.0 to 4.2).


@contextlib.contextmanager
def tagged_jobs(spark: SparkSession, tag: str) -> Generator[None]:
    """Tags the jobs that this thread starts in the block."""
    if is_remote(spark):
        add, remove = spark.addTag, spark.removeTag
    else:
        add, remove = spark.sparkContext.addJobTag, spark.sparkContext.removeJobTag
    add(tag)
    try:
        yield
    finally:
        # Spark may be gone.
        with contextlib.suppress(Exception):
            remove(tag)


def stop_jobs(spark: SparkSession, tag: str) -> None:
    """Cancels the running jobs with a tag, whichever thread started them."""
    if is_remote(spark):
        spark.interruptTag(tag)
    else:
        spark.sparkContext.cancelJobsWithTag(tag)


def kept_rows(rows: DataFrame) -> DataFrame:
    """Runs a query once, and returns its rows as they were then. They are kept until nothing refers to them.

    `persist` is not enough: after the loss of an executor rows are computed again, and may differ.
    """
    from pyspark import StorageLevel

    if not is_remote(rows):
        return rows.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)
    from pyspark.sql.connect.plan import Checkpoint

    # As localCheckpoint does it, which drops what the query observes (Spark 4.0 to 4.2).
    client: Any = rows.sparkSession.client
    plan: Any = vars(rows)["_plan"]
    command = Checkpoint(child=plan, local=True, eager=True, storage_level=StorageLevel.DISK_ONLY).command(client)
    _, properties, _ = client.execute_command(command, plan.observations)
    return properties["checkpoint_command_result"]


def unskippable(rows: DataFrame, check: Column) -> DataFrame:
    """The rows, each checked by a condition that is true or fails, before or after whatever else is done with them.

    A later filter would become part of the condition, and what Spark concludes from it (`flight = 1`: flight is not
    null) is evaluated first: a row without a flight would go unchecked. Below a join, rows would be checked that it
    drops. Spark neither combines nor moves a filter that it takes for nondeterministic, as it does the number of a
    task's partition.
    """
    from pyspark.sql import functions as f

    return rows.where(f.when(check, f.spark_partition_id() >= 0))


_SETTING = "spark.dagsterKafkaFlip.files"

# A file that is there on each Linux, and on no other file system.
_PROBE = "/proc/version"

_answers: WeakKeyDictionary[SparkSession, bool] = WeakKeyDictionary()


def files_setting() -> dict[str, str]:
    """The setting by which a server that this process starts says which files it sees; none if the system doesn't."""
    files = _files()
    return {} if files is None else {_SETTING: files}


def sees_same_files(server: SparkSession) -> bool:
    """Whether it is certain that a server sees this process's files. It is asked once for each session."""
    if server not in _answers:
        _answers[server] = False
        # A server that is gone fails in many ways, and says so when it is asked next.
        with contextlib.suppress(Exception):
            theirs = server.conf.get(_SETTING, None)
            _answers[server] = theirs is not None and theirs == _files() and _reads_local_files(server)
    return _answers[server]


def _reads_local_files(server: SparkSession) -> bool:
    """Whether a path without a scheme means a local file: settings, files and variables of Hadoop can change it."""
    return [file.partition("/")[0] for file in server.read.text(_PROBE).inputFiles()] == ["file:"]


def _files() -> str | None:
    """The start of the system, the mounts and the root folder; None where the system doesn't name them (Linux does).

    A container has mounts of its own, and a changed root folder is another one.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        mounts = Path("/proc/self/ns/mnt").stat()
        root = os.open("/", os.O_RDONLY)
        try:
            of_root = Path(f"/proc/self/fdinfo/{root}").read_text(encoding="ascii")
            inode = os.fstat(root).st_ino
        finally:
            os.close(root)
        (mount,) = (line.split()[1] for line in of_root.splitlines() if line.startswith("mnt_id:"))
    except (OSError, ValueError):
        return None
    return f"{boot}-{mounts.st_ino}-{mount}-{inode}"
