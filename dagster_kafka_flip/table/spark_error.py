"""Classifies errors of Spark, Delta and stores, extracts their most informative line, and says what to do."""

from __future__ import annotations

import contextlib
import itertools
import re
from typing import TYPE_CHECKING

from dagster_kafka_flip.errors import error_text
from dagster_kafka_flip.runtime.jars import hadoop_version
from dagster_kafka_flip.runtime.remote import server_advice, without_grpc
from dagster_kafka_flip.runtime.spark_jars import jars_advice
from dagster_kafka_flip.settings.names import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NOT_THERE = listed(
    """
    DELTA_ONLY_OPERATION, DELTA_TABLE_ONLY_OPERATION, DELTA_MISSING_DELTA_TABLE, DELTA_TABLE_NOT_FOUND,
    DELTA_PATH_DOES_NOT_EXIST, EXPECT_TABLE_NOT_VIEW, PATH_NOT_FOUND, TABLE_OR_VIEW_NOT_FOUND, SCHEMA_NOT_FOUND
    """
)
_ALREADY_THERE = frozenset({"TABLE_OR_VIEW_ALREADY_EXISTS", "DELTA_TABLE_ALREADY_EXISTS", "TABLE_ALREADY_EXISTS"})

# Delta's errors for concurrent changes by others; our own fence is the one that ends in Transaction.
_CONFLICTS = listed(
    """
    ConcurrentAppendException, ConcurrentDeleteReadException, ConcurrentDeleteDeleteException,
    ConcurrentWriteException, MetadataChangedException, ProtocolChangedException, DELTA_CONCURRENT_APPEND,
    DELTA_CONCURRENT_DELETE_READ, DELTA_CONCURRENT_DELETE_DELETE, DELTA_CONCURRENT_WRITE, DELTA_METADATA_CHANGED,
    DELTA_PROTOCOL_CHANGED
    """
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
_USERS_OWN = "PythonException"
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


def is_already_there(error: BaseException) -> bool:
    return _condition(error) in _ALREADY_THERE


def is_place_taken(error: BaseException) -> bool:
    """Whether the catalog has no such table, but the folder that it would get is not empty."""
    return _condition(error) == "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"


def is_conflict(error: BaseException) -> bool:
    """Whether another writer's change caused the failure, so nothing was written and a retry makes sense."""
    return not _names(error).isdisjoint(_CONFLICTS)


def is_outside_of_predicate(error: BaseException) -> bool:
    text = f"{_condition(error)} {error_text(error)}"
    return "DELTA_REPLACE_WHERE_MISMATCH" in text or "does not conform to partial table overwrite" in text


def is_transient(error: BaseException | None) -> bool:
    """Whether Spark reports of Kafka, a store or itself what a retry may get over; not if Spark is gone."""
    if error is None or not is_sparks_own(error) or _GIVEN_UP.search(error_text(error)):
        return False
    return _TRANSIENT.search(error_text(error)) is not None


def is_sparks_own(error: BaseException) -> bool:
    """Whether Spark itself failed, as opposed to a user's function or a dead Spark."""
    is_gone = any(kind.__name__ == _SPARK_IS_GONE for kind in type(error).__mro__)
    return is_from_spark(error) and not is_gone and not _is_users_own(error)


def _is_users_own(error: BaseException) -> bool:
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
    """The class, and the line with the cause, from under generic sentences and stack traces of two languages."""
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


CHECK_ACCESS = "Check the table's name and this machine's access to its store and catalog, then run again"
"""What to do if a table can't be reached, and nothing else is known."""

_NO_DELTA = re.compile(
    r"ClassNotFoundException: (?:io\.delta|org\.apache\.spark\.sql\.delta)\b|plugin class for catalog .*DeltaCatalog"
)
_FROM_A_STORE = re.compile(r"awssdk|com[./]amazonaws|s3a|S3A|\bS3\b")

_NO_FILES_OF = r'No FileSystem for scheme:? "?'
_NO_CLASS_OF = r"Class org\.apache\.hadoop\.fs\."
_HADOOP = 'packages=["org.apache.hadoop:{}:<hadoop>"]; a Spark Connect server needs it at its start'

# What to do, by names and texts in an error, and by whose it is. The first that fits counts.
_ADVICE: Mapping[Callable[[BaseException], bool], Mapping[str, str]] = {
    # S3's, Hadoop's and Amazon's clients. HEAD requests are answered without a reason: only the status is known.
    lambda error: _FROM_A_STORE.search(error_text(error)) is not None: {
        r"NoSuchBucket|UnknownStoreException": (
            "The bucket does not exist at this endpoint: create it (Spark doesn't), or correct the table's path"
        ),
        r"NoAuthWithAWSException|NoAwsCredentials|Unable to load (?:AWS )?credentials|Failed to load credentials": (
            "Spark found no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY where it runs, or "
            "spark.hadoop.fs.s3a.access.key and spark.hadoop.fs.s3a.secret.key in Spark's config"
        ),
        r"ExpiredToken|TokenRefreshRequired|InvalidToken": (
            "The session token of these credentials has expired, or belongs to other credentials: give Spark new "
            "credentials, or leave the keys out where an instance role renews them, and run again"
        ),
        r"InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied|Status Code: 40[13]\b": (
            "The store refuses these credentials, or they lack a right: check the access key and its secret, the "
            "rights to list, read, write and delete under the table's path, and the clock of Spark's machine"
        ),
        r"AuthorizationHeaderMalformed|AWSRedirectException|PermanentRedirect|Status Code: (?:301|400)\b": (
            "The region or the endpoint is probably not the bucket's: set spark.hadoop.fs.s3a.endpoint.region, and "
            "spark.hadoop.fs.s3a.endpoint for a store that isn't Amazon's. A session token that has expired can look "
            "like this, too"
        ),
        r"UnknownHostException": (
            "The host does not exist: check spark.hadoop.fs.s3a.endpoint, and whether the store needs "
            "spark.hadoop.fs.s3a.path.style.access=true"
        ),
        r"Unable to execute HTTP request": (
            "Nothing answers at this endpoint: check spark.hadoop.fs.s3a.endpoint and the network between Spark and "
            "store"
        ),
        r"NoClassDefFoundError: com/amazonaws|ClassNotFoundException: com\.amazonaws": (
            "The table has a commit coordinator in DynamoDB, and Spark lacks its client: add "
            "com.amazonaws:aws-java-sdk-dynamodb:1.12.262 to Spark's packages"
        ),
    },
    _is_users_own: {
        r"^ModuleNotFoundError: ": (
            "The Python of Spark's tasks lacks this module, which a transform's function needs: send it along with "
            "spark.submit.pyFiles, or install it on each machine that runs tasks, for the Python that PYSPARK_PYTHON "
            "names"
        ),
    },
    is_sparks_own: {
        rf"{_NO_FILES_OF}(s3n?)\b": (
            "Name the table, or its catalog's location, with s3a://; or set "
            "spark.hadoop.fs.{0}.impl=org.apache.hadoop.fs.s3a.S3AFileSystem in Spark's config. Either needs "
            f"{_HADOOP.format('hadoop-aws')}"
        ),
        rf"{_NO_FILES_OF}s3a\b|{_NO_CLASS_OF}s3a\.": f"Add the jar to Spark: {_HADOOP.format('hadoop-aws')}",
        rf"{_NO_FILES_OF}(?:abfs|wasb)s?\b|{_NO_CLASS_OF}azure": (
            f"Add the jar to Spark: {_HADOOP.format('hadoop-azure')}"
        ),
        _NO_FILES_OF: "Correct the scheme, or add the file system's Maven artifact to Spark's packages",
        r'\bCannot run program "([^"\n]+)"': (
            "Spark's tasks can't start the Python that a format or a function needs: {0}. Install it on each machine "
            "that runs tasks, or name another one with PYSPARK_PYTHON in the environment of Spark's driver"
        ),
    },
    lambda _: True: {
        r"DELTA_VERSIONS_NOT_CONTIGUOUS|DELTA_TRUNCATED_TRANSACTION_LOG|DELTA_LOG_FILE_NOT_FOUND"
        r"|DELTA_MISSING_PART_FILES|Could not find any delta files|Checkpoint file to load version: \d+ is missing": (
            "Files of its _delta_log are gone: put them back from a backup, or use another table"
        ),
        r"\[DELTA_(?:NOT_NULL_CONSTRAINT_VIOLATED|VIOLATE_CONSTRAINT_WITH_VALUES|EXCEED_CHAR_VARCHAR_LIMIT)\b": (
            "A row breaks this rule of the table (a tombstone has null in each column of its value, and an empty "
            "string is null in a partition column). Drop or change such rows in the transform, or drop the rule from "
            "the table"
        ),
        # A JVM's own error; what an executor's JVM ends with after it; and how containers and the system end a process.
        r"\bOutOfMemoryError\b|\bexited with code (?:52|137)\b|exceeding (?:physical |virtual )?memory limits"
        r"|\bOOMKilled\b": (
            "Where Spark's tasks run there is too little memory: give an executor more (spark.executor.memory on a "
            "cluster, otherwise spark.driver.memory; for Python functions spark.executor.memoryOverhead), or make the "
            "batches smaller (max_records_per_batch), and run again"
        ),
        r"\[DELTA_CANNOT_MODIFY_APPEND_ONLY\]": (
            "Tables with a key, and those written in windows, replace rows: set delta.appendOnly of this table to "
            "false, also in the properties of its DeltaTarget"
        ),
        r"\[PYTHON_VERSION_MISMATCH\]": (
            "Name a Python of the driver's minor version, which each machine that runs tasks has, with PYSPARK_PYTHON "
            "in the environment of Spark's driver"
        ),
    },
}


def told(what: str, error: BaseException, otherwise: str = "") -> tuple[str, str]:
    if (no_folder := _without_folder(error_text(error))) is not None:
        advice = "Change or shorten such values in the transform, or partition a new table by another column"
        return f"{what}: {no_folder}", advice
    return f"{what}: {error_summary(error).rstrip('.')}", _advice(error) or otherwise


def _advice(error: BaseException) -> str | None:
    if (advice := server_advice(error)) is not None:
        return advice
    text = error_text(error)
    if _NO_DELTA.search(text):
        return f"Spark lacks Delta's jars. {jars_advice()}"
    for is_theirs, known in _ADVICE.items():
        for pattern, advice in known.items() if is_theirs(error) else ():
            if (found := re.search(pattern, text, re.MULTILINE)) is not None:
                return advice.format(*found.groups()).replace("<hadoop>", hadoop_version())
    return None


_NO_FOLDER = re.compile(
    r"Mkdirs failed to create (?P<path>[^\n]*?)(?= \(exists=|\n|$)"
    r"|maximum path component name limit of (?P<name>[^\n]*?) in directory "
)
_LONGEST_NAME = 255


def _without_folder(text: str) -> str | None:
    """Says which partition column has a value that names no folder, without the value: it can be a record's."""
    found = _NO_FOLDER.search(text)
    for folder in () if found is None else (found["path"] or found["name"]).split("/"):
        column, is_partition, _ = folder.partition("=")
        size = len(folder.encode("utf-8", "replace"))
        if is_partition and ("\0" in folder or size > _LONGEST_NAME):
            what = "has the character U+0000" if "\0" in folder else f"is too long (the name needs {size:,} bytes)"
            return (
                f"Delta names a folder after each value of the partition column {column}, with at most {_LONGEST_NAME} "
                f"bytes and without U+0000, and a value {what}"
            )
    return None
