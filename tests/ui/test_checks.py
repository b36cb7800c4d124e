"""The checks page of a table: what each check found, with its numbers."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.ui.screen import MARKS, Screen

pytestmark = MARKS


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
