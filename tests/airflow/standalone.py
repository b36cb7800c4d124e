"""A real Airflow runs the example's DAGs: scheduled by time and by events, backfilled, killed and cleared.

`make test-airflow` runs this; it takes minutes, so `make test` does not.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from tests import landed
from tests.airflow.server import PASSWORD, USER, AirflowServer
from tests.document_tests import ROOT
from tests.kafka_topic import Kafka
from tests.processes import descendants

DAY_MS = 86_400_000
FIRST_MS = int(datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp() * 1000)


def flight(number: int) -> str:
    return json.dumps({"carrier": "AA", "flight": number, "dep_delay": number % 7})


def days(lake: Path) -> list[tuple[Any, ...]]:
    return landed.rows(
        lake / "flights_by_day", "substr(kafka_window, 1, 10)", "kafka_partition", "kafka_offset", "flight"
    )


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("airflow")


@pytest.fixture(scope="module")
def lake() -> Iterator[Path]:
    # Its path stands on pages that are shown in the documents: a short one.
    with tempfile.TemporaryDirectory(prefix="lake-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def server(home: Path, lake: Path, broker: str, kafka: Kafka) -> Iterator[AirflowServer]:
    kafka.create("flights", partitions=2)
    kafka.create("slow", partitions=2)
    (home / "dags").mkdir()
    shutil.copy(ROOT / "examples" / "airflow" / "flights.py", home / "dags" / "flights.py")
    shutil.copy(Path(__file__).with_name("scheduled_dags.py"), home / "dags" / "scheduled_dags.py")
    connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": broker, "group.id": "others"}}
    with AirflowServer(home, {"AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(connection), "LAKE": str(lake)}) as server:
        yield server


def test_a_dag_scheduled_by_time_waits_and_lands_each_record_once(server: AirflowServer, kafka: Kafka, lake: Path):
    server.unpause("flights")
    server.unpause("flights_seen")
    # Nothing is there yet, so the sensor waits in the triggerer.
    server.wait(
        lambda: any(
            server.task("flights", run["dag_run_id"], "wait_for_records")["state"] == "deferred"
            for run in server.runs("flights")
        ),
        "the sensor to be deferred",
    )
    for partition in range(2):
        # Some on each of the first three days of 2026.
        for day in range(3):
            records = [(None, flight(100 * partition + 10 * day + number)) for number in range(5)]
            kafka.produce("flights", records, partition=partition, timestamp=FIRST_MS + day * DAY_MS + 1000)

    server.wait(lambda: server.events("flights"), "the table's event")
    server.pause("flights")

    expected = [
        (partition, 5 * day + number, 100 * partition + 10 * day + number)
        for partition in range(2)
        for day in range(3)
        for number in range(5)
    ]
    server.wait(lambda: landed.count(lake / "flights") == len(expected), "all records")
    assert landed.rows(lake / "flights", "kafka_partition", "kafka_offset", "flight") == sorted(expected)
    extras = [event["extra"] for event in server.events("flights")]
    assert sum(extra["delta/rows_written"] for extra in extras) == len(expected)
    assert extras[-1]["kafka/lag_after"] == 0
    assert extras[-1]["kafka/position"]["state"]["position"] == {"flights": [15, 15]}
    assert extras[-1]["delta/version"] == landed.version(lake / "flights")


def test_a_dag_scheduled_by_the_tables_event_is_told_what_was_landed(server: AirflowServer):
    (run, *_) = server.wait(lambda: server.ended("flights_seen"), "a run by an event")
    assert (run["run_type"], run["state"]) == ("asset_triggered", "success")
    told = server.returned("flights_seen", run["dag_run_id"], "tell")
    assert [extra["delta/version"] for extra in told]
    assert told[0] == server.events("flights")[0]["extra"]


def test_a_run_that_finds_nothing_new_starts_no_spark(server: AirflowServer, lake: Path):
    server.unpause("idle")
    server.wait(lambda: len(server.events("idle")) >= 2, "a second run")
    server.pause("idle")
    first, second = (event["extra"] for event in server.events("idle")[:2])
    assert (first["spark/started"], first["kafka/idle"], first["delta/rows_written"]) == (True, False, 30)
    assert (second["spark/started"], second["kafka/idle"], second["delta/rows_written"]) == (False, True, 0)
    assert landed.count(lake / "idle") == 30


def test_catchup_and_a_backfill_land_the_same_windows(server: AirflowServer, kafka: Kafka, lake: Path):
    server.unpause("flights_by_day")
    server.wait(lambda: len(server.ended("flights_by_day")) >= 3, "three days")
    assert [run["state"] for run in server.ended("flights_by_day")] == ["success"] * 3
    expected = sorted(
        (f"2026-01-0{day + 1}", partition, 5 * day + number, 100 * partition + 10 * day + number)
        for partition in range(2)
        for day in range(3)
        for number in range(5)
    )
    assert days(lake) == expected

    # One more of the second day, which came late.
    kafka.produce("flights", [(None, flight(999))], partition=1, timestamp=FIRST_MS + DAY_MS + 2000)
    server.command(
        *("backfill", "create", "--dag-id", "flights_by_day", "--reprocess-behavior", "completed"),
        *("--from-date", "2026-01-02", "--to-date", "2026-01-03", "--max-active-runs", "1"),
    )
    late = ("2026-01-02", 1, 15, 999)
    server.wait(lambda: late in days(lake), "the late record")
    server.wait(lambda: all(run["state"] == "success" for run in server.runs("flights_by_day")), "the backfill")
    assert days(lake) == sorted([*expected, late])


def test_a_task_that_is_killed_and_cleared_loses_and_doubles_nothing(server: AirflowServer, kafka: Kafka, lake: Path):
    for partition in range(2):
        kafka.produce("slow", [(None, f"{partition}-{number}") for number in range(5)], partition=partition)
    (lake / "slow").touch()
    server.unpause("slow")
    run = server.ask("POST", "/api/v2/dags/slow/dagRuns", {"logical_date": None})["dag_run_id"]
    server.wait((lake / "slow-began").exists, "the read")
    before = _jvms()
    assert before

    server.ask("PATCH", f"/api/v2/dags/slow/dagRuns/{run}/taskInstances/land", {"new_state": "failed"})

    server.wait(lambda: not any(jvm.is_alive() for jvm in before), "Spark's end")
    log = server.wait(lambda: _log(server, run), "the task's log")
    assert "interrupted; stopping the Spark jobs" in log
    # The first plan is always committed, if there was time: but no record of it.
    assert landed.count(lake / "slow_table") == 0

    (lake / "slow").unlink()
    server.ask(
        "POST",
        "/api/v2/dags/slow/clearTaskInstances",
        {"dry_run": False, "dag_run_id": run, "task_ids": ["land"], "only_failed": False, "reset_dag_runs": True},
    )
    server.wait(lambda: server.task("slow", run, "land")["state"] == "success", "the cleared task")
    expected = [(partition, number, f"{partition}-{number}") for partition in range(2) for number in range(5)]
    assert landed.rows(lake / "slow_table", "kafka_partition", "kafka_offset", "kafka_value") == expected
    assert server.returned("slow", run, "land")["delta/rows_written"] == 10


def test_the_ui_shows_the_table_with_its_events_and_the_form_of_a_connection(server: AirflowServer, lake: Path):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu", "--disable-quic"]
        )
        page = browser.new_page(viewport={"width": 1400, "height": 920}, timezone_id="UTC", locale="en-US")
        page.set_default_timeout(120_000)
        page.goto(server.url)
        page.locator('input[name="username"]').fill(USER)
        page.locator('input[name="password"]').fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.get_by_text("Welcome").first.wait_for()
        page.get_by_role("link", name="Assets").first.click()
        page.get_by_role("link", name="kafka_default/flights").wait_for()
        page.get_by_role("link", name=str(lake / "flights"), exact=True).click()
        page.get_by_text("flights_seen").first.wait_for()
        # The extra of the newest event is folded.
        page.locator(".codicon-folding-collapsed").first.click(force=True)
        for told in ("kafka/lag_after", "delta/rows_written", "delta/version", "kafka/position"):
            page.get_by_text(told).first.wait_for()
        if folder := os.environ.get("SCREENSHOTS"):
            page.mouse.move(0, 0)
            page.screenshot(path=Path(folder) / "airflow-asset.png", animations="disabled")

        page.goto(f"{server.url}/connections")
        page.get_by_role("button", name="Add Connection").click()
        page.get_by_role("combobox").first.click()
        page.keyboard.type("dagster-kafka-flip", delay=50)
        page.keyboard.press("Enter")
        page.get_by_text("Bootstrap servers").first.wait_for()
        page.get_by_text("Extra Fields", exact=True).click()
        page.get_by_text("Security protocol").first.wait_for()
        browser.close()


def _jvms() -> list[Any]:
    """The JVMs of this test's Airflow: it runs no other task meanwhile."""
    return [each for each in descendants(os.getpid()) if "org.apache.spark.deploy.SparkSubmit" in each.command]


def _log(server: AirflowServer, run: str) -> str:
    path = f"/api/v2/dags/slow/dagRuns/{run}/taskInstances/land/logs/1?full_content=true"
    text = json.dumps(server.ask("GET", path))
    return text if "interrupted" in text else ""
