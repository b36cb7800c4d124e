"""Pages of Dagster's web UI."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from tests.dev_server import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

# What is shared is set up by whichever test comes first; how long that takes depends on what else the machine does.
MARKS = [pytest.mark.ui, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]

# Where `make screenshots` wants pictures of the pages.
_SCREENSHOTS = os.environ.get("SCREENSHOTS")


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
