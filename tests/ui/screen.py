"""Dagster's web UI and its API, as the tests of the UI see them."""

from __future__ import annotations

import json
import os
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

# What is shared is set up by whichever test comes first; how long that takes depends on what else the machine does.
MARKS = [pytest.mark.ui, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]

ROOT = Path(__file__).resolve().parents[2]

# Where `make screenshots` wants pictures of the pages.
_SCREENSHOTS = os.environ.get("SCREENSHOTS")

_RUNS = """
query($filter: RunsFilter) {
  runsOrError(filter: $filter) { ... on Runs { results { runId status assetSelection { path } } } }
}
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

    def runs(self, **wanted: Any) -> list[dict[str, Any]]:
        """Runs that a filter lets through, the newest first."""
        return self.ask(_RUNS, filter=wanted)["runsOrError"]["results"]


@dataclass(frozen=True)
class Screen:
    """A page of the web UI."""

    page: Page
    address: str

    def open(self, path: str) -> Page:
        self.page.goto(f"{self.address}{path}")
        return self.page

    def shoot(self, name: str, *, above: Locator | None = None) -> None:
        """Takes a picture for the documents, if they are wanted.

        Args:
            name: The file's.
            above: Where the picture ends. Default: with the window.
        """
        if not _SCREENSHOTS:
            return
        # Nothing that only the mouse brings about.
        self.page.mouse.move(0, 0)
        window = self.page.viewport_size or {"width": 0, "height": 0}
        end = None if above is None else above.bounding_box()
        height = window["height"] if end is None else end["y"]
        self.page.screenshot(
            path=ROOT / _SCREENSHOTS / f"{name}.png",
            animations="disabled",
            clip={"x": 0, "y": 0, "width": window["width"], "height": height},
        )
