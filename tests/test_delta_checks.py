"""Checks of an asset's table, log and record, through Dagster: each passes, and fails for a real cause."""

from __future__ import annotations

import shutil
import time
import uuid
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dagster import (
    AssetCheckKey,
    AssetCheckSeverity,
    AssetKey,
    AssetSelection,
    DailyPartitionsDefinition,
    Definitions,
    asset,
    define_asset_job,
    materialize,
)

from dagster_kafka_flip import (
    JsonFormat,
    KafkaClusterConfig,
    KafkaColumns,
    KafkaDeltaTable,
    KafkaResource,
    KafkaSource,
    Limits,
    OffsetsInitializer,
    SparkResource,
    StringFormat,
    build_kafka_delta_asset,
    build_kafka_delta_multi_asset,
    kafka_delta_asset,
    kafka_delta_checks,
    kafka_topic_asset,
)
from dagster_kafka_flip.assets.position_record import void_record
from dagster_kafka_flip.checks.table_checks import TableChecks
from dagster_kafka_flip.checks.table_contents import Break, Continuity
from dagster_kafka_flip.errors import ClusterUnreachableError, ConfigurationError
from dagster_kafka_flip.ingestion.move_position import commit_move, plan_move
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from dagster_kafka_flip.table import local_log
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.document import CommitDocument
from dagster_kafka_flip.table.mode import Append, Upsert
from dagster_kafka_flip.table.table_writer import TableWriter
from dagster_kafka_flip.table.target import DeltaTarget


def needs_both(test):
    return pytest.mark.kafka(pytest.mark.spark(test))


class _Checked:
    """An asset, its checks, and an asset downstream."""

    def __init__(self, instance, resources, asset_def, checks, downstream=()):
        self.instance, self.resources, self.asset = instance, resources, asset_def
        self._defs = Definitions(
            assets=[asset_def, *downstream],
            asset_checks=checks,
            resources=resources,
            jobs=[
                define_asset_job("everything"),
                define_asset_job("land", AssetSelection.assets(asset_def) - AssetSelection.checks(*checks)),
            ],
        )

    def land(self):
        assert self._defs.resolve_job_def("land").execute_in_process(instance=self.instance).success

    def everything(self):
        return self._defs.resolve_job_def("everything").execute_in_process(instance=self.instance, raise_on_error=False)

    def check(self, *names, raise_on_error=False):
        """Executes some checks alone."""
        keys = [AssetCheckKey(self.asset.key, name) for name in names]
        selected = define_asset_job("some_checks", AssetSelection.checks(*keys))
        job = Definitions(
            assets=self._defs.assets, asset_checks=self._defs.asset_checks, resources=self.resources, jobs=[selected]
        ).resolve_job_def("some_checks")
        # A blocking check that fails ends its step.
        result = job.execute_in_process(instance=self.instance, raise_on_error=raise_on_error)
        evaluations = result.get_asset_check_evaluations()
        assert {evaluation.check_name for evaluation in evaluations} == set(names)
        return evaluations

    def one(self, name, **options):
        (evaluation,) = self.check(name, **options)
        return evaluation


def values(evaluation) -> dict[str, Any]:
    return {key: found.value for key, found in evaluation.metadata.items()}


def output(evaluation) -> str:
    return evaluation.description or ""


@pytest.fixture
def landed(kafka, instance, resources, topic, table):
    """Makes an asset of five records of two topic partitions, with checks; lands them unless it is told not to."""

    def made(*, land=True, records=5, asset_options=None, downstream=(), **options):
        kafka.create(topic, partitions=2)
        kafka.produce(topic, [(None, f"a{number}") for number in range(records - 1)])
        kafka.produce(topic, [(None, "b0")], partition=1)
        given: dict[str, Any] = {"value_format": StringFormat(), **(asset_options or {})}
        source = KafkaSource(topics=(topic,))
        asset_def = build_kafka_delta_asset(name="landed", source=source, table=table, **given)
        checked = _Checked(instance, resources, asset_def, kafka_delta_checks(asset_def, **options), downstream)
        if land:
            checked.land()
        return checked

    return made


@pytest.fixture
def no_spark(monkeypatch):
    """From here on nothing may start Spark."""

    def forbid():
        monkeypatch.setattr(SparkResource, "session", lambda self: pytest.fail("a check started Spark"))

    return forbid


def commit_by_hand(spark, table, topic, start, stop):
    """A commit of the stream that another program might make: it claims offsets, and lands nothing."""
    target = DeltaTarget(table=table)
    delta = DeltaTable(spark, target)
    anchor = delta.anchor()
    assert anchor is not None
    assert anchor.state is not None
    tp = TopicPartition(topic, 0)
    document = CommitDocument(
        stream="main",
        attempt=uuid.uuid4().hex,
        run_id="by hand",
        base_version=anchor.table_version,
        anchor_version=anchor.version,
        splits=(KafkaPartitionSplit(tp, start, stop),),
        state=type(anchor.state)({**anchor.state.position, tp: stop}, anchor.state.cluster_id, anchor.state.topic_ids),
    )
    return TableWriter(delta).commit(delta.no_rows(), document).version


@needs_both
def test_after_an_idle_run_the_verdicts_are_repeated_without_spark_until_the_table_changes(
    landed, spark, table, instance, resources, no_spark, monkeypatch
):
    checked = landed()

    def verdicts():
        return {found.check_name: found for found in checked.check("no_gap", "no_duplicate", raise_on_error=True)}

    first = verdicts()
    checked.land()
    no_spark()
    # The log may have 100,000 files, and the recorded version says which of them are new.
    monkeypatch.setattr(local_log, "_versions", lambda log: pytest.fail(f"a check listed {log}"))
    again, third = verdicts(), verdicts()
    monkeypatch.undo()
    for name, before in first.items():
        assert before.passed
        assert again[name].passed
        assert values(again[name]) == values(third[name]) == {**values(before), "unchanged": True}
        repeated = f"{output(before)} The table has not changed since; Spark was not started."
        assert output(again[name]) == output(third[name]) == repeated
    # Another number of commits is another question.
    wider = _Checked(instance, resources, checked.asset, kafka_delta_checks(checked.asset, duplicate_commits=None))
    assert "unchanged" not in values(wider.one("no_duplicate"))
    spark.sql(f"INSERT INTO delta.`{table}` SELECT * FROM delta.`{table}` LIMIT 1")
    doubled = checked.one("no_duplicate")
    assert not doubled.passed
    # A verdict that failed is looked at again, although nothing has changed.
    assert "unchanged" not in values(checked.one("no_duplicate"))


@needs_both
def test_a_table_that_was_deleted_and_landed_again_is_looked_at_again_at_the_same_version(landed, table):
    checked = landed()
    first = checked.one("no_duplicate")
    shutil.rmtree(table)
    checked.land()
    again = checked.one("no_duplicate")
    assert values(first)["delta/version"] == values(again)["delta/version"] == 1
    assert again.passed
    assert "unchanged" not in values(again)
    assert values(first)["delta/committed_at"] < values(again)["delta/committed_at"]


@needs_both
def test_contiguous_commits_pass_and_an_unexplained_gap_fails(kafka, landed, spark, topic, table):
    checked = landed()
    kafka.produce(topic, [(None, f"a{number}") for number in range(4, 9)])
    checked.land()
    passed = checked.one("no_gap")
    assert passed.passed
    assert passed.description == (
        "No gaps in 2 commits of the stream 'main' in versions 0 to 2: each begins where the previous one ended."
    )
    assert values(passed)["commits"] == 2

    version = commit_by_hand(spark, table, topic, 12, 14)
    failed = checked.one("no_gap")
    assert (failed.passed, failed.severity) == (False, AssetCheckSeverity.ERROR)
    assert f"version {version}: 3 offsets skipped since version 2, on {topic}-0" in output(failed)
    found = values(failed)
    assert (found["gaps"], found["skipped_offsets"], found["repeated_offsets"]) == (1, 3, 0)
    assert (found["from_version"], found["to_version"]) == (0, version)
    assert [record.data["version"] for record in found["breaks"].records] == [version]

    commit_by_hand(spark, table, topic, 10, 16)
    assert values(checked.one("no_gap"))["repeated_offsets"] == 4


def test_a_gap_of_a_table_with_a_key_is_not_filled_by_replacing_a_range():
    gap = Continuity(0, 2, commits=2, compared=1, breaks=(Break(2, "a gap", skipped=3),), restores=0, changes=0)
    for mode, way in (
        (Append(), "use mode: replace."),
        (Upsert(key=("id",)), "move the position back, or rebuild it."),
    ):
        ingestion: Any = SimpleNamespace(target=DeltaTarget(table="/lake/t", mode=mode))
        assert way in str(TableChecks(ingestion, AssetKey("t"), None)._no_gap(gap).description)


@needs_both
def test_a_manually_moved_position_is_reported_and_does_not_fail(
    kafka, connection, landed, spark, instance, topic, table
):
    checked = landed(max_lag=100)
    kafka.produce(topic, [(None, f"a{number}") for number in range(4, 9)])
    target = DeltaTarget(table=table)
    source = KafkaSource(topics=(topic,)).connected(connection)
    move = plan_move(source, target, spark, OffsetsInitializer.specific_offsets({TopicPartition(topic, 0): 7}))
    commit_move(move, target, spark, "a bad batch")
    evaluation = checked.one("no_gap")
    assert evaluation.passed
    assert "3 offsets skipped since version 1" in output(evaluation)
    assert "(position moved manually: a bad batch)" in output(evaluation)
    found = values(evaluation)
    assert (found["explained"], found["explained_skipped_offsets"], found["gaps"]) == (1, 3, 0)

    assert values(checked.one("lag_below"))["lag"] == 5
    void_record(instance, checked.asset.key, "a bad batch", 2)
    untold = checked.one("lag_below")
    assert (untold.passed, untold.severity) == (False, AssetCheckSeverity.WARN)
    assert "its position was moved manually" in output(untold)


@needs_both
def test_duplicate_rows_fail(kafka, landed, spark, topic, table):
    checked = landed()
    passed = checked.one("no_duplicate")
    assert passed.passed
    found = values(passed)
    assert datetime.fromisoformat(found.pop("delta/committed_at")) <= datetime.now(tz=timezone.utc)
    assert found == {
        "rows_compared": 5,
        "duplicate_records": 0,
        "surplus_rows": 0,
        "topics_left_out": 0,
        "commits": 1,
        "delta/version": 1,
        "scope": f"{DeltaTarget(table=table).identity}, stream main: the last 10 commits by "
        "kafka_topic, kafka_partition, kafka_offset",
    }
    insert = f"INSERT INTO delta.`{table}` SELECT * FROM delta.`{table}` WHERE kafka_partition = 0 AND kafka_offset = 2"
    spark.sql(insert)
    spark.sql(insert)
    failed = checked.one("no_duplicate")
    assert (failed.passed, failed.severity) == (False, AssetCheckSeverity.ERROR)
    assert f"1 duplicated record, 3 rows too many, such as {topic}-0 offset 2" in output(failed)
    assert (values(failed)["duplicate_records"], values(failed)["surplus_rows"]) == (1, 3)


@needs_both
def test_a_function_that_drops_the_offset_is_reported(kafka, instance, resources, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [(None, "a")])

    @kafka_delta_asset(source=KafkaSource(topics=(topic,)), table=table)
    def narrow(records):
        return records.drop("kafka_offset")

    checked = _Checked(instance, resources, narrow, kafka_delta_checks(narrow))
    before = checked.check("no_duplicate", "no_gap")
    for each in before:
        assert (each.passed, each.severity) == (False, AssetCheckSeverity.WARN)
        assert "does not exist yet" in output(each)
        assert "nothing was checked" in output(each)
    checked.land()
    untold = checked.one("no_duplicate")
    assert (untold.passed, untold.severity) == (False, AssetCheckSeverity.WARN)
    assert "The table has no column kafka_offset" in output(untold)
    shutil.rmtree(table)
    for each in checked.check("no_duplicate", "no_gap"):
        assert (each.passed, each.severity) == (False, AssetCheckSeverity.ERROR)
        assert "but Dagster has a materialization of it" in output(each)


@needs_both
def test_checks_that_find_no_commit_of_the_stream_do_not_pass(landed, spark, table, monkeypatch):
    checked = landed()
    first = {each.check_name: each for each in checked.check("no_duplicate", "no_gap")}
    assert all(each.passed for each in first.values()), "the first materialization: the whole history was looked at"
    assert values(first["no_gap"])["compared"] == 0
    # Others' commits push those of the stream out of what is read.
    monkeypatch.setattr("dagster_kafka_flip.table.delta_table.MOST_COMMITS", 2)
    for number in range(2):
        spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('a.number' = '{number}')")
    for each in checked.check("no_duplicate", "no_gap"):
        assert (each.passed, each.severity) == (False, AssetCheckSeverity.WARN)
        assert "Nothing was compared" in output(each)


@needs_both
def test_the_lag_is_that_of_now_and_takes_no_spark(kafka, landed, topic, no_spark):
    checked = landed(max_lag=3, max_delay=timedelta(hours=1))
    no_spark()
    passed = checked.one("lag_below")
    assert passed.passed
    assert passed.description == "Lag is 0 offsets; the limit is 3."

    kafka.produce(topic, [(None, "new")] * 3)
    kafka.produce(topic, [(None, "new")], partition=1)
    failed = checked.one("lag_below")
    assert (failed.passed, failed.severity) == (False, AssetCheckSeverity.WARN)
    assert failed.description == f"Lag is 4 offsets; the limit is 3; largest: {topic}-0 with 3."
    found = values(failed)
    assert (found["lag"], found["max_lag"], found["largest_lag"], found["largest_lag_at"]) == (4, 3, 3, f"{topic}-0")
    assert [tuple(record.data.values()) for record in found["by_topic_partition"].records] == [
        (f"{topic}-0", 4, 3),
        (f"{topic}-1", 1, 1),
    ]

    kafka.trim(topic, 0, 6)
    lost = checked.one("lag_below")
    assert (lost.passed, lost.severity) == (False, AssetCheckSeverity.ERROR)
    assert "Retention deleted 2 unread offsets on 1 topic partition" in output(lost)
    assert (values(lost)["lag"], values(lost)["lost_offsets"]) == (2, 2)
    stale = checked.one("watermark_fresh")
    assert (stale.passed, "has lost records that were not read" in output(stale)) == (False, True)


@needs_both
def test_an_old_watermark_also_fails_on_a_named_cluster(kafka, broker, instance, resources, topic, table, no_spark):
    def at(address):
        eu = KafkaClusterConfig(bootstrap_servers=address, request_timeout=2)
        return {**resources, "kafka": KafkaResource(clusters={"eu": eu})}

    kafka.create(topic)
    kafka.produce(topic, [(None, "old")], timestamp=1_700_000_000_000)
    landed = build_kafka_delta_asset(name="landed", source=KafkaSource(topics=(topic,), cluster="eu"), table=table)
    checks = kafka_delta_checks(landed, max_delay=timedelta(hours=1))
    checked = _Checked(instance, at(broker), landed, checks)
    never = checked.one("watermark_fresh")
    assert (never.passed, "it was never materialized" in output(never)) == (False, True)
    checked.land()
    no_spark()
    kafka.produce(topic, [(None, "new")])
    stale = checked.one("watermark_fresh")
    assert (stale.passed, stale.severity) == (False, AssetCheckSeverity.WARN)
    assert "the table's watermark is 2023-11-14T22:13:20Z" in output(stale)
    assert values(stale)["delay_seconds"] == pytest.approx(time.time() - 1_700_000_000, abs=3600)
    assert values(stale)["max_delay_seconds"] == 3600
    with pytest.raises(ClusterUnreachableError):
        _Checked(instance, at("127.0.0.1:1"), landed, checks).one("watermark_fresh", raise_on_error=True)


@needs_both
def test_a_recreated_topic_is_reported_without_spark(kafka, landed, topic, no_spark):
    checked = landed(max_lag=10, max_delay=timedelta(hours=1))
    no_spark()
    passed = checked.one("same_log")
    assert passed.passed
    assert (values(passed)["changed"], values(passed)["known_topic_ids"]) == (0, 1)

    kafka.delete(topic)
    gone = checked.one("same_log")
    assert (gone.passed, gone.severity) == (False, AssetCheckSeverity.ERROR)
    assert gone.description == f"{topic}: topic does not exist, or this client may not describe it."

    kafka.create(topic)
    again = {each.check_name: each for each in checked.check("same_log", "lag_below", "watermark_fresh")}
    assert not any(each.passed for each in again.values()), "a lag of another log would say nothing"
    assert f"the topic {topic} was deleted and recreated" in output(again["same_log"])
    assert again["same_log"].severity is AssetCheckSeverity.ERROR
    assert again["lag_below"].severity is AssetCheckSeverity.WARN


@needs_both
def test_rejected_records_of_the_last_runs_are_counted(kafka, instance, resources, topic, table, no_spark):
    kafka.create(topic)
    kafka.produce(topic, [(None, '{"n": 1}'), (None, "no json"), (None, "nor this")])
    landed = build_kafka_delta_asset(
        name="landed",
        source=KafkaSource(topics=(topic,)),
        table=table,
        value_format=JsonFormat("n INT", on_error="null"),
    )

    def check(most):
        checked = _Checked(instance, resources, landed, kafka_delta_checks(landed, max_rejected=most))
        return checked, checked.one("no_records_rejected_lately")

    checked, before = check(0)
    assert before.passed
    checked.land()
    kafka.produce(topic, [(None, "and this")])
    checked.land()
    no_spark()
    _, failed = check(2)
    assert (failed.passed, failed.severity) == (False, AssetCheckSeverity.WARN)
    assert failed.description == "Rejected records in the last 24 hours: 3, in 2 of 2 runs; the limit is 2."
    assert values(failed) == {
        "rejected_records": 3,
        "max_rejected": 2,
        "runs": 2,
        "runs_with_rejected": 2,
        "runs_unknown": 0,
    }
    assert check(3)[1].passed


@needs_both
def test_rejected_records_of_a_run_that_died_are_unknown_and_not_none(kafka, instance, resources, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [(None, "no json"), (None, '{"n": 1}')])
    fails = [True]

    @kafka_delta_asset(
        source=KafkaSource(topics=(topic,)),
        table=table,
        value_format=JsonFormat("n INT", on_error="null"),
        limits=Limits(max_records_per_batch=1),
    )
    def landed(records):
        # The table's creation is its first commit.
        if fails and len(list(Path(table).glob("_delta_log/*.json"))) == 2:
            fails.clear()
            msg = "before the second batch"
            raise ValueError(msg)
        return records

    checked = _Checked(instance, resources, landed, kafka_delta_checks(landed, max_rejected=9))
    assert not materialize([landed], instance=instance, resources=resources, raise_on_error=False).success
    assert not fails
    checked.land()
    found = checked.one("no_records_rejected_lately")
    assert (found.passed, values(found)["runs_unknown"]) == (False, 1)
    assert "delta/unreported_commits" in output(found)


@needs_both
def test_a_table_of_windows_is_checked_for_duplicates_alone(kafka, instance, resources, spark, topic, table):
    kafka.create(topic)
    kafka.produce(topic, [(None, "a"), (None, "b")], timestamp=1_362_096_000_000)
    daily = build_kafka_delta_asset(
        name="daily",
        source=KafkaSource(topics=(topic,)),
        table=table,
        partitions_def=DailyPartitionsDefinition("2013-03-01", end_date="2013-03-03"),
    )
    checks = kafka_delta_checks(daily)
    assert [key.name for each in checks for key in each.check_keys] == ["no_duplicate"]
    materialize([daily], instance=instance, resources=resources, partition_key="2013-03-01")
    checked = _Checked(instance, resources, daily, checks)
    passed = checked.one("no_duplicate")
    assert (passed.passed, values(passed)["rows_compared"]) == (True, 2)
    spark.sql(f"INSERT INTO delta.`{table}` SELECT * FROM delta.`{table}`")
    assert values(checked.one("no_duplicate"))["surplus_rows"] == 2
    with pytest.raises(ConfigurationError, match="max_lag: the asset daily has partitions"):
        kafka_delta_checks(daily, max_lag=1)


def _asset(**options):
    return build_kafka_delta_asset(name="some", source=KafkaSource(topics=("t",)), table="warehouse/t", **options)


def test_checks_with_and_without_spark_are_separate_steps():
    table_checks, log_checks, schema = kafka_delta_checks(_asset(), max_lag=1, max_delay=timedelta(minutes=5))
    assert {key.name for key in table_checks.check_keys} == {"no_gap", "no_duplicate"}
    assert {key.name for key in log_checks.check_keys} == {"same_log", "lag_below", "watermark_fresh"}
    assert {key.name for key in schema.check_keys} == {"column_schema_change"}
    assert table_checks.required_resource_keys - {"io_manager"} == {"spark"}
    assert log_checks.required_resource_keys - {"io_manager"} == {"kafka"}
    assert {spec.name for spec in table_checks.check_specs if spec.blocking} == {"no_gap", "no_duplicate"}
    assert not any(spec.blocking for spec in [*log_checks.check_specs, *schema.check_specs])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_lag": -1}, "max_lag: must be greater than or equal to 0"),
        ({"max_rejected": -1}, "max_rejected: must be greater than or equal to 0"),
        ({"duplicate_commits": 0}, "duplicate_commits: must be greater than or equal to 1"),
        ({"max_delay": timedelta(0)}, "max_delay: must be greater than 0"),
        ({"duplicates": False, "duplicate_commits": 5}, "duplicates=False disables it"),
        ({"rejected_within": timedelta(hours=1)}, "max_rejected is not set; set both"),
        ({"max_rejected": 1}, "an undecodable record fails a run of the asset some"),
        ({"gaps": False, "duplicates": False, "identity": False, "schema": False}, "every check is disabled"),
    ],
)
def test_bounds_that_can_not_be_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        kafka_delta_checks(_asset(), **options)


def test_an_asset_that_keeps_no_offset_can_not_be_checked_for_duplicates():
    narrow = _asset(columns=KafkaColumns(fields=("key", "topic", "timestamp")))
    with pytest.raises(ConfigurationError, match="the asset some has no column offset, partition"):
        kafka_delta_checks(narrow)
    assert kafka_delta_checks(narrow, duplicates=False)


def test_only_an_asset_that_was_made_here_has_these_checks():
    @asset
    def other() -> None:
        """Of somebody else."""

    wrong: list[Any] = [other, AssetKey("some"), "some", kafka_topic_asset(KafkaSource(topics=("t",)))]
    for each in wrong:
        with pytest.raises(ConfigurationError, match="is not a Kafka Delta asset; pass the definition"):
            kafka_delta_checks(each)


def test_one_of_several_assets_is_named():
    source = KafkaSource(topics=("t",))
    tables = [KafkaDeltaTable("raw", table="w/raw"), KafkaDeltaTable("typed", table="w/typed")]
    both = build_kafka_delta_multi_asset(name="both", source=source, tables=tables)
    checks = kafka_delta_checks(both, key="typed")
    assert {key.asset_key.to_user_string() for each in checks for key in each.check_keys} == {"typed"}
    for key, which in ((None, "several assets"), ("other", "no asset other")):
        with pytest.raises(ConfigurationError, match=f"the definition has {which}; set key= to one of raw, typed"):
            kafka_delta_checks(both, key=key)
