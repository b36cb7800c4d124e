"""What runs when Dagster's conditions start it: which checks, and which topics are looked at."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckKey,
    AssetCheckResult,
    AssetCheckSpec,
    AssetKey,
    AssetSelection,
    AutomationCondition,
    DagsterInstance,
    Definitions,
    MaterializeResult,
    RetryPolicy,
    asset,
    asset_check,
    define_asset_job,
    materialize,
)
from dagster._core.definitions.asset_daemon_cursor import AssetDaemonCursor
from dagster._core.definitions.automation_tick_evaluation_context import AutomationTickEvaluationContext

from dagster_kafka_flip import (
    JsonFormat,
    KafkaDeltaTable,
    KafkaResource,
    KafkaSource,
    OffsetsInitializer,
    SparkResource,
    build_kafka_delta_asset,
    build_kafka_delta_multi_asset,
    kafka_delta_checks,
    kafka_topic_asset,
    topic_asset_key,
)
from tests import landed
from tests.test_component import DELTA, RESOURCES, load

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dagster import ExecuteInProcessResult, RunRequest

LANDED, REPORT = AssetKey("landed"), AssetKey("report")
MIDNIGHT = datetime(2026, 3, 1, tzinfo=timezone.utc)


class Daemon:
    """Evaluates conditions, and runs what they ask for, as Dagster's daemon does: in this process."""

    def __init__(self, defs: Definitions, instance: DagsterInstance, at: datetime | None = None) -> None:
        self._defs, self._instance = defs, instance
        self._cursor = AssetDaemonCursor.empty()
        self.tick(at)

    def tick(self, at: datetime | None = None) -> Sequence[RunRequest]:
        """The runs that the conditions ask for now."""
        context = AutomationTickEvaluationContext(
            evaluation_id=self._cursor.evaluation_id + 1,
            instance=self._instance,
            asset_graph=self._defs.resolve_asset_graph(),
            cursor=self._cursor,
            materialize_run_tags={},
            observe_run_tags={},
            auto_observe_asset_keys=set(),
            asset_selection=AssetSelection.all(include_sources=True) | AssetSelection.all_asset_checks(),
            logger=logging.getLogger(__name__),
            emit_backfills=False,
            evaluation_time=at,
        )
        requests, self._cursor, _ = context.evaluate()
        return requests

    def run(self, request: RunRequest) -> ExecuteInProcessResult:
        """Runs what is asked for, with the list of checks if there is one."""
        checks = request.asset_check_keys
        job = self._defs.resolve_implicit_global_asset_job_def().get_subset(
            asset_selection=set(request.asset_selection or ()),
            asset_check_selection=None if checks is None else set(checks),
        )
        return job.execute_in_process(instance=self._instance)


def _evaluated(result: ExecuteInProcessResult) -> set[AssetCheckKey]:
    return {evaluation.asset_check_key for evaluation in result.get_asset_check_evaluations()}


@pytest.mark.kafka
@pytest.mark.spark
def test_runs_that_a_condition_starts_evaluate_every_check_of_every_asset_in_them(
    kafka, instance, resources, topic, table
):
    source = KafkaSource(topics=(topic,))
    made = build_kafka_delta_asset(
        name="landed",
        source=source,
        table=table,
        value_format=JsonFormat("n INT"),
        automation_condition=AutomationCondition.eager(),
    )

    # A user's own asset whose step can't do without its check, and one whose check is a step of its own.
    @asset(
        deps=[made],
        check_specs=[AssetCheckSpec("inside", asset="report")],
        automation_condition=AutomationCondition.eager(),
    )
    def report():
        yield MaterializeResult()
        yield AssetCheckResult(check_name="inside", passed=True)

    @asset_check(asset=report)
    def outside() -> AssetCheckResult:
        return AssetCheckResult(passed=True)

    topics = kafka_topic_asset(source)
    defs = Definitions(
        assets=[topics, made, report],
        asset_checks=[*kafka_delta_checks(made, max_lag=10, max_delay=timedelta(hours=1)), outside],
        resources=resources,
    )
    kafka.create(topic)
    observing = defs.resolve_implicit_global_asset_job_def().get_subset(asset_selection={topic_asset_key(topic)})
    observing.execute_in_process(instance=instance)
    daemon = Daemon(defs, instance)
    kafka.produce(topic, [(None, '{"n": 1}')])
    observing.execute_in_process(instance=instance)

    (request,) = daemon.tick()
    assert set(request.asset_selection or ()) == {LANDED, REPORT}
    assert _evaluated(daemon.run(request)) == {
        *(
            AssetCheckKey(LANDED, name)
            for name in (
                "schema_fits",
                "no_gap",
                "no_duplicate",
                "same_log",
                "lag_below",
                "watermark_fresh",
                "column_schema_change",
            )
        ),
        AssetCheckKey(REPORT, "inside"),
        AssetCheckKey(REPORT, "outside"),
    }
    assert landed.values(table, "n") == [1]
    assert daemon.tick() == []


@pytest.mark.kafka
@pytest.mark.spark
def test_an_idle_run_hides_no_failure_of_a_check_and_holds_back_nothing_that_waits_for_one(
    kafka, instance, resources, topic, table
):
    made = build_kafka_delta_asset(
        name="landed", source=KafkaSource(topics=(topic,)), table=table, value_format=JsonFormat("n INT")
    )
    ticks = AutomationCondition.cron_tick_passed("* * * * *")

    @asset(deps=[made], automation_condition=ticks & AutomationCondition.all_deps_blocking_checks_passed())
    def report() -> None:
        pass

    @asset_check(asset=made)
    def of_the_user() -> AssetCheckResult:
        return AssetCheckResult(passed=False, description="three rows lack a name")

    defs = Definitions(
        assets=[made, report], asset_checks=[*kafka_delta_checks(made, max_lag=10), of_the_user], resources=resources
    )
    kafka.create(topic)
    kafka.produce(topic, [(None, '{"m": 1}')])
    names = ("schema_fits", "no_gap", "no_duplicate", "lag_below", "of_the_user")

    def land() -> dict[str, tuple[str, str | None]]:
        job = defs.resolve_implicit_global_asset_job_def().get_subset(asset_selection={LANDED})
        assert job.execute_in_process(instance=instance).success
        newest = instance.event_log_storage.get_latest_asset_check_execution_by_key(
            [AssetCheckKey(LANDED, name) for name in names]
        )
        return {
            key.name: (found.status.value, getattr(found.evaluation, "description", None))
            for key, found in newest.items()
            if found is not None
        }

    before = land()
    assert {name: status for name, (status, _) in before.items()} == {
        "schema_fits": "FAILED",
        "no_gap": "SUCCEEDED",
        "no_duplicate": "SUCCEEDED",
        "lag_below": "SUCCEEDED",
        "of_the_user": "FAILED",
    }
    daemon = Daemon(defs, instance, MIDNIGHT)
    assert len(daemon.tick(MIDNIGHT + timedelta(minutes=2))) == 1
    # What passed at that time may be wrong by now, and what failed may pass.
    for passed in (True, False):
        lag = AssetCheckEvaluation(LANDED, "lag_below", passed=passed, metadata={})
        instance.report_runless_asset_event(lag)
        assert land() == {**before, "lag_below": ("PLANNED", None)}
    assert len(daemon.tick(MIDNIGHT + timedelta(minutes=4))) == 1, "no check has failed since"


@pytest.mark.kafka
@pytest.mark.spark
def test_a_tables_own_check_is_evaluated_also_if_the_run_has_a_list_without_it(
    kafka, instance, resources, topic, table
):
    kafka.create(topic)
    kafka.produce(topic, [(None, '{"n": 1}')])
    source = KafkaSource(topics=(topic,))
    one = build_kafka_delta_asset(name="one", source=source, table=f"{table}/1", value_format=JsonFormat("n INT"))
    spec = KafkaDeltaTable("many", table=f"{table}/2", value_format=JsonFormat("n INT"))
    several = build_kafka_delta_multi_asset(name="several", source=source, tables=[spec])
    names = {AssetCheckKey(AssetKey(name), "schema_fits") for name in ("one", "many")}

    def run(selection: AssetSelection) -> tuple[set[AssetCheckKey], list[str]]:
        job = Definitions(assets=[one, several], resources=resources, jobs=[define_asset_job("some", selection)])
        result = job.resolve_job_def("some").execute_in_process(instance=instance)
        warnings = [entry for entry in instance.all_logs(result.run_id) if entry.level >= logging.WARNING]
        return _evaluated(result), [entry.user_message for entry in warnings]

    everything = AssetSelection.assets(one, several)
    assert run(everything - AssetSelection.all_asset_checks()) == (names, [])
    assert run(everything) == (names, [])
    # A job of all checks goes on.
    evaluated, warnings = run(AssetSelection.all_asset_checks())
    assert evaluated == set()
    assert all("only a run that lands the asset evaluates it" in line for line in warnings)
    assert len(warnings) == 2


def test_topics_of_many_components_are_one_step_and_each_keeps_its_own_options():
    files = {
        f"t{number}": f"{DELTA}  source: {{topics: [t{number}]}}\n  table: lake/t{number}\n  group_name: g{number}\n"
        for number in range(8)
    }
    defs = load(
        resources=RESOURCES,
        **files,
        elsewhere=DELTA + "  source: {topics: [t0]}\n  table: lake/x\n  kafka: other\n",
        timed=DELTA + "  source: {topics: [t9, t0]}\n  table: lake/timed_{topic}\n  name: timed_{name}\n"
        "  group_name: '{name}'\n  observe_topics: {schedule: '*/5 * * * *'}\n",
        more=RESOURCES.replace("spark: {}", "kafka_key: other"),
    )
    graph = defs.resolve_asset_graph()
    keys = [topic_asset_key(f"t{number}") for number in (*range(8), 9)]
    assert len({graph.get(key).assets_def.op.name for key in keys}) == 1
    assert [graph.get(key).group_name for key in keys] == [*(f"g{number}" for number in range(8)), "t9"]
    # The same name in another cluster is another topic.
    assert graph.get(AssetKey("elsewhere")).parent_keys == {AssetKey(["other", "t0"])}
    schedule = defs.resolve_schedule_def("observe_topics_of_timed_t0")
    selected = defs.resolve_job_def(schedule.job_name).asset_layer.selected_asset_keys
    assert selected == {topic_asset_key("t0"), topic_asset_key("t9")}


def test_a_topic_is_observed_for_the_component_that_waits_for_it_also_if_another_one_reads_it_first():
    first = f"{DELTA}  source: {{topics: [a, b]}}\n  table: lake/{{topic}}\n"
    waits = f'{DELTA}  source: {{topics: [b]}}\n  table: lake/CRON\n  automation_condition: "CONDITION"\n'
    eager = waits.replace("CONDITION", "{{ dg.AutomationCondition.eager() }}").replace("CRON", "eager")
    hourly = waits.replace("CONDITION", "{{ dg.AutomationCondition.on_cron('@hourly') }}").replace("CRON", "hourly")
    owned = "  observe_topics: {owners: ['team:a']}\n"
    for later, when in (
        ({"second": eager + owned}, "on_cron(*/5 * * * *, UTC)"),
        ({"second": hourly + owned}, "on_cron(@hourly, UTC)"),
        ({"second": hourly + owned, "third": eager}, "on_cron(*/5 * * * *, UTC)"),
    ):
        graph = load(resources=RESOURCES, first=first, **later).resolve_asset_graph()
        alone, shared = (graph.get(topic_asset_key(name)) for name in "ab")
        assert (alone.automation_condition, [*shared.owners]) == (None, ["team:a"])
        assert (shared.automation_condition and shared.automation_condition.get_label()) == when


@pytest.mark.kafka
@pytest.mark.spark
def test_only_errors_that_may_pass_are_retried_and_each_failure_begins_with_its_message(
    kafka, broker, instance, topic, table
):
    def failed(name: str, address: str = broker) -> tuple[int, Any]:
        """How often Dagster tried again, and the failure that it shows."""
        # Nobody answers at another address.
        waits = {} if address == broker else {"request_timeout": 2}
        made = build_kafka_delta_asset(
            name="landed",
            source=KafkaSource(topics=(name,)),
            table=table,
            value_format=JsonFormat("n INT"),
            retry_policy=RetryPolicy(max_retries=1),
        )
        result = materialize(
            [made],
            instance=instance,
            resources={"kafka": KafkaResource(bootstrap_servers=address, **waits), "spark": SparkResource()},
            raise_on_error=False,
        )
        retries = [event for event in result.all_events if event.event_type_value == "STEP_UP_FOR_RETRY"]
        ((failure,),) = [[event.step_failure_data for event in result.get_step_failure_events()]]
        return len(retries), failure.user_failure_data

    kafka.create(topic)
    kafka.produce(topic, [(None, "no JSON")])
    retries, shown = failed(topic)
    assert (retries, shown.description[:24]) == (0, "1 record can't be decoded"[:24])
    retries, shown = failed(topic, "127.0.0.1:1")
    assert (retries, "127.0.0.1:1" in shown.description) == (1, True)
    spoilt = f"{topic}-trimmed"
    kafka.create(spoilt)
    kafka.produce(spoilt, [(None, '{"n": 1}')] * 9)
    part = KafkaSource(
        topics=(spoilt,), stopping_offsets=OffsetsInitializer.parse(f'offsets:{{"{spoilt}": {{"0": 4}}}}')
    )
    resources = {"kafka": KafkaResource(bootstrap_servers=broker), "spark": SparkResource()}
    begun = build_kafka_delta_asset(name="landed", source=part, table=table, value_format=JsonFormat("n INT"))
    assert materialize([begun], instance=instance, resources=resources).success
    kafka.trim(spoilt, 0, 7)
    retries, shown = failed(spoilt)
    assert retries == 0
    assert "retention" in shown.description.lower() or "gone" in shown.description
    assert shown.metadata[f"log_start_offsets/{spoilt}-0"].value == 7
