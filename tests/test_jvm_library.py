"""The Java library: its jar is what its source gives, and it gets into sessions that users bring."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError

from dagster_kafka_flip.errors import DecoderLibraryError
from dagster_kafka_flip.runtime import jvm_library
from dagster_kafka_flip.runtime.jvm_library import use_library
from dagster_kafka_flip.runtime.spark_jars import JAR, library_version
from scripts.library import build, version

_ROOT = Path(__file__).resolve().parents[1]

# A session as a user's program has it: with none of this package's settings and jars, and in use.
_USERS_SESSION = """
from pyspark.sql import SparkSession

from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.reader.kafka_reader import RECORD_SCHEMA

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(9).repartition(2).groupBy("id").count().collect()
decoder = Decoder.of(None, JsonFormat("id INT"), None)
for session in (spark, spark.newSession()):
    rows = [(None, bytearray(b'{"id": %d}' % id), "t", 0, id, None, 0, None) for id in range(3)]
    staged = decoder.stage(session.createDataFrame(rows, RECORD_SCHEMA))
    # A shuffle, behind which Spark makes code in threads that are older than the jar.
    print([row["id"] for row in decoder.finish(staged).repartition(2, "id").orderBy("id").collect()])
"""


def test_the_committed_jar_is_what_the_source_gives(tmp_path):
    again = tmp_path / "library.jar"
    build(again)
    assert library_version() == version(), "run `make library`, and commit the jar"
    assert again.read_bytes() == JAR.read_bytes(), "run `make library` with JDK 17, and commit the jar"


@pytest.mark.nightly
@pytest.mark.spark
def test_a_session_that_knows_nothing_of_the_library_is_brought_it():
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": "pyspark-shell"}
    command = [sys.executable, "-c", _USERS_SESSION]
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, check=False, timeout=500)
    assert (done.returncode, done.stdout.splitlines()) == (0, ["[0, 1, 2]"] * 2), done.stderr[-4000:]
    assert "CompileException" not in done.stderr


@pytest.mark.spark
def test_a_session_with_another_version_of_the_library_or_that_can_not_take_it_is_refused(spark, monkeypatch):
    expected = rf"another version of dagster-kafka-flip \({re.escape(library_version())}; this one needs newer\)"
    monkeypatch.setattr(jvm_library, "library_version", lambda: "newer")
    with pytest.raises(DecoderLibraryError, match=expected):
        use_library(spark.newSession())
    # Something else of the library's name.
    monkeypatch.setattr(jvm_library, "_CLASS", "java.lang.String")
    monkeypatch.setattr(jvm_library, "_bring", lambda _: None)
    with pytest.raises(DecoderLibraryError, match="can't load this package's Java library, which decodes") as error:
        use_library(spark.newSession())
    assert f"Put {JAR} into spark.jars" in str(error.value)


@pytest.mark.spark
def test_an_executor_with_another_version_of_the_library_decodes_nothing(spark):
    use_library(spark)
    jvm, sql = spark._jvm, spark._jvm.org.apache.spark.sql
    given = sql.types.StructType.fromDDL("data BINARY, typed STRUCT<id: INT>, options STRING")
    name = sql.connector.catalog.Identifier.of(spark.sparkContext._gateway.new_array(jvm.String, 0), "decode_json")
    function = jvm.io.dagsterkafkaflip.FlipCatalog().loadFunction(name).bind(given)
    options = jvm.org.apache.spark.unsafe.types.UTF8String.fromString("{}")

    def problem(sent):
        arrived = jvm.org.apache.spark.util.Utils.deserialize(sent, function.getClass().getClassLoader())
        return arrived.invoke(bytearray(b"[]"), None, options).getUTF8String(1).toString()

    sent = jvm.org.apache.spark.util.Utils.serialize(function)
    assert problem(sent) == "not a JSON object"
    ours = library_version().encode()
    assert sent.count(ours) == 1
    with pytest.raises(Py4JJavaError, match="an executor has the Java library of another version"):
        problem(sent.replace(ours, b"0" * len(ours)))
