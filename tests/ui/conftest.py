"""One web server, daemon and broker, those of `make dev`, and one browser, for all tests of the web UI."""

from __future__ import annotations

import re
import shutil
import tempfile
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from examples.flights_data import load_flights
from tests.dev_server import Server, serving
from tests.kafka_topic import Kafka
from tests.processes import wait_until
from tests.ui.screen import Screen

if TYPE_CHECKING:
    from collections.abc import Generator

# Several Sparks in a row share two cores.
_RUN_SECONDS = 900
_PAGE_MILLISECONDS = 60_000
# What is asked of the web server takes time from the run that is waited for.
_EVERY = 1.0
_CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

_REPOSITORY = {"repositoryLocationName": "definitions.py", "repositoryName": "__repository__"}

_START_SENSOR = """
mutation($selector: SensorSelector!) {
  startSensor(sensorSelector: $selector) { __typename ... on PythonError { message } }
}
"""
_EVALUATIONS = """
{
  assetConditionEvaluationRecordsOrError(assetKey: { path: ["flights"] }, limit: 1) {
    ... on AssetConditionEvaluationRecords { records { id } }
  }
}
"""
_LAUNCH_BACKFILL = """
mutation($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}
"""
_LAUNCH_JOB = """
mutation($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
  }
}
"""
_BACKFILL_STATUS = """
query($id: String!) {
  partitionBackfillOrError(backfillId: $id) { ... on PartitionBackfill { status } }
}
"""


@pytest.fixture(scope="package")
def server() -> Generator[Server]:
    """What `python -m examples.dev` starts, and ends."""
    # Its path stands on pages that are shown in the documents: a short one.
    with tempfile.TemporaryDirectory(prefix="flights-") as folder, serving(folder) as server:
        yield server


@pytest.fixture(scope="package")
def browser() -> Generator[Browser]:
    # A page's own default timeout is none of theirs.
    expect.set_options(timeout=_PAGE_MILLISECONDS)
    executable = shutil.which("chromium")
    assert executable, "the browser tests need Debian's package chromium; `make test` installs it where it can"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=_CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def screen(server: Server, browser: Browser) -> Generator[Screen]:
    """An empty page."""
    page = _page(browser)
    yield Screen(page, server.address)
    page.close()


def _page(browser: Browser) -> Page:
    page = browser.new_page(viewport={"width": 1400, "height": 900}, timezone_id="UTC", locale="en-US")
    page.set_default_timeout(_PAGE_MILLISECONDS)
    return page


@pytest.fixture(scope="package")
def observed(server: Server, browser: Browser) -> str:
    """The id of a run that has observed the topic, launched by its button."""
    return _observe(server, browser)


def _observe(server: Server, browser: Browser) -> str:
    before = {run["runId"] for run in server.runs()}
    page = _page(browser)
    page.goto(f"{server.address}/assets/kafka/flights")
    # Its name begins with that of its icon.
    page.get_by_role("button", name=re.compile(r"\bObserve$")).click()

    def ended() -> list[str]:
        return [run["runId"] for run in server.runs(statuses=["SUCCESS", "FAILURE"]) if run["runId"] not in before]

    # One that the condition of the topic launches is as good.
    wait_until(lambda: bool(ended()), seconds=_RUN_SECONDS, every=_EVERY)
    page.close()
    return ended()[0]


@pytest.fixture(scope="package")
def landed(server: Server, browser: Browser, observed: str) -> str:
    """The id of a run of the job, launched by its button, which fills two tables and leaves the topic alone."""
    del observed  # else Dagster would call the tables out of step with the topic
    page = _page(browser)
    page.goto(f"{server.address}/locations/definitions.py/jobs/land_flights")
    page.get_by_role("button", name="Materialize all").click()
    page.get_by_text("Launched run").wait_for()
    page.get_by_text("View", exact=True).last.click()
    expect(page.get_by_text("Success", exact=True).first).to_be_visible(timeout=1000 * _RUN_SECONDS)
    page.close()
    (run,) = server.runs(pipelineName="land_flights")
    return run["runId"]


@pytest.fixture(scope="package")
def checked(server: Server, landed: str) -> str:
    """The id of a run of the checks of what has landed, launched through the API."""
    del landed
    selector = {**_REPOSITORY, "pipelineName": "check_flights"}
    params = {"selector": selector, "runConfigData": {}, "mode": "default"}
    run: str = server.ask(_LAUNCH_JOB, params=params)["launchRun"]["run"]["runId"]

    def status() -> str:
        return next(found["status"] for found in server.runs(pipelineName="check_flights") if found["runId"] == run)

    wait_until(lambda: status() in {"SUCCESS", "FAILURE"}, seconds=_RUN_SECONDS, every=_EVERY)
    assert status() == "SUCCESS"
    return run


@pytest.fixture(scope="package")
def backfilled(server: Server) -> str:
    """The id of a backfill of the days of spring, launched through the API."""
    days = [(date(2013, 3, 1) + timedelta(days=day)).isoformat() for day in range(92)]
    params = {"assetSelection": [{"path": ["flights_daily"]}], "partitionNames": days}
    backfill = server.ask(_LAUNCH_BACKFILL, params=params)["launchPartitionBackfill"]["backfillId"]

    def status() -> str:
        return server.ask(_BACKFILL_STATUS, id=backfill)["partitionBackfillOrError"]["status"]

    wait_until(lambda: status() != "REQUESTED", seconds=_RUN_SECONDS, every=_EVERY)
    assert status() == "COMPLETED_SUCCESS"
    return backfill


@pytest.fixture(scope="package")
def failed(server: Server, browser: Browser, checked: str, backfilled: str) -> str:
    """The id of a run that the daemon launched because the topic was observed, and that can't decode a record."""
    del checked, backfilled  # they are to find the flights alone, and nothing is to be launched beside them
    selector = {**_REPOSITORY, "sensorName": "default_automation_condition_sensor"}
    assert server.ask(_START_SENSOR, selector=selector) == {"startSensor": {"__typename": "Sensor"}}
    # What is there at the first evaluation counts as nothing new.
    wait_until(
        lambda: bool(server.ask(_EVALUATIONS)["assetConditionEvaluationRecordsOrError"]["records"]),
        seconds=120,
        every=_EVERY,
    )
    _, later = load_flights(2000)
    kafka = Kafka(server.broker)
    records = [*zip(later.keys, later.values, strict=True), ("AA", '{"carrier": "AA", "flight": "one"}')]
    # The first moment of July, after the topic's flights.
    kafka.produce("flights", records, timestamp=1_372_636_800_000)
    kafka.close()
    _observe(server, browser)

    def found() -> list[dict[str, Any]]:
        automatic = server.runs(tags=[{"key": "dagster/from_automation_condition", "value": "true"}])
        wanted = [run for run in automatic if {"path": ["flights"]} in run["assetSelection"]]
        return [run for run in wanted if run["status"] in {"SUCCESS", "FAILURE", "CANCELED"}]

    wait_until(lambda: bool(found()), seconds=_RUN_SECONDS, every=_EVERY)
    (run,) = found()
    assert run["status"] == "FAILURE"
    return run["runId"]
