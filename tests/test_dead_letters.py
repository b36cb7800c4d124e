"""Dead letters on a real broker, real Spark and real Delta: none is lost, none is landed twice, wherever a run dies."""

from __future__ import annotations

import itertools
import logging
import re
import shutil
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
from dagster import DagsterInstance, materialize
from pyspark.sql import functions as f

import dagster_kafka_flip
from dagster_kafka_flip.errors import (
    ConfigurationError,
    DeadLetterDecoderError,
    DeadLetterLostError,
    DeadLetterTableMissingError,
    RecordsRejectedError,
    TableReplacedError,
    TooManyDeadLettersError,
    TopicNotFoundError,
    WriteFailedError,
)
from dagster_kafka_flip.formats.format import Format
from dagster_kafka_flip.formats.json import JsonFormat
from dagster_kafka_flip.formats.raw import RawFormat
from dagster_kafka_flip.formats.string import StringFormat
from dagster_kafka_flip.ingestion.batch_rows import SAME_LETTER
from dagster_kafka_flip.ingestion.dead_letter_table import DeadLetterTable
from dagster_kafka_flip.ingestion.dead_letters import DEAD_LETTER_SCHEMA, DeadLetters, decode_dead_letters
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.ingestion.move_position import commit_move, plan_move
from dagster_kafka_flip.ingestion.rewrite_windows import rewrite_windows
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.window import Window, Windows
from dagster_kafka_flip.table.document import CommitDocument
from dagster_kafka_flip.table.table_writer import TableWriter
from dagster_kafka_flip.table.target import DeltaTarget
from tests import landed as read_back
from tests.reports import report

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_NUMBERS = JsonFormat("n INT NOT NULL")
_GOOD = '{"n": 1}'
_BAD = "no json"


@pytest.fixture
def dead(tmp_path):
    """The path of a dead-letter table that is not there yet."""
    return str(tmp_path / "dead")


@pytest.fixture
def land(connection, spark_of, table, dead, topic):
    """Runs ingest() of the test's topic into the test's table, with dead letters."""

    def run(**options):
        values: dict[str, Any] = {
            "spark": spark_of,
            "connection": connection,
            "value_format": _NUMBERS,
            "dead_letter": dead,
            "starting_offsets": None,
        } | options
        return ingest(values.pop("source", KafkaSource(topics=(topic,))), values.pop("into", table), **values)

    return run


@pytest.fixture
def offsets(spark):
    """(partition, offset) of all rows of a table, sorted."""

    def read(table):
        return read_back.rows(table, "kafka_partition", "kafka_offset")

    return read


@pytest.fixture
def whole(kafka, topic, table, dead, offsets):
    """Asserts that table and dead letters together are the topic, and gives the dead letters' offsets."""

    def check(partitions=1):
        everything = [(p, o) for p in range(partitions) for o in range(kafka.end_offset(topic, p))]
        letters = offsets(dead)
        assert sorted(offsets(table) + letters) == everything
        return letters

    return check


@pytest.fixture
def versions():
    """Number of versions of a table besides the first."""
    return read_back.version


class Crash(BaseException):
    """As if the process was killed: nobody catches it."""


@pytest.fixture
def crash(monkeypatch):
    """Lets the next append to the main table or to the dead-letter table die before or after it."""

    def arm(which, when):
        original = TableWriter._append
        armed = [True]

        def append(self, rows, document):
            hit = armed and (which == "dead") == document.stream.endswith("-dead-letters")
            if hit and when == "before":
                armed.clear()
                raise Crash
            original(self, rows, document)
            if hit:
                armed.clear()
                raise Crash

        monkeypatch.setattr(TableWriter, "_append", append)

    return arm


def _no_spark():
    pytest.fail("Spark was asked for")


# --- what goes where ----------------------------------------------------------------------------------------------


def test_records_that_can_not_be_decoded_are_landed_raw_and_the_others_as_ever(
    kafka, spark, land, whole, topic, table, dead, versions, caplog
):
    kafka.create(topic, partitions=3)
    kafka.produce(topic, [("a", _GOOD), ("b", "secret nonsense"), (None, None), (b"\xff", _GOOD)])
    kafka.produce(topic, [(None, '{"n": "x"}')], partition=1, timestamp=1_700_000_000_123, headers=[("h", b"\x00\xff")])
    kafka.produce(topic, [(None, _GOOD)] * 2 + [(None, b"\xff")], partition=1)
    with caplog.at_level(logging.INFO, logger="dagster_kafka_flip"):
        first = land(key_format=StringFormat(), limits=Limits(max_records_per_batch=3), run_id="the run")

    assert len(first.batches) == 3
    assert (first.rows, first.records, first.dead_letters, first.dead_letter_table) == (4, 8, 4, dead)
    assert sum(batch.observed.rejected for batch in first.batches) == 4
    assert whole(3) == [(0, 1), (0, 3), (1, 0), (1, 3)]
    assert first.known.table_rows == 4
    assert "secret nonsense" not in caplog.text
    assert f"dead letters of version 1 of {table} in version 1 of {dead}" in caplog.text

    letters = spark.read.format("delta").load(dead).orderBy("kafka_partition", "kafka_offset").collect()
    assert [(row["kafka_key"], row["kafka_value"], row["error"]) for row in letters] == [
        (b"b", b"secret nonsense", "not a JSON object"),
        (b"\xff", _GOOD.encode(), "key: not valid UTF-8"),
        (None, b'{"n": "x"}', "the value of n does not fit INT"),
        (None, b"\xff", "not valid UTF-8"),
    ]
    assert {(row["stream"], row["target_table"], row["run_id"], row["kafka_topic"]) for row in letters} == {
        ("main", table, "the run", topic)
    }
    assert [(header["key"], header["value"]) for header in letters[2]["kafka_headers"]] == [("h", b"\x00\xff")]
    (at,) = spark.read.format("delta").load(dead).where("kafka_partition = 1 AND kafka_offset = 0").selectExpr(
        "unix_millis(kafka_timestamp)"
    ).first()  # fmt: skip
    assert at == 1_700_000_000_123
    documents = {
        row["version"]: CommitDocument.from_text(row["userMetadata"])
        for row in spark.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()
    }
    attempts = {document.attempt for document in documents.values() if document}
    assert {row["attempt"] for row in letters} <= attempts
    for text in (
        spark.sql(f"DESCRIBE HISTORY delta.`{table}`").collect()
        + spark.sql(f"DESCRIBE HISTORY delta.`{dead}`").collect()
    ):
        assert "nonsense" not in str(text)

    before = versions(dead)
    kafka.produce(topic, [(None, None), (None, _GOOD)], partition=2)
    second = land(key_format=StringFormat())
    assert (second.rows, second.dead_letters) == (2, 0), "neither a tombstone nor a null key is rejected"
    assert versions(dead) == before + 1, "it is noted that nothing is owed"
    whole(3)
    third = land(key_format=StringFormat())
    assert (third.is_idle, third.dead_letters, versions(dead)) == (True, 0, before + 1)
    idle = land(key_format=StringFormat(), known=third.known, spark=_no_spark)
    assert (idle.started_spark, idle.dead_letter_table) == (False, dead)


# --- wherever a run dies ------------------------------------------------------------------------------------------


# The next append to which table, and whether before or after it.
_DEATHS = [*itertools.product(("main", "dead"), ("before", "after"))]


def test_a_run_that_dies_neither_loses_nor_doubles_a_dead_letter(kafka, land, whole, crash, topic, versions, dead):
    kafka.create(topic)
    kafka.produce(topic, [(None, _GOOD), (None, _BAD), (None, _GOOD)])
    land()
    letters = [(0, 1)]
    for death in _DEATHS:
        letters.append((0, kafka.end_offset(topic)))
        kafka.produce(topic, [(None, _BAD), (None, _GOOD)])
        crash(*death)
        with pytest.raises(Crash):
            land()
        assert land().is_idle == (death != ("main", "before"))
        assert whole() == letters, death
    after = versions(dead)
    assert land().is_idle
    assert versions(dead) == after, "what is settled stays so"


# --- going back ---------------------------------------------------------------------------------------------------


@pytest.fixture
def owing(kafka, land, crash, topic, monkeypatch):
    """A stream whose last batch owes the dead letters at offsets 1 and 3."""
    kafka.create(topic)
    kafka.produce(topic, [(None, value) for value in (_GOOD, _BAD, _GOOD, '{"n": "x"}', _GOOD)])
    with monkeypatch.context() as patched:
        original = TableWriter._append

        def append(self, rows, document):
            if document.stream != "main":
                raise Crash
            original(self, rows, document)

        patched.setattr(TableWriter, "_append", append)
        with pytest.raises(Crash):
            land()


@pytest.mark.usefixtures("owing")
def test_retention_that_deletes_missing_dead_letters_is_an_error_until_it_is_tolerated(
    kafka, connection, land, spark, table, dead, topic, offsets, versions
):
    kafka.produce(topic, [(None, _GOOD), (None, _BAD)])
    kafka.trim(topic, 0, 2)
    with pytest.raises(DeadLetterLostError):
        land()
    with pytest.raises(DeadLetterLostError) as error:
        land()
    assert versions(table) == 1, "nothing is added to the stream"
    assert str(error.value) == (
        f"dead letters can no longer be read: {topic}-0: retention has overtaken the position. The next offset to read "
        f"is 0, but the log begins at 2: up to 2 unread records are gone. They were excluded from version 1 of "
        f"{table} and are pending for {dead}. They were not written, and the stream does not continue. To continue "
        "without them (if the stream reads records again, as after a RESTORE, their dead letters may then be there "
        "twice): dagster-kafka-flip "
        f"position set --table {dead} --stream main-dead-letters --bootstrap-servers <host:port> --topic {topic} --to "
        "earliest --reason <why>"
    )
    target = DeltaTarget(table=dead, stream="main-dead-letters")
    move = plan_move(KafkaSource(topics=(topic,), connection=connection), target, spark, OffsetsInitializer.earliest())
    commit_move(move, target, spark, "the machine was off for a week")
    assert land().dead_letters == 2
    assert offsets(dead) == [(0, 3), (0, 6)]
    assert land().is_idle


class _Even(Format):
    """Takes texts of even length only."""

    what: str = ""

    def parse(self, data):
        return data.cast("string")

    def problem(self, parsed):
        return f.when(f.length(parsed) % 2 == 1, f.lit("odd"))


def test_a_debt_of_a_decoder_that_can_not_be_recreated_stops_the_stream(
    kafka, land, crash, topic, whole, versions, table
):
    kafka.create(topic)
    kafka.produce(topic, [(None, "even"), (None, "odd")])
    crash("dead", "before")
    with pytest.raises(Crash):
        land(value_format=_Even(what="length"))
    with pytest.raises(DeadLetterDecoderError) as error:
        land(value_format=RawFormat())
    assert str(error.value).startswith(
        f"the dead letters of version 1 of {table} were rejected by another decoder than this run's, and it "
        "can't be rebuilt from the description in the commit: {'key': {'format': 'raw'}, 'value': {"
    )
    assert versions(table) == 1
    assert land(value_format=_Even(what="length")).dead_letters == 1
    assert whole() == [(0, 1)]


@pytest.mark.parametrize("setting", ["spark.sql.session.timeZone", "isolation_level"])
def test_a_debt_is_settled_in_the_time_zone_and_isolation_level_that_made_it(
    kafka, land, crash, spark, topic, whole, versions, table, setting
):
    """In another zone the clock does not skip the time; then the record would be in neither table."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    level: Literal["read_committed", "read_uncommitted"] = "read_committed"

    def run():
        source = KafkaSource(topics=(topic,), isolation_level=level)
        return land(source=source, value_format=JsonFormat("at TIMESTAMP"))

    kafka.create(topic)
    kafka.produce(topic, [(None, '{"at": "2026-03-29 02:30"}'), (None, '{"at": "2026-03-29 03:30"}')])
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        crash("dead", "before")
        with pytest.raises(Crash):
            run()
        if setting == "isolation_level":
            level, then = "read_uncommitted", "read_committed"
        else:
            spark.conf.set(setting, "UTC")
            then = "Europe/Berlin"
        refused = (
            rf"of version 1 of {table} were rejected with {setting} {then}, and .* Run once with {setting} {then}\."
        )
        with pytest.raises(DeadLetterDecoderError, match=refused):
            run()
        assert versions(table) == 1
        level = "read_committed"
        spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
        assert run().dead_letters == 1
        assert run().is_idle
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    assert whole() == [(0, 0)]


class _Moody(Format):
    """Does not decide by the record alone."""

    rejects: ClassVar[bool] = True

    def parse(self, data):
        return data.cast("string")

    def problem(self, parsed):
        return f.when(parsed == f.lit("odd" if self.rejects else "another"), f.lit("odd"))


def test_records_that_are_rejected_once_and_decoded_when_they_are_read_again_are_an_error(
    kafka, land, topic, table, dead, monkeypatch
):
    def transform(rows):
        monkeypatch.setattr(_Moody, "rejects", False)
        return rows

    kafka.create(topic)
    kafka.produce(topic, [(None, "even")])
    land(value_format=_Moody())
    kafka.produce(topic, [(None, "odd"), (None, "even")])
    with pytest.raises(DeadLetterLostError) as error:
        land(value_format=_Moody(), transform=transform)
    assert str(error.value).startswith(
        f"version 2 of {table} is without 1 rejected record, but only 0 were rejected when the batch was read again "
        f"for the dead-letter table {dead}: the others are in neither table, or Spark counted records twice when it "
        "repeated a stage. Both commits stay. A format of "
    )


@pytest.mark.usefixtures("owing")
def test_a_debt_is_not_forgotten_when_the_option_changes(
    kafka, land, topic, table, dead, tmp_path, whole, spark, caplog
):
    for changed in (None, DeadLetters(table=str(tmp_path / "another")), DeadLetters(table=dead, stream="another")):
        with pytest.raises(ConfigurationError) as error:
            land(dead_letter=changed)
        assert str(error.value).startswith(
            f"rejected records of version 1 of {table} are still pending for the dead-letter table {dead} (stream "
            "'main-dead-letters'), but dead_letter no longer names it. Nothing was written. Run once with "
            f"dead_letter=DeadLetters(table='{dead}', stream='main-dead-letters'). To continue without them "
            "(if the stream reads records again, as after a RESTORE, their dead letters may then be there twice): "
            f"dagster-kafka-flip position set --table {dead} --stream main-dead-letters --bootstrap-servers "
            f"<host:port> --topic {topic} --to latest --reason <why>"
        )
    assert land().dead_letters == 2
    assert whole() == [(0, 1), (0, 3)]
    kafka.produce(topic, [(None, _GOOD)])
    assert land(dead_letter=None).rows == 1, "nothing is owed any longer"
    kafka.produce(topic, [(None, _BAD)])
    with pytest.raises(RecordsRejectedError):
        land(dead_letter=None)


# --- limits and configuration -------------------------------------------------------------------------------------


def test_too_many_dead_letters_stop_the_run(kafka, land, whole, topic, versions, table, dead):
    kafka.create(topic)
    kafka.produce(topic, [(None, _GOOD), (None, _BAD)] * 11)
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"max_records": 1}, "max_records=1"),
        ({"max_share": 0.4}, "max_share=0.4"),
        ({"max_records": 1, "max_share": 0.4}, "max_records=1 and max_share=0.4"),
    )
    for limits, output in cases:
        with pytest.raises(TooManyDeadLettersError) as error:
            land(dead_letter=DeadLetters(table=dead, **limits))
        assert str(error.value).startswith(
            f"11 of the batch's 22 records can't be decoded, which exceeds {output}: "
            f"{topic}-0 offset 1: not a JSON object; {topic}-0 offset 3: not a JSON object"
        )
        assert str(error.value).endswith(". Correct the format or its schema, or raise the limit")
        assert (versions(table), versions(dead)) == (0, 0)
    assert land(dead_letter=DeadLetters(table=dead, max_records=11, max_share=0.5)).dead_letters == 11
    assert whole() == [(0, offset) for offset in range(1, 22, 2)]
    # One bad record is a large share of a small batch, and no sign of a wrong schema.
    kafka.produce(topic, [(None, _BAD), (None, _GOOD)])
    assert land(dead_letter=DeadLetters(table=dead, max_share=0.01)).dead_letters == 1


def test_streams_that_share_a_dead_letter_table_have_streams_of_their_own_in_it(
    kafka, land, topic, tmp_path, dead, offsets, monkeypatch
):
    kafka.create(topic)
    kafka.produce(topic, [(None, _GOOD), (None, _BAD)])
    land()
    other, own = str(tmp_path / "other"), DeadLetters(table=dead, stream="other")
    with pytest.raises(ConfigurationError, match=r"has dead letters of the table .* give this one its own stream"):
        land(into=other)
    assert land(into=other, dead_letter=own).dead_letters == 1
    assert (offsets(dead), offsets(other)) == ([(0, 1), (0, 1)], [(0, 0)])
    assert land(into=other, dead_letter=own).is_idle
    # Both at once: neither takes the other's for a double.
    kafka.produce(topic, [(None, _BAD)])
    commit = DeadLetterTable._commit

    def after_the_other(self, *args):
        monkeypatch.setattr(DeadLetterTable, "_commit", commit)
        land(into=other, dead_letter=own)
        return commit(self, *args)

    monkeypatch.setattr(DeadLetterTable, "_commit", after_the_other)
    assert land().dead_letters == 1
    assert offsets(dead) == [(0, 1), (0, 1), (0, 2), (0, 2)]


def test_impossible_combinations_are_reported_at_once(table, topic):
    def refused(**options):
        with pytest.raises(ConfigurationError) as error:
            ingest(
                KafkaSource(topics=(topic,)),
                table,
                spark=_no_spark,
                connection=KafkaConnection(bootstrap_servers="127.0.0.1:1"),
                **options,
            )
        return str(error.value)

    assert refused(dead_letter="a/b", value_format=JsonFormat("n INT", on_error="null")) == (
        "on_error='null' of the value format keeps rejected records in the stream's own table, but dead_letter sends "
        "them to a/b; choose one"
    )
    assert "the key format" in refused(dead_letter="a/b", key_format=StringFormat(on_error="null"))
    assert refused(dead_letter=table) == (
        f"the dead-letter table is the stream's own table {table}; use a separate table"
    )
    assert refused(dead_letter=f"file:{table}/rejected/") == (
        f"of the dead-letter table file:{table}/rejected/ and the stream's own table {table} one is in the folder of "
        "the other, whose VACUUM would delete its files; put them side by side"
    )
    wrong: dict[str, Any]
    for wrong in (
        {"table": "a/b", "max_share": 1.5},
        {"table": "a/b", "max_records": -1},
        {"table": ""},
        {"table": "a/b", "unknown": 1},
    ):
        with pytest.raises(ConfigurationError, match="invalid DeadLetters"):
            DeadLetters(**wrong)
    with pytest.raises(ConfigurationError, match="invalid stream id"):
        DeadLetters(table="a/b", stream="no spaces").target(DeltaTarget(table="a/b"))


# --- assets, and dead letters landed after all --------------------------------------------------------------------


def test_an_asset_reports_its_dead_letters_and_they_are_landed_after_all(
    kafka, broker, spark, topic, table, dead, monkeypatch
):
    resources = {
        "kafka": dagster_kafka_flip.KafkaResource(bootstrap_servers=broker),
        "spark": dagster_kafka_flip.SparkResource(),
    }
    kafka.create(topic)
    kafka.produce(topic, [(None, _GOOD), (None, _BAD), (None, '{"n": 3000000000}')])
    asset = dagster_kafka_flip.build_kafka_delta_asset(
        name="numbers",
        source=KafkaSource(topics=(topic,)),
        table=table,
        value_format=_NUMBERS,
        dead_letter=DeadLetters(table=dead, max_share=0.9),
    )
    with DagsterInstance.ephemeral() as instance:

        def run() -> dict[str, Any]:
            return report(materialize([asset], instance=instance, resources=resources))

        metadata = run()
        assert (metadata["kafka/dead_letters"], metadata["kafka/dead_letter_table"]) == (2, dead)
        assert (metadata["kafka/rejected_records"], metadata["delta/rows_written"]) == (2, 1)
        assert metadata["kafka/checkpoint"]["dead_letters_pending"] is False
        assert metadata["dagster/row_count"] == 1
        monkeypatch.setattr(
            dagster_kafka_flip.SparkResource, "session", lambda self: pytest.fail("an idle run started Spark")
        )
        idle = run()
    assert (idle["kafka/dead_letters"], idle["spark/started"]) == (0, False)
    assert idle["kafka/checkpoint"] == metadata["kafka/checkpoint"]

    letters = spark.read.format("delta").load(dead).where("kafka_offset = 2")
    decoded = decode_dead_letters(letters, value_format=JsonFormat("n BIGINT"))
    assert decoded.columns == spark.read.format("delta").load(table).columns
    assert [(row["n"], row["kafka_offset"]) for row in decoded.collect()] == [(3_000_000_000, 2)]


def test_rows_that_are_no_dead_letters_are_not_decoded(spark):
    path: Any = "lake/rejected"
    letters = spark.createDataFrame([], DEAD_LETTER_SCHEMA)
    assert decode_dead_letters(letters.drop("error", "stream")).collect() == []
    for output, rows in {
        "expected DataFrame, got str": path,
        "they have 0 columns kafka_offset. Read them from the dead-letter table": letters.drop("kafka_offset"),
        "they have 0 columns kafka_topic": spark.range(1),
        "they have 2 columns kafka_key": letters.select("*", "kafka_key"),
        "kafka_value is string and not binary": letters.withColumn("kafka_value", letters.kafka_value.cast("string")),
    }.items():
        with pytest.raises(ConfigurationError, match=f"^dead_letters: .*{output}"):
            decode_dead_letters(rows)


def test_the_snippet_of_the_document_lands_them_once(kafka, connection, spark, spark_of, topic, tmp_path):
    text = (Path(__file__).parents[1] / "docs" / "reference.md").read_text(encoding="utf-8")
    (code,) = [
        block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "decode_dead_letters(" in block
    ]
    snippet = {}
    exec(compile(code.replace("warehouse/", f"{tmp_path}/warehouse/"), "reference.md", "exec"), snippet)
    kafka.create(topic)
    kafka.produce(topic, [(None, '{"carrier": "AA", "flight": 1}'), (None, '{"carrier": "BB", "flight": "12"}')])
    ingest(
        KafkaSource(topics=(topic,)),
        f"{tmp_path}/warehouse/flights",
        spark=spark_of,
        connection=connection,
        value_format=JsonFormat("carrier STRING NOT NULL, flight INT"),
        dead_letter=f"{tmp_path}/warehouse/flights_dead_letters",
    )
    for _ in range(2):
        snippet["land_after_all"](spark)
    rows = spark.read.format("delta").load(f"{tmp_path}/warehouse/flights").orderBy("kafka_offset").collect()
    assert [(row["carrier"], row["flight"]) for row in rows] == [("AA", 1), ("BB", 12)]


def test_dead_letters_of_a_topic_that_is_gone_stop_the_stream_until_that_is_tolerated(
    kafka, land, crash, topic, offsets, dead
):
    for name in (f"{topic}.a", f"{topic}.b"):
        kafka.create(name)
        kafka.produce(name, [(None, _BAD)])
    source = KafkaSource(topic_pattern=rf"{topic}\..")
    crash("dead", "before")
    with pytest.raises(Crash):
        land(source=source)
    kafka.delete(f"{topic}.a")
    # Not to be seen is not to be gone: the client may have lost the right to describe the topic.
    with pytest.raises(DeadLetterLostError, match=r"tolerate TopicNotFoundError in one run to continue without them"):
        land(source=source)
    result = land(source=source, tolerate=[TopicNotFoundError])
    assert result.dead_letters == 1
    assert [incident.message.rpartition(": ")[2] for incident in result.incidents] == [
        "the dead letters from offset 0 on are skipped."
    ]
    assert offsets(dead) == [(0, 0)]
    assert land(source=source).is_idle


# --- which topic, which table -------------------------------------------------------------------------------------


_RECORD = "t STRING, p INT, o BIGINT, cluster STRING, topic STRING, value STRING, second INT"


def test_a_dead_letter_is_known_by_its_ids_and_time_and_where_they_are_not_known_by_the_record(spark):
    # Each beside the first record, and in a topic of its own, so that one query compares them all.
    there = {
        ("t", 0, 7, "c1", "id1", "first", 0): True,
        ("t", 0, 7, "c1", "id1", "taken out by hand", 0): True,
        # After an unclean election.
        ("t", 0, 7, "c1", "id1", "first", 1): False,
        ("t", 0, 7, "c1", "id2", "first", 0): False,
        ("t", 0, 7, "c2", "id1", "first", 0): False,
        ("t", 0, 7, None, None, "first", 0): True,
        ("t", 0, 7, None, None, "another", 0): False,
        ("t", 0, 7, "c2", None, "first", 0): False,
        ("t", 0, 8, "c1", "id1", "first", 0): False,
    }

    def letters(records):
        return spark.createDataFrame(
            [(f"{topic}{number}", *record) for number, (topic, *record) in enumerate(records)], _RECORD
        ).selectExpr(
            "t AS kafka_topic",
            "p AS kafka_partition",
            "o AS kafka_offset",
            "cluster AS kafka_cluster_id",
            "topic AS kafka_topic_id",
            "timestamp_seconds(second) AS kafka_timestamp",
            "CAST(NULL AS BINARY) AS kafka_key",
            "CAST(value AS BINARY) AS kafka_value",
        )

    new = letters([("t", 0, 7, "c1", "id1", "first", 0)] * len(there)).alias("new")
    found = new.join(letters(there).alias("there"), f.expr(SAME_LETTER), "left_anti").collect()
    others = {row["kafka_topic"] for row in found}
    assert [f"t{number}" not in others for number in range(len(there))] == [*there.values()]


def test_one_table_under_several_names_holds_each_dead_letter_once(kafka, land, offsets, topic, table, dead, tmp_path):
    kafka.create(topic)
    kafka.produce(topic, [(None, _GOOD), (None, _BAD)] * 2)
    land()
    (tmp_path / "link").symlink_to(dead)
    (tmp_path / "main-link").symlink_to(table)
    earliest = OffsetsInitializer.earliest()
    again = land(into=f"{tmp_path}/main-link", dead_letter=f"{tmp_path}/link", starting_offsets=earliest)
    assert again.dead_letters == 0
    assert offsets(dead) == [(0, 1), (0, 3)]
    kafka.produce(topic, [(None, _GOOD)])
    with pytest.raises(ConfigurationError, match="is the stream's own table"):
        land(dead_letter=DeadLetters(table=f"{tmp_path}/main-link", stream="other"))


def test_a_dead_letter_table_that_was_set_back_is_noticed(kafka, land, whole, topic, spark, dead, offsets):
    kafka.create(topic)
    for _ in range(3):
        kafka.produce(topic, [(None, _BAD), (None, _GOOD)])
        land()
    spark.sql(f"RESTORE TABLE delta.`{dead}` TO VERSION AS OF 1")
    kafka.produce(topic, [(None, _BAD)])
    with pytest.raises(TableReplacedError) as error:
        land()
    found = re.search(
        r"was rolled back: it had the rejected records of .* up to version 2, and now \(version \d+\) it has those up "
        r"to version 1\. Nothing was written\. RESTORE it to version (\d+), which had them",
        str(error.value),
    )
    assert found is not None, error.value
    spark.sql(f"RESTORE TABLE delta.`{dead}` TO VERSION AS OF {found[1]}")
    assert land().dead_letters == 2, "those of the third batch are read again, too"
    assert whole() == [(0, 0), (0, 2), (0, 4), (0, 6)]
    spark.sql(f"RESTORE TABLE delta.`{dead}` TO VERSION AS OF 1")
    result = land(tolerate=[TableReplacedError])
    assert [incident.error for incident in result.incidents] == ["TableReplacedError"]
    assert offsets(dead) == [(0, 0), (0, 6)], "the last batch is settled anew, and the others are written off"
    assert land().incidents == ()


def test_a_run_whose_table_is_made_again_under_it_ends_before_its_dead_letters_count_as_the_former_table_s(
    kafka, land, spark, topic, table, dead, offsets
):
    kafka.create(topic)
    kafka.produce(topic, [(None, _BAD), (None, _GOOD)])
    land()
    kafka.produce(topic, [(None, _BAD), (None, _GOOD)])

    def dropping(records):
        if read_back.version(table):
            shutil.rmtree(table)
            spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
            with pytest.raises(ConfigurationError, match="give this one its own stream"):
                land()
        return records

    with pytest.raises(WriteFailedError, match=rf"the table {table} was dropped and created again during the run.*Run"):
        land(transform=dropping)
    for options in ({}, {"dead_letter": None}):
        with pytest.raises(ConfigurationError, match="give this one its own stream"):
            land(**options)
    own = DeadLetters(table=dead, stream="own")
    assert land(dead_letter=own).dead_letters == 2
    assert (offsets(table), offsets(dead)) == ([(0, 1), (0, 3)], [(0, 0), (0, 0), (0, 2)])
    assert land(dead_letter=own).is_idle


def test_an_older_copy_of_the_table_loses_no_dead_letter(kafka, land, spark, topic, whole, table, dead, tmp_path):
    """Its next batches have versions whose rejected records seem to be in the dead-letter table."""
    kafka.create(topic)
    kafka.produce(topic, [(None, _BAD), (None, _GOOD)])
    land()
    backup = shutil.copytree(table, tmp_path / "backup")
    for _ in range(2):
        kafka.produce(topic, [(None, _BAD), (None, _GOOD)])
        land()
    shutil.rmtree(table)
    shutil.copytree(backup, table)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    kafka.produce(topic, [(None, _BAD), (None, _GOOD)])
    expected = r"is at version 1, but the dead-letter table .* up to version 3: an older copy of the table has replaced"
    with pytest.raises(ConfigurationError, match=expected):
        land()
    land(dead_letter=DeadLetters(table=dead, stream="copy-dead-letters"))
    assert whole() == [(0, 0), (0, 2), (0, 4), (0, 6)]


def test_a_dead_letter_table_that_is_not_found_settles_nothing(
    kafka, land, crash, whole, topic, dead, table, versions, tmp_path
):
    kafka.create(topic)
    kafka.produce(topic, [(None, _BAD), (None, _GOOD)])
    land()
    kafka.produce(topic, [(None, _BAD), (None, _GOOD)])
    crash("dead", "before")
    with pytest.raises(Crash):
        land()
    away = tmp_path / "not mounted"
    Path(dead).rename(away)
    before = versions(table)
    for options in ({}, {"dead_letter": str(tmp_path / "another")}):
        with pytest.raises(DeadLetterTableMissingError, match="does not exist, so it is unknown whether it has"):
            land(**options)
    assert versions(table) == before
    assert not Path(dead).exists(), "no empty one is made in its place"
    away.rename(dead)
    assert land().dead_letters == 1
    assert whole() == [(0, 0), (0, 2)]


# --- repairs ------------------------------------------------------------------------------------------------------

_DAY = Window.between(1_700_000_000_000, 1_700_086_400_000)


def test_a_range_with_rejected_records_can_be_repaired(kafka, connection, spark_of, land, topic, table, whole):
    kafka.create(topic)
    kafka.produce(topic, [(None, _GOOD), (None, _BAD), (None, '{"n": 7}')], timestamp=_DAY.start_ms + 1)
    kafka.produce(topic, [(None, '{"n": 7}'), (None, _BAD)], timestamp=_DAY.stop_ms)
    land()
    kafka.produce(topic, [(None, _BAD)], timestamp=_DAY.start_ms + 1)

    def repair(value_format, **options):
        return list(
            rewrite_windows(
                KafkaSource(topics=(topic,)),
                table,
                [_DAY],
                spark=spark_of,
                rules=Windows(repair=True),
                connection=connection,
                value_format=value_format,
                transform=lambda records: records.drop("n"),
                **options,
            )
        )

    (result,) = repair(_NUMBERS)
    assert result.committed is not None
    assert result.committed.rows == 2
    land(transform=lambda records: records.drop("n"))
    assert whole() == [(0, 1), (0, 4), (0, 5)]
    # Stricter than it was: what was a row of the range becomes a dead letter, and other rows stay.
    repair(JsonFormat("n BOOLEAN NOT NULL"))
    assert whole() == [(0, 0), (0, 1), (0, 2), (0, 4), (0, 5)]
    kafka.produce(topic, [(None, _BAD)])
    assert land(transform=lambda records: records.drop("n")).dead_letters == 1
