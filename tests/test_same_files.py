"""A Spark server says which files it sees, so that a process knows whether a path means the same to both."""

from __future__ import annotations

import json
import subprocess
import sys

from dagster_kafka_flip.runtime.remote import files_setting

_ELSEWHERE = """
import json
from dagster_kafka_flip.runtime.remote import files_setting
print(json.dumps(files_setting()))
"""


def test_two_processes_of_one_machine_see_the_same_files():
    other = subprocess.run([sys.executable, "-c", _ELSEWHERE], check=True, capture_output=True, text=True)
    assert json.loads(other.stdout) == files_setting() != {}
