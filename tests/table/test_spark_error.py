"""The line of an error that tells the most. The texts are such as Spark 4.0 and 4.2 print."""

from __future__ import annotations

import logging
import re
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import AnalysisException, PythonException, SparkRuntimeException

from dagster_kafka_flip.errors import (
    CommitUnknownError,
    PublishFailedError,
    RecordsRejectedError,
    WriteFailedError,
)
from dagster_kafka_flip.formats.learning import has_mark
from dagster_kafka_flip.runtime.remote import server_advice
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.table import interruptible
from dagster_kafka_flip.table.change_errors import NULL_ORDER, TWO_ROWS, error_of
from dagster_kafka_flip.table.document import CommitDocument, WindowsDocument
from dagster_kafka_flip.table.interruptible import TRIES, retried, warned_of_silence
from dagster_kafka_flip.table.spark_error import (
    error_summary,
    is_conflict,
    is_transient,
    told,
)
from dagster_kafka_flip.table.table_writer import TableWriter

_FROM_JAVA = """An error occurred while calling o24151.append.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/t. SQLSTATE: 58030
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(QueryExecutionErrors.scala:809)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\t... 1 more
"""
_FROM_DELTA = """An error occurred while calling o1.append.
: io.delta.x: [DELTA_METADATA_CHANGED] why
\tat org.apache.spark.sql.delta.DeltaErrorsBase.metadataChangedException(DeltaErrors.scala:1)
\tSuppressed: org.apache.spark.util.Utils$OriginalTryStackTraceException: Full stacktrace of the original
"""
_FROM_GRPC = """<_MultiThreadedRendezvous of RPC that terminated with:
\tstatus = StatusCode.CANCELLED
\tdetails = "Stream removed (RST_STREAM (Received RST_STREAM with error code 8))"
\tdebug_error_string = "UNKNOWN:Error received from peer"
>"""
_FROM_CONSTRAINT = """An error occurred while calling o2228.append.
: org.x.ViolationException: [DELTA_VIOLATE] CHECK constraint c (a < 5) violated by row:
 - a : 5
 - b : x
\tat org.x.CheckDeltaInvariant.assertRule(CheckDeltaInvariant.scala:58)
"""
_FROM_PYTHON = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/t.py", line 12, in bad
    def bad(x): raise ValueError("broken by hand")
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: broken by hand
"""


def _told(error):
    return str(WriteFailedError(*told("writing", error))).removeprefix("writing: ")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[DIVIDE_BY_ZERO] Division by zero.\n== SQL ==\n1/0", "[DIVIDE_BY_ZERO] Division by zero."),
        (_FROM_JAVA, "java.io.IOException: No space left on device"),
        (_FROM_PYTHON, "ValueError: broken by hand"),
        (_FROM_JAVA + _FROM_PYTHON, "ValueError: broken by hand"),
        ("An error occurred while calling o1.append.\n: x.Y: why", "x.Y: why"),
        (
            _FROM_CONSTRAINT,
            "org.x.ViolationException: [DELTA_VIOLATE] CHECK constraint c (a < 5) violated by row: - a : 5 - b : x",
        ),
        (_FROM_GRPC, "Stream removed (RST_STREAM (Received RST_STREAM with error code 8))"),
        (_FROM_DELTA, "io.delta.x: [DELTA_METADATA_CHANGED] why"),
        ("An error occurred while calling o1.append.", "An error occurred while calling o1.append."),
        ("", "no message"),
    ],
)
def test_the_line_that_names_the_cause(text, line):
    assert error_summary(RuntimeError(text)) == f"RuntimeError: {line}"


def test_another_writers_change_is_distinguished_from_the_streams_own_fence():
    assert is_conflict(RuntimeError("[DELTA_METADATA_CHANGED] MetadataChangedException: ..."))
    assert is_conflict(RuntimeError("io.delta.exceptions.ConcurrentAppendException: [DELTA_CONCURRENT_APPEND] ..."))
    assert not is_conflict(RuntimeError("[DELTA_CONCURRENT_TRANSACTION] ConcurrentTransactionException: ..."))
    assert is_conflict(
        RuntimeError(
            "An error occurred while calling o93.save.\n: io.delta.exceptions.ConcurrentAppendException: "
            "[DELTA_CONCURRENT_APPEND] ConcurrentAppendException: Files were added to the root of the table"
        )
    )
    assert is_conflict(RuntimeError("(io.delta.exceptions.ConcurrentWriteException) [DELTA_CONCURRENT_WRITE] ..."))
    # What a user's function says is no conflict of Delta's.
    raised = "ValueError: io.delta.exceptions.ConcurrentAppendException: [DELTA_CONCURRENT_APPEND] mine"
    for text in (
        f"\n  An exception was thrown from the Python worker. Please see the stack trace below.\n{raised}",
        "[USER_RAISED_EXCEPTION] io.delta.exceptions.ConcurrentAppendException SQLSTATE: P0001",
        f"Job aborted due to stage failure: Task 0 in stage 1.0 failed: {raised}",
        "An error occurred while calling o9.save.\n: org.apache.spark.SparkException: ConcurrentAppendException",
    ):
        assert not is_conflict(RuntimeError(text)), text
    assert not is_conflict(RuntimeError("No space left on device"))


class _JavaError(Py4JJavaError):
    """An error of the JVM without a JVM."""

    def __init__(self, text):
        Exception.__init__(self, text)

    def __str__(self):
        return Exception.__str__(self)


_MAY_PASS = [
    _JavaError("Caused by: java.util.concurrent.TimeoutException: Cannot fetch record for offset 12 in 5000 ms"),
    _JavaError("Caused by: org.apache.kafka.common.errors.TimeoutException: Timeout of 60000ms expired before ..."),
    _JavaError("Caused by: java.net.SocketException: Connection reset"),
    _JavaError("Some data may have been lost because they are not available in Kafka any more"),
    _JavaError(
        "KafkaIllegalStateException: Partitions specified for Kafka start offsets don't match what are assigned."
    ),
    SparkRuntimeException("software.amazon.awssdk.services.s3.model.S3Exception: SlowDown (Status Code: 503)"),
]
_STAYS = [
    _JavaError(_FROM_JAVA),
    _JavaError("Caused by: org.apache.kafka.common.errors.TopicAuthorizationException: Not authorized"),
    _JavaError("Caused by: java.nio.file.AccessDeniedException: s3a://bucket: 403"),
    # S3's client has tried it for minutes.
    _JavaError("software.amazon.awssdk.core.exception.SdkClientException: Unable to execute HTTP request: Broken pipe"),
    SparkRuntimeException("[DIVIDE_BY_ZERO] Division by zero."),
    AnalysisException("[UNRESOLVED_COLUMN] a column"),
    # What a user's function asks of the network is the user's to ask again.
    PythonException("requests.exceptions.ConnectTimeoutException: Connection reset"),
    # Spark itself is gone.
    Py4JNetworkError("Connection reset"),
    ConnectionRefusedError("Connection refused: SocketException"),
]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            f"Mkdirs failed to create file:/t/day=1/name={'x' * 300}/a=1 (exists=false, cwd=file:/)",
            "too long (the name needs 305 bytes",
        ),
        (f"Mkdirs failed to create file:/t/name={'é' * 128}", "too long (the name needs 261 bytes"),
        ("Mkdirs failed to create file:/t/name=x\0y (exists=false, cwd=file:/)", "has the character U+0000"),
        (
            f"The maximum path component name limit of name={'x' * 300} in directory /t is exceeded: limit=255",
            "too long (the name needs 305 bytes",
        ),
    ],
)
def test_a_value_that_names_no_folder_is_told_without_the_value(text, what):
    line = _told(RuntimeError(f"An error occurred while calling o1.append.\nCaused by: java.io.IOException: {text}"))
    assert line.startswith("Delta names a folder after each value of the partition column name,")
    assert what in line
    assert "xx" not in line


def test_a_folder_that_can_not_be_made_for_another_reason_is_named():
    line = _told(RuntimeError(f"Mkdirs failed to create file:/t/name={'x' * 200} (exists=false, cwd=file:/)"))
    assert "Mkdirs failed to create file:/t/name=xx" in line


class _DeadJvmsError(Py4JJavaError):
    """Its text is asked of the JVM, which has ended with it."""

    def __init__(self):
        pass

    def __str__(self):
        raise ConnectionRefusedError

    def getCondition(self):  # noqa: N802 - pyspark names it
        raise ConnectionRefusedError


def test_an_error_whose_text_ended_with_the_jvm():
    error = _DeadJvmsError()
    assert _told(error).startswith("_DeadJvmsError: Spark's JVM stopped")
    assert "too little memory" in _told(error)
    assert not is_conflict(error)
    assert not is_transient(error)
    assert not has_mark(error, "mark")
    assert error_of(error, "a table", ("id",)) is None
    assert server_advice(error) is None


@pytest.mark.parametrize("failed", [WriteFailedError, PublishFailedError])
@pytest.mark.parametrize("error", _MAY_PASS)
def test_temporary_failures_are_retried_up_to_a_limit_and_logged_each_time(error, failed, monkeypatch, caplog):
    monkeypatch.setattr(interruptible, "_FIRST_WAIT_SECONDS", 0.0)
    assert is_transient(error)
    tries = []

    def fail():
        tries.append(None)
        raise failed("the write failed") from error

    with caplog.at_level(logging.WARNING), pytest.raises(failed):
        retried(logging.getLogger("test"), "the write to t", fail)
    assert len(tries) == TRIES == 5
    reported = [record.getMessage().partition("; retrying in 0 s: ") for record in caplog.records]
    assert [(what, cause) for what, _, cause in reported] == [
        (f"the write to t failed with a transient error (try {number} of 5)", error_summary(error))
        for number in range(1, 5)
    ]


@pytest.mark.parametrize("error", [*_STAYS, RecordsRejectedError("a TimeoutException"), None])
def test_permanent_failures_are_not_retried(error):
    assert not is_transient(error)
    tries = []

    def fail():
        tries.append(None)
        raise WriteFailedError("the write failed") from error

    with pytest.raises(WriteFailedError):
        retried(logging.getLogger("test"), "the write to t", fail)
    assert len(tries) == 1


def test_a_store_that_does_not_answer_is_waited_for_and_not_in_silence(monkeypatch):
    monkeypatch.setattr(interruptible, "_SILENCE_SECONDS", 0.01)
    told, lines = threading.Event(), []

    class Listener(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())
            if len(lines) > 1:
                told.set()

    log = logging.getLogger(f"{__name__}.silence")
    log.addHandler(Listener())
    # A store that answers once the log has told twice that there is no answer.
    with warned_of_silence(log, "reading the history of t"):
        assert told.wait(60)
    assert all(line.startswith("waiting for 0 s: reading the history of t has had no answer. Spark") for line in lines)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "o.a.DeltaInvariantViolationException: [DELTA_NOT_NULL_CONSTRAINT_VIOLATED] NOT NULL constraint violated",
            True,
        ),
        ('[DELTA_EXCEED_CHAR_VARCHAR_LIMIT] Value "abc" exceeds char/varchar type length limitation', True),
        (_FROM_CONSTRAINT.replace("DELTA_VIOLATE", "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES"), True),
        (_FROM_JAVA, False),
    ],
)
def test_a_row_that_breaks_a_rule_of_the_table_is_distinguished_from_other_failures(text, wanted):
    assert ("breaks this rule" in _told(SparkRuntimeException(text))) is wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("An error occurred while calling o1.append.\n: java.lang.OutOfMemoryError: Java heap space", True),
        (
            "ExecutorLostFailure (executor 0 exited caused by one of the running tasks) Command exited with code 52",
            True,
        ),
        ("ExecutorLostFailure (executor 0 exited) Reason: Worker shutting down", False),
        (_FROM_JAVA, False),
    ],
)
def test_too_little_memory_is_distinguished_from_other_failures(text, wanted):
    assert ("too little memory" in _told(SparkRuntimeException(text))) is wanted


def test_advice_about_a_key_does_not_change_the_mode_of_a_table_that_is_there():
    for mark, change in ((TWO_ROWS, "add a column to the key"), (NULL_ORDER, 'order_by="kafka_timestamp"')):
        error = error_of(RuntimeError(f"[dagster-kafka-flip: {mark}] t-0 offset 1 [end]"), "lake.t", ("id",))
        assert error is not None
        assert re.search(rf"\bnew table, (?:with )?{change}", error.advice), error.advice


def test_only_a_streams_next_run_looks_by_itself_whether_a_write_was_committed():
    writer = TableWriter(cast("Any", SimpleNamespace(target="lake.t")))
    lost = RuntimeError("[INVALID_HANDLE.SESSION_CHANGED] a restarted server")
    assert server_advice(lost) is not None
    batch = CommitDocument(stream="main", base_version=1, anchor_version=1, state=EnumeratorState({}))
    windows = WindowsDocument(base_version=1, state=EnumeratorState({}), windows=())
    for document, outcome in (
        (batch, "Nothing is lost: if the batch is committed, the next run finds it"),
        (replace(batch, reason="moved"), "The table's history tells whether it is committed"),
        (windows, "The table's history tells whether it is committed"),
    ):
        error = writer.without_commit(lost, document)
        assert isinstance(error, CommitUnknownError)
        assert error.outcome.startswith(outcome)
