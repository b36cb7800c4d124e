"""What a user installs."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import dagster_kafka_flip

_ROOT = Path(__file__).resolve().parents[1]


def test_the_wheel_has_the_package_and_its_types_and_nothing_else(tmp_path):
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(_ROOT)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "dagster_kafka_flip/py.typed" in names
    assert "dagster_kafka_flip/source/enumerator.py" in names
    assert {name.split("/")[0] for name in names} == {"dagster_kafka_flip", "dagster_kafka_flip-0.1.0.dist-info"}
    assert "dagster_kafka_flip-0.1.0.dist-info/licenses/LICENSE" in names


def test_the_version_is_told_and_dagster_knows_it():
    from dagster_shared.libraries import DagsterLibraryRegistry

    assert dagster_kafka_flip.KafkaResource
    assert DagsterLibraryRegistry.get()["dagster-kafka-flip"] == dagster_kafka_flip.__version__ == "0.1.0"


def test_every_public_name_is_there():
    assert [name for name in dagster_kafka_flip.__all__ if getattr(dagster_kafka_flip, name, None) is None] == []
