"""The line of an error that tells the most. The texts are such as Spark 4.0 and 4.2 print."""

from __future__ import annotations

import pytest

from dagster_kafka_flip.table.spark_error import is_conflict, telling_line

_FROM_JAVA = """An error occurred while calling o24151.append.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows to file:/t. SQLSTATE: 58030
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.taskFailedWhileWritingRowsError(QueryExecutionErrors.scala:809)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\t... 1 more
"""
_FROM_PYTHON = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/t.py", line 12, in bad
    def bad(x): raise ValueError("broken by hand")
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
ValueError: broken by hand
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[DIVIDE_BY_ZERO] Division by zero.\n== SQL ==\n1/0", "[DIVIDE_BY_ZERO] Division by zero."),
        (_FROM_JAVA, "Caused by: java.io.IOException: No space left on device"),
        (_FROM_PYTHON, "ValueError: broken by hand"),
        (_FROM_JAVA + _FROM_PYTHON, "ValueError: broken by hand"),
        ("An error occurred while calling o1.append.\n: x.Y: why", ": x.Y: why"),
        ("An error occurred while calling o1.append.", "An error occurred while calling o1.append."),
        ("", "no message"),
    ],
)
def test_the_line_that_names_the_cause(text, line):
    assert telling_line(RuntimeError(text)) == f"RuntimeError: {line}"


def test_somebody_elses_change_is_told_from_our_own_fence():
    assert is_conflict(RuntimeError("[DELTA_METADATA_CHANGED] MetadataChangedException: ..."))
    assert is_conflict(RuntimeError("io.delta.exceptions.ConcurrentAppendException: [DELTA_CONCURRENT_APPEND] ..."))
    assert not is_conflict(RuntimeError("[DELTA_CONCURRENT_TRANSACTION] ConcurrentTransactionException: ..."))
    assert not is_conflict(RuntimeError("No space left on device"))
