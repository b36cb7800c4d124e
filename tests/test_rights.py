"""The rights that each feature needs, on a broker with ACLs: they are enough, and each that is missing is named."""

from __future__ import annotations

import contextlib
import json
import re
import runpy
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from dagster_kafka_flip.errors import ClusterAccessError, KafkaFlipError, TopicNotFoundError, WindowBeyondRetentionError
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.ingestion.rewrite_windows import rewrite_windows
from dagster_kafka_flip.sink.delta_source import DeltaSource
from dagster_kafka_flip.sink.kafka_sink import KafkaSink
from dagster_kafka_flip.sink.lane import Lane
from dagster_kafka_flip.sink.publish import publish
from dagster_kafka_flip.sink.serializers import JsonSerializer
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.window import Window, Windows
from dagster_kafka_flip.table.target import DeltaTarget
from tests.kafka_topic import Kafka
from tests.secured_broker import SecuredBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dagster_kafka_flip.sink.result import PublishResult
    from tests.secured_broker import Right

pytestmark = pytest.mark.kafka

_TOPIC, _GROUP = "orders", "landing"
_RECORDS = 10
_DAY_MS = 86_400_000
# Long, so that an answer within it was not waited for.
_REQUEST_SECONDS = 60.0
_SOON_SECONDS = 30.0

DESCRIBE: Right = ("DESCRIBE", "TOPIC", _TOPIC)
READ: Right = ("READ", "TOPIC", _TOPIC)
CONFIGS: Right = ("DESCRIBE_CONFIGS", "TOPIC", _TOPIC)
DESCRIBE_GROUP: Right = ("DESCRIBE", "GROUP", _GROUP)
READ_GROUP: Right = ("READ", "GROUP", _GROUP)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A broker with ACLs, a topic of some records, and a group that has committed an offset."""
    with SecuredBroker(tmp_path_factory.mktemp("rights")) as broker:
        kafka = Kafka(broker.bootstrap_servers)
        kafka.create(_TOPIC)
        for number in range(_RECORDS):
            kafka.produce(_TOPIC, [(None, str(number))], timestamp=_DAY_MS + number)
        kafka.commit_offsets(_GROUP, _TOPIC, {0: 4})
        kafka.close()
        yield broker


def _plan(connection: KafkaConnection, **source: Any) -> Any:
    source = {"topics": (_TOPIC,), **source}
    with contextlib.closing(
        KafkaSource(connection=connection, **source).create_enumerator(SplitEnumeratorContext(2))
    ) as enumerator:
        enumerator.discover()
        plan = enumerator.start()
        assert enumerator.assign(Limits()) is not None
        return plan


def _window(connection: KafkaConnection) -> None:
    source = KafkaSource(topics=(_TOPIC,), connection=connection)
    windows = Windows(max_lateness=timedelta(0))
    with contextlib.closing(source.window_enumerator(windows, SplitEnumeratorContext(2))) as enumerator:
        plan = enumerator.plan([Window.between(_DAY_MS, _DAY_MS + 5)])
    assert plan.stops == {TopicPartition(_TOPIC, 0): 5}


def _committed(connection: KafkaConnection) -> None:
    plan = _plan(connection, group_id=_GROUP, starting_offsets=OffsetsInitializer.committed_offsets())
    assert plan.starting_position == {TopicPartition(_TOPIC, 0): 4}


def _commit(connection: KafkaConnection) -> None:
    with contextlib.closing(KafkaCluster(connection)) as cluster:
        cluster.commit_offsets({TopicPartition(_TOPIC, 0): 4}, _GROUP)


def _settings(connection: KafkaConnection) -> None:
    with contextlib.closing(KafkaCluster(connection)) as cluster:
        assert cluster.topic_settings([_TOPIC]).keys() == {_TOPIC}


# In the order of the table in docs/deployment.md.
_FEATURES: dict[str, tuple[Callable[[KafkaConnection], Any], tuple[Right, ...]]] = {
    "a plan": (_plan, (DESCRIBE,)),
    "a pattern": (lambda connection: _plan(connection, topics=None, topic_pattern="ord.*"), (DESCRIBE,)),
    "a start at a time": (
        lambda connection: _plan(connection, starting_offsets=OffsetsInitializer.timestamp(_DAY_MS + 3)),
        (READ,),
    ),
    "an exact window": (_window, (READ,)),
    "alignment": (lambda connection: _plan(connection, max_drift=timedelta(hours=1)), (READ,)),
    "committed offsets": (_committed, (DESCRIBE, DESCRIBE_GROUP)),
    "offsets committed back": (_commit, (READ, READ_GROUP)),
}


def _named(right: Right) -> str:
    operation, kind, name = right
    return f"Grant {operation} on the {'topic' if kind == 'TOPIC' else 'consumer group'} {name}"


def _connect(secured: SecuredBroker, user: str, rights: tuple[Right, ...]) -> KafkaConnection:
    fields = secured.scram_512(user)
    if rights:
        secured.grant(user, rights)
    return KafkaConnection(**fields, request_timeout=_REQUEST_SECONDS)


@pytest.mark.parametrize("feature", _FEATURES)
def test_a_feature_needs_its_rights_and_no_other_and_names_each_that_is_missing(secured, feature):
    use, rights = _FEATURES[feature]
    name = feature.replace(" ", "-")
    use(_connect(secured, name, rights))
    for missing in rights:
        # To read a topic is also to describe it; and whoever may not even do that is asked for it first.
        left = tuple({*rights, DESCRIBE} - {missing}) if missing != DESCRIBE else tuple({*rights} - {DESCRIBE})
        user = f"{name}-{missing[0]}-{missing[1]}"
        connection = _connect(secured, user, left)
        began = time.monotonic()
        with pytest.raises(KafkaFlipError) as refused:
            use(connection)
        assert time.monotonic() - began < _SOON_SECONDS
        if feature == "a pattern":
            # Kafka leaves out what this client may not see.
            assert isinstance(refused.value, TopicNotFoundError)
            assert "grant DESCRIBE on such topics" in str(refused.value)
            continue
        assert isinstance(refused.value, ClusterAccessError)
        assert _named(missing) in str(refused.value)
        assert f"refuses the user {user} " in str(refused.value)


def test_the_id_of_the_cluster_needs_no_right(secured):
    with contextlib.closing(KafkaCluster(_connect(secured, "nobody", ()))) as cluster:
        assert cluster.cluster_id() is not None


def test_settings_of_a_topic_that_are_refused_are_unknown_and_the_log_names_the_right(secured, caplog):
    _settings(_connect(secured, "settings", (CONFIGS,)))
    with (
        caplog.at_level("INFO"),
        contextlib.closing(KafkaCluster(_connect(secured, "no-settings", (READ,)))) as cluster,
    ):
        assert cluster.topic_settings([_TOPIC]) == {}
    assert _named(CONFIGS) in caplog.text


@pytest.mark.spark
def test_a_stream_lands_and_commits_its_group_with_the_least_rights(secured, spark, table, tmp_path, monkeypatch):
    from dagster import DagsterInstance, materialize

    from dagster_kafka_flip.cli.app import main

    user, group = "least", "group-of-least"
    fields = secured.scram_512(user)
    secured.grant(user, (READ, ("READ", "GROUP", group)))
    settings = tmp_path / "kafka.json"
    settings.write_text(json.dumps(fields))
    definitions = tmp_path / "definitions.py"
    definitions.write_text(_PROJECT.format(topic=_TOPIC, group=group, table=table, settings=str(settings)))
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    module = runpy.run_path(str(definitions))
    with DagsterInstance.get() as instance:
        done = materialize([module["orders"]], instance=instance, resources=module["resources"])
        (event,) = done.get_asset_materialization_events()
        assert event.materialization.metadata["kafka/records_read"].value == _RECORDS
        assert event.materialization.metadata.get("kafka/group_commit_failures") is None
    assert spark.read.format("delta").load(table).count() == _RECORDS
    admin = KafkaCluster(KafkaConnection(bootstrap_servers=secured.bootstrap_servers))
    assert admin.committed_offsets([TopicPartition(_TOPIC, 0)], group) == {TopicPartition(_TOPIC, 0): _RECORDS}
    planned = CliRunner().invoke(main, ["plan", "--asset", "orders", "-f", str(definitions)])
    assert planned.exit_code == 0, planned.output
    assert re.search(r"^  splits +0$", planned.output, flags=re.MULTILINE)


_SINK = "orders-sink"
_OF_A_SINK: tuple[Right, ...] = (
    ("WRITE", "TOPIC", "published"),
    ("DESCRIBE", "TOPIC", "published"),
    ("WRITE", "TRANSACTIONAL_ID", f"{_SINK}-*"),
    ("DESCRIBE", "TRANSACTIONAL_ID", f"{_SINK}-*"),
    ("CREATE", "TOPIC", f"{_SINK}-progress"),
    ("READ", "TOPIC", f"{_SINK}-progress"),
    ("WRITE", "TOPIC", f"{_SINK}-progress"),
    ("DESCRIBE", "TOPIC", f"{_SINK}-progress"),
    ("DESCRIBE_CONFIGS", "TOPIC", f"{_SINK}-progress"),
)


@pytest.mark.spark
def test_a_sink_needs_its_rights_and_names_each_that_is_missing(secured, spark, spark_of, table):
    kafka = Kafka(secured.bootstrap_servers)
    kafka.create("published")
    feed = "TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    spark.sql(f"CREATE TABLE delta.`{table}` USING delta {feed} AS SELECT 1 AS id")
    sink = KafkaSink(topic="published", transactional_id_prefix=_SINK, key=JsonSerializer(columns=("id",)))

    def run(user: str, rights: tuple[Right, ...]) -> PublishResult:
        connection = _connect(secured, user, rights)
        return publish(DeltaSource(table=table), sink, spark=spark_of, connection=connection)

    missing = {
        ("CREATE", "TOPIC"): "Grant CREATE on the topic orders-sink-progress",
        ("READ", "TOPIC"): "Grant READ on the topic orders-sink-progress",
        ("DESCRIBE_CONFIGS", "TOPIC"): "Grant DESCRIBE_CONFIGS on the topic orders-sink-progress",
        ("WRITE", "TRANSACTIONAL_ID"): "Grant WRITE and DESCRIBE on the transactional id orders-sink-0",
        ("WRITE", "TOPIC"): "Grant WRITE on the topics published and orders-sink-progress",
    }
    for number, (right, reported) in enumerate(missing.items()):
        began = time.monotonic()
        with pytest.raises(ClusterAccessError) as refused:
            run(f"sink-{number}", tuple(each for each in _OF_A_SINK if each[:2] != right))
        assert reported in str(refused.value)
        assert f"the user sink-{number} " in str(refused.value)
        assert time.monotonic() - began < _SOON_SECONDS
        if right[0] == "CREATE":
            # From here on the progress is there, and a row that is not published.
            assert run("sink", _OF_A_SINK).records == 1
            spark.sql(f"INSERT INTO delta.`{table}` VALUES (2)")
    assert kafka.end_offset("published") == 2
    kafka.close()


def test_a_broker_that_refuses_a_transaction_is_named_by_the_next_record(secured):
    """Kafka's client then refuses each record, delivers none, and gives the reason only to some calls."""
    kafka = Kafka(secured.bootstrap_servers)
    kafka.create("refused")
    kafka.close()
    prefix = "refused-sink"
    rights: tuple[Right, ...] = (
        ("DESCRIBE", "TOPIC", "refused"),
        ("WRITE", "TRANSACTIONAL_ID", f"{prefix}-*"),
        ("DESCRIBE", "TRANSACTIONAL_ID", f"{prefix}-*"),
    )
    lane = Lane(_connect(secured, "refused", rights), KafkaSink(topic="refused", transactional_id_prefix=prefix), 0)
    lane.open()

    def write_until_refused() -> None:
        deadline = time.monotonic() + _REQUEST_SECONDS
        while time.monotonic() < deadline:
            lane.write("refused", None, b"v")
            time.sleep(0.1)

    with pytest.raises(ClusterAccessError, match="Grant WRITE on the topics refused and refused-sink-progress"):
        write_until_refused()
    lane.close()


@pytest.mark.spark
def test_spark_is_refused_records_of_a_topic_that_may_only_be_described(secured, spark_of, table):
    connection = _connect(secured, "describes", (DESCRIBE,))
    began = time.monotonic()
    with pytest.raises(ClusterAccessError) as refused:
        ingest(KafkaSource(topics=(_TOPIC,)), table, spark=spark_of, connection=connection)
    assert time.monotonic() - began < _SOON_SECONDS
    assert _named(READ) in str(refused.value)
    assert "refuses the user describes the right to read the topic orders in Spark's reader" in str(refused.value)


@pytest.mark.spark
def test_windows_are_not_landed_again_while_it_is_unknown_whether_the_topic_is_compacted(secured, spark_of, table):
    target = DeltaTarget(table=table)

    def land(user: str, rights: tuple[Right, ...]) -> None:
        (done,) = rewrite_windows(
            KafkaSource(topics=(_TOPIC,)),
            target,
            [Window.between(_DAY_MS, _DAY_MS + 5)],
            rules=Windows(max_lateness=timedelta(0)),
            spark=spark_of,
            connection=_connect(secured, user, rights),
        )
        assert done.committed is not None
        assert done.committed.rows == 5

    land("first", (READ,))
    with pytest.raises(WindowBeyondRetentionError) as refused:
        land("second", (READ,))
    assert "this client can't read whether the topic orders is compacted" in str(refused.value)
    assert _named(CONFIGS) in str(refused.value)
    land("third", (READ, CONFIGS))


_PROJECT = """
import json
from pathlib import Path

from dagster import Definitions

from dagster_kafka_flip import KafkaResource, KafkaSource, SparkResource, kafka_delta_asset

source = KafkaSource.builder().set_topics("{topic}").set_group_id("{group}").set_commit_offsets().build()


@kafka_delta_asset(key="orders", source=source, table="{table}")
def orders(records):
    return records


resources = {{"kafka": KafkaResource(**json.loads(Path("{settings}").read_text())), "spark": SparkResource()}}
defs = Definitions(assets=[orders], resources=resources)
"""
