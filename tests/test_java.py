from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from dagster_kafka_flip.errors import JavaNotFoundError
from dagster_kafka_flip.runtime.java import find_java

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def fake_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes a JAVA_HOME whose java runs the given shell lines."""

    def make(script: str) -> Path:
        executable = tmp_path / "home" / "bin" / "java"
        executable.parent.mkdir(parents=True)
        executable.write_text(f"#!/bin/sh\n{script}\n")
        executable.chmod(0o755)
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
        return executable

    return make


def says(line: str) -> str:
    return f"echo 'Picked up JAVA_TOOL_OPTIONS: -Dversion=1' >&2; echo '{line}' >&2"


def test_the_java_of_this_machine_is_found():
    assert find_java().name == "java"


@pytest.mark.parametrize(
    "line",
    ['openjdk version "17.0.15" 2025-04-15', 'java version "21" 2023-09-19 LTS', 'openjdk version "26-ea" 2026-03-17'],
)
def test_a_new_enough_java_is_taken(fake_java, line: str):
    executable = fake_java(says(line))
    assert find_java() == executable


@pytest.mark.parametrize(
    ("line", "version"), [('java version "1.8.0_392"', "Java 8"), ('openjdk version "11.0.2" 2019-01-15', "Java 11")]
)
def test_a_java_that_is_too_old_is_named_with_its_version(fake_java, line: str, version: str):
    executable = fake_java(says(line))
    with pytest.raises(JavaNotFoundError, match=r"too old.*17 or newer.*openjdk-17-jre-headless.*JAVA_HOME") as raised:
        find_java()
    assert version in str(raised.value)
    assert str(executable) in str(raised.value)


def test_the_output_of_a_program_that_is_not_java_is_quoted(fake_java):
    told = "NOTE: Picked up JDK_JAVA_OPTIONS: -Dhttps.proxyPassword=hidden"
    fake_java(f"echo '{told}' >&2; echo 'Unable to locate a Java Runtime.' >&2; exit 1")
    with pytest.raises(JavaNotFoundError, match="does not report its version; output: Unable to locate a Java Runtime"):
        find_java()


def test_a_java_that_does_not_run_is_an_error(fake_java):
    executable = fake_java("")
    executable.write_text("neither script nor program")
    with pytest.raises(JavaNotFoundError, match="can't be run"):
        find_java()


def test_without_java_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME is not set.*no java on the PATH.*openjdk-17-jre-headless"):
        find_java()


def test_a_java_home_without_java_is_not_passed_over(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaNotFoundError, match=f"JAVA_HOME is {tmp_path}, and there is no bin/java in it"):
        find_java()


@pytest.mark.spark
def test_a_session_without_java_says_what_to_install(tmp_path: Path):
    code = "from dagster_kafka_flip import build_session; build_session()"
    env = {name: value for name, value in os.environ.items() if name not in {"JAVA_HOME", "SPARK_REMOTE"}}
    env["PATH"] = str(tmp_path)
    ended = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("dagster_kafka_flip.errors.JavaNotFoundError: Java not found: JAVA_HOME is not set, ")
