"""A Spark server says which files it sees, so that a process knows whether a path means the same to both."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from dagster_kafka_flip.runtime.same_files import files_setting

_ELSEWHERE = """
import json
from dagster_kafka_flip.runtime.same_files import files_setting
print(json.dumps(files_setting()))
"""


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch):
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_two_processes_of_one_machine_see_the_same_files():
    other = subprocess.run([sys.executable, "-c", _ELSEWHERE], check=True, capture_output=True, text=True)
    assert json.loads(other.stdout) == files_setting() != {}


@pytest.mark.parametrize("name", ["HADOOP_CONF_DIR", "YARN_CONF_DIR"])
def test_hadoops_configuration_may_give_paths_another_meaning(monkeypatch, name):
    monkeypatch.setenv(name, "/etc/somewhere")
    assert files_setting() == {}


def test_so_may_hadoops_configuration_beside_that_of_spark(monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert files_setting() != {}
    (tmp_path / "core-site.xml").write_text("<configuration/>")
    assert files_setting() == {}
