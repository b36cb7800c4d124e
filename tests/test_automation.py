"""Observed topics drive automation conditions: decided by Dagster itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from dagster import (
    AssetKey,
    AssetMaterialization,
    AssetsDefinition,
    AutomationCondition,
    DagsterInstance,
    Definitions,
    asset,
    evaluate_automation_conditions,
)
from dagster._core.definitions.observe import observe

from dagster_kafka_flip import KafkaResource, KafkaSource, kafka_topic_asset, topic_asset_key

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.kafka

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
