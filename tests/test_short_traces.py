"""What a failed run leaves in its log: the error with its cause, and not the frames that lead to it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import traceback
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PythonException

from dagster_kafka_flip import errors
from dagster_kafka_flip.assets import multi_asset
from dagster_kafka_flip.assets.step_events import step_events
from dagster_kafka_flip.errors import KafkaFlipError, TopicNotFoundError, WriteFailedError


def _failing(error, cause=None):
    def deep(levels):
        if levels:
            deep(levels - 1)
        raise error from cause

    yield "before"
    deep(20)


def _lines(error, cause=None):
    """What is yielded before, and the trace as it leaves a run."""
    events = step_events(None, _failing(error, cause))
    assert next(events) == "before"
    with pytest.raises(type(error)) as raised:
        next(events)
    assert str(raised.value) == str(error)
    return traceback.format_exception(raised.value)


def test_an_error_of_this_package_leaves_without_the_frames_that_lead_to_it(caplog):
    caplog.set_level(logging.DEBUG, "dagster_kafka_flip")
    reported = "".join(_lines(TopicNotFoundError("the topic orders does not exist")))
    assert reported.endswith("TopicNotFoundError: the topic orders does not exist\n")
    assert "in deep" not in reported
    assert "in deep" in caplog.text


def test_a_cause_that_the_message_repeats_is_dropped_and_a_users_own_stays():
    failed = "WriteFailedError: the write failed"
    reported = "".join(_lines(WriteFailedError("the write failed"), Py4JNetworkError("at java.base/...")))
    assert "at java.base" not in reported
    assert failed in reported
    of_user = PythonException('File "definitions.py", line 10, in <lambda>')
    for cause in (of_user, ZeroDivisionError("of a transform")):
        reported = "".join(_lines(WriteFailedError("the write failed"), cause))
        assert str(cause) in reported
        assert failed in reported


def test_each_error_says_whether_a_retry_may_help():
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and KafkaFlipError in each.__bases__]
    assert [each.__name__ for each in kinds if "is_lasting" not in vars(each)] == []


def test_of_the_errors_of_several_tables_one_that_may_pass_is_raised():
    lasting, passing = TopicNotFoundError("no topic"), WriteFailedError("a full disk")
    context: Any = SimpleNamespace(log=logging.getLogger(__name__))
    for failures in ([lasting, passing], [passing, lasting]):
        with pytest.raises(WriteFailedError):
            multi_asset._raise(dict(zip("ab", failures, strict=True)), context)


def test_other_exceptions_are_left_alone():
    assert any("in deep" in line for line in _lines(KeyError("amount")))


@pytest.mark.spark
@pytest.mark.slow
def test_a_local_session_leaves_a_servers_address_alone_and_prints_no_java_stack_traces():
    script = """
        import os
        from dagster_kafka_flip import build_session
        from tests.processes import LIGHT_SPARK

        spark = build_session(master="local[1]", config={"spark.ui.enabled": "false", **LIGHT_SPARK})
        from pyspark.sql import Observation, functions as f
        observed = spark.range(3).observe(Observation(), f.count(f.lit(1)).alias("n"))
        def with_hints(number: int) -> str:
            return str(number)
        f.udf(with_hints, "string")
        try:
            # Spark's listener of observations fails once more on a query that was planned and could not be.
            observed.selectExpr("cast('x' AS INT) AS a").write.format("noop").mode("overwrite").save()
        except Exception as error:
            print(type(error).__name__)
        try:
            spark.range(3).select(f.raise_error(f.lit("no"))).write.format("noop").mode("overwrite").save()
        except Exception as error:
            print(type(error).__name__)
        for fail in (lambda: spark.sql("SELECT * FROM nowhere"), lambda: spark.range(3).select("nothing")):
            try:
                fail()
            except Exception as error:
                print(type(error).__name__)
        spark.stop()
        print(os.environ["SPARK_REMOTE"])
    """
    # The tests' own way to start a JVM would take the place of the session's.
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_SUBMIT_ARGS"}
    environment["SPARK_REMOTE"] = "sc://127.0.0.1:1"
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    assert len(done.stdout.split()) == 5
    assert done.stdout.endswith("sc://127.0.0.1:1\n")
    assert "QueryContextLogger" not in done.stderr
    output = [line for line in done.stderr.splitlines() if "JAVA_TOOL_OPTIONS" not in line]
    assert not [line for line in output if "\tat " in line or " ERROR " in line or " WARN " in line], done.stderr
    assert len(output) < 8, done.stderr
