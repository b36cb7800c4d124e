"""examples/compose without containers: its files fit together, and its commands land a topic."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from dagster import DagsterEvent, DagsterEventType, DagsterInstance, DagsterRunStatus
from dagster._core.test_utils import create_run_for_test

from tests import landed
from tests.debezium.postgres import Postgres
from tests.dev_server import Server
from tests.document_tests import ROOT
from tests.kafka_topic import Kafka
from tests.processes import LIGHT_JVM, wait_until

_FOLDER = ROOT / "examples" / "compose"
_SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((_FOLDER / "compose.yaml").read_text(encoding="utf-8"))[
    "services"
]
# Those of the image that is built.
_OWN = {name: service for name, service in _SERVICES.items() if "build" in service}


def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _given(service: dict[str, Any], command: str) -> dict[str, str]:
    """The options of a service's command, by name."""
    words = shlex.split(service["command"])
    assert words[: len(shlex.split(command))] == shlex.split(command)
    options = words[len(shlex.split(command)) :]
    return dict(zip(options[::2], options[1::2], strict=True))


def test_services_volumes_variables_and_addresses_fit_together(monkeypatch: pytest.MonkeyPatch):
    compose = yaml.safe_load(_text("compose.yaml"))
    for service in _SERVICES.values():
        assert set(service.get("depends_on", {})) <= set(_SERVICES)
        assert all("healthcheck" in _SERVICES[name] for name in service.get("depends_on", {}))
        assert {each.partition(":")[0] for each in service.get("volumes", [])} <= set(compose["volumes"])
        assert "build" in service or re.search(r":\d", service["image"])
    (location,) = yaml.safe_load(_text("workspace.yaml"))["load_from"]
    served = _given(_SERVICES["code"], "dagster code-server start")
    assert (location["grpc_server"]["host"], str(location["grpc_server"]["port"])) == ("code", served["--port"])
    assert served["--port"] in _SERVICES["code"]["healthcheck"]["test"].split()
    published = _given(_SERVICES["webserver"], "dagster-webserver")["--port"]
    assert _SERVICES["webserver"]["ports"] == [f"127.0.0.1:{published}:{published}"]

    storage = yaml.safe_load(_text("dagster.yaml"))["storage"]["postgres"]["postgres_db"]
    database = _SERVICES["postgres"]["environment"]
    assert (storage["username"], storage["db_name"]) == (database["POSTGRES_USER"], database["POSTGRES_DB"])
    environment = _SERVICES["code"]["environment"]
    assert {storage["hostname"]["env"], storage["password"]["env"]} <= set(environment)
    assert environment["POSTGRES_HOST"] == "postgres"
    assert environment["POSTGRES_PASSWORD"] == database["POSTGRES_PASSWORD"]
    # The tables are on the volume.
    assert f"lake:{environment['LAKE']}" in _SERVICES["code"]["volumes"]
    assert environment["KAFKA_BOOTSTRAP_SERVERS"] in _SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]

    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    defs = runpy.run_path(str(_FOLDER / "definitions.py"))["defs"]
    defs.resolve_job_def("__ASSET_JOB")
    copied = re.findall(r"^COPY (.*) \S+$", _text("Dockerfile"), re.MULTILINE)
    assert all((_FOLDER / name).is_file() for names in copied for name in names.split())


@contextmanager
def _service(name: str, folder: Path, environment: dict[str, str], ports: dict[str, str]) -> Generator[None]:
    """Runs a service's command in this Python environment, with other ports."""
    program, *options = shlex.split(_OWN[name]["command"])
    command = [str(Path(sys.executable).with_name(program))]
    command += [ports.get(option, option).replace("0.0.0.0", "127.0.0.1") for option in options]
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            if test := _OWN[name].get("healthcheck", {}).get("test"):
                program, *options = [ports.get(option, option) for option in shlex.split(test)]
                check = [str(Path(sys.executable).with_name(program)), *options]
                wait_until(
                    lambda: subprocess.run(check, env=environment, capture_output=True, check=False).returncode == 0,
                    seconds=300,
                )
            yield
            assert process.poll() is None, (folder / f"{name}.log").read_text()[-5000:]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(120)


def _free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def _leave_a_dead_run(home: Path, pool: str) -> str:
    """A run that was killed with its container, long enough ago, while it had its table's slot."""
    with DagsterInstance.from_config(str(home)) as instance:
        run = create_run_for_test(instance, tags={"dagster/max_runtime": "1"}, status=DagsterRunStatus.STARTING)
        instance.report_dagster_event(
            DagsterEvent(event_type_value=DagsterEventType.PIPELINE_START.value, job_name=run.job_name), run.run_id
        )
        instance.event_log_storage.set_concurrency_slots(pool, 1)
        claim = instance.event_log_storage.claim_concurrency_slot(pool, run.run_id, "flights")
        assert claim.is_claimed
        return run.run_id


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_the_commands_of_the_services_land_the_topic_also_behind_a_run_that_was_killed(
    tmp_path: Path, broker: str, kafka: Kafka, named_topic: Any, monkeypatch: pytest.MonkeyPatch
):
    named_topic("flights")
    kafka.produce("flights", [(None, f'{{"carrier": "AA", "flight": {number}}}') for number in range(20)])
    for name in ("definitions.py", "workspace.yaml", "dagster.yaml"):
        shutil.copy(_FOLDER / name, tmp_path / name)
    ports = {"4000": _free_port(), "3000": _free_port()}
    workspace = tmp_path / "workspace.yaml"
    workspace.write_text(workspace.read_text().replace("host: code", "host: 127.0.0.1").replace("4000", ports["4000"]))
    with Postgres() as database, ExitStack() as services:
        database.run(
            f"CREATE ROLE dagster LOGIN PASSWORD '{database.password}'", "CREATE DATABASE dagster OWNER dagster"
        )
        settings = tmp_path / "dagster.yaml"
        text = settings.read_text().replace("5432", str(database.port))
        settings.write_text(text.replace("run_monitoring:\n", "run_monitoring:\n  poll_interval_seconds: 1\n"))
        environment = {
            **os.environ,
            **_OWN["code"]["environment"],
            "DAGSTER_HOME": str(tmp_path),
            "KAFKA_BOOTSTRAP_SERVERS": broker,
            "LAKE": str(tmp_path / "lake"),
            "POSTGRES_HOST": "127.0.0.1",
            "POSTGRES_PASSWORD": database.password,
            "PYSPARK_SUBMIT_ARGS": LIGHT_JVM,
        }
        for name in ("POSTGRES_HOST", "POSTGRES_PASSWORD"):
            monkeypatch.setenv(name, environment[name])
        dead = _leave_a_dead_run(tmp_path, f"delta:{environment['LAKE']}/flights")
        for name in _OWN:
            services.enter_context(_service(name, tmp_path, environment, ports))
        server = Server(f"http://127.0.0.1:{ports['3000']}", broker)
        wait_until(lambda: _has_location(server), seconds=600, every=1.0)
        run = server.launch("flights", location="flights")
        ended = ["SUCCESS", "FAILURE", "CANCELED"]
        wait_until(lambda: bool(server.runs(runIds=[run], statuses=ended)), seconds=900, every=1.0)
        assert [each["status"] for each in server.runs(runIds=[dead, run])] == ["SUCCESS", "FAILURE"]
    rows = landed.rows(tmp_path / "lake" / "flights", "kafka_offset", "carrier", "flight")
    assert rows == [(number, "AA", number) for number in range(20)]


def _has_location(server: Server) -> bool:
    try:
        found = server.ask("{ repositoriesOrError { ... on RepositoryConnection { nodes { location { name } } } } }")
    except OSError:
        return False
    return [node["location"]["name"] for node in found["repositoriesOrError"]["nodes"]] == ["flights"]
