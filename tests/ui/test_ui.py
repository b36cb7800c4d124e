"""The example project in a real browser: web server, daemon, broker and Spark are those of `make dev`."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect, sync_playwright
from tenacity import retry, retry_if_result, stop_after_delay, wait_fixed

from examples.flights_data import load_flights
from tests.processes import QUICK_JVM

pytestmark = [pytest.mark.ui, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

_ROOT = Path(__file__).resolve().parents[2]
# Two steps, each with a Spark of its own, share two cores.
_RUN_MILLISECONDS = 300_000
_CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """The address of a web UI that `python -m examples.dev` started, and ends."""
    folder = tmp_path_factory.mktemp("dev")
    process = subprocess.Popen(
        [sys.executable, "-m", "examples.dev", "--data-dir", str(folder)],
        cwd=_ROOT,
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": QUICK_JVM},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    output: list[str] = []
    found = None
    for line in process.stdout:
        output.append(line)
        if match := re.search(r"Dagster\s+(http://\S+)", line):
            found = match[1]
            break
    try:
        assert found, "".join(output)
        yield found
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


@pytest.fixture(scope="module")
def page(address):
    """A page of a fresh Chromium."""
    executable = shutil.which("chromium")
    assert executable, "the browser tests need Debian's package chromium; `make test` installs it where it can"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=_CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1600, "height": 1000})
        page.set_default_timeout(60_000)
        yield page
        browser.close()


def test_from_the_lineage_through_a_run_to_its_numbers(page: Page, address: str):
    page.goto(f"{address}/asset-groups")
    for text in ("flights_raw", "Kafka", "Delta Lake", "Spark"):
        expect(page.get_by_text(text, exact=True).first).to_be_visible()

    page.goto(f"{address}/locations/definitions.py/jobs/land_flights")
    page.get_by_role("button", name="Materialize all").click()
    page.get_by_text("Launched run").wait_for()
    page.get_by_text("View", exact=True).last.click()
    expect(page.get_by_text("Success", exact=True).first).to_be_visible(timeout=_RUN_MILLISECONDS)

    page.goto(f"{address}/assets/flights")
    expect(page.get_by_text("166,158", exact=True).first).to_be_visible()
    for text in ("Row count", "departure", "cancelled", "timestamp"):
        expect(page.get_by_text(text, exact=True).first).to_be_visible()
    expect(page.get_by_text(re.compile(r"^file:///.*/warehouse/flights$")).first).to_be_visible()

    page.goto(f"{address}/assets/flights?view=events")
    expect(page.get_by_text("kafka/splits")).to_be_visible()
    cells = page.locator("table table tbody tr")
    expect(cells).to_have_count(4)
    numbers = [[int(cell) for cell in row.locator("td").all_inner_texts()[1:]] for row in cells.all()]
    assert [row[0] for row in numbers] == [0, 1, 2, 3]
    assert [(row[1], row[5]) for row in numbers] == [(0, 0)] * 4, "from the beginning, no lag left"
    assert sum(row[3] for row in numbers) == 166_158
    for key in ("kafka/lag_after", "kafka/watermark", "delta/version", "seconds/read_and_write"):
        expect(page.get_by_text(key, exact=True)).to_be_visible()


_LAUNCH = """
mutation($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}
"""
_STATUS = """
query($id: String!) {
  partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status numPartitions } }
}
"""


def test_a_range_that_is_backfilled_through_the_api_shows_at_its_partitions(page: Page, address: str):
    def ask(query: str, **variables: Any) -> Any:
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = urllib.request.Request(f"{address}/graphql", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["data"]

    days = [(date(2013, 3, 1) + timedelta(days=day)).isoformat() for day in range(92)]
    params = {"assetSelection": [{"path": ["flights_daily"]}], "partitionNames": days}
    backfill = ask(_LAUNCH, params=params)["launchPartitionBackfill"]["backfillId"]

    @retry(retry=retry_if_result(lambda status: status == "REQUESTED"), wait=wait_fixed(1), stop=stop_after_delay(300))
    def end() -> str:
        return ask(_STATUS, id=backfill)["partitionBackfillOrError"]["status"]

    assert end() == "COMPLETED_SUCCESS"

    page.goto(f"{address}/assets/flights_daily?view=partitions&partition=2013-03-10")
    expect(page.get_by_text("Materialized (92)")).to_be_visible()
    expect(page.get_by_text("Missing (274)")).to_be_visible()

    def value(key: str) -> str:
        return page.locator("tr", has=page.get_by_text(key, exact=True)).last.locator("td").nth(1).inner_text()

    expect(page.get_by_text("kafka/window_start", exact=True)).to_be_visible()
    assert value("kafka/window_start").startswith("Mar 10, 2013, 12:00:00 AM UTC")
    assert value("kafka/complete") == "true"
    assert value("delta/commits") == "1"
    # The flights of that day in UTC, in the dataset.
    first, _ = load_flights()
    departures = (datetime.fromtimestamp(departure / 1000, tz=timezone.utc).date() for departure in first.departures)
    assert int(value("dagster/partition_row_count")) == sum(day == date(2013, 3, 10) for day in departures)
    assert int(value("delta/rows_written")) == 86_022
