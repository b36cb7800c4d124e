"""published_equals_table: what it compares, and that what is unknown never passes."""

from __future__ import annotations

from typing import Any

import pytest
from dagster import (
    AssetCheckSeverity,
    AssetMaterialization,
    AssetSelection,
    Definitions,
    IntMetadataValue,
    asset,
    define_asset_job,
)

from dagster_kafka_flip import (
    DeltaSource,
    JsonSerializer,
    KafkaSink,
    Limits,
    build_delta_kafka_asset,
    delta_kafka_asset,
    delta_kafka_checks,
)
from dagster_kafka_flip.assets.delta_kafka_asset import publishing_of
from dagster_kafka_flip.checks.delta_kafka_checks import _left_out
from dagster_kafka_flip.errors import ConfigurationError, RowMisplacedError
from dagster_kafka_flip.sink.comparison import TopicComparison, is_earlier
from dagster_kafka_flip.sink.publication import Publication

_KEY = JsonSerializer(columns=("id",))


def _asset(content: Any = "changes", **options: Any):
    sink = KafkaSink(topic="orders", transactional_id_prefix="orders", key=_KEY, **options)
    return build_delta_kafka_asset(source=DeltaSource(table="lake/orders", content=content), sink=sink)


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"deletes": "row"}, "its records are changes"),
        ({"content": "all_images"}, "its records are changes"),
        ({"topic_column": "t"}, "in several topics"),
        ({"value": JsonSerializer(columns=("id", "_commit_version"))}, "has _commit_version"),
    ],
)
def test_records_that_are_not_rows_are_refused(options, reported):
    with pytest.raises(ConfigurationError, match=reported):
        delta_kafka_checks(_asset(**options))


def test_wrong_arguments_are_named():
    with pytest.raises(ConfigurationError, match="equals_table=False leaves no check"):
        delta_kafka_checks(_asset(), equals_table=False)
    with pytest.raises(ConfigurationError, match="max_records=0"):
        delta_kafka_checks(_asset(), max_records=0)

    @asset
    def other():
        pass

    with pytest.raises(ConfigurationError, match="takes an asset of delta_kafka_asset"):
        delta_kafka_checks(other)


@pytest.mark.spark
def test_a_record_is_earlier_if_it_only_lacks_fields_of_structs_that_are_null(spark):
    inner = "STRUCT<a: INT, b: INT>"
    columns = (
        f"w INT, s {inner}, l ARRAY<{inner}>, m MAP<STRING, {inner}>, t TIMESTAMP, n DECIMAL(3,2), f FLOAT, x BINARY"
    )
    others = '"t":"2026-01-01T00:00:00.000001Z","n":1.10,"f":0.1,"x":"AP8="'
    now = {"w": "null", "s": '{"a":1,"b":null}', "l": '[{"a":1,"b":null}]', "m": '{"k":{"a":1,"b":null},"n":null}'}
    earlier = {"s": '{"a":1}', "l": '[{"a":1}]', "m": '{"k":{"a":1},"n":null}'}

    def text(members):
        written = [f'"{name}":{value}' for name, value in members.items()]
        return f"{{{','.join([*written, others])}}}"

    wrong = [
        *("{", "null", text(earlier).replace("1.10", "1.11"), text(earlier | {"z": "0"})),
        *(
            text(now | {name: value})
            for name, value in (
                ("w", "0"),
                ("s", '{"a":2}'),
                ("s", '{"b":null}'),
                ("s", '{"a":1,"c":0}'),
                ("s", "null"),
                ("l", "[]"),
                ("l", '[{"a":2}]'),
                # The entries of a map are values: nothing adds them later.
                ("m", '{"k":{"a":1}}'),
                ("m", '{"k":{"a":2},"n":null}'),
            )
        ),
    ]
    rows = spark.createDataFrame([(each, text(now)) for each in (text(earlier), *wrong)], "record STRING, row STRING")
    found = rows.select(is_earlier(rows["record"], rows["row"], spark.createDataFrame([], columns).schema)).collect()
    assert [bool(each) for (each,) in found] == [True, *[False] * len(wrong)]


def _compared(published, *, max_records=1000, transform=None):
    return TopicComparison(
        published.source, published.sink, transform, published.connection, published.spark, max_records
    ).compare()


def _numbers(found):
    return found.keys, found.missing, found.surplus, found.differing


@pytest.mark.kafka
@pytest.mark.spark
def test_the_last_record_of_each_key_is_compared_with_its_row(published, kafka, topic):
    published.create("id int, v string, s struct<a: array<struct<b: int>>, m: map<string, int>>")
    row = "named_struct('a', array(named_struct('b', 1)), 'm', map('k', null))"
    published.sql(f"INSERT INTO {{t}} SELECT id, concat('a', id), {row} FROM range(6)")
    published.run(limits=Limits(max_records_per_batch=4, max_batches=1), lanes=1, partitioner="fixed")
    assert "in the middle of a version" in _compared(published).unknown[0]
    published.run()
    published.sql("UPDATE {t} SET v = 'b' WHERE id < 2")
    published.sql("DELETE FROM {t} WHERE id = 5")
    published.sql("ALTER TABLE {t} ADD COLUMN (w int, s.a.element.c int)")
    published.sql("INSERT INTO {t} VALUES (7, 'g', null, 1)")
    published.run()
    # Not published yet.
    published.sql("DELETE FROM {t}")
    found = _compared(published)
    assert (found.unknown, found.is_whole, found.version, found.records) == ([], True, 5, 10)
    # Rows that did not change lack the new column and the new field in the topic.
    assert (found.earlier_columns, _numbers(found)) == (3, (7, 0, 0, 0))

    # Of a part only what it has: the last four records, and the marker behind them.
    found = _compared(published, max_records=5)
    assert (found.unknown, found.is_whole, _numbers(found)) == ([], False, (4, 0, 0, 0))

    # With a function, its rows.
    assert _compared(published, transform=lambda rows: rows.where("id > 0")).surplus == 1

    kafka.produce(topic, [('{"id":0}', "other"), ('{"id":77}', "x")])
    found = _compared(published)
    assert (found.unknown, _numbers(found)) == ([], (8, 0, 1, 1))
    assert sorted(found.examples) == ["differing: '{\"id\":0}'", "surplus: '{\"id\":77}'"]

    # A key in two topic partitions has no last record, and what retention took is not known to be there.
    kafka.produce(topic, [('{"id":77}', None)])
    kafka.produce(topic, [('{"id":0}', "other")], partition=1)
    kafka.trim(topic, 0, 6)
    found = _compared(published)
    assert "1 key with records in several topic partitions" in found.unknown[0]
    assert "the topic, which no longer begins at offset 0, lacks 3 rows of the table" in found.unknown[1]
    assert _numbers(found)[1:] == (0, 0, 0)
    kafka.open_transaction(topic, [(None, "x")])
    assert "a transaction is open" in _compared(published).unknown[0]


@pytest.mark.kafka
@pytest.mark.spark
def test_appended_rows_are_counted_in_a_job_that_ends_with_the_check(published, kafka, topic, instance, resources):
    published.create()
    published.sql("INSERT INTO {t} VALUES (1, 'a'), (2, 'b'), (2, 'b')")
    sink = KafkaSink(topic=topic, transactional_id_prefix=topic)

    @delta_kafka_asset(source=DeltaSource(table=published.table, content="appended_rows"), sink=sink)
    def rows_as_they_are(rows, context):
        return rows.where("id > 0")

    whole, end = delta_kafka_checks(rows_as_they_are), delta_kafka_checks(rows_as_they_are, max_records=2)

    def checked(checks, job="check"):
        definitions = Definitions(
            assets=[rows_as_they_are],
            asset_checks=checks,
            jobs=[
                define_asset_job("all", AssetSelection.all()),
                define_asset_job("check", AssetSelection.checks(*checks)),
            ],
            resources=resources,
        )
        result = definitions.resolve_job_def(job).execute_in_process(instance=instance, raise_on_error=False)
        (evaluation,) = result.get_asset_check_evaluations()
        reported = {key: value.value for key, value in evaluation.metadata.items()}
        return evaluation.passed, evaluation.severity, evaluation.description or "", reported

    passed, _, text, reported = checked(whole, "all")
    assert (passed, reported["compared"], reported["whole_topic"], reported["records_read"]) == (True, 3, True, 3), text
    assert text.endswith("All are equal.")
    passed, _, text, reported = checked(end)
    assert (passed, reported["whole_topic"]) == (True, False)
    assert "earlier records were not compared" in text
    kafka.produce(topic, [(None, '{"id":2,"v":"b"}')])
    passed, severity, text, reported = checked(whole)
    assert (passed, severity, reported["surplus"], reported["missing"]) == (False, AssetCheckSeverity.ERROR, 1, 0)
    assert "1 are only in the topic" in text


def test_idle_runs_alone_do_not_tell_what_was_left_out(instance):
    sink = KafkaSink(topic="t", transactional_id_prefix="s", key=_KEY, tolerate=(RowMisplacedError,))
    asset = build_delta_kafka_asset(source=DeltaSource(table="lake/a"), sink=sink)
    publishing = publishing_of(asset)
    assert publishing is not None
    for _ in range(2):
        instance.report_runless_asset_event(AssetMaterialization(asset.key, metadata={"kafka/idle": True}))
    found = _left_out(instance, asset.key, publishing)
    assert (found.passed, found.metadata) == (False, {})
    assert "None of the last 2 materializations published anything" in (found.description or "")


def test_rows_that_failed_runs_left_out_count_until_a_run_leaves_none_out(instance):
    sink = KafkaSink(topic="t", transactional_id_prefix="s", key=_KEY, tolerate=(RowMisplacedError,))
    asset = build_delta_kafka_asset(source=DeltaSource(table="lake/a"), sink=sink)
    publishing = publishing_of(asset)
    assert publishing is not None

    def after(total, rows=0, prefix="s", *, idle=False):
        by_error = {"kafka/rows_left_out": rows, "kafka/rows_left_out_by_error": {"RowMisplacedError": rows}}
        progress = {"0": {"version": 1, "rows": 0, "left_out": total}, "1": {"version": 1, "rows": 0}}
        metadata = {"kafka/idle": idle, "kafka/sink": prefix, "kafka/sink_progress": progress}
        metadata |= by_error if rows else {}
        instance.report_runless_asset_event(AssetMaterialization(asset.key, metadata=metadata))
        found = _left_out(instance, asset.key, publishing)
        return found.passed, *(found.metadata.get(name) for name in ("rows_left_out", "left_out_by_failed_runs"))

    def value(number):
        return None if number is None else IntMetadataValue(number)

    for given, expected in (
        ((2, 0), (False, 2, 2)),  # the very first run failed, and left two rows out
        ((3, 1), (False, 1, None)),
        ((3, 0), (True, 0, None)),
        ((5, 0), (False, 2, 2)),
    ):
        assert after(*given) == (expected[0], *map(value, expected[1:])), given
    # The failed run had published all, so the next one is idle.
    assert after(5, 0) == (True, value(0), None)
    assert after(6, idle=True) == (False, value(1), value(1))
    # A sink of versions that are published again has progress of its own.
    assert after(0, 0, "s-again-1") == (True, value(0), None)
    assert after(6, 0) == (True, value(0), None)


@pytest.mark.kafka
@pytest.mark.spark
def test_rows_that_were_left_out_are_reported_and_not_counted_as_lost(published, instance, resources, monkeypatch):
    published.create("id int, p int")
    published.sql("INSERT INTO {t} VALUES (1, 0), (2, 9)")
    sink = KafkaSink(
        topic=published.topic,
        transactional_id_prefix=published.topic,
        key=_KEY,
        partition_column="p",
        tolerate=(RowMisplacedError,),
    )
    made = build_delta_kafka_asset(source=DeltaSource(table=published.table), sink=sink)
    checks = delta_kafka_checks(made)

    def checked(selection):
        job = define_asset_job("job", selection)
        definitions = Definitions(assets=[made], asset_checks=checks, jobs=[job], resources=resources)
        result = definitions.resolve_job_def("job").execute_in_process(instance=instance)
        return {each.check_name: each for each in result.get_asset_check_evaluations()}

    only_checks = AssetSelection.checks(*checks)
    assert "has no run of the asset" in (checked(only_checks)["no_rows_left_out"].description or "")
    found = checked(AssetSelection.all())
    left_out, equal = found["no_rows_left_out"], found["published_equals_table"]
    assert [each.severity for each in found.values()] == [AssetCheckSeverity.WARN] * 2
    assert (left_out.passed, left_out.metadata["rows_left_out"].value) == (False, 1)
    assert left_out.metadata["by_error"].value == {"RowMisplacedError": 1}
    assert "left 1 row out" in (left_out.description or "")
    assert (equal.passed, equal.metadata["missing"].value) == (False, 1)
    assert "may be rows that the sink left out" in (equal.description or "")
    # A run that finds nothing new leaves that as it is.
    again = checked(AssetSelection.all())
    assert {name: (each.passed, each.metadata["unchanged"].value) for name, each in again.items()} == {
        "no_rows_left_out": (False, True),
        "published_equals_table": (False, True),
    }
    published.sql("UPDATE {t} SET p = 1 WHERE id = 2")
    assert [each.passed for each in checked(AssetSelection.all()).values()] == [True, True]
    # A run that dies behind its commit reports nothing itself.
    published.sql("INSERT INTO {t} VALUES (3, 9)")

    def dies(*_: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr(Publication, "result", dies)
        with pytest.raises(RuntimeError):
            checked(AssetSelection.all())
    left_out = checked(AssetSelection.all())["no_rows_left_out"]
    assert (left_out.passed, left_out.metadata["left_out_by_failed_runs"].value) == (False, 1)
    assert "and failed runs left 1 more out" in (left_out.description or "")
