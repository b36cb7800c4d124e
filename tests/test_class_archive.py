"""A class archive that `spark prepare` has made is the one that sessions start from."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from dagster_kafka_flip.cli.app import main
from dagster_kafka_flip.errors import JarDownloadError, SparkSessionError
from dagster_kafka_flip.runtime.class_archive import archive_options, make_archive
from dagster_kafka_flip.runtime.jars import CACHE_VARIABLE
from dagster_kafka_flip.runtime.spark_jars import fetch_jars

SESSION = """
from dagster_kafka_flip import build_session

log = {log!r}
build_session(
    master="local[1]",
    config={{"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": f"-Xlog:class+load:file={{log}}"}},
).stop()
"""


@pytest.mark.nightly
def test_a_session_starts_from_the_archive_that_was_prepared(tmp_path):
    prepared = CliRunner().invoke(main, ["spark", "prepare"])
    assert prepared.exit_code == 0, prepared.output
    [path] = [option.partition("=")[2] for option in archive_options(fetch_jars()) if "SharedArchiveFile" in option]
    assert path in prepared.output
    log = tmp_path / "classes.log"
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_SUBMIT_ARGS"}
    subprocess.run([sys.executable, "-c", SESSION.format(log=str(log))], env=environment, check=True)
    lines = log.read_text().splitlines()
    for name in ("org.apache.spark.sql.SparkSession", "io.delta.sql.DeltaSparkSessionExtension"):
        [line] = [line for line in lines if f" {name} source:" in line]
        assert "shared objects file (top)" in line


def test_without_java_there_is_no_archive(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert archive_options(["/a.jar"]) == []


@pytest.fixture
def fake_spark(monkeypatch, tmp_path):
    """Puts a program in the place of `spark-submit` that runs a command."""

    def install(command: str) -> None:
        submit = tmp_path / "spark" / "bin" / "spark-submit"
        submit.parent.mkdir(parents=True)
        submit.write_text(f"#!/bin/sh\n{command}\n")
        submit.chmod(0o755)
        monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
        monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))

    return install


def test_a_spark_that_fails_says_so_and_leaves_nothing(fake_spark, tmp_path):
    fake_spark(r"echo no room on the disk; printf '\tat java.base/Thread.run:%s\n' 1 2 3 4 5 6 7 8 9; exit 3")
    with pytest.raises(SparkSessionError, match=r"(?s)spark-submit ended with 3.*no room on the disk"):
        make_archive(["/a.jar"], {})
    assert not list((tmp_path / "cache" / "class-archives").iterdir())


def test_a_cache_that_can_not_be_written_and_a_folder_without_spark_are_named(fake_spark, monkeypatch, tmp_path):
    fake_spark("exit 3")
    (tmp_path / "file").touch()
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(JarDownloadError, match=f"class archive could not be written to the cache {tmp_path}/file: "):
        make_archive(["/a.jar"], {})
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "none"))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    with pytest.raises(SparkSessionError, match=f"There is no {tmp_path}/none/bin/spark-submit: unset SPARK_HOME"):
        make_archive(["/a.jar"], {})


@pytest.fixture
def cache(fake_spark, tmp_path):
    """An empty cache, and a Spark that does no more than what Java does at its end."""
    fake_spark(
        'for word in "$@"; do case $word in -XX:ArchiveClassesAtExit=*) set -- $word;; esac; done\n'
        'touch "${1#-XX:ArchiveClassesAtExit=}"'
    )
    return tmp_path / "cache" / "class-archives"


def test_an_archive_of_jars_that_were_replaced_is_not_used_and_makes_room(cache, tmp_path):
    jars = [tmp_path / "spark" / "jars" / "spark.jar", tmp_path / "delta.jar"]
    for jar in jars:
        jar.parent.mkdir(exist_ok=True)
        jar.write_text("classes")
    session = [str(jars[1])]
    made = make_archive(session, {})
    for number, jar in enumerate(jars):
        os.utime(jar, (number, number))
        assert archive_options(session) == []
        newer = make_archive(session, {})
        assert list(cache.glob("*.jsa")) == [newer]
        assert newer != made
        made = newer
