"""What ends a run by default, and what becomes of it where an asset tolerates it: rows, metadata and checks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dagster import DagsterInstance, materialize

from dagster_kafka_flip import (
    JsonFormat,
    KafkaResource,
    KafkaSource,
    Limits,
    SparkResource,
    StringFormat,
    build_kafka_delta_asset,
    kafka_delta_asset,
)
from dagster_kafka_flip.broker.local_broker import LocalBroker
from dagster_kafka_flip.errors import (
    ClusterChangedError,
    EndBeforePositionError,
    RetentionOvertookPositionError,
    TableReplacedError,
    TopicNotFoundError,
)
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.ingestion.tolerance import CHECKS
from tests import landed as read
from tests.kafka_topic import Kafka
from tests.reports import report

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_LOST = "no_records_lost"


class _Landed:
    """One asset on one topic and table, which tolerates everything, or nothing."""

    def __init__(self, spark, address, topics, table):
        self.spark, self.address, self.topics, self.table = spark, address, topics, table
        self._instance = DagsterInstance.ephemeral()

    def run(self, *, tolerant=True, address=None, **config) -> tuple[dict[str, Any], dict[str, Any]]:
        """Metadata of the materialization, and of each failed check."""
        asset = build_kafka_delta_asset(
            name="landed",
            source=KafkaSource(topics=self.topics),
            table=self.table,
            value_format=StringFormat(),
            tolerate=CHECKS if tolerant else (),
        )
        result = materialize(
            [asset],
            instance=self._instance,
            resources={
                "kafka": KafkaResource(bootstrap_servers=address or self.address),
                "spark": SparkResource(),
            },
            run_config={"ops": {"landed": {"config": config}}},
        )
        metadata = report(result)
        checks = result.get_asset_check_evaluations()
        for check in checks:
            assert check.target_materialization_data is not None
            is_idle = metadata["kafka/idle"]
            assert is_idle or check.target_materialization_data.run_id == result.run_id
        assert {check.check_name for check in checks} == ({*CHECKS.values()} - {None} if tolerant else set())
        failed = {
            check.check_name: {key: value.value for key, value in check.metadata.items()}
            for check in checks
            if not check.passed
        }
        return metadata, failed

    def refused(self, error, address=None) -> str:
        """What a run says that tolerates nothing; the table stays as it is."""
        before = self.history()
        with pytest.raises(error) as refused:
            self.run(tolerant=False, address=address)
        assert self.history() == before
        return str(refused.value)

    def history(self):
        return read.operations(self.table) if Path(self.table).exists() else []

    def newest_document(self):
        (newest,) = read.history(self.table, 1)
        return json.loads(newest["userMetadata"])

    def values(self):
        return read.values(self.table, "kafka_value")


@pytest.fixture
def landed(kafka, spark, broker, topic, table):
    """Five records that are landed; the asset tolerates everything."""
    kafka.create(topic)
    kafka.produce(topic, [(None, f"a{number}") for number in range(5)])
    made = _Landed(spark, broker, (topic,), table)
    metadata, failed = made.run()
    assert (metadata["delta/rows_written"], metadata["kafka/lost_offsets"], failed) == (5, 0, {})
    assert "kafka/incidents" not in metadata
    return made


def _incident(metadata):
    (incident,) = metadata["kafka/incidents"]
    return incident


def test_retention_before_the_plan(kafka, landed, topic):
    kafka.produce(topic, [(None, f"b{number}") for number in range(10)])
    kafka.trim(topic, 0, 12)
    message = landed.refused(RetentionOvertookPositionError)
    assert f"{topic}-0: " in message
    assert "The next offset to read is 5, but the log begins at 12: up to 7 unread records are gone" in message

    metadata, failed = landed.run()

    assert landed.values() == [*(f"a{number}" for number in range(5)), "b7", "b8", "b9"]
    incident = _incident(metadata)
    assert (incident["error"], incident["lost_offsets"]) == ("RetentionOvertookPositionError", 7)
    assert metadata["kafka/lost_offsets"] == 7
    assert failed == {_LOST: {"RetentionOvertookPositionError": incident["message"], "lost_offsets": 7}}
    assert landed.newest_document()["incidents"] == [incident], "history tells it too"
    metadata, again = landed.run()
    assert (metadata["kafka/idle"], metadata["kafka/lost_offsets"]) == (True, 0)
    assert again == {_LOST: {**failed[_LOST], "unchanged": True}}, "a run that reads nothing hides no failure"

    # An asset that tolerates nothing may have a run that does.
    kafka.produce(topic, [(None, "c")] * 3)
    kafka.trim(topic, 0, 17)
    metadata, _ = landed.run(tolerant=False, tolerate=["RetentionOvertookPositionError"])
    assert (metadata["kafka/lost_offsets"], landed.values()[-2:]) == (2, ["b9", "c"])


def _trims_while_read(kafka, topic, offset):
    """A transform that deletes records once Spark has planned to read them, and before it reads."""

    def transform(records):
        kafka.trim(topic, 0, offset)
        return records

    return transform


def test_retention_while_spark_reads(kafka, landed, connection, spark_of, topic, table):
    kafka.produce(topic, [(None, f"b{number}") for number in range(10)])
    source = KafkaSource(topics=(topic,))
    history = landed.history()
    with pytest.raises(RetentionOvertookPositionError) as error:
        ingest(
            source,
            table,
            spark=spark_of,
            connection=connection,
            value_format=StringFormat(),
            transform=_trims_while_read(kafka, topic, 8),
        )
    assert "The next offset to read is 5, but the log begins at 8: up to 3 unread records are gone" in str(error.value)
    assert landed.history() == history

    result = ingest(
        source,
        table,
        spark=spark_of,
        connection=connection,
        value_format=StringFormat(),
        transform=_trims_while_read(kafka, topic, 11),
        tolerate=[RetentionOvertookPositionError],
    )
    # Three were gone when it was planned, and three more when it was read.
    assert (result.rows, result.lost_offsets) == (4, 6)
    assert [incident.lost_offsets for incident in result.incidents] == [3, 3]
    assert landed.values()[5:] == ["b6", "b7", "b8", "b9"]


def test_a_missing_topic(kafka, landed, topic, broker, spark):
    both = _Landed(spark, broker, (topic, f"{topic}-gone"), landed.table)
    kafka.produce(topic, [(None, "b")])
    assert f"the topic {topic}-gone does not exist on {broker}" in both.refused(TopicNotFoundError)

    metadata, failed = both.run()

    assert both.values()[5:] == ["b"]
    assert _incident(metadata)["error"] == "TopicNotFoundError"
    assert failed == {"all_topics_exist": {"TopicNotFoundError": _incident(metadata)["message"]}}
    metadata, failed = both.run()
    assert (metadata["kafka/idle"], [*failed]) == (True, ["all_topics_exist"]), "as long as it is missing"
    kafka.create(f"{topic}-gone")
    kafka.produce(f"{topic}-gone", [(None, "c")])
    assert both.run()[1] == {}
    assert both.values()[5:] == ["b", "c"]


def test_a_wiped_table(kafka, landed, topic, spark):
    spark.sql(f"INSERT OVERWRITE delta.`{landed.table}` SELECT * FROM delta.`{landed.table}` LIMIT 0")
    message = landed.refused(TableReplacedError)
    assert "was replaced or its rows were deleted: version 2 is a WRITE" in message
    assert "after version 1, the last commit of the stream 'main'" in message

    # It is settled even if nothing is new.
    metadata, failed = landed.run()

    assert (landed.values(), metadata["dagster/row_count"], metadata["delta/commits"]) == ([], 0, 1)
    assert _incident(metadata)["error"] == "TableReplacedError"
    assert failed == {"table_intact": {"TableReplacedError": _incident(metadata)["message"]}}
    kafka.produce(topic, [(None, "more")])
    assert landed.run()[1] == {}
    assert landed.values() == ["more"]


@pytest.mark.slow
def test_another_cluster_under_the_address_and_a_log_that_was_cut_off(spark, topic, table, tmp_path):
    """Two brokers of the test's own: one is another cluster, the other loses the end of its log."""
    with LocalBroker(tmp_path / "one") as one, LocalBroker(tmp_path / "two") as two:
        for address, letter in ((one.bootstrap_servers, "a"), (two.bootstrap_servers, "z")):
            kafka = Kafka(address)
            kafka.create(topic)
            kafka.produce(topic, [(None, f"{letter}{number}") for number in range(5)])
            kafka.close()
        made = _Landed(spark, one.bootstrap_servers, (topic,), table)
        made.run()
        message = made.refused(ClusterChangedError, address=two.bootstrap_servers)
        assert message.startswith("the position belongs to the Kafka cluster ")

        # The log's files are gone, as after an unclean leader election on a disk that was empty; the topic's id stays.
        one.stop()
        for file in (tmp_path / "one").rglob(f"{topic}-0/0*"):
            file.unlink()
        one.start()
        kafka = Kafka(one.bootstrap_servers)
        kafka.produce(topic, [(None, "b0"), (None, "b1")])
        message = made.refused(EndBeforePositionError)
        assert f"{topic}-0: the log ends at offset 2, before the position 5" in message
        metadata, failed = made.run()
        assert _incident(metadata)["error"] == "EndBeforePositionError"
        assert [*failed] == [_LOST]
        kafka.produce(topic, [(None, "b2")])
        kafka.close()
        assert made.run()[1] == {}
        assert made.values() == [*(f"a{number}" for number in range(5)), "b2"]

        metadata, failed = made.run(address=two.bootstrap_servers)
        assert _incident(metadata)["error"] == "ClusterChangedError"
        assert [*failed] == [_LOST]
        assert made.values()[6:] == [f"z{number}" for number in range(5)]


def test_rejected_records_fail_a_check_of_their_own(kafka, spark, broker, topic, table, tmp_path):
    kafka.create(topic)
    kafka.produce(topic, [(None, '{"n": 1}'), (None, "broken")])
    asset = build_kafka_delta_asset(
        name="kept",
        source=KafkaSource(topics=(topic,)),
        table=table,
        value_format=JsonFormat("n INT"),
        dead_letter=str(tmp_path / "letters"),
    )
    resources = {"kafka": KafkaResource(bootstrap_servers=broker), "spark": SparkResource()}
    with DagsterInstance.ephemeral() as instance:
        runs = [materialize([asset], instance=instance, resources=resources) for _ in range(2)]
    first, again = ({check.check_name: check for check in run.get_asset_check_evaluations()} for run in runs)
    for checks in (first, again):
        passed = {name: check.passed for name, check in checks.items()}
        assert passed == {"no_records_rejected": False, "schema_fits": True}
    assert first["no_records_rejected"].metadata["rejected_records"].value == 1
    assert all(check.metadata["unchanged"].value for check in again.values()), "the run read nothing"


def test_the_next_run_reports_errors_that_a_failed_run_tolerated(kafka, spark, broker, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [(None, f"a{number}") for number in range(6)])
    fails = {"after": 100}

    def build():
        @kafka_delta_asset(
            name="landed",
            source=KafkaSource(topics=(topic,)),
            table=table,
            limits=Limits(max_records_per_batch=3),
            tolerate=[RetentionOvertookPositionError],
        )
        def landed(records):
            fails["after"] -= 1
            if fails["after"] < 0:
                raise ValueError("the transform fails")
            return records

        return landed

    instance = DagsterInstance.ephemeral()
    resources = {"kafka": KafkaResource(bootstrap_servers=broker), "spark": SparkResource()}

    def run(*, raise_on_error=True):
        return materialize([build()], instance=instance, resources=resources, raise_on_error=raise_on_error)

    def shown(result):
        (event,) = result.get_asset_materialization_events()
        (check,) = result.get_asset_check_evaluations()
        return {key: value.value for key, value in event.materialization.metadata.items()}, check

    metadata, check = shown(run())
    assert check.passed
    assert "delta/unreported_commits" not in metadata
    kafka.produce(topic, [(None, f"b{number}") for number in range(6)])
    kafka.trim(topic, 0, 8)
    # The schema of a new batch is asked for too, so that the count is of calls and not of batches.
    before = len(read.operations(table))
    fails["after"] = 1
    failed = run(raise_on_error=False)
    assert not failed.success
    assert not failed.get_asset_check_evaluations()
    assert len(read.operations(table)) == before + 1
    fails["after"] = 100
    metadata, check = shown(run())
    assert (metadata["delta/unreported_commits"], metadata["delta/unreported_rows"]) == (1, 3)
    assert metadata["delta/unreported_runs"] == failed.run_id
    assert metadata["kafka/lost_offsets"] == 2
    assert not check.passed
    assert check.metadata["lost_offsets"].value == 2
    kafka.produce(topic, [(None, "c")])
    metadata, check = shown(run())
    assert check.passed, "it is reported once"
    assert "delta/unreported_commits" not in metadata
