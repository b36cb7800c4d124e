"""Imports go one way, and loading the package starts nothing heavy."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import dagster_kafka_flip

_PACKAGE = "dagster_kafka_flip"
_ROOT = Path(dagster_kafka_flip.__file__).parent

_DAGSTER = ("dagster", "dagster_shared")
_SPARK = ("pyspark", "delta")

# From the ground up, and what each room may import of the others.
_ROOMS = {
    "errors": "",
    "settings": "errors",
    "telemetry": "",
    "runtime": "errors settings",
    "broker": "errors settings runtime",
    "source": "errors settings telemetry",
    "registry": "errors settings",
    "formats": "errors settings registry runtime",
    "reader": "errors runtime source",
    "table": "errors settings telemetry runtime source",
    "ingestion": "errors settings telemetry runtime source registry formats reader table",
    "sink": "errors settings telemetry runtime source registry formats reader table",
    "airflow": "errors settings runtime source formats table ingestion sink",
    "assets": "errors settings runtime source registry formats table ingestion sink",
    "checks": "errors settings source registry formats table ingestion sink assets",
    "cli": "errors settings runtime broker source registry table ingestion sink assets",
    "components": "errors settings source registry formats table ingestion sink assets checks",
}
# Doors are imported by what runs them, and by no other room.
_DOORS = ("airflow", "cli", "components")
_WITHOUT_DAGSTER = (
    "errors",
    "settings",
    "telemetry",
    "runtime",
    "broker",
    "source",
    "registry",
    "formats",
    "reader",
    "table",
    "ingestion",
    "sink",
    "airflow",
)


# Most tests here ask it of each file of the package.
@cache
def _imported(path: Path) -> frozenset[str]:
    """Full names of all modules that a file imports, wherever in it."""
    package = ".".join([_PACKAGE, *path.relative_to(_ROOT).parent.parts])
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            found.update({module, *(f"{module}.{alias.name}" for alias in node.names)})
    return frozenset(found)


def _is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _files(room: str) -> list[Path]:
    place = _ROOT / room
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


def test_every_module_is_in_a_room():
    assert {path.relative_to(_ROOT).parts[0].removesuffix(".py") for path in _ROOT.rglob("*.py")} == {
        "__init__",
        *_ROOMS,
    }


@pytest.mark.parametrize("room", _ROOMS)
def test_imports_go_one_way(room: str):
    may = {room, *_ROOMS[room].split()}
    wrong = {
        f"{path.relative_to(_ROOT)} imports {name}"
        for path in _files(room)
        for name in _imported(path)
        if name.startswith(f"{_PACKAGE}.") and name.split(".")[1] not in may
    }
    assert wrong == set()


def test_inner_packages_do_not_import_outer_ones():
    assert [room for room, may in _ROOMS.items() if {*may.split()} & {*_DOORS}] == []


def test_rooms_are_in_order():
    order = list(_ROOMS)
    assert [
        (room, low) for room in order for low in _ROOMS[room].split() if order.index(low) >= order.index(room)
    ] == []


@pytest.mark.parametrize(
    ("room", "libraries"),
    [
        *((room, _DAGSTER) for room in _WITHOUT_DAGSTER),
        *((room, ("airflow",)) for room in _ROOMS if room != "airflow"),
        *((room, ("opentelemetry",)) for room in _ROOMS if room != "telemetry"),
        ("source", _SPARK),
        ("registry", _SPARK),
        ("cli", ("py4j",)),
    ],
)
def test_a_room_does_without_a_library(room: str, libraries: tuple[str, ...]):
    imported = {name for path in _files(room) for name in _imported(path)}
    assert [name for name in imported for library in libraries if _is_in(name, library)] == []


def test_there_are_no_import_circles():
    modules = {
        ".".join([_PACKAGE, *path.relative_to(_ROOT).with_suffix("").parts]): _imported(path)
        for path in _ROOT.rglob("*.py")
        if path.name != "__init__.py"
    }
    left = {name: imported & modules.keys() for name, imported in modules.items()}
    while free := [name for name, imported in left.items() if not imported & left.keys()]:
        for name in free:
            del left[name]
    assert left == {}


def test_spark_is_never_asked_for_its_jvm():
    # What works through Spark Connect works everywhere; the other way round it does not. Three modules may ask a
    # context, where there is one: what the first learns is only reported, what the second learns only saves Spark a
    # job, and the third has another way through Spark Connect.
    names = {"_jvm", "_jsparkSession", "sparkContext", "_sc", "_jsc", "_jdf"}
    allowed = {_ROOT / Path(name) for name in ("runtime/spark_status.py", "table/local_log.py", "runtime/remote.py")}
    wrong = {
        f"{path.relative_to(_ROOT)}:{node.lineno} {node.attr}"
        for path in _ROOT.rglob("*.py")
        if path not in allowed
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in names
    }
    assert wrong == set()


def test_only_the_cluster_and_what_reads_a_few_records_of_it_talk_to_kafka():
    allowed = {Path(f"source/{name}.py") for name in ("cluster", "cluster_client", "record_search")} | {
        Path("broker/local_broker.py"),
        Path("registry/client.py"),
        Path("registry/schemas.py"),
    }
    # A sink's producers, which alone write.
    allowed |= {Path("sink/lane.py")}
    # It names the class of the client's errors, for type checkers alone.
    allowed |= {Path("sink/lane_failures.py")}
    wrong = {
        path.relative_to(_ROOT)
        for path in _ROOT.rglob("*.py")
        if any(_is_in(name, "confluent_kafka") for name in _imported(path))
    }
    assert wrong <= allowed


# Airflow would read its settings and set up its logging otherwise.
_AIRFLOW_AS_A_LIBRARY = {**os.environ, "_AIRFLOW__AS_LIBRARY": "1"}

_BLOCK = """
import importlib, pkgutil, sys

class Missing:
    def __init__(self, *blocked):
        self.blocked = blocked

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.blocked:
            raise ModuleNotFoundError(name)

def load(*rooms):
    found = []
    for room in rooms:
        package = importlib.import_module(f"dagster_kafka_flip.{room}")
        for module in pkgutil.walk_packages(getattr(package, "__path__", ()), f"dagster_kafka_flip.{room}."):
            if not module.name.endswith("__main__"):
                found.append(importlib.import_module(module.name))
    from dagster_kafka_flip.airflow.provider import provider_info
    print(provider_info()["package-name"], len(found) > 20)
"""


def _printed(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", _BLOCK + code], capture_output=True, text=True, check=False, env=_AIRFLOW_AS_A_LIBRARY
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_rooms_load_without_dagster():
    assert _printed(f"sys.meta_path.insert(0, Missing(*{_DAGSTER}))\nload(*{_WITHOUT_DAGSTER})") == [
        "dagster-kafka-flip True"
    ]


def test_every_module_loads_without_spark_and_a_registrys_client_and_all_but_one_room_without_airflow():
    rooms = [room for room in _ROOMS if room != "airflow"]
    code = f"""
import dagster_kafka_flip
print(*sorted(name for name in ("dagster", "pyspark", "delta") if name in sys.modules))
sys.meta_path.insert(0, Missing("airflow", "pendulum"))
load(*{rooms})
del sys.meta_path[0]
load("airflow")
print(*sorted(name for name in sys.modules if name.partition(".")[0] in {{"pyspark", "delta", "py4j"}}))
print(*sorted(name for name in sys.modules if name.startswith(("confluent_kafka.schema_", "authlib"))))
"""
    by_the_package_alone, without_airflow, airflow, spark, of_the_registry = _printed(code)
    assert "pyspark" not in by_the_package_alone
    assert without_airflow == "dagster-kafka-flip True"
    assert airflow.startswith("dagster-kafka-flip ")
    assert spark == ""
    assert of_the_registry == ""


def test_only_one_module_imports_dagsters_private_names():
    private = re.compile(r"dagster\._|dagster_shared")
    importing = {path.name for path in _ROOT.rglob("*.py") if any(private.match(name) for name in _imported(path))}
    assert importing == {"dagster_internals.py"}


def test_python_may_leave_out_docstrings():
    """As it does under -OO, which images for production set: components take the texts of their schemas from them."""
    code = "from dagster_kafka_flip import DeltaKafkaComponent, KafkaDeltaComponent, KafkaResourcesComponent"
    done = subprocess.run(
        [sys.executable, "-OO", "-c", code], capture_output=True, text=True, check=False, env=_AIRFLOW_AS_A_LIBRARY
    )
    assert done.returncode == 0, done.stderr


def test_nothing_writes_to_a_table_but_the_one_function_that_looks_before_and_behind_it():
    lock, run = (f"{_PACKAGE}.table.{name}" for name in ("store_lock.store_lock", "interruptible.run_interruptibly"))
    files = {path.relative_to(_ROOT).as_posix(): path for path in _ROOT.rglob("*.py")}
    assert {name for name, path in files.items() if lock in _imported(path)} == {"table/table_port.py"}
    assert {name for name, path in files.items() if run in _imported(path)} == {"table/table_port.py"}
    locked = re.compile(r"\.lock\(.*location")
    found = {name for name, path in files.items() if locked.search(path.read_text(encoding="utf-8"))}
    assert found == {"table/table_port.py"}
    statements = re.compile(r"\.writeTo\(|\.saveAsTable\(|\.insertInto\(|\b(?:ALTER TABLE|OPTIMIZE|VACUUM) \{")
    # Messages name statements, and an archive of classes is trained on tables of its own.
    told = {"sink/table_versions.py", "ingestion/rows_to_replace.py", "runtime/class_archive_training.py"}
    told.add("table/windowed_table.py")
    found = {name for name, path in files.items() if statements.search(path.read_text(encoding="utf-8"))}
    assert found - told == {f"table/{name}.py" for name in ("maintenance", "table_port", "table_writer")}
