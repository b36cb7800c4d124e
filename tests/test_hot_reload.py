"""A code location that is loaded again after its file has changed, in a web server that keeps running."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import landed
from tests.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.nightly]

_DEFINITIONS = """
import os

from dagster import Definitions, EnvVar, in_process_executor
from dagster_kafka_flip import KafkaResource, KafkaSource, SparkResource, build_kafka_delta_asset
from tests.faults.ingesting import SPARK_CONFIG

source = KafkaSource(topics=(os.environ["TEST_TOPIC"],))
names = {names}
defs = Definitions(
    assets=[build_kafka_delta_asset(name=name, source=source, table="{folder}/" + name) for name in names],
    resources={{
        "kafka": KafkaResource(bootstrap_servers=EnvVar("KAFKA_BOOTSTRAP_SERVERS")),
        "spark": SparkResource(master="local[1]", config=SPARK_CONFIG),
    }},
    # One Spark for each run, and not for each asset.
    executor=in_process_executor,
)
"""

_ASSETS = "{ assetNodes { assetKey { path } } }"
_RELOAD = """
mutation { reloadRepositoryLocation(repositoryLocationName: "definitions.py") {
  __typename ... on WorkspaceLocationEntry { loadStatus }
} }
"""
_LAUNCH = """
mutation($assets: [AssetKeyInput!]!) { launchPipelineExecution(executionParams: {
  mode: "default", runConfigData: {},
  selector: { repositoryLocationName: "definitions.py", repositoryName: "__repository__", pipelineName: "__ASSET_JOB",
              assetSelection: $assets }
}) { __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }
"""
_STATUS = "query($id: ID!) { runOrError(runId: $id) { ... on Run { status } } }"


# Runs are launched at once: there is no daemon here that would take them from a queue.
_DAGSTER_YAML = """\
telemetry:
  enabled: false
run_coordinator:
  module: dagster.core.run_coordinator
  class: DefaultRunCoordinator
"""


class _Server:
    def __init__(self, process: subprocess.Popen[bytes], address: str, log: Path) -> None:
        self.process = process
        self.address = address
        self.log = log

    def ask(self, query: str, **variables: Any) -> Any:
        request = urllib.request.Request(
            f"{self.address}/graphql",
            json.dumps({"query": query, "variables": variables}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["data"]

    def is_up(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.ask("{ version }") is not None
        except (urllib.error.URLError, ConnectionError):
            return False

    def assets(self) -> set[str]:
        """Names of the tables; the topic is one of the assets too."""
        paths = [node["assetKey"]["path"] for node in self.ask(_ASSETS)["assetNodes"]]
        return {path[0] for path in paths if path[0] != "kafka"}

    def run(self, *assets: str) -> None:
        """Materializes assets in one run, and waits for its success."""
        launched = self.ask(_LAUNCH, assets=[{"path": [asset]} for asset in assets])["launchPipelineExecution"]
        assert launched["__typename"] == "LaunchRunSuccess", launched

        def status() -> str:
            return self.ask(_STATUS, id=launched["run"]["runId"])["runOrError"]["status"]

        wait_until(lambda: status() in {"SUCCESS", "FAILURE", "CANCELED"}, seconds=240, every=0.5)
        assert status() == "SUCCESS", self.log.read_text()[-4000:]


@contextmanager
def _serving(definitions: Path, environment: Mapping[str, str]) -> Generator[_Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = definitions.with_name("webserver.log")
    program = str(Path(sys.executable).with_name("dagster-webserver"))
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [program, "-h", "127.0.0.1", "-p", str(port), "-f", definitions.name],
            cwd=definitions.parent,
            env=dict(environment),
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        server = _Server(process, f"http://127.0.0.1:{port}", log)
        try:
            wait_until(server.is_up, seconds=180, every=0.5)
            yield server
        finally:
            process.terminate()


def test_after_a_hot_reload_the_new_asset_exists_and_the_old_one_continues_from_its_position(
    kafka, broker, spark, topic, tmp_path
):
    kafka.create(topic)
    kafka.produce(topic, [(None, str(number)) for number in range(3)])
    definitions = tmp_path / "definitions.py"
    definitions.write_text(_DEFINITIONS.format(names=["old"], folder=tmp_path))
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text(_DAGSTER_YAML)
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "KAFKA_BOOTSTRAP_SERVERS": broker,
        "TEST_TOPIC": topic,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    with _serving(definitions, environment) as server:
        assert server.assets() == {"old"}
        server.run("old")
        kafka.produce(topic, [(None, str(number)) for number in range(3, 5)])
        definitions.write_text(_DEFINITIONS.format(names=["old", "new"], folder=tmp_path))
        reloaded = server.ask(_RELOAD)["reloadRepositoryLocation"]
        assert reloaded == {"__typename": "WorkspaceLocationEntry", "loadStatus": "LOADED"}
        assert server.assets() == {"old", "new"}
        server.run("old", "new")

    def offsets(name: str) -> list[int]:
        return landed.values(tmp_path / name, "kafka_offset")

    assert offsets("old") == offsets("new") == [0, 1, 2, 3, 4]
    # The run after the reload has read what was new, and no more.
    written = [commit["operationMetrics"].get("numOutputRows") for commit in landed.history(tmp_path / "old")]
    assert written == ["2", "3", None]
