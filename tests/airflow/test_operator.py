"""What an operator and a sensor are given: checked where the DAG is parsed, and told as assets."""

from __future__ import annotations

import contextlib
import json
import runpy
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from airflow.sdk import DAG, Asset, AssetAlias, CronPartitionTimetable
from airflow.sdk.exceptions import AirflowRuntimeError, AirflowSkipException, ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse
from airflow.serialization.serialized_objects import DagSerialization

from dagster_kafka_flip import (
    DeadLetters,
    DeltaSource,
    DeltaTarget,
    EnumeratorState,
    JsonFormat,
    JsonSerializer,
    KafkaConnection,
    KafkaSink,
    KafkaSource,
    OffsetsInitializer,
    TopicPartition,
    Upsert,
    Windows,
)
from dagster_kafka_flip.airflow import (
    DeltaToKafkaOperator,
    KafkaLagSensor,
    KafkaToDeltaOperator,
    SparkSettings,
    event_extra,
    kafka_to_delta,
    table_asset,
    topic_asset,
)
from dagster_kafka_flip.airflow.asset_uris import is_table_asset, is_topic_asset
from dagster_kafka_flip.airflow.event_extra import LastKnown
from dagster_kafka_flip.airflow.given import rendered_target, source_from_json, source_to_json
from dagster_kafka_flip.airflow.kafka_to_delta import _function
from dagster_kafka_flip.airflow.lineage import DatasetName, Lineage, table_names, topic_names
from dagster_kafka_flip.errors import (
    ConfigurationError,
    PositionLostError,
    RetentionOvertookPositionError,
    TopicRecreatedError,
)
from tests.document_tests import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable


def operator(**options: Any) -> KafkaToDeltaOperator:
    given: dict[str, Any] = {"task_id": "land", "source": "orders", "table": "/lake/orders", **options}
    return KafkaToDeltaOperator(**given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"table": "lake/orders"}, "no common working directory"),
        ({"table": DeltaTarget(table="lake/orders")}, "no common working directory"),
        ({"source": 3}, "source"),
        ({"source": ["orders", 3]}, "source"),
        ({"source": "or ders"}, "or ders"),
        ({"spark": {"master": "local"}}, "spark"),
        ({"limits": 3}, "limits"),
        ({"transform": 3}, "transform"),
        ({"on_idle": "fail"}, "succeed or skip"),
        ({"verify_after": 3}, "verify_after"),
        ({"tolerate": ["NoSuchError"]}, "NoSuchError"),
        ({"tolerate": ["ConfigurationError"]}, "can't be tolerated"),
        ({"partition_keys": CronPartitionTimetable("@daily", timezone="UTC")}, "windows=Windows"),
        ({"windows": "daily"}, "windows"),
        ({"windows": Windows(), "partition_keys": "@daily"}, "partition_keys: expected CronPartitionTimetable, got"),
        ({"kafka_conn_id": None}, "kafka_conn_id: expected str, got None"),
        ({"kafka_conn_id": ""}, "kafka_conn_id is empty"),
        ({"spark": ""}, "spark is empty"),
        ({"spark": {}}, "spark: expected SparkSettings or str, got dict"),
        ({"tolerate": None}, "tolerate: expected list, got None"),
        ({"tolerate": "TopicNotFoundError"}, "tolerate: expected list, got str"),
        ({"transform": "cleaned"}, "'cleaned' is not the dotted path"),
        ({"dead_letter": 3}, "dead_letter: expected DeadLetters or str"),
        ({"dead_letter": "lake/rejected"}, "no common working directory"),
        ({"dead_letter": DeadLetters(table="lake/rejected")}, "no common working directory"),
        ({"dead_letter": "/lake/orders"}, "the stream's own table"),
        ({"table": DeltaTarget(table="/lake/orders", mode=Upsert(key=("id",))), "windows": Windows()}, "have a key"),
        (
            {"windows": Windows(), "on_idle": "skip", "verify_after": timedelta(2), "dead_letter": "/lake/rejected"},
            "dead_letter, on_idle, verify_after: not allowed with windows",
        ),
    ],
)
def test_a_wrong_option_is_refused_where_the_dag_is_parsed(options: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        operator(**options)


SINK = KafkaSink(topic="orders_out", transactional_id_prefix="out", key=JsonSerializer(columns=("id",)))


def publisher(**options: Any) -> DeltaToKafkaOperator:
    given: dict[str, Any] = {"task_id": "publish", "source": "/lake/orders", "sink": SINK, **options}
    return DeltaToKafkaOperator(**given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "lake/orders"}, "no common working directory"),
        ({"source": DeltaSource(table="lake/orders")}, "no common working directory"),
        ({"source": 3}, "source"),
        ({"sink": "orders_out"}, "sink"),
        ({"sink": KafkaSink(topic="orders_out", transactional_id_prefix="out")}, "needs a key"),
        ({"limits": 3}, "limits"),
        ({"spark": {"master": "local"}}, "spark"),
        ({"on_idle": "fail"}, "succeed or skip"),
        ({"kafka_conn_id": None}, "kafka_conn_id: expected str, got None"),
    ],
)
def test_a_wrong_option_of_a_sink_is_refused_where_the_dag_is_parsed(options: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        publisher(**options)


def test_table_and_topic_are_the_assets_of_a_task_that_publishes():
    given = Asset("report")
    task = publisher(inlets=[given], kafka_conn_id="shop")
    assert task.inlets == [given, table_asset("/lake/orders")]
    assert task.outlets == [topic_asset("orders_out", "shop")]
    assert publisher(source="{{ var.value.lake }}/orders").inlets == []
    assert publisher(kafka_conn_id="{{ params.cluster }}").outlets == []


@pytest.mark.parametrize(
    ("table", "namespace", "name"),
    [
        ("/lake/orders/", "file", "/lake/orders"),
        ("s3a://lake/shop/orders", "s3://lake", "shop/orders"),
        ("gs://lake/orders", "gs://lake", "orders"),
        ("abfss://c@account.dfs.core.windows.net/orders", "abfss://c@account.dfs.core.windows.net", "orders"),
        ("hdfs://node:8020/lake/orders", "hdfs://node:8020", "/lake/orders"),
    ],
)
def test_openlineage_knows_a_table_by_its_place(table: str, namespace: str, name: str):
    assert table_names(DeltaTarget.of(table)) == (DatasetName(namespace, name),)


def test_openlineage_gets_what_a_task_read_and_wrote():
    topics = topic_names(KafkaConnection(bootstrap_servers="b1:9092,b2:9092"), ["orders", "returns"])
    assert table_names(DeltaTarget.of("sales.orders")) == ()
    reported = Lineage(topics, (DatasetName("file", "/lake/orders"),), rows=4, version=7).facets()
    assert [(each.namespace, each.name) for each in reported.inputs] == [
        ("kafka://b1:9092", "orders"),
        ("kafka://b1:9092", "returns"),
    ]
    (table,) = reported.outputs
    assert (table.namespace, table.name) == ("file", "/lake/orders")
    assert table.facets["version"].datasetVersion == "7"
    assert table.outputFacets["outputStatistics"].rowCount == 4
    # Before a run, and if it failed.
    assert operator().get_openlineage_facets_on_complete(None).outputs == []


def test_tokens_and_settings_of_spark_are_not_shown():
    shown = f"{SparkSettings(remote='sc://a;token=never-seen')} {SparkSettings(config={'spark.x': 'never-seen'})!r}"
    assert "sc://a" in shown
    assert "spark.x" in shown
    assert "never-seen" not in shown


def test_topics_and_table_are_the_tasks_assets_besides_the_users():
    given = Asset("report")
    task = operator(source=["orders", "returns"], kafka_conn_id="shop", outlets=[given])
    assert task.inlets == [topic_asset("orders", "shop"), topic_asset("returns", "shop")]
    assert task.outlets == [given, table_asset("/lake/orders")]
    # As for a mapped task, whose own assets Airflow does not know.
    assert operator(outlets=[table_asset("/lake/orders")]).outlets == [table_asset("/lake/orders")]
    pattern = operator(source=KafkaSource(topic_pattern="orders.*"))
    assert pattern.inlets == []


def test_a_topic_may_be_the_asset_of_airflows_provider():
    # As its create_asset(server=, topic=) makes it.
    of_provider = Asset(uri="kafka://b1:9092/orders")
    assert topic_asset("orders", server="b1:9092") == of_provider
    assert operator(inlets=[of_provider]).inlets == [of_provider]
    assert operator(source=["orders", "returns"], inlets=[of_provider]).inlets == [of_provider, topic_asset("returns")]
    sent = topic_asset("orders_out", server="b1:9092")
    task = publisher(outlets=[sent])
    assert (task.outlets, task._topic_asset()) == ([sent], sent)


def test_templated_names_are_not_assets():
    task = operator(source="{{ params.topic }}", table="{{ var.value.lake }}/orders")
    assert (task.inlets, task.outlets) == ([], [])
    assert operator(kafka_conn_id="{{ params.cluster }}").inlets == []


@pytest.mark.parametrize(
    ("spellings", "uri"),
    [
        (["/lake/orders", "/lake//orders/", "file:///lake/orders", "/lake/x/../orders"], "file:///lake/orders"),
        (["s3://lake/orders", "s3a://lake/orders/"], "s3a://lake/orders"),
        (["sales.orders", "spark_catalog.Sales.orders"], "delta://sales/orders"),
    ],
)
def test_each_spelling_of_a_table_is_the_same_asset(spellings: list[str], uri: str):
    assert {table_asset(spelling).uri for spelling in spellings} == {uri}
    assert len({table_asset(spelling).name for spelling in spellings}) == 1


@pytest.mark.parametrize(
    "source",
    [
        KafkaSource(topics=("a", "b"), isolation_level="read_uncommitted"),
        KafkaSource(topic_pattern="shop-.*", client_id_prefix="x"),
        KafkaSource(partitions=(TopicPartition("a-b", 1), TopicPartition("c", 0))),
        KafkaSource(topics=("a",), librdkafka_properties={"socket.keepalive.enable": "true"}),
    ],
)
def test_a_trigger_keeps_what_a_source_reads(source: KafkaSource):
    assert source_from_json(json.loads(json.dumps(source_to_json(source)))) == source


def test_a_transform_can_be_named():
    assert _function("os.path.join") is __import__("os").path.join
    for wrong in ("os.path.no_such", "no_such_module.f", "plain", "os.path"):
        with pytest.raises(ConfigurationError, match=wrong):
            _function(wrong)


def test_a_dag_becomes_the_same_text_each_time_and_shows_no_secret():
    def text() -> str:
        with DAG("shop", schedule=None, start_date=datetime(2026, 1, 1)) as dag:  # noqa: DTZ001 - Airflow's default zone
            wait = KafkaLagSensor(task_id="wait", source="orders", table="/lake/orders", deferrable=True)
            land = operator(
                source=KafkaSource(topics=("orders",)),
                table=DeltaTarget(table="/lake/orders", stream="shop"),
                value_format=JsonFormat("id INT"),
                spark=SparkSettings(config={"spark.hadoop.fs.s3a.secret.key": "never-seen"}),
                verify_after=timedelta(hours=1),
            )
            _ = wait >> land >> publisher(spark=SparkSettings(remote="sc://a;token=never-seen"))
        return json.dumps(DagSerialization.to_dict(dag), sort_keys=True)

    assert text() == text()
    assert "never-seen" not in text()


def sensor(**options: Any) -> KafkaLagSensor:
    given: dict[str, Any] = {"task_id": "wait", "source": "orders", "table": "/lake/orders", **options}
    return KafkaLagSensor(**given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deferrable": True, "never_fail": True}, "never_fail and silent_fail.+Set deferrable=False"),
        # It would never wait.
        ({"min_lag": 0}, "min_lag: 0"),
        ({"min_lag": "1000"}, "min_lag: expected int, got str"),
        ({"deferrable": "no"}, "deferrable: expected bool, got str"),
        ({"kafka_conn_id": None}, "kafka_conn_id: expected str, got None"),
        ({"table": "lake/orders"}, "no common working directory"),
    ],
)
def test_a_wrong_option_of_a_sensor_is_refused_where_the_dag_is_parsed(options: dict[str, Any], message: str):
    with pytest.raises(ConfigurationError, match=message):
        sensor(**options)


@pytest.mark.parametrize(
    "table", ["s3a://key:hunter2@lake/orders", "abfss://lake@account.dfs.core.windows.net/orders?sv=1&sig=hunter2"]
)
def test_a_secret_in_a_tables_uri_is_refused_and_not_shown(table: str):
    of_table: list[Callable[[], Any]] = [
        lambda: operator(table=table),
        lambda: operator(dead_letter=table),
        lambda: publisher(source=table),
        lambda: sensor(table=table),
        lambda: table_asset(table),
        # Of a template, only a run sees it.
        lambda: rendered_target(operator(), "{{ place }}", cast("Any", {"place": table})),
    ]
    for make in of_table:
        with pytest.raises(ConfigurationError, match="the table's URI has") as error:
            make()
        assert "hunter2" not in str(error.value)


def test_an_outlet_is_a_tables_if_table_asset_makes_it():
    for table in ("/lake/orders", "s3a://lake/orders", "sales.orders"):
        assert is_table_asset(table_asset(table))
        assert not is_topic_asset(table_asset(table))
    for other in (Asset("report"), Asset("file:///lake/report"), topic_asset("orders"), AssetAlias("orders")):
        assert not is_table_asset(other)
    assert is_topic_asset(topic_asset("orders"))
    assert not is_topic_asset(AssetAlias("orders"))


def test_a_run_for_one_of_several_topics_gives_up_the_outlets_of_the_others():
    report, own, other, rejected = Asset("report"), *(topic_asset(each) for each in ("orders_out", "other", "rejected"))

    def outlets(map_index: int, **options: Any) -> tuple[list[Asset], list[Any]]:
        task = publisher(outlets=[report, own, other, rejected], **options)
        context = cast("Any", {"ti": SimpleNamespace(map_index=map_index)})
        found = task._assets_of(context, own, lambda each: is_topic_asset(each) and each != rejected)
        return found, task.outlets

    assert outlets(-1) == ([own], [report, own, other, rejected])
    assert outlets(0) == ([own], [report, own, rejected])
    assert outlets(-1, kafka_conn_id="{{ params.cluster }}") == ([own], [report, own, rejected])


def test_the_example_lands_the_table_that_its_sensor_looks_at(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LAKE", "/lake")
    example = runpy.run_path(str(ROOT / "examples" / "airflow" / "flights.py"))
    land, wait = example["land"], example["wait"]
    assert land.outlets == [table_asset(wait.table)]
    assert land.inlets == [topic_asset(wait.source, wait.kafka_conn_id)]


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow answers with an error where the events of an asset are asked for."""

    def refuse(_: Any) -> Any:
        raise AirflowRuntimeError(ErrorResponse(error=ErrorType.GENERIC_ERROR, detail={"status_code": 500}))

    monkeypatch.setattr(event_extra, "_page", refuse)


@pytest.mark.usefixtures("unreadable")
@pytest.mark.parametrize("deferrable", [False, True])
def test_a_sensor_that_cannot_know_the_position_says_so_and_takes_no_log_for_new(deferrable: bool):
    found = sensor(deferrable=deferrable).execute({})
    assert found["lag"] is None
    assert "can't return the events of the asset /lake/orders" in found["problems"][0]


@pytest.mark.usefixtures("unreadable")
def test_what_only_an_event_tells_is_not_taken_for_nothing_while_events_cannot_be_read(monkeypatch: pytest.MonkeyPatch):
    ingested: list[Any] = []
    anchors: list[Any] = []

    def ingest(*_: Any, **options: Any) -> Any:
        ingested.append(options["tolerate"])
        raise StopIteration

    def run(begins: OffsetsInitializer, *, anchor: Any) -> None:
        anchors[:] = [SimpleNamespace(anchor=lambda: anchor)]
        source = KafkaSource(topics=("orders",), starting_offsets=begins)
        task = operator(source=source, tolerate=[TopicRecreatedError, RetentionOvertookPositionError])
        shared = {"spark": lambda: None, "tolerate": task.tolerate}
        context: Any = {"ti": SimpleNamespace(try_number=1), "dag_run": SimpleNamespace(run_type="scheduled")}
        with contextlib.suppress(StopIteration):
            task._continue_stream(
                context, source, DeltaTarget(table="/lake/orders"), [table_asset("/lake/orders")], shared
            )

    monkeypatch.setattr(kafka_to_delta, "ingest", ingest)
    monkeypatch.setattr(kafka_to_delta, "DeltaTable", lambda *_: anchors[0])
    # Whether a run died behind the last commit, which then may have records of the other log.
    for begins in (OffsetsInitializer.earliest(), OffsetsInitializer.latest()):
        run(begins, anchor=SimpleNamespace(state=EnumeratorState({})))
        assert ingested.pop() == {RetentionOvertookPositionError}
    # Whether there was a table, behind whose position a new one would begin.
    run(OffsetsInitializer.earliest(), anchor=None)
    assert ingested.pop()
    for begun in (None, SimpleNamespace(state=None, undone_start=None)):
        with pytest.raises(PositionLostError, match=r"no position of the stream 'main', and it is unknown whether .*"):
            run(OffsetsInitializer.latest(), anchor=begun)
    assert not ingested


def test_only_what_the_newest_event_tells_is_skipped(monkeypatch: pytest.MonkeyPatch):
    here, elsewhere = (EnumeratorState({TopicPartition("orders", 0): offset}) for offset in (3, 4))
    told = LastKnown(cast("Any", SimpleNamespace(state=here)), 7)
    monkeypatch.setattr(kafka_to_delta, "stream_facts", lambda _: {"kafka/idle": True})

    def is_skipped(
        known: LastKnown = told,
        *,
        state: EnumeratorState = here,
        spark: bool = False,
        by_hand: bool = False,
        **options: Any,
    ) -> bool:
        result = SimpleNamespace(is_idle=True, unreported=None, state=state, started_spark=spark, lag_after=0)
        monkeypatch.setattr(kafka_to_delta, "last_known", lambda *_: known)
        monkeypatch.setattr(kafka_to_delta, "ingest", lambda *_, **__: result)
        run = SimpleNamespace(run_type="manual" if by_hand else "scheduled")
        context: Any = {"ti": SimpleNamespace(try_number=1), "dag_run": run}
        shared = {"spark": None, "connection": KafkaConnection(bootstrap_servers="a:1")}
        assets = options.get("assets", [table_asset("/lake/orders")])
        try:
            operator(on_idle="skip")._continue_stream(
                context, KafkaSource(topics=("orders",)), DeltaTarget(table="/lake/orders"), assets, shared
            )
        except AirflowSkipException:
            return True
        return False

    assert is_skipped()
    assert is_skipped(spark=True, by_hand=True)
    # Without an event of it, every later run would read the table, too.
    assert not is_skipped(spark=True)
    assert not is_skipped(LastKnown(reported=-1), spark=True)
    # Whether a try died behind its commit.
    for unknown in (LastKnown(), LastKnown(problem="events can't be read")):
        assert not is_skipped(unknown, spark=True, by_hand=True)
    # Somebody has moved the position.
    assert not is_skipped(state=elsewhere, spark=True, by_hand=True)
    assert is_skipped(LastKnown(), spark=True, assets=[])
