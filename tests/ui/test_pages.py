"""Dagster's pages of assets, checks, partitions, runs and topics: what they show of this package."""

from __future__ import annotations

import re
from datetime import date, datetime, timezone

from playwright.sync_api import Page, expect

from examples.flights_data import load_flights
from tests.processes import wait_until
from tests.ui.screen import MARKS, Screen

pytestmark = MARKS


def test_the_asset_page_shows_storage_columns_rows_and_freshness(screen: Screen, landed: str):
    page = screen.open("/assets/flights")
    expect(page.get_by_text("166,158", exact=True).first).to_be_visible()
    for text in ("Row count", "departure", "cancelled", "timestamp", "layer: silver", "Each flight with its"):
        expect(page.get_by_text(text).first).to_be_visible()
    expect(page.get_by_text(re.compile(r"^file:///.*/warehouse/flights$")).first).to_be_visible()
    expect(page.get_by_text("eager", exact=True)).to_be_visible()

    def tells_freshness() -> bool:
        # The daemon looks at it now and then, and an open page does not ask again.
        page.reload()
        try:
            expect(page.get_by_text("Passing", exact=True).first).to_be_visible(timeout=15_000)
        except AssertionError:
            return False
        return True

    wait_until(tells_freshness, seconds=300)
    screen.shoot("asset")


def test_the_event_shows_what_matters_first_and_the_position_of_each_topic_partition(screen: Screen, landed: str):
    page = screen.open("/assets/flights?view=events")
    expect(page.get_by_text("kafka/position", exact=True)).to_be_visible()
    keys = [text for text in page.locator("table tr td:first-child").all_inner_texts() if "/" in text]
    assert keys[:2] == ["kafka/records_read", "delta/rows_written"]
    rows = [row.locator("td").all_inner_texts() for row in page.locator("table table tbody tr").all()]
    assert [row[0] for row in rows] == [f"flights-{number}" for number in range(4)]
    assert [(row[1], row[3]) for row in rows] == [(row[2], "0") for row in rows], "from the beginning, no lag left"
    assert sum(int(row[1]) for row in rows) == 166_158
    for key in ("kafka/lag_after", "kafka/watermark", "delta/version", "seconds/read_and_write"):
        expect(page.get_by_text(key, exact=True)).to_be_visible()
    screen.shoot("splits")


def test_each_check_shows_what_it_found_with_its_numbers(screen: Screen, checked: str):
    page = screen.open("/assets/flights?view=checks")
    for name in ("no_gap", "no_duplicate", "lag_below", "same_log", "column_schema_change"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible()
    page.get_by_text("no_duplicate", exact=True).first.click()
    expect(
        page.get_by_text("No record (by topic, partition and offset) is in the table more than once.")
    ).to_be_visible()
    expect(page.get_by_text("Passed", exact=True).first).to_be_visible()
    expect(page.get_by_text(re.compile(r"166,?158")).first).to_be_visible()
    screen.shoot("checks")


def test_the_graph_leads_from_the_topic_to_its_tables_with_icons_and_badges(
    screen: Screen, checked: str, backfilled: str, observed: str
):
    page = screen.open("/asset-groups")
    expect(page.get_by_text("flights_daily", exact=True).last).to_be_visible()
    for icon, number in (("kafka", 1), ("deltalake", 3), ("spark", 3)):
        icons = page.get_by_role("img", name=icon, exact=True)
        expect(icons).to_have_count(number)
        for tag in icons.all():
            # A kind that Dagster doesn't know has a tag, but no picture.
            assert f"tool-{icon}" in str(tag.get_attribute("style"))
    expect(page.locator("svg path[marker-end]")).to_have_count(3)
    expect(page.get_by_text("Observed", exact=True)).to_be_visible()
    expect(page.get_by_text("Materialized", exact=True).first).to_be_visible()
    expect(page.get_by_text("25% filled")).to_be_visible()
    expect(page.get_by_text("2 / 2 Passed")).to_be_visible()
    expect(page.get_by_text("6 / 6 Passed")).to_be_visible()
    screen.shoot("lineage")


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


_REJECTED = re.compile(
    r"RecordsRejectedError: 1 record can't be decoded: "
    r"flights-\d offset \d+: the value of flight "
    r"does not fit INT\. Nothing was written\. Correct the format or its schema; or send such records to a "
    r"separate table with "
    "dead_letter=, or keep them with their bytes and the error with on_error='null'"
)


def test_a_runs_log_shows_what_it_planned(screen: Screen, landed: str):
    page = screen.open(f"/runs/{landed}?logs=step%3Aflights")
    expect(page.get_by_text("Success", exact=True).first).to_be_visible()
    expect(page.get_by_text("planned 4 splits of flights: offsets=166158")).to_be_visible()
    expect(page.get_by_text("ASSET_MATERIALI").first).to_be_visible()
    screen.shoot("run")


def test_a_failed_runs_whole_error_can_be_read(screen: Screen, failed: str):
    page = screen.open(f"/runs/{failed}?logs=step%3Aflights")
    expect(page.get_by_text("Failure", exact=True).first).to_be_visible()
    expect(page.get_by_text("STEP_FAILURE").first).to_be_visible()
    expect(page.get_by_text(_REJECTED).first).to_be_visible()
    # Of the traceback only its heading: its paths are this machine's.
    screen.shoot("failed-run", above=page.get_by_text("Stack Trace:").first)


def test_a_topics_observations_show_its_offsets(screen: Screen, observed: str):
    page = screen.open("/assets/kafka/flights?view=events")
    expect(page.get_by_text("Observed in run")).to_be_visible()
    for key in ("kafka/topics", "kafka/partitions", "kafka/offset_span", "kafka/topic_id", "kafka/end_offsets"):
        expect(page.get_by_text(key, exact=True)).to_be_visible()

    def value(key: str) -> str:
        return page.locator("tr", has=page.get_by_text(key, exact=True)).last.locator("td").nth(1).inner_text()

    assert value("kafka/partitions") == "4"
    # With the records that other tests add, if they came before.
    assert int(value("kafka/offset_span")) in {166_158, 167_159}
    assert value("kafka/timestamp_type") == "CreateTime"
    screen.shoot("topic")
