"""The asset graph: what the icons, edges and badges tell."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.ui.screen import MARKS, Screen

pytestmark = MARKS


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
