"""A process has one kind of Spark session: its own, or one of a Spark Connect server."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from dagster_kafka_flip.errors import SparkSessionError
from dagster_kafka_flip.runtime.session import build_session


@pytest.mark.spark
def test_a_process_with_its_own_spark_is_told_that_it_can_not_use_a_server_too(spark):
    with pytest.raises(
        SparkSessionError, match="has used a Spark of its own, and pyspark has one Spark per process"
    ) as e:
        build_session(remote="sc://127.0.0.1:1/;token=hidden-token")
    assert "hidden-token" not in str(e.value)


def test_a_process_that_used_a_server_is_told_that_it_can_not_start_its_own_spark(monkeypatch):
    # What pyspark sets with the first session of a server, and leaves there.
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    with pytest.raises(SparkSessionError, match=r"master local\[2\]: this process .* has used Spark Connect"):
        build_session(master="local[2]")


def test_a_server_that_is_not_there_is_told_in_one_line():
    code = (
        "from dagster_kafka_flip.runtime import session\n"
        "session._CONNECT_RETRIES = 1\n"
        "try: session.build_session(remote='sc://127.0.0.1:1')\n"
        "except session.SparkSessionError as error: print(error)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert re.fullmatch(
        r"no Spark Connect session with sc://127\.0\.0\.1:1: \w+: .*\. The Spark Connect server does not answer: .*\n",
        ended.stdout,
    ), ended.stdout
    assert ended.stderr == ""
