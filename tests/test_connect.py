"""The same ingestion through Spark Connect, on a real server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dagster_kafka_flip.runtime.remote import files_setting
from dagster_kafka_flip.runtime.spark_jars import JAR, fetch_jars
from tests.connect_server import ConnectServer
from tests.processes import LIGHT_SPARK

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.nightly, pytest.mark.timeout(1200)]

_ROOT = Path(__file__).parent.parent


# What pyspark's clients share is ended while a request of another session is about to use it.
_ENDS_A_SESSION = """
import gc, sys
from dagster_kafka_flip import build_session
from dagster_kafka_flip.runtime.isolated_session import new_session

session = build_session(remote=sys.argv[1])
with new_session(session) as other:
    other.sql("SELECT 2").collect()
session.sql("SELECT 1").collect()
del other
gc.collect()
print(session.sql("SELECT 'works'").collect()[0][0])
"""


_MOVES_PATHS = """
import sys
from dagster_kafka_flip import build_session
from dagster_kafka_flip.runtime.isolated_session import new_session
from dagster_kafka_flip.runtime.remote import sees_same_files

session = build_session(remote=sys.argv[1])
print(sees_same_files(session))
with new_session(session) as other:
    other.conf.set(sys.argv[2], "viewfs://c/")
    other.conf.set("fs.viewfs.mounttable.c.link./tmp", "file:///tmp")
    print(sees_same_files(other))
"""


@pytest.fixture
def files():
    """What the server says about the files that it sees."""
    return {}


@pytest.fixture
def server(tmp_path, files):
    """The address of a server, which its clients bring this package's own jar if it sees other files."""
    jars = [jar for jar in fetch_jars() if files or jar != str(JAR)]
    more = {"spark.driver.extraClassPath": os.pathsep.join(jars)}
    with ConnectServer(tmp_path, {**LIGHT_SPARK, **files, **more}) as started:
        yield started.remote


def test_the_same_ingestion_runs_through_spark_connect(server, broker, registry, topic, table):
    done = subprocess.run(
        [sys.executable, "-m", "tests.connect_run", server, broker, registry.url, topic, table],
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
        timeout=1100,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    columns = [["id", "int"], ["name", "string"], ["kafka_partition", "int"], ["kafka_offset", "bigint"]]
    run = {
        "rows": 3,
        "records": 3,
        "unknown": None,
        "is_idle": False,
        "table_rows": 3,
        "versions": [1],
        "columns": columns,
    }
    assert not seen["is_local"]
    assert seen["first"] == run
    assert seen["second"] == {**run, "rows": 2, "records": 2, "table_rows": 5, "versions": [2]}
    nothing = {"rows": 0, "records": 0, "is_idle": True, "versions": [], "columns": []}
    assert seen["idle"] == {**run, **nothing, "table_rows": 5}
    assert seen["rejected"] == (
        f"2 records can't be decoded: "
        f"{topic}-0 offset 3: not a JSON object; {topic}-0 offset 5: "
        "the required field id is missing or null. Nothing was written. Correct the format or its schema; or send such "
        "records to a separate table with dead_letter=, or keep them with their bytes and the error with "
        "on_error='null'"
    )
    assert seen["version"] == 2
    assert seen["rows"] == [[0, "ü0", 0, 0], [1, "ü1", 0, 1], [2, "ü2", 0, 2], [9, None, 1, 0], [None, None, 1, 1]]
    assert seen["dead letters"] == [1, [3, "not a JSON object"], [5, "the required field id is missing or null"]]
    gaps = seen["gaps"]
    assert (gaps["rows"], gaps["records"]) == (2, 2)
    assert gaps["unknown"].startswith("the write read 2 records in 3 offsets: either the log has gaps")
    assert "connect" in seen["session"]
    rows = {"h000": 3, "h001": 3, "h002": 3}
    assert seen["windows"] == [[rows, [{}, 0]], [{"h001": 3}, [{}, 0]], [9]]
    # What a merge takes from its session's configuration is left in none.
    assert seen["refused"] == "spark.databricks.delta.write.txnAppId is nightly"
    assert seen["upsert"] == [[2, 0, 0, 0, 2, 2], [0, 1, 1, 0, 2, 1], [[1, "c"]], None]
    rows = [[1, "a", False], [1, "a", False], [2, "b", True]]
    assert seen["history"] == [[1, 0, 0, None, 1, 1], [2, 1, 0, None, 3, 3], rows]
    count, *orders, (newer,) = seen["avro"]
    assert count == [3]
    assert orders[:2] == [[1, None, None], [2, "x", None]]
    assert orders[2] == [None, None, f"schema {newer}: the value of note is truncated"]
    assert [json.loads(value) for value in seen["published"]] == [{"id": 1, "name": "A"}, {"id": 2, "name": "B"}]


_COMMANDS = """
import sys

from dagster_kafka_flip.cli.options import command_session
from dagster_kafka_flip.runtime.session import build_session

with command_session(None, sys.argv[1]) as own:
    own.range(1).collect()
assert own.is_stopped
theirs = build_session(remote=sys.argv[1])
for _ in range(2):
    with command_session(None, sys.argv[1]) as joined:
        assert joined is theirs
    assert len(theirs.range(3).collect()) == 3

from dagster_kafka_flip import SparkResource
from dagster_kafka_flip.errors import SparkSessionError

resource = SparkResource(remote=sys.argv[1])
assert resource.session() is theirs
resource.teardown_after_execution(None)
assert len(theirs.range(3).collect()) == 3
try:
    SparkResource(remote="sc://127.0.0.1:1").session()
except SparkSessionError as error:
    assert f"has used the server {sys.argv[1].removeprefix('sc://')}, and" in str(error), error
else:
    raise AssertionError("another server's session")
"""


def test_a_command_stops_its_own_session_and_not_that_of_the_definitions(server):
    done = subprocess.run(
        [sys.executable, "-c", _COMMANDS, server], capture_output=True, text=True, check=False, cwd=_ROOT, timeout=600
    )
    assert done.returncode == 0, done.stderr[-4000:]


def test_a_session_that_ends_disturbs_no_other(server):
    done = subprocess.run(
        [sys.executable, "-c", _ENDS_A_SESSION, server], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.splitlines()[-1] == "works"


@pytest.mark.parametrize("files", [files_setting()], ids=["here"])
@pytest.mark.parametrize("setting", ["fs.defaultFS", "fs.default.name"])
def test_a_path_that_means_another_file_system_is_not_read_here(server, setting):
    done = subprocess.run(
        [sys.executable, "-c", _MOVES_PATHS, server, setting], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.splitlines()[-2:] == ["True", "False"]
