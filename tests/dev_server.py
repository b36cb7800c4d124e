"""The services of the example project, as `make dev` starts them: a broker, a warm Spark, and Dagster with its API."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

ROOT = Path(__file__).resolve().parents[1]

_RUNS = """
query($filter: RunsFilter) {
  runsOrError(filter: $filter) { ... on Runs { results { runId status assetSelection { path } } } }
}
"""

_LAUNCH = """
mutation($location: String!, $asset: String!) { launchPipelineExecution(executionParams: {
  mode: "default", runConfigData: {},
  selector: { repositoryLocationName: $location, repositoryName: "__repository__", pipelineName: "__ASSET_JOB",
              assetSelection: [{ path: [$asset] }] }
}) { __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }
"""


@dataclass(frozen=True)
class Server:
    """Dagster on the example project, and its Kafka."""

    address: str
    broker: str

    def ask(self, query: str, **variables: Any) -> Any:
        """Asks Dagster's GraphQL API."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{self.address}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["data"]

    def launch(self, asset: str, *, location: str = "definitions.py") -> str:
        """Launches a run of one asset, and returns its id."""
        return self.ask(_LAUNCH, location=location, asset=asset)["launchPipelineExecution"]["run"]["runId"]

    def runs(self, **wanted: Any) -> list[dict[str, Any]]:
        """Runs that a filter lets through, the newest first."""
        return self.ask(_RUNS, filter=wanted)["runsOrError"]["results"]


@contextmanager
def serving(folder: str) -> Generator[Server]:
    """Starts the example project's services in a folder, and ends them."""
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.dev", "--data-dir", folder],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    output = ""
    try:
        for line in process.stdout:
            output += line
            if "Ctrl-C stops everything" in line:
                break
        address = re.search(r"Dagster +(http://\S+)", output)
        broker = re.search(r"Kafka +(127[0-9.]+:\d+)", output)
        assert address, output
        assert broker, output
        yield Server(address[1], broker[1])
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=180)
