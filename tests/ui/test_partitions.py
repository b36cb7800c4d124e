"""The pages of a table with partitions, after a backfill: its days, and what the run found."""

from __future__ import annotations

from datetime import date, datetime, timezone

from playwright.sync_api import expect

from examples.flights_data import load_flights
from tests.ui.screen import MARKS, Screen

pytestmark = MARKS


def test_a_range_that_is_backfilled_through_the_api_shows_at_its_partitions(screen: Screen, backfilled: str):
    page = screen.open("/assets/flights_daily?view=partitions&partition=2013-03-10")
    expect(page.get_by_text("Materialized (92)")).to_be_visible()
    expect(page.get_by_text("Missing (274)")).to_be_visible()

    def value(key: str) -> str:
        return page.locator("tr", has=page.get_by_text(key, exact=True)).last.locator("td").nth(1).inner_text()

    expect(page.get_by_text("kafka/window_start", exact=True)).to_be_visible()
    assert value("kafka/window_start").startswith("Mar 10, 2013, 12:00:00 AM UTC")
    assert value("kafka/complete") == "true"
    assert value("run/delta/commits") == "1"
    # The flights of that day in UTC, in the dataset.
    first, _ = load_flights()
    departures = (datetime.fromtimestamp(departure / 1000, tz=timezone.utc).date() for departure in first.departures)
    assert int(value("dagster/partition_row_count")) == sum(day == date(2013, 3, 10) for day in departures)
    assert int(value("run/delta/rows_written")) == 86_022
    screen.shoot("partitions")


def test_the_checks_page_shows_what_a_run_found(screen: Screen, backfilled: str):
    page = screen.open("/assets/flights_daily?view=checks")
    page.get_by_text("no_stragglers", exact=True).first.click()
    expect(page.get_by_text("Every record that the run read arrived in time for its window")).to_be_visible()
    expect(page.get_by_text("Passed", exact=True).first).to_be_visible()
    row = page.locator("tr", has=page.get_by_text("stragglers", exact=True))
    expect(row.locator("td").last).to_have_text("0")
