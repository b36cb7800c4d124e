"""The page of a table: where it is, what is in it, what its last run read, and how its numbers went."""

from __future__ import annotations

import re

from playwright.sync_api import expect

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
