"""What a user's session has, caches and settings, reaches neither what is read of a table nor what is written to it."""

from __future__ import annotations

import ast
import shutil
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

import dagster_kafka_flip
from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.ingestion.rewrite_windows import rewrite_windows
from dagster_kafka_flip.runtime.isolated_session import isolated_session
from dagster_kafka_flip.runtime.relied_settings import RELIED_ON, check_settings
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.window import Window
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.merge import SETTINGS as MERGE_SETTINGS
from dagster_kafka_flip.table.mode import Scd2
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed
from tests.upsert.test_unavailable import OPTIONS as LEFT_OUT
from tests.upsert.test_unavailable import row

_NUMBERS = JsonFormat("n INT NOT NULL")
# Instead of the values that are right.
_OTHERS = {"false": "true", "true": "false", "ANSI": "LEGACY", "CORRECTED": "LEGACY", "INT96": "TIMESTAMP_MILLIS"}
_HOUR = Window("h0", 1_362_096_000_000, 1_362_099_600_000)


@pytest.fixture
def land(connection, spark_of, topic, table):
    """Runs ingest() of the test's topic."""

    def run(into=table, **options):
        given: dict[str, Any] = {"spark": spark_of, "connection": connection, "value_format": _NUMBERS, **options}
        return ingest(KafkaSource(topics=(topic,)), into, **given)

    return run


@pytest.fixture
def rewrite(connection, spark_of, topic, table):
    """Lands one window of the test's topic."""

    def run(into=table, **options):
        given: dict[str, Any] = {"spark": spark_of, "connection": connection, "value_format": _NUMBERS, **options}
        source, target = KafkaSource(topics=(topic,)), DeltaTarget(table=into)
        return list(rewrite_windows(source, target, [_HOUR], definition="hours", **given))

    return run


@pytest.fixture
def cached(spark, tmp_path):
    """Caches a table as it was at a version: the later ones are as another machine's, of which this Spark knows not."""

    def cache(table, version):
        log = Path(table, "_delta_log")
        later = [file for file in log.glob("*.json") if int(file.stem) > version]
        for file in later:
            file.rename(tmp_path / file.name)
        spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
        spark.table(f"delta.`{table}`").cache().count()
        for file in later:
            shutil.move(tmp_path / file.name, file)

    yield cache
    spark.catalog.clearCache()


@pytest.fixture
def setting(spark):
    """Sets settings of the session, as a user may, until the test's end or until they get no value."""
    before, names = spark.conf.getAll, []

    def set_to(name, value):
        names.append(name)
        value = before.get(name) if value is None else value
        spark.conf.unset(name) if value is None else spark.conf.set(name, value)

    yield set_to
    for name in tuple(names):
        set_to(name, None)


@pytest.mark.kafka
@pytest.mark.spark
def test_values_and_rows_that_a_merge_looks_up_are_the_table_s_and_not_cached_ones(kafka, land, topic, table, cached):
    # A history looks up both.
    target = DeltaTarget(table=table, mode=Scd2(key=("id",)))
    options = {**LEFT_OUT, "key_format": JsonFormat("id BIGINT")}
    kafka.create(topic)
    for name, bio in (("a", "one"), ("b", "two")):
        kafka.produce(topic, [row(1, name, bio)])
        land(target, **options)
    cached(table, 1)
    kafka.produce(topic, [row(1, "c")])
    land(target, **options)
    assert landed.rows(table, "id", "name", "bio", where="is_current") == [(1, "c", "two")]


def test_rows_of_tables_are_read_by_one_function_and_by_the_sink():
    """By its name, Spark would answer from what is cached of a table."""
    root = Path(dagster_kafka_flip.__file__).parent
    found = {
        (str(file.relative_to(root)), ast.unparse(call))
        for file in root.rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith((".table", ".forPath", ".forName"))
    }
    assert {(file, call) for file, call in found if not call.startswith("MetadataValue.")} == {
        ("table/table_port.py", "self._spark.table(self.target.identifier)"),  # its columns
        ("table/table_port.py", "reader.table(self.target.identifier)"),
        ("sink/table_rows.py", "reader.table(target.identifier)"),  # at a version, or the changes between two
    }


@pytest.mark.kafka
@pytest.mark.spark
def test_a_transaction_that_is_set_in_the_session_makes_no_write_be_skipped(
    kafka, land, rewrite, topic, table, setting
):
    def transaction(rows):
        setting("spark.databricks.delta.write.txnAppId", "nightly")
        setting("spark.databricks.delta.write.txnVersion", "1")
        return rows

    kafka.create(topic)
    kafka.produce(topic, [(None, '{"n": 1}')], timestamp=_HOUR.start_ms)
    rewrite()
    version = landed.version(table)
    for run in (rewrite, lambda **options: land(f"{table}-stream", **options)):
        with pytest.raises(ConfigurationError, match=r"spark.databricks.delta.write.txnAppId is nightly.* Unset it .*"):
            run(transform=transaction)
    assert landed.version(table) == version


@pytest.mark.kafka
@pytest.mark.spark
def test_a_transform_that_sets_another_time_zone_is_refused_and_the_next_run_reads_times_as_before(
    kafka, land, topic, table, setting
):
    """What is decoded before the transform is called has the former zone, and the next batch would have the other."""
    zone = "spark.sql.session.timeZone"

    def berlin(rows):
        setting(zone, "Europe/Berlin")
        return rows

    kafka.create(topic)
    options = {"value_format": JsonFormat("at TIMESTAMP"), "limits": Limits(max_records_per_batch=1)}
    noon = '{"at": "2026-06-01 12:00:00"}'
    kafka.produce(topic, [(None, noon)])
    land(**options)
    kafka.produce(topic, [(None, noon), (None, noon)])
    refused = rf"the transform set {zone} from UTC to Europe/Berlin: .* It is set back\. Nothing was written\. Set "
    for into in (table, f"{table}-new"):
        with pytest.raises(ConfigurationError, match=refused):
            land(into, transform=berlin, **options)
    land(**options)
    assert landed.values(table, "at") == [datetime(2026, 6, 1, 12, tzinfo=timezone.utc)] * 3


@pytest.mark.spark
def test_a_setting_that_would_change_rows_is_refused_by_its_name(spark, setting):
    check_settings(spark)
    documented = Path("docs/reference.md").read_text(encoding="utf-8")
    assert {name for name in RELIED_ON if f"`{name}`" not in documented} == set()
    for name, (values, _) in RELIED_ON.items():
        setting(name, _OTHERS.get(values[0], "1") if values else "1")
        with pytest.raises(ConfigurationError, match=f"^{name} is .* [A-Z]"):
            check_settings(spark)
        setting(name, None)
    check_settings(spark)


@pytest.mark.parametrize("value", ["LEGACY", "ANSI"])
@pytest.mark.spark
def test_a_merge_assigns_values_as_the_session_does_and_not_as_spark_was_started_to(spark, value):
    """In a session of its own: the user's own one has unset it, and is checked."""
    name, started = "spark.sql.storeAssignmentPolicy", spark._jsparkSession.sharedState().conf()
    started.set(name, value)
    try:
        assert spark.newSession().conf.get(name) == value
        with isolated_session(spark, MERGE_SETTINGS) as session:
            check_settings(session)
            assert session.conf.get(name) == "ANSI"
    finally:
        started.remove(name)


@pytest.fixture
def second_catalog(spark):
    """Another catalog, which a session can be told to use."""
    settings = {
        "spark.sql.catalog.second": "org.apache.spark.sql.execution.datasources.v2.jdbc.JDBCTableCatalog",
        "spark.sql.catalog.second.url": "jdbc:derby:memory:second",
        "spark.sql.catalog.second.driver": "org.apache.derby.jdbc.EmbeddedDriver",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield "second"
    spark.sql("USE spark_catalog.default")
    for name in settings:
        spark.conf.unset(name)


@pytest.mark.spark
def test_a_name_without_its_catalog_or_schema_leads_to_one_table_whatever_the_session_was_told_to_use(
    spark, second_catalog
):
    for name, full in (("lake.t", "spark_catalog.lake.t"), ("t", "spark_catalog.default.t")):
        assert DeltaTable(spark, DeltaTarget(table=name)).target.table == full
    spark.catalog.setCurrentCatalog(second_catalog)
    for name in ("lake.t", "t"):
        with pytest.raises(ConfigurationError, match=rf"the table {name} would be second\..* told to USE second"):
            DeltaTable(spark, DeltaTarget(table=name))
    assert DeltaTable(spark, DeltaTarget(table="a.b.c")).target.table == "a.b.c"
    spark.sql("USE spark_catalog.default")
    spark.sql("CREATE SCHEMA elsewhere")
    try:
        spark.sql("USE elsewhere")
        with pytest.raises(ConfigurationError, match=r"told to USE spark_catalog\.elsewhere"):
            DeltaTable(spark, DeltaTarget(table="t"))
        assert DeltaTable(spark, DeltaTarget(table="lake.t")).target.table == "spark_catalog.lake.t"
    finally:
        spark.sql("USE default")
        spark.sql("DROP SCHEMA elsewhere")


@pytest.mark.kafka
@pytest.mark.spark
def test_a_table_named_without_a_schema_stays_the_same_one_whatever_a_transform_does_to_the_name(
    kafka, spark, land, topic, tmp_path
):
    spark.sql("CREATE SCHEMA elsewhere")
    places = {schema: str(tmp_path / schema) for schema in ("default", "elsewhere")}
    for schema, place in places.items():
        spark.sql(f"CREATE TABLE {schema}.numbers (n INT) USING delta LOCATION '{place}'")

    def moves(rows):
        spark.sql("USE elsewhere")
        return rows.select("n")

    def views(rows):
        rows.select("n").createOrReplaceTempView("numbers")
        return spark.sql("SELECT n FROM numbers")

    kafka.create(topic)
    try:
        for transform in (moves, views):
            kafka.produce(topic, [(None, '{"n": 1}')])
            land("numbers", transform=transform)
            spark.sql("USE default")
    finally:
        spark.sql("USE default")
        spark.catalog.dropTempView("numbers")
        spark.sql("DROP SCHEMA elsewhere CASCADE")
        spark.sql("DROP TABLE numbers")
    assert [landed.values(place, "n") for place in places.values()] == [[1, 1], []]
