"""Observed topics drive automation conditions: decided by Dagster itself, and carried out by its real daemon."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    AutomationCondition,
    DagsterInstance,
    DagsterRunStatus,
    Definitions,
    RunsFilter,
    asset,
    evaluate_automation_conditions,
    materialize,
)
from dagster._core.definitions.observe import observe
from dagster._core.scheduler.instigation import TickStatus

from dagster_kafka_flip import KafkaResource, KafkaSource, kafka_topic_asset, topic_asset_key
from tests.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.kafka_topic import Kafka

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).resolve().parent.parent
TABLE = AssetKey("numbers")
MIDNIGHT = datetime(2026, 3, 1, tzinfo=timezone.utc)


@dataclass
class Project:
    """Topics, and an asset downstream of them whose condition Dagster evaluates as its daemon would."""

    instance: DagsterInstance
    resources: dict[str, Any]
    topics: AssetsDefinition
    table: AssetsDefinition
    _cursor: Any = field(default=None)

    @classmethod
    def of(
        cls,
        instance: DagsterInstance,
        broker: str,
        topics: tuple[str, ...],
        condition: AutomationCondition[Any],
        during: Callable[[], None] = lambda: None,
    ) -> Project:
        """A project whose table is landed by something that happens during its run."""

        @asset(name="numbers", deps=[topic_asset_key(topic) for topic in topics], automation_condition=condition)
        def table() -> None:
            during()

        resources = {"kafka": KafkaResource(bootstrap_servers=broker)}
        return cls(instance, resources, kafka_topic_asset(KafkaSource(topics=topics)), table)

    def observe(self) -> None:
        observe([self.topics], instance=self.instance, resources=self.resources)

    def requested(self, at: datetime | None = None, *, lands: bool = True) -> int:
        """Evaluates once more: how many runs of the table are asked for. They land at once, or else never."""
        defs = Definitions(assets=[self.topics, self.table], resources=self.resources)
        result = evaluate_automation_conditions(defs, self.instance, evaluation_time=at, cursor=self._cursor)
        self._cursor = result.cursor
        number = result.get_num_requested(TABLE)
        for _ in range(number if lands else 0):
            self.land()
        return number

    def land(self) -> None:
        self.instance.report_runless_asset_event(AssetMaterialization(TABLE))


def test_eager_asks_for_one_run_after_each_observation_that_found_something_new(kafka, instance, broker, topic):
    kafka.create(topic)
    project = Project.of(instance, broker, (topic,), AutomationCondition.eager())
    assert project.requested() == 0, "the topic was never observed"
    kafka.produce(topic, [(None, "record")])
    assert project.requested() == 0, "nobody looked"
    project.observe()
    assert [project.requested() for _ in range(3)] == [1, 0, 0]
    project.observe()
    assert project.requested() == 0, "looked at again, and the same"
    for _ in range(2):
        kafka.produce(topic, [(None, "record")])
        project.observe()
    assert [project.requested() for _ in range(2)] == [1, 0], "two observations, one run"


def test_records_of_an_open_transaction_are_nothing_new_until_it_is_committed(kafka, instance, broker, topic):
    kafka.create(topic)
    kafka.produce(topic, [(None, "record")])
    project = Project.of(instance, broker, (topic,), AutomationCondition.eager())
    project.observe()
    project.land()
    assert project.requested() == 0
    transaction = kafka.open_transaction(topic, [(None, "not yet")])
    project.observe()
    assert project.requested() == 0
    transaction.commit()
    project.observe()
    assert project.requested() == 1


def test_eager_asks_for_a_run_when_a_topic_was_recreated(kafka, instance, broker, topic):
    kafka.create(topic)
    kafka.produce(topic, [(None, "record")])
    project = Project.of(instance, broker, (topic,), AutomationCondition.eager())
    project.observe()
    project.land()
    assert project.requested() == 0
    kafka.delete(topic)
    kafka.create(topic)
    # As long as the first.
    kafka.produce(topic, [(None, "record")])
    project.observe()
    assert project.requested() == 1, "that run is to say that the topic is another one"


def test_eager_asks_for_nothing_at_its_first_look(kafka, instance, broker, topic):
    kafka.create(topic)
    kafka.produce(topic, [(None, "record")])
    project = Project.of(instance, broker, (topic,), AutomationCondition.eager())
    project.observe()
    assert [project.requested() for _ in range(2)] == [0, 0], "what is there counts as known"


def test_eager_does_not_ask_again_where_a_run_failed(kafka, instance, broker, topic):
    kafka.create(topic)
    project = Project.of(instance, broker, (topic,), AutomationCondition.eager())
    assert project.requested() == 0
    kafka.produce(topic, [(None, "record")])
    project.observe()
    assert [project.requested(lands=False) for _ in range(2)] == [1, 0]
    kafka.produce(topic, [(None, "record")])
    project.observe()
    assert project.requested() == 1


def test_an_observation_during_a_run_waits_for_new_records_or_a_tick_in_addition_to_eager(
    kafka, instance, broker, topic
):
    kafka.create(topic)
    seen: list[int] = []

    def at(minutes: int) -> int:
        return project.requested(MIDNIGHT + timedelta(minutes=minutes), lands=False)

    def meanwhile() -> None:
        kafka.produce(topic, [(None, "behind the end that the run has planned")])
        project.observe()
        seen.append(at(4))

    condition = AutomationCondition.eager() | AutomationCondition.cron_tick_passed("@hourly")
    project = Project.of(instance, broker, (topic,), condition, meanwhile)
    assert at(1) == 0
    kafka.produce(topic, [(None, "record")])
    project.observe()
    assert [at(2), at(3)] == [1, 0]
    assert materialize([project.table], instance=instance, selection=[TABLE]).success
    assert seen == [0], "a run is under way"
    assert [at(5), at(59)] == [0, 0], "Dagster takes what was observed for landed"
    assert [at(61), at(62)] == [1, 0]


def test_on_cron_asks_at_its_tick_and_waits_for_what_was_not_observed_since(kafka, instance, broker, topic):
    kafka.create(topic)
    project = Project.of(instance, broker, (topic,), AutomationCondition.on_cron("@hourly"))

    def at(minutes: int) -> int:
        return project.requested(MIDNIGHT + timedelta(minutes=minutes))

    def news() -> None:
        kafka.produce(topic, [(None, "record")])
        project.observe()

    assert at(10) == 0
    news()
    assert at(20) == 0, "not its time yet"
    assert at(61) == 0, "its time, but the topic was looked at before it"
    project.observe()
    assert at(62) == 0, "looked at, and nothing new"
    news()
    assert [at(63), at(64)] == [1, 0]
    news()
    assert at(90) == 0, "once in an hour"
    assert at(121) == 0
    news()
    assert at(122) == 1


_PROJECT = """
from datetime import timedelta

from dagster import (
    AssetCheckResult, AssetCheckSpec, AutomationCondition, AutomationConditionSensorDefinition, DefaultSensorStatus,
    Definitions, MaterializeResult, asset, in_process_executor,
)

from dagster_kafka_flip import (
    JsonFormat, KafkaResource, KafkaSource, SparkResource, build_kafka_delta_asset, kafka_delta_checks,
    kafka_topic_asset, topic_asset_key,
)
from tests.faults.ingesting import SPARK_CONFIG

eager, cron, checked = (KafkaSource(topics=(topic,)) for topic in ("TOPIC-eager", "TOPIC-cron", "TOPIC-checked"))
landed = build_kafka_delta_asset(
    name="checked",
    source=checked,
    table="warehouse/checked",
    value_format=JsonFormat("n INT", on_error="null"),
    automation_condition=AutomationCondition.eager(),
)

@asset(
    deps=[landed], check_specs=[AssetCheckSpec("own", asset="after")], automation_condition=AutomationCondition.eager()
)
def after():
    yield MaterializeResult()
    yield AssetCheckResult(check_name="own", passed=True)

# When it runs is what is asked of it, and nothing that Spark has a part in.
@asset(deps=[topic_asset_key("TOPIC-cron")], automation_condition=AutomationCondition.on_cron("* * * * *"))
def by_cron():
    pass

defs = Definitions(
    assets=[
        kafka_topic_asset(eager),
        build_kafka_delta_asset(
            name="eager", source=eager, table="warehouse/eager", automation_condition=AutomationCondition.eager()
        ),
        kafka_topic_asset(cron),
        by_cron,
        kafka_topic_asset(checked),
        landed,
        after,
    ],
    asset_checks=kafka_delta_checks(landed, max_lag=10, max_delay=timedelta(hours=1), max_rejected=100),
    sensors=[
        AutomationConditionSensorDefinition(
            "automation", target="*", minimum_interval_seconds=1, default_status=DefaultSensorStatus.RUNNING
        )
    ],
    resources={
        "kafka": KafkaResource(bootstrap_servers="BROKER"),
        "spark": SparkResource(master="local[2]", config=SPARK_CONFIG),
    },
    # One process for each run, and not for its step too.
    executor=in_process_executor,
)
"""


@dataclass(frozen=True)
class Daemon:
    """A running daemon, the instance that it looks after, and when it had evaluated all conditions once."""

    process: subprocess.Popen[bytes]
    log: Path
    project: Path
    instance: DagsterInstance
    topic: str
    kafka: Kafka
    began: datetime

    def wait_for(self, condition: Any) -> None:
        def is_so() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return condition()

        wait_until(is_so, seconds=300)

    def wait_for_evaluations(self, number: int) -> None:
        """Waits until conditions were evaluated so many times more, from the beginning of each to its end."""
        # The one that is under way may have looked before.
        wanted = self.evaluations() + 1 + number
        self.wait_for(lambda: self.evaluations() >= wanted)

    def evaluations(self) -> int:
        (sensor,) = self.instance.all_instigator_state() or (None,)
        if sensor is None:
            return 0
        ticks = self.instance.get_ticks(sensor.instigator_origin_id, sensor.selector_id)
        failures = [tick.error for tick in ticks if tick.status is TickStatus.FAILURE]
        assert not failures, failures
        return max((int(tick.tick_id) for tick in ticks if tick.end_timestamp is not None), default=0)

    def observe(self, topic: str, records: int) -> None:
        """Adds records to a topic, and looks at it as a schedule would."""
        self.kafka.produce(topic, [(None, "record")] * records)
        defs = runpy.run_path(str(self.project))["defs"]
        wanted = defs.get_assets_def(topic_asset_key(topic))
        observe([wanted], instance=self.instance, resources=defs.resources)

    def runs(self, name: str) -> list[Any]:
        """The runs of an asset, the newest first."""
        runs = self.instance.get_runs(RunsFilter(tags={"dagster/from_automation_condition": "true"}))
        return [run for run in runs if AssetKey(name) in (run.asset_selection or ())]

    def wait_for_end(self, name: str) -> dict[str, Any]:
        """Waits until an asset's newest run has ended well; gives what it told."""
        self.wait_for(lambda: bool(self.runs(name)) and self.runs(name)[0].is_finished)
        run = self.runs(name)[0]
        assert run.status is DagsterRunStatus.SUCCESS, self.log.read_text()
        event = self.instance.get_latest_materialization_event(AssetKey(name))
        assert event is not None
        assert event.run_id == run.run_id
        assert event.asset_materialization is not None
        return {key: value.value for key, value in event.asset_materialization.metadata.items()}


@pytest.fixture(scope="module")
def daemon(kafka: Kafka, broker: str, tmp_path_factory: pytest.TempPathFactory) -> Generator[Daemon]:
    folder = tmp_path_factory.mktemp("automation")
    home, log, project = folder / "home", folder / "daemon.log", folder / "project.py"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    topic = f"automation-{os.getpid()}"
    for name in ("eager", "cron", "checked"):
        kafka.create(f"{topic}-{name}")
    project.write_text(_PROJECT.replace("TOPIC", topic).replace("BROKER", broker))
    with DagsterInstance.from_config(str(home)) as instance, _running(project, home, log) as process:
        daemon = Daemon(process, log, project, instance, topic, kafka, datetime.now(tz=timezone.utc))
        daemon.wait_for_evaluations(1)
        yield replace(daemon, began=datetime.now(tz=timezone.utc))


@contextmanager
def _running(project: Path, home: Path, log: Path) -> Generator[subprocess.Popen[bytes]]:
    command = [str(Path(sys.executable).with_name("dagster-daemon")), "run", "-f", str(project)]
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=project.parent,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_daemon_lands_new_records_once_and_starts_nothing_where_there_are_none(daemon: Daemon):
    topic = f"{daemon.topic}-eager"
    assert daemon.runs("eager") == []
    daemon.observe(topic, 3)
    landed = daemon.wait_for_end("eager")
    assert (landed["delta/rows_written"], landed["dagster/row_count"]) == (3, 3)

    daemon.observe(topic, 0)
    daemon.wait_for_evaluations(2)
    assert len(daemon.runs("eager")) == 1


@pytest.mark.nightly
def test_the_daemon_waits_at_a_cron_tick_until_the_topic_was_observed(daemon: Daemon):
    topic = f"{daemon.topic}-cron"
    # The first tick that the daemon has met, which may be over by now.
    minute = daemon.began.replace(second=0, microsecond=0) + timedelta(minutes=1)
    daemon.wait_for(lambda: datetime.now(tz=timezone.utc) > minute)
    daemon.wait_for_evaluations(2)
    assert daemon.runs("by_cron") == [], "its tick is over, and nobody has looked at the topic"

    daemon.observe(topic, 2)
    daemon.wait_for_end("by_cron")


@pytest.mark.nightly
@pytest.mark.slow
def test_the_daemons_runs_evaluate_each_check_of_each_asset_in_them(daemon: Daemon):
    defs = runpy.run_path(str(daemon.project))["defs"]
    keys = defs.resolve_asset_graph().asset_check_keys
    assert len(keys) == 10
    for times in (1, 2):
        daemon.observe(f"{daemon.topic}-checked", times)
        for name in ("checked", "after"):
            daemon.wait_for(lambda wanted=times, name=name: len(daemon.runs(name)) == wanted)
            daemon.wait_for_end(name)
        ended = {daemon.runs(name)[0].run_id for name in ("checked", "after")}
        for key in keys:
            (latest,) = daemon.instance.event_log_storage.get_asset_check_execution_history(key, limit=1)
            assert (key, latest.run_id in ended, latest.evaluation is not None) == (key, True, True)
    daemon.observe(f"{daemon.topic}-checked", 0)
    daemon.wait_for_evaluations(2)
    assert (len(daemon.runs("checked")), len(daemon.runs("after"))) == (2, 2)
