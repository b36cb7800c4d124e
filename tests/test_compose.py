"""examples/compose without containers: its files fit together, and its commands land a topic."""

from __future__ import annotations

import re
import runpy
import shlex
from typing import Any

import pytest
import yaml

from tests.document_tests import ROOT

_FOLDER = ROOT / "examples" / "compose"
_SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((_FOLDER / "compose.yaml").read_text(encoding="utf-8"))[
    "services"
]


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
