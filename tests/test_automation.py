"""Observed topics drive automation conditions: decided by Dagster itself, and carried out by its real daemon."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
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
)
from dagster._core.definitions.observe import observe
from dagster._core.scheduler.instigation import TickStatus

from dagster_kafka_flip import KafkaResource, KafkaSource, kafka_topic_asset, topic_asset_key
from tests.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.kafka_topic import Kafka

pytestmark = pytest.mark.kafka

ROOT = Path(__file__).resolve().parent.parent
TABLE = AssetKey("numbers")


@dataclass
class Project:
    """A topic, and an asset downstream of it whose condition Dagster evaluates as its daemon would."""

    instance: DagsterInstance
    resources: dict[str, Any]
    topics: AssetsDefinition
    table: AssetsDefinition
    _cursor: Any = field(default=None)

    @classmethod
    def of(cls, instance: DagsterInstance, broker: str, topic: str) -> Project:
        """A project whose table follows a topic."""

        @asset(name="numbers", deps=[topic_asset_key(topic)], automation_condition=AutomationCondition.eager())
        def table() -> None:
            pass

        resources = {"kafka": KafkaResource(bootstrap_servers=broker)}
        return cls(instance, resources, kafka_topic_asset(KafkaSource(topics=(topic,))), table)

    def observe(self) -> None:
        observe([self.topics], instance=self.instance, resources=self.resources)

    def requested(self) -> int:
        """Evaluates once more: how many runs of the table are asked for. They land at once."""
        defs = Definitions(assets=[self.topics, self.table], resources=self.resources)
        result = evaluate_automation_conditions(defs, self.instance, cursor=self._cursor)
        self._cursor = result.cursor
        number = result.get_num_requested(TABLE)
        for _ in range(number):
            self.land()
        return number

    def land(self) -> None:
        self.instance.report_runless_asset_event(AssetMaterialization(TABLE))


def test_eager_asks_for_one_run_after_each_observation_that_found_something_new(kafka, instance, broker, topic):
    kafka.create(topic)
    project = Project.of(instance, broker, topic)
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


def test_an_open_transaction_is_nothing_new_until_it_is_committed_and_a_recreated_topic_is(
    kafka, instance, broker, topic
):
    kafka.create(topic)
    kafka.produce(topic, [(None, "record")])
    project = Project.of(instance, broker, topic)
    project.observe()
    project.land()
    assert project.requested() == 0
    transaction = kafka.open_transaction(topic, [(None, "not yet")])
    project.observe()
    assert project.requested() == 0
    transaction.commit()
    project.observe()
    assert [project.requested() for _ in range(2)] == [1, 0]
    kafka.delete(topic)
    kafka.create(topic)
    # As long as the first.
    kafka.produce(topic, [(None, "record")] * 3)
    project.observe()
    assert project.requested() == 1, "that run is to say that the topic is another one"


_PROJECT = """
from dagster import (
    AutomationCondition, AutomationConditionSensorDefinition, DefaultSensorStatus, Definitions, in_process_executor
)

from dagster_kafka_flip import (
    KafkaResource, KafkaSource, SparkResource, build_kafka_delta_asset, kafka_topic_asset
)
from tests.faults.ingesting import SPARK_CONFIG

eager = KafkaSource(topics=("TOPIC",))
defs = Definitions(
    assets=[
        kafka_topic_asset(eager),
        build_kafka_delta_asset(
            name="eager", source=eager, table="warehouse/eager", automation_condition=AutomationCondition.eager()
        ),
    ],
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
    """A running daemon, which has evaluated all conditions once, and the instance that it looks after."""

    process: subprocess.Popen[bytes]
    log: Path
    project: Path
    instance: DagsterInstance
    topic: str
    kafka: Kafka

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
    kafka.create(topic)
    project.write_text(_PROJECT.replace("TOPIC", topic).replace("BROKER", broker))
    with DagsterInstance.from_config(str(home)) as instance, _running(project, home, log) as process:
        daemon = Daemon(process, log, project, instance, topic, kafka)
        daemon.wait_for_evaluations(1)
        yield daemon


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
    topic = daemon.topic
    assert daemon.runs("eager") == []
    daemon.observe(topic, 3)
    landed = daemon.wait_for_end("eager")
    assert (landed["delta/rows_written"], landed["dagster/row_count"]) == (3, 3)

    daemon.observe(topic, 0)
    daemon.wait_for_evaluations(2)
    assert len(daemon.runs("eager")) == 1
