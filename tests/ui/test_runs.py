"""The pages of runs: the log of one that went well, and the error of one that did not."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.ui.screen import MARKS, Screen

pytestmark = MARKS

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
