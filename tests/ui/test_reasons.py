"""The automation page of a table: why a run was launched, and why not."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.ui.screen import MARKS, Screen

pytestmark = MARKS


def _open(page: Page, result: str) -> None:
    """Opens the newest evaluation that ended so."""
    row = page.locator("tr", has=page.get_by_text(result, exact=True)).first
    row.get_by_role("button").first.click()


def test_the_automation_page_shows_why_a_run_started_and_why_not(screen: Screen, failed: str):
    page = screen.open("/assets/flights?view=automation")
    _open(page, "Requested")
    dialog = page.get_by_role("dialog")
    for condition in ("eager", "(newly_missing) OR (any_deps_updated)", "any_deps_missing", "in_progress"):
        expect(dialog.get_by_text(condition, exact=True).first).to_be_visible()
    first = dialog.locator("tr", has=page.get_by_text("eager", exact=True))
    expect(first.get_by_text("True", exact=True)).to_be_visible()
    screen.shoot("automation")
    dialog.get_by_text("Runs (1)").click()
    expect(dialog.get_by_text(failed[:8])).to_be_visible()
    dialog.get_by_role("button", name="Done").click()

    _open(page, "Not requested")
    dialog = page.get_by_role("dialog")
    first = dialog.locator("tr", has=page.get_by_text("eager", exact=True))
    expect(first.get_by_text("False", exact=True)).to_be_visible()
