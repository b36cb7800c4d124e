"""The page of a topic: what was observed."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.ui.screen import MARKS, Screen

pytestmark = MARKS


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
