"""Classifies errors of Spark and Delta, and extracts their most informative line."""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import error_text
from dagster_kafka_flip.runtime.remote import without_grpc

if TYPE_CHECKING:
    from collections.abc import Callable

_NOT_THERE = frozenset(
    {
        "DELTA_ONLY_OPERATION",
        "DELTA_TABLE_ONLY_OPERATION",
        "DELTA_MISSING_DELTA_TABLE",
        "DELTA_TABLE_NOT_FOUND",
        "DELTA_PATH_DOES_NOT_EXIST",
        "EXPECT_TABLE_NOT_VIEW",
        "PATH_NOT_FOUND",
        "TABLE_OR_VIEW_NOT_FOUND",
        "SCHEMA_NOT_FOUND",
    }
)
_ALREADY_THERE = frozenset({"TABLE_OR_VIEW_ALREADY_EXISTS", "DELTA_TABLE_ALREADY_EXISTS", "TABLE_ALREADY_EXISTS"})

# Delta's errors for concurrent changes by others; our own fence is the one that ends in Transaction.
_CONFLICTS = frozenset(
    {
        "ConcurrentAppendException",
        "ConcurrentDeleteReadException",
        "ConcurrentDeleteDeleteException",
        "ConcurrentWriteException",
        "MetadataChangedException",
        "ProtocolChangedException",
        "DELTA_CONCURRENT_APPEND",
        "DELTA_CONCURRENT_DELETE_READ",
        "DELTA_CONCURRENT_DELETE_DELETE",
        "DELTA_CONCURRENT_WRITE",
        "DELTA_METADATA_CHANGED",
        "DELTA_PROTOCOL_CHANGED",
    }
)

# The class and the error condition at the start of a message: after py4j's "An error occurred while calling o1.save.",
# or in Spark Connect's brackets. Later text may repeat errors of a user's function.
_BEGINNING = re.compile(
    r"\A(?:An error occurred while calling \S+\s*:\s*)?\(?(?:[\w$]+\.)*(\w*Exception)?\)?:?\s*(?:\[([A-Z_]+)[\].])?"
)

# Transient errors, by the names of Kafka's Java client, Java's network classes, object store clients and Spark. Unknown
# names count as permanent.
_TRANSIENT = re.compile(
    r"""\b(
      # Java's network
        SocketException | SocketTimeoutException | ConnectException | NoRouteToHostException | UnknownHostException
      | ClosedChannelException | AsynchronousCloseException | NoHttpResponseException | ConnectTimeoutException
      | Connection\ reset | Broken\ pipe | Premature\ EOF
      # Kafka's RetriableExceptions, and java.util.concurrent's own of Spark's fetch
      | TimeoutException | DisconnectException | NetworkException | BrokerNotAvailableException
      | CoordinatorNotAvailableException | CoordinatorLoadInProgressException | NotCoordinatorException
      | LeaderNotAvailableException | NotLeaderOrFollowerException | ReplicaNotAvailableException
      | FencedLeaderEpochException | UnknownLeaderEpochException | OffsetNotAvailableException
      | UnknownTopicOrPartitionException | KafkaStorageException | StaleMetadataException
      # A broker's old metadata, or a topic that was recreated with fewer topic partitions: every retry checks this, too
      | Partitions\ specified\ for\ Kafka\ start\ offsets
      # A recovering broker can report a later log start; every retry checks the log first
      | Some\ data\ may\ have\ been\ lost | OffsetOutOfRangeException
      # Stores: S3 by Hadoop's names and its own, HDFS
      | AWSServiceIOException | AWSServiceThrottledException | AWSStatus500Exception | AWSClientIOException
      | SlowDown | InternalError | ServiceUnavailable | Service\ Unavailable | RequestTimeout
      | StandbyException | RetriableException
      # Spark
      | FetchFailedException | ExecutorLostFailure | Checkpoint\ block\ \S+\ not\ found
      | Executor\ heartbeat\ timed\ out
    )\b""",
    re.VERBOSE,
)
# S3's client has then tried for minutes.
_GIVEN_UP = re.compile(r"SdkClientException: Unable to execute HTTP request")
# Errors of a user's function are not retried.
_NO_FILE_SYSTEM = re.compile(
    r"""No\ FileSystem\ for\ scheme:?\ "?(?P<scheme>[\w.+-]+)
      | Class\ org\.apache\.hadoop\.fs\.(?P<package>\w+)\.\w+\ not\ found""",
    re.VERBOSE,
)
_BROKEN_RULE = re.compile(
    r"\[DELTA_(?:NOT_NULL_CONSTRAINT_VIOLATED|VIOLATE_CONSTRAINT_WITH_VALUES|EXCEED_CHAR_VARCHAR_LIMIT)\b"
)
# A JVM's own error; what an executor's JVM ends with after it; and how containers and the system end a process.
_NO_MEMORY = re.compile(
    r"\bOutOfMemoryError\b|\bexited with code (?:52|137)\b|exceeding (?:physical |virtual )?memory limits|\bOOMKilled\b"
)
_USERS_OWN = "PythonException"
_NO_MODULE = re.compile(r"^ModuleNotFoundError: ", re.MULTILINE)
_RAISED_IN_SQL = "USER_RAISED_EXCEPTION"
# Under an error of the task that wrote, which pyspark does not translate from 4.1 on.
_RAISED_IN_TASK = re.compile(
    rf"^Caused by: org\.apache\.spark\.SparkRuntimeException: \[{_RAISED_IN_SQL}\]", re.MULTILINE
)
_SPARK_IS_GONE = "Py4JNetworkError"

_FROM_USERS = "An exception was thrown from the Python worker"
_SAYS_NOTHING = ("An error occurred while calling", _FROM_USERS)
_END_OF_TRACEBACK = re.compile(r"[\w.]+(Error|Exception|Exit|Interrupt|Warning)\b")


def is_not_there(error: BaseException) -> bool:
    """Whether the error, or the one that it translates, means that the table does not exist."""
    return any(_condition(each) in _NOT_THERE for each in (error, error.__cause__) if each is not None)


def missing_file_system(error: BaseException) -> str | None:
    """The scheme without a file system in Spark; None for other errors."""
    if not is_sparks_own(error):
        return None
    found = _NO_FILE_SYSTEM.search(error_text(error))
    return None if found is None else found["scheme"] or found["package"]


def is_already_there(error: BaseException) -> bool:
    """Whether the table already exists."""
    return _condition(error) in _ALREADY_THERE


def is_place_taken(error: BaseException) -> bool:
    """Whether the catalog has no such table, but the folder that it would get is not empty."""
    return _condition(error) == "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"


def is_conflict(error: BaseException) -> bool:
    """Whether another writer's change caused the failure, so nothing was written and a retry makes sense."""
    return not _names(error).isdisjoint(_CONFLICTS)


def is_outside_of_predicate(error: BaseException) -> bool:
    """Whether new rows do not match the predicate of the rows that they replace."""
    text = f"{_condition(error)} {error_text(error)}"
    return "DELTA_REPLACE_WHERE_MISMATCH" in text or "does not conform to partial table overwrite" in text


def breaks_rule(error: BaseException) -> bool:
    """Whether a row breaks a rule of the table: NOT NULL, a CHECK constraint, a text's length."""
    return _BROKEN_RULE.search(error_text(error)) is not None


def lacks_module(error: BaseException) -> bool:
    """Whether a user's Python function lacks a module where Spark runs it."""
    return _is_users_own(error) and _NO_MODULE.search(error_text(error)) is not None


def lacks_memory(error: BaseException) -> bool:
    """Whether a JVM of Spark, or a task's Python, had too little memory."""
    return _NO_MEMORY.search(error_text(error)) is not None


def is_transient(error: BaseException | None) -> bool:
    """Whether the error is transient, so a retry makes sense.

    Only errors that Spark reports about Kafka, a store or itself; not a dead Spark.
    """
    if error is None or not is_sparks_own(error) or _GIVEN_UP.search(error_text(error)):
        return False
    return _TRANSIENT.search(error_text(error)) is not None


def is_sparks_own(error: BaseException) -> bool:
    """Whether Spark itself failed, as opposed to a user's function or a dead Spark."""
    is_gone = any(kind.__name__ == _SPARK_IS_GONE for kind in type(error).__mro__)
    return is_from_spark(error) and not is_gone and not _is_users_own(error)


def _is_users_own(error: BaseException) -> bool:
    """Whether a user's Python function failed, or an expression that raises."""
    is_so = type(error).__name__ == _USERS_OWN or _condition(error) == _RAISED_IN_SQL
    return is_so or _RAISED_IN_TASK.search(error_text(error)) is not None


def unwrapped(error: BaseException) -> BaseException:
    """The error of a user's Python function, if it is below that of the task that wrote; else the error itself."""
    cause = getattr(error, "java_exception", None)
    # Spark's JVM is asked, and may have ended.
    with contextlib.suppress(Exception):
        while cause is not None:
            if cause.getClass().getName() == f"org.apache.spark.api.python.{_USERS_OWN}":
                from pyspark.errors.exceptions.captured import PythonException

                return PythonException(f"{_FROM_USERS}:\n{cause.getMessage()}", stackTrace="")
            cause = cause.getCause()
    return error


def is_from_spark(error: BaseException) -> bool:
    """Whether Spark raised the error, also where a user's function failed in it."""
    return any(kind.__module__.startswith(("pyspark.", "py4j.")) for kind in type(error).__mro__)


def error_summary(error: BaseException) -> str:
    """The error's class and the line with the cause, including a following list.

    Spark wraps executor errors in generic sentences and in stack traces of two languages.
    """
    lines = [line.strip() for line in without_grpc(error_text(error)).splitlines()]
    lines = [line for line in lines if line and not line.startswith(("at ", "... "))] or ["no message"]
    chosen = 0
    if lines[0].startswith(_SAYS_NOTHING):
        from_python = [number for number, line in enumerate(lines) if number and _END_OF_TRACEBACK.match(line)]
        from_java = [number for number, line in enumerate(lines) if line.startswith("Caused by:")]
        chosen = (from_python or from_java or [min(1, len(lines) - 1)])[-1]
    parts = [lines[chosen].removeprefix(": ").removeprefix("Caused by: ")]
    if parts[0].endswith(":"):
        # Delta lists the values of a row that violates a constraint after the sentence.
        parts += itertools.takewhile(lambda line: line.startswith("- "), lines[chosen + 1 :])
    return f"{type(error).__name__}: {' '.join(parts)}"


def _names(error: BaseException) -> set[str | None]:
    beginning = _BEGINNING.match(error_text(error))
    return {type(error).__name__, _condition(error), *(() if beginning is None else beginning.groups())}


def _condition(error: BaseException) -> str | None:
    get: Callable[[], str | None] | None = getattr(error, "getCondition", None) or getattr(error, "getErrorClass", None)
    condition = None
    if get is not None:
        # Spark's JVM is asked, and may have ended.
        with contextlib.suppress(Exception):
            condition = get()
    return None if condition is None else condition.split(".")[0]
