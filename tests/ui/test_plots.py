"""The numbers of a table's runs, as curves."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.ui.screen import MARKS, Screen

pytestmark = MARKS


def test_the_numbers_of_the_runs_are_plotted(screen: Screen, landed: str, failed: str):
    # The run that failed for the other table has landed its records in this one.
    page = screen.open("/assets/flights_raw")
    expect(page.get_by_text("167,159", exact=True).first).to_be_visible()
    page.get_by_role("button", name="Plots").click()
    for key in ("dagster/row_count", "delta/rows_written", "kafka/lag_before", "kafka/records_read", "seconds/plan"):
        title = page.get_by_text(key, exact=True)
        expect(title).to_be_visible()
        canvas = title.locator("xpath=following::canvas[1]")
        canvas.scroll_into_view_if_needed()
        expect(canvas).to_be_visible()
        # Something is drawn: not all pixels are the same.
        colours = canvas.evaluate(
            "c => new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size"
        )
        assert colours > 10, key
    page.get_by_text("dagster/row_count", exact=True).scroll_into_view_if_needed()
    screen.shoot("plots")
