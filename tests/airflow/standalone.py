"""A real Airflow runs the example's DAGs: scheduled by time and by events, backfilled, killed and cleared.

`make test-airflow` runs this; it takes minutes, so `make test` does not.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_kafka_flip import KafkaConnection
from tests import landed
from tests.airflow.server import PASSWORD, USER, AirflowServer
from tests.debezium.postgres import Postgres
from tests.document_tests import ROOT
from tests.kafka_topic import Kafka, committed_records
from tests.processes import Process, descendants

if TYPE_CHECKING:
    from playwright.sync_api import Page

DAY_MS = 86_400_000
FIRST_MS = int(datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp() * 1000)


def flight(number: int) -> str:
    return json.dumps({"carrier": "AA", "flight": number, "dep_delay": number % 7})


def days(lake: Path) -> list[tuple[Any, ...]]:
    return landed.rows(
        lake / "flights_by_day", "substr(kafka_window, 1, 10)", "kafka_partition", "kafka_offset", "flight"
    )


def logged(connection: KafkaConnection, topic: str) -> list[tuple[Any, ...]]:
    """What a topic of texts has, record by record."""
    return [
        (record.topic_partition.partition, record.offset, (record.value or b"").decode(errors="replace"))
        for record in committed_records(connection, topic)
    ]


def texts(table: Path) -> list[tuple[Any, ...]]:
    """What a table of texts has, row by row."""
    return landed.rows(table, "kafka_partition", "kafka_offset", "kafka_value")


class Hold:
    """Stops the task that reads a value, until it is let go."""

    def __init__(self, lake: Path, value: str) -> None:
        self._hold, self._held = lake / "hold" / value, lake / "held" / value
        for file in (self._hold, self._held):
            file.parent.mkdir(exist_ok=True)
        self._hold.touch()

    def count(self) -> int:
        """How many tasks have read the value."""
        return self._held.stat().st_size if self._held.exists() else 0

    def let_go(self) -> None:
        """Lets them go on, and holds no more."""
        self._hold.unlink()


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
    for topic in ("flights", "slow", "killed", "by_key"):
        kafka.create(topic, partitions=2)
    (home / "dags").mkdir()
    shutil.copy(ROOT / "examples" / "airflow" / "flights.py", home / "dags" / "flights.py")
    shutil.copy(Path(__file__).with_name("scheduled_dags.py"), home / "dags" / "scheduled_dags.py")
    connection = {"conn_type": "kafka", "extra": {"bootstrap.servers": broker, "group.id": "others"}}
    environment = {"AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(connection), "LAKE": str(lake)}
    with Postgres() as database, AirflowServer(home, database.url, environment) as server:
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
    assert extras[-1]["kafka/checkpoint"]["state"]["position"] == {"flights": [15, 15]}
    assert extras[-1]["delta/version"] == landed.version(lake / "flights")


def test_a_dag_scheduled_by_the_tables_event_gets_what_was_landed(server: AirflowServer):
    (run, *_) = server.wait(lambda: server.ended("flights_seen"), "a run by an event")
    assert (run["run_type"], run["state"]) == ("asset_triggered", "success")
    reported = server.returned("flights_seen", run["dag_run_id"], "tell")
    assert [extra["delta/version"] for extra in reported]
    assert reported[0] == server.events("flights")[0]["extra"]


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
        server.wait(lambda: _is_unfolded(page), "the extra of the newest event")
        for reported in ("kafka/lag_after", "delta/rows_written", "delta/version", "kafka/checkpoint"):
            page.get_by_text(reported).first.wait_for()
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


def test_a_task_that_is_killed_and_cleared_loses_and_doubles_nothing(
    server: AirflowServer, kafka: Kafka, connection: KafkaConnection, lake: Path
):
    for partition in range(2):
        kafka.produce("slow", [(None, f"slow-{partition}-{number}") for number in range(5)], partition=partition)
    hold = Hold(lake, "slow-0-0")
    server.unpause("slow")
    run = server.trigger("slow")
    server.wait(hold.count, "the read")
    before = _jvms()
    assert before
    links = server.ask("GET", f"/api/v2/dags/slow/dagRuns/{run}/taskInstances/land/links")["extra_links"]
    with urllib.request.urlopen(links["Spark UI"], timeout=60) as page:
        assert b"Spark" in page.read()

    server.ask("PATCH", f"/api/v2/dags/slow/dagRuns/{run}/taskInstances/land", {"new_state": "failed"})

    server.wait(lambda: not any(jvm.is_alive() for jvm in before), "Spark's end")
    server.wait(lambda: "interrupted; stopping the Spark jobs" in server.log("slow", run, "land", 1), "the task's log")
    # The first plan is always committed, if there was time: but no record of it.
    assert landed.count(lake / "slow") == 0

    hold.let_go()
    server.clear("slow", run)
    server.wait(lambda: server.task("slow", run, "land")["state"] == "success", "the cleared task")
    assert texts(lake / "slow") == logged(connection, "slow")
    assert server.returned("slow", run, "land")["delta/rows_written"] == 10


def test_a_retry_goes_on_where_a_worker_died_in_the_middle_of_a_write(
    server: AirflowServer, kafka: Kafka, connection: KafkaConnection, lake: Path
):
    for partition in range(2):
        kafka.produce("killed", [(None, f"killed-{partition}-{number}") for number in range(5)], partition=partition)
    kafka.produce("killed", [(None, "killed-1-" + 240 * "x")], partition=1)
    # One of the last batch.
    hold = Hold(lake, "killed-0-4")
    server.unpause("killed")
    run = server.trigger("killed")
    server.wait(hold.count, "the last batch")
    committed = landed.count(lake / "killed")
    assert 0 < committed < 11

    _kill_worker(server)
    hold.let_go()
    server.wait(lambda: server.task("killed", run, "land")["state"] == "success", "the retry")
    assert server.task("killed", run, "land")["try_number"] == 2
    assert texts(lake / "killed") == logged(connection, "killed")
    reported = server.returned("killed", run, "land")
    assert (reported["delta/rows_written"], reported["delta/unreported_rows"]) == (11 - committed, committed)


def test_runs_of_partition_keys_land_their_days_and_events_with_keys_their_month(
    server: AirflowServer, kafka: Kafka, connection: KafkaConnection, lake: Path
):
    for partition in range(2):
        for day in (0, 1, 31):
            records = [(None, f"{day}-{partition}-{number}") for number in range(2)]
            kafka.produce("by_key", records, partition=partition, timestamp=FIRST_MS + day * DAY_MS)
    server.unpause("by_key")
    server.unpause("by_month")
    server.wait(lambda: len(server.ended("by_key")) == 2, "two days")
    assert [(run["partition_key"], run["state"]) for run in server.runs("by_key")] == [
        ("2026-01-01", "success"),
        ("2026-01-02", "success"),
    ]
    assert [event["partition_key"] for event in server.events("by_key")] == ["2026-01-01", "2026-01-02"]

    def january() -> list[tuple[Any, ...]]:
        # Not what February has.
        return [row for row in logged(connection, "by_key") if not row[2].startswith("31-")]

    server.wait(lambda: (lake / "by_month").exists() and texts(lake / "by_month") == january(), "the month")
    assert texts(lake / "by_key") == january()
    assert {run["partition_key"] for run in server.runs("by_month")} == {"2026-01"}

    # Of the first day, which came late.
    kafka.produce("by_key", [(None, "0-1-late")], partition=1, timestamp=FIRST_MS + 1)
    server.command(
        *("backfill", "create", "--dag-id", "by_key", "--reprocess-behavior", "completed"),
        *("--from-date", "2026-01-01", "--to-date", "2026-01-01"),
    )
    server.wait(lambda: texts(lake / "by_key") == january(), "the late record's day")
    server.wait(lambda: texts(lake / "by_month") == january(), "the late record's month")
    for dag in ("by_key", "by_month"):
        server.wait(lambda dag=dag: {run["state"] for run in server.runs(dag)} == {"success"}, dag)
    assert landed.rows(lake / "by_month", "kafka_window")[0][0].startswith("2026-01-01")


def _is_unfolded(page: Page) -> bool:
    """Whether an event's extra is open; if not, opens it. The page folds it as soon as it is there, and once more."""
    folded = page.locator(".codicon-folding-collapsed")
    # Inside of the open extra, the position is folded.
    if folded.count() and page.get_by_text("kafka/lag_after").count():
        return True
    if folded.count():
        folded.first.click(force=True)
    return False


def _kill_worker(server: AirflowServer) -> None:
    """SIGKILL for the worker that runs the only task with Spark; returns when Spark, which nobody ended, has ended."""
    (jvm,) = _jvms()
    (task,) = (each for each in descendants(os.getpid()) if each.pid == jvm.parent)
    # The worker first: nothing is left that could tell Airflow.
    for pid in (task.parent, task.pid):
        os.kill(pid, signal.SIGKILL)
    server.wait(lambda: not jvm.is_alive(), "the end of Spark, which nobody ended")


def _jvms() -> list[Process]:
    """The JVMs of Spark in this test's Airflow: it runs no other task meanwhile."""
    return [each for each in descendants(os.getpid()) if "org.apache.spark.deploy.SparkSubmit" in each.command]
