"""`dagster-kafka-flip rebuild`: a table with a key is built again, and readers see the old rows or the new ones."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from dagster_kafka_flip.cli.app import main
from dagster_kafka_flip.errors import (
    ConcurrentIngestionError,
    ConfigurationError,
    ForeignRowsError,
    RetentionOvertookPositionError,
    SchemaMismatchError,
    TableError,
    TimestampOutOfRangeError,
)
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.ingestion.dead_letters import DeadLetters
from dagster_kafka_flip.ingestion.move_position import commit_move, plan_move
from dagster_kafka_flip.ingestion.rebuild import rebuild
from dagster_kafka_flip.source.instants import LAST_SPARK_TIMESTAMP_MS
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.table.mode import Append, Scd2, Upsert
from dagster_kafka_flip.table.table_writer import TableWriter
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed
from tests.upsert.conftest import KEY, VALUE, change

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

DEFINITIONS = """
import dagster as dg

from dagster_kafka_flip import (
    DeltaTarget, JsonFormat, KafkaResource, KafkaSource, SparkResource, Upsert, build_kafka_delta_asset
)

customers = build_kafka_delta_asset(
    name="customers",
    source=KafkaSource(topics=("{topic}",)),
    table=DeltaTarget(table="{table}", mode=Upsert(key=("id",))),
    key_format=JsonFormat(schema="id BIGINT"),
    value_format=JsonFormat(schema="id BIGINT, name STRING"),
)
defs = dg.Definitions(
    assets=[customers],
    resources={{"kafka": KafkaResource(bootstrap_servers=dg.EnvVar("TEST_BROKER")), "spark": SparkResource()}},
)
"""


class _DiedError(BaseException):
    """What a kill looks like from inside."""


def _wrong(records):
    from pyspark.sql import functions as f

    return records.withColumn("name", f.upper("name"))


def test_the_table_is_built_again_by_one_command_and_continues_from_there(
    kafka, broker, follow, spark, topic, table, tmp_path
):
    kafka.create(topic)
    kafka.produce(topic, [change(1, "a"), change(2, "b"), change(1), change(3, "c")])
    follow(transform=_wrong)
    kafka.produce(topic, [change(3, "d"), change(4, "e")])
    definitions, staging = tmp_path / "followed.py", str(tmp_path / "staging")
    definitions.write_text(DEFINITIONS.format(topic=topic, table=table))
    arguments = ["rebuild", "--asset", "customers", "-f", str(definitions), "--staging", staging]

    def run(*more, code=0):
        done = CliRunner().invoke(main, [*arguments, *more], env={"TEST_BROKER": broker, "DAGSTER_HOME": None})
        assert done.exit_code == code, done.output
        return done.output

    reported = run("--yes")
    assert f"Version 2 of {table} has 3 rebuilt rows. You can drop {staging}." in reported
    assert "Run the asset once with verify: true" in reported
    assert landed.rows(table, "id", "name") == [(2, "b"), (3, "d"), (4, "e")]
    assert landed.operations(table) == ["CREATE TABLE", "MERGE", "WRITE"]
    assert follow().is_idle
    kafka.produce(topic, [change(2)])
    assert follow().known.table_rows == 2
    # What was put in place is older by now.
    assert f"{staging} already replaced the rows of {table}, in version 2. Nothing was replaced." in run(
        "--yes", code=1
    )
    # Unless a RESTORE has undone that.
    spark.sql(f"RESTORE delta.`{table}` TO VERSION AS OF 1")
    assert f"Version 5 of {table} has 2 rebuilt rows." in run("--yes")
    assert landed.rows(table, "id", "name") == [(3, "d"), (4, "e")]


def test_any_kill_or_conflict_leaves_the_old_rows_or_the_new(
    kafka, connection, follow, spark, topic, table, monkeypatch
):
    source, target = KafkaSource(topics=(topic,)), DeltaTarget(table=table, mode=Upsert(key=("id",)))
    kafka.create(topic)
    kafka.produce(topic, [change(1, "a"), change(2, "b")])
    follow(transform=_wrong)
    old, new = [(1, "A"), (2, "B")], [(1, "a"), (2, "b")]

    def build(number=1):
        decoder = Decoder.of(KEY, VALUE, None)
        return rebuild(source, target, f"{table}-{number}", spark=spark, connection=connection, decoder=decoder)

    replace = TableWriter.replace
    for before, rows in ((True, old), (False, new)):

        def dying(self, *arguments, before=before):
            if not before:
                replace(self, *arguments)
            raise _DiedError

        monkeypatch.setattr(TableWriter, "replace", dying)
        with pytest.raises(_DiedError):
            build()
        assert landed.rows(table, "id", "name") == rows
    monkeypatch.setattr(TableWriter, "replace", replace)
    with pytest.raises(ConfigurationError, match="already replaced the rows of"):
        build()
    assert follow().is_idle

    def overtaken(self, *arguments):
        kafka.produce(topic, [change(3, "c")])
        follow()
        return replace(self, *arguments)

    monkeypatch.setattr(TableWriter, "replace", overtaken)
    with pytest.raises(ConcurrentIngestionError):
        build(2)
    monkeypatch.setattr(TableWriter, "replace", replace)
    assert landed.rows(table, "id", "name") == [*new, (3, "c")]
    build(2)
    assert landed.rows(table, "id", "name") == [*new, (3, "c")]


def test_a_table_that_would_lose_rows_is_not_built_again(kafka, connection, follow, spark, topic, table):
    target = DeltaTarget(table=table, mode=Upsert(key=("id",)))
    decoder = Decoder.of(KEY, VALUE, None)

    def build(staging=f"{table}-1", stop=None, into=target, transform=None):
        source = KafkaSource(topics=(topic,), **({} if stop is None else {"stopping_offsets": stop}))
        # A limit of a run's batches does not hold here.
        one = Limits(max_batches=1)
        return rebuild(
            source, into, staging, spark=spark, connection=connection, decoder=decoder, transform=transform, limits=one
        )

    kafka.create(topic)
    kafka.produce(topic, [change(1, "a"), change(2, "b")])
    follow()
    with pytest.raises(ConfigurationError, match="have no key"):
        build(into=target.model_copy(update={"mode": Append()}))
    with pytest.raises(ConfigurationError, match="is the table itself"):
        build(staging=f"{table}/../table")
    with pytest.raises(ConcurrentIngestionError, match=rf"{topic}-0: .* before offset 1, but the stream of .* is at 2"):
        build(stop=OffsetsInitializer.specific_offsets({TopicPartition(topic, 0): 1}))
    with pytest.raises(ConfigurationError, match="is inside the folder of"):
        build(staging=f"{table}/new")
    spark.sql(f"ALTER TABLE delta.`{table}` ADD COLUMN note STRING")
    with pytest.raises(SchemaMismatchError, match="has the column note, which the rebuilt rows lack"):
        build()
    spark.sql(f"INSERT INTO delta.`{table}` (id, name) VALUES (7, 'first load')")
    with pytest.raises(ForeignRowsError, match=r"has 1 row without an offset"):
        build(staging=f"{table}-2", transform=lambda rows: rows.selectExpr("*", "'' AS note"))
    kafka.trim(topic, 0, 1)
    with pytest.raises(RetentionOvertookPositionError, match=rf"{topic}-0 begins at offset 1: retention has deleted"):
        build()
    assert landed.rows(table, "id", "name") == [(1, "a"), (2, "b"), (7, "first load")]


def test_what_compaction_may_have_removed_is_not_built_again(kafka, connection, follow, spark, topic, table):
    kafka.create(topic, cleanup_policy="compact")
    kafka.produce(topic, [change(1, "a"), change(1, "b")])
    source = KafkaSource(topics=(topic,))
    for number, mode in enumerate((Scd2(key=("id",)), Upsert(key=("id",), soft_delete=True), Upsert(key=("id",)))):
        target, decoder = DeltaTarget(table=f"{table}-{number}", mode=mode), Decoder.of(KEY, VALUE, None)
        follow(target={"table": target.table, "mode": mode})
        before = landed.rows(target.table, "id", "name")

        def build(target=target, decoder=decoder):
            staging = f"{target.table}-staging"
            return rebuild(source, target, staging, spark=spark, connection=connection, decoder=decoder)

        if mode == Upsert(key=("id",)):
            build()
        else:
            with pytest.raises(ConfigurationError, match=rf"^the topic {topic} is compacted \(cleanup.policy\): "):
                build()
        assert landed.rows(target.table, "id", "name") == before


@pytest.fixture
def build(connection, spark, topic, table):
    """Rebuilds a table; each has its own topic."""

    def run(staging, *, of=None, by=topic, source=None, **options):
        target = DeltaTarget(table=of or table, mode=Upsert(key=("id",)))
        decoder, read = Decoder.of(KEY, VALUE, None), source or KafkaSource(topics=(by,))
        return rebuild(read, target, staging, spark=spark, connection=connection, decoder=decoder, **options)

    return run


def test_a_rebuild_passes_over_no_record_that_spark_can_not_read(
    kafka, connection, follow, build, spark, topic, table, tmp_path
):
    kafka.create(topic, message_timestamp_after_max_ms=str(2**63 - 1))
    kafka.produce(topic, [change(1, "a")])
    follow()
    kafka.produce(topic, [change(2, "b")], timestamp=LAST_SPARK_TIMESTAMP_MS + 1)
    staging = str(tmp_path / "staging")
    with pytest.raises(TimestampOutOfRangeError) as refused:
        build(staging)
    assert "position set" not in str(refused.value)
    assert str(refused.value).endswith("offset 0 on: read the topic into a new table, and compare")
    # Whoever moves it all the same would lose the row of the first record.
    beside = DeltaTarget(table=staging, stream="main-rebuild", mode=Upsert(key=("id",)))
    source = KafkaSource(topics=(topic,)).connected(connection)
    behind = OffsetsInitializer.specific_offsets({TopicPartition(topic, 0): 2})
    commit_move(plan_move(source, beside, spark, behind), beside, spark, "a wrong timestamp")
    with pytest.raises(
        ConfigurationError, match=r"staging was moved \(a wrong timestamp, version 1\): it may lack rows"
    ):
        build(staging)
    assert landed.rows(table, "id", "name") == [(1, "a")]


@pytest.mark.nightly
def test_a_staging_table_is_for_one_table(kafka, follow, build, topic, table, monkeypatch, tmp_path):
    staging, other = str(tmp_path / "staging"), {"of": f"{table}-other", "by": f"{topic}-other"}
    with pytest.raises(TableError, match=r"table does not exist, so there is nothing to rebuild"):
        build(staging)
    for name, target, records in ((topic, table, [change(1, "a")]), (other["by"], other["of"], [change(2, "b")])):
        kafka.create(name)
        kafka.produce(name, records)
        follow(source=KafkaSource(topics=(name,)), target={"table": target})

    def dying(*_):
        raise _DiedError

    with monkeypatch.context() as patch:
        patch.setattr(TableWriter, "replace", dying)
        with pytest.raises(_DiedError):
            build(staging)
    with pytest.raises(ConfigurationError, match=r"staging was not created to rebuild .*table-other, so it may have"):
        build(staging, **other)
    assert build(staging).rows == 1
    assert landed.rows(table, "id", "name") == [(1, "a")]
    assert landed.rows(other["of"], "id", "name") == [(2, "b")]


@pytest.mark.nightly
def test_what_others_do_before_the_rows_are_replaced_is_looked_at_too(
    kafka, follow, build, spark, topic, table, monkeypatch
):
    kafka.create(topic)
    kafka.produce(topic, [change(1, "a"), change(2, "b")])
    follow(transform=_wrong)
    replace = TableWriter.replace

    def after(statement):
        def replacing(self, *arguments):
            monkeypatch.setattr(TableWriter, "replace", replace)
            spark.sql(statement)
            return replace(self, *arguments)

        monkeypatch.setattr(TableWriter, "replace", replacing)

    after(f"INSERT INTO delta.`{table}` (id, name) VALUES (7, 'first load')")
    with pytest.raises(ForeignRowsError, match=r"has 1 row without an offset"):
        build(f"{table}-staging")
    assert landed.rows(table, "id", "name") == [(1, "A"), (2, "B"), (7, "first load")]
    spark.sql(f"DELETE FROM delta.`{table}` WHERE id = 7")
    after(f"UPDATE delta.`{table}` SET name = 'x' WHERE id = 2")
    assert build(f"{table}-staging").version == landed.version(table)
    assert landed.rows(table, "id", "name") == [(1, "a"), (2, "b")]


@pytest.mark.nightly
def test_each_rebuild_lands_its_rejected_records_once(kafka, follow, build, topic, table, monkeypatch):
    letters = DeadLetters(table=f"{table}-dead", stream="rejected")
    kafka.create(topic)
    kafka.produce(topic, [change(1, "a"), (change(2)[0], "no JSON")])
    follow(dead_letter=letters)

    def dying(*_):
        raise _DiedError

    with monkeypatch.context() as patch:
        patch.setattr(TableWriter, "replace", dying)
        with pytest.raises(_DiedError):
            build(f"{table}-1", dead_letters=letters)
    for number in (1, 2):
        assert build(f"{table}-{number}", dead_letters=letters).rows == 1
    rejected = [("main", table), ("main-rebuild", f"{table}-1"), ("main-rebuild", f"{table}-2")]
    assert landed.rows(letters.table, "stream", "target_table") == rejected
