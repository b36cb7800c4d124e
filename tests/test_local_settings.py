"""What a session is told in addition, what its settings mean, and which sessions a process can have."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_kafka_flip.errors import SparkSessionError
from dagster_kafka_flip.runtime import session_settings as module
from dagster_kafka_flip.runtime.remote import files_setting
from dagster_kafka_flip.runtime.session import build_session, parallelism

OPTIONS = "spark.driver.extraJavaOptions"
CLASS_PATH = "spark.driver.extraClassPath"
ARCHIVE = "-XX:SharedArchiveFile=/cache/some.jsa"


def local_settings(settings: dict[str, str], jars: list[str], *, is_new_jvm: bool = True) -> dict[str, str]:
    return module.local_settings(settings, jars, is_new_jvm=is_new_jvm)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a JVM or options of other tests, and with an archive."""
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "PYSPARK_SUBMIT_ARGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "archive_options", lambda _: [ARCHIVE])


def test_jars_are_on_the_class_path_and_their_classes_in_the_archive():
    settings = local_settings({}, ["/a.jar", "/b.jar"])
    assert settings[CLASS_PATH] == os.pathsep.join(["/a.jar", "/b.jar"])
    assert ARCHIVE in settings[OPTIONS].split()
    assert "spark.jars" not in settings


def test_without_an_archive_jars_come_behind_sparks_own(monkeypatch):
    monkeypatch.setattr(module, "archive_options", lambda _: [])
    settings = local_settings({}, ["/a.jar", "/b.jar"])
    assert settings["spark.jars"] == "/a.jar,/b.jar"
    assert CLASS_PATH not in settings


def test_a_users_class_path_stays_and_gets_no_archive():
    settings = local_settings({CLASS_PATH: "/own.jar"}, ["/a.jar"])
    assert settings[CLASS_PATH] == "/own.jar"
    assert settings["spark.jars"] == "/a.jar"
    assert ARCHIVE not in settings[OPTIONS]


def test_an_archive_of_the_users_stays():
    settings = local_settings({OPTIONS: "-XX:SharedArchiveFile=/own.jsa"}, ["/a.jar"])
    assert settings[OPTIONS].count("SharedArchiveFile") == 1
    assert settings["spark.jars"] == "/a.jar"


def test_the_jvm_has_the_session_s_time_zone_unless_the_user_names_another(monkeypatch):
    assert "-Duser.timezone=UTC" in local_settings({}, [])[OPTIONS].split()
    own = "-Duser.timezone=Asia/Kolkata"
    assert local_settings({OPTIONS: own}, [])[OPTIONS].count("user.timezone") == 1
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", own)
    assert "user.timezone" not in local_settings({}, [])[OPTIONS]


def test_a_running_jvm_keeps_its_class_path_so_the_jars_are_added_to_it():
    settings = local_settings({}, ["/a.jar", "/b.jar"], is_new_jvm=False)
    assert settings["spark.jars"] == "/a.jar,/b.jar"
    assert CLASS_PATH not in settings


def test_a_servers_user_has_jars_besides_the_servers(monkeypatch):
    assert local_settings({"spark.jars": "/own.jar"}, ["/a.jar"])["spark.jars"] == "/own.jar", "in front of the archive"
    monkeypatch.setattr(module, "archive_options", lambda _: [])
    assert local_settings({"spark.jars": "/own.jar"}, ["/a.jar"])["spark.jars"] == "/a.jar,/own.jar"


def test_users_jars_replace_the_default_ones():
    settings = local_settings({"spark.jars": "/own.jar"}, [])
    assert settings["spark.jars"] == "/own.jar"
    assert CLASS_PATH not in settings


def test_garbage_is_collected_in_parallel_unless_the_user_chose_otherwise(monkeypatch):
    assert "-XX:+UseParallelGC" in local_settings({}, [])[OPTIONS].split()
    chosen = local_settings({OPTIONS: "-Xss4m -XX:+UseZGC"}, [])[OPTIONS].split()
    assert "-XX:+UseZGC" in chosen
    assert "-Xss4m" in chosen
    assert "-XX:+UseParallelGC" not in chosen


@pytest.mark.parametrize("name", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "PYSPARK_SUBMIT_ARGS"])
def test_java_gets_one_garbage_collector(monkeypatch, name):
    monkeypatch.setenv(name, "-XX:+UseG1GC")
    assert "UseParallelGC" not in local_settings({}, [])[OPTIONS]


def test_java_optimizes_late_unless_the_user_chose_otherwise():
    assert "-XX:Tier4InvocationThreshold=50000" in local_settings({}, [])[OPTIONS].split()
    # Java does not start with a threshold that is beyond another one of the user's.
    for chosen in ("-XX:TieredStopAtLevel=1", "-XX:-TieredCompilation", "-XX:CompileThresholdScaling=2", "-Xint"):
        options = local_settings({OPTIONS: f"-Dx=1 {chosen}"}, [])[OPTIONS].split()
        assert chosen in options
        assert not [option for option in options if option.startswith("-XX:Tier4")]


def test_log_settings_of_the_users_stay():
    assert local_settings({OPTIONS: "-Dlog4j2.configurationFile=x"}, [])[OPTIONS].count("log4j") == 1
    assert local_settings({}, [])[OPTIONS].count("log4j2.properties") == 1


def test_addresses_and_heartbeats_of_the_users_stay():
    settings = local_settings({"spark.driver.host": "10.0.0.1", "spark.executor.heartbeatInterval": "7s"}, [])
    assert settings["spark.driver.host"] == "10.0.0.1"
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.executor.heartbeatInterval"] == "7s"


@pytest.mark.parametrize(
    ("settings", "tasks"),
    [
        ({"spark.master": "local[3]"}, 3),
        ({"spark.master": "local"}, 1),
        ({"spark.master": "local[2,4]"}, 2),
        ({"spark.master": "local[2, 4]"}, 2),
        ({"spark.master": "local[*]"}, os.cpu_count()),
        ({"spark.master": "spark://m:7077"}, 8),
        ({"spark.master": "spark://m:7077", "spark.cores.max": "6", "spark.executor.cores": "4"}, 6),
        ({"spark.master": "spark://m:7077", "spark.cores.max": "6", "spark.executor.instances": "2"}, 2),
        ({"spark.master": "yarn", "spark.executor.instances": "3", "spark.executor.cores": "4"}, 12),
        ({"spark.master": "yarn", "spark.dynamicAllocation.maxExecutors": "5"}, 5),
        ({"spark.master": "spark://m:7077", "spark.cores.max": "6", "spark.default.parallelism": "20"}, 20),
    ],
)
def test_a_session_runs_as_many_tasks_as_its_settings_give_it_cores(settings: dict[str, str], tasks: int):
    session: Any = SimpleNamespace(conf=settings)
    assert parallelism(session) == tasks


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


_ELSEWHERE = """
import json
from dagster_kafka_flip.runtime.remote import files_setting
print(json.dumps(files_setting()))
"""


def test_two_processes_of_one_machine_see_the_same_files():
    other = subprocess.run([sys.executable, "-c", _ELSEWHERE], check=True, capture_output=True, text=True)
    assert json.loads(other.stdout) == files_setting() != {}
