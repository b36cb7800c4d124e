"""SIGKILL of an ingesting process at every step of a run: the next run lands each record exactly once all the same."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from dagster_kafka_flip import errors
from dagster_kafka_flip.formats.string import StringFormat
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.split import TopicPartition
from tests import landed as read
from tests.connect_server import ConnectServer
from tests.faults.ingester import Ingesters
from tests.faults.ingesting import (
    BEFORE_WRITE,
    COMMITTED,
    CONFIRMED,
    JVM_WRITING,
    PLANNED,
    POSITION_READ,
    STEPS,
    TABLE_MADE,
    WRITING,
    Steps,
)
from tests.processes import LIGHT_SPARK

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

_EARLIER, _LATER = 20, 30
# How many of a killed run's commits are in the table; Delta's own creation of the table is none of them.
_BEFORE_THE_COMMIT = (POSITION_READ, PLANNED, TABLE_MADE, BEFORE_WRITE, WRITING)
_BEHIND_THE_COMMIT = (COMMITTED, CONFIRMED)
# There the stream has no position yet; at the others it has one.
_FIRST_RUNS = (PLANNED, TABLE_MADE, COMMITTED)


@pytest.fixture(scope="module")
def ingesters(broker, tmp_path_factory):
    """Processes to be killed while their Spark writes, whose JVM dies with them or in their place."""
    made = Ingesters(tmp_path_factory.mktemp("ingesters"), broker, 2)
    yield made
    made.end()


@pytest.fixture(scope="module")
def clients(broker, tmp_path_factory):
    """Processes to be killed where Spark has nothing to do: their session is a Connect server's, which lives on."""
    with ConnectServer(tmp_path_factory.mktemp("server"), LIGHT_SPARK) as server:
        made = Ingesters(tmp_path_factory.mktemp("clients"), broker, len(STEPS) - 1, server.remote)
        yield made
        made.end()


@pytest.fixture
def land(connection, spark_of, topic, table):
    """A run in the test's own Spark."""
    source = KafkaSource.builder().set_topics(topic).build()
    return lambda: ingest(source, table, spark=spark_of, connection=connection, value_format=StringFormat())


@pytest.fixture
def landed(table):
    """Topic partition, offset, and value of each row."""

    return lambda: read.rows(table, "kafka_partition", "kafka_offset", "kafka_value")


@pytest.fixture
def operations(table):
    """What the table's history tells, oldest first."""
    return lambda: read.operations(table)


def _produce(kafka, topic, begin, end):
    for partition in (0, 1):
        values = [(None, f"{partition}-{offset}") for offset in range(begin, end)]
        kafka.produce(topic, values, partition=partition)


def _records(end):
    return [(partition, offset, f"{partition}-{offset}") for partition in (0, 1) for offset in range(end)]


@pytest.fixture
def check_the_rest(land, landed, operations, topic, table):
    """Checks what a run that died at a step has left, and what the next one lands."""

    def check(step, before, end):
        if step == PLANNED:
            assert not Path(table).exists()
        else:
            made = [] if before else ["CREATE TABLE"]
            assert operations() == [*before, *made, *(["WRITE"] if step in _BEHIND_THE_COMMIT else [])]
            assert landed() == _records(end if step in _BEHIND_THE_COMMIT else end - _LATER)

        result = land()

        assert result.rows == (0 if step in _BEHIND_THE_COMMIT else 2 * _LATER)
        assert result.is_idle == (step in _BEHIND_THE_COMMIT), "it goes on from the commit, which it takes for its own"
        assert landed() == _records(end)
        assert result.known.table_rows == len(_records(end))
        assert result.state.position == {TopicPartition(topic, 0): end, TopicPartition(topic, 1): end}
        assert land().is_idle

    return check


def test_every_step_is_killed_at():
    assert {*_BEFORE_THE_COMMIT, *_BEHIND_THE_COMMIT} == set(STEPS)


@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=() if step == WRITING else pytest.mark.nightly) for step in STEPS]
)
def test_a_run_that_is_killed_leaves_all_or_nothing_and_the_next_one_lands_each_record_once(
    step, kafka, request, land, operations, topic, table, check_the_rest
):
    kafka.create(topic, partitions=2)
    end = _LATER
    processes = request.getfixturevalue("ingesters" if step == WRITING else "clients")
    with processes.take() as killed:
        if step not in _FIRST_RUNS:
            _produce(kafka, topic, 0, _EARLIER)
            assert land().rows == 2 * _EARLIER
            end += _EARLIER
        _produce(kafka, topic, end - _LATER, end)
        before = operations() if step not in _FIRST_RUNS else []

        killed.wait_until_ready()
        killed.order(topic, table, deadly_step=step)

        assert killed.answer() is None, "the run was told of"
        assert killed.wait_until_gone() == -signal.SIGKILL

    check_the_rest(step, before, end)


class _Death(BaseException):
    """Nothing in a run handles it."""


def _die():
    raise _Death


@pytest.mark.parametrize("step", [step for step in STEPS if step != WRITING])
def test_a_run_that_dies_while_its_spark_lives_on_leaves_all_or_nothing_too(
    step, kafka, land, operations, topic, tmp_path, monkeypatch, check_the_rest
):
    kafka.create(topic, partitions=2)
    end, before = _LATER, []
    if step not in _FIRST_RUNS:
        _produce(kafka, topic, 0, _EARLIER)
        assert land().rows == 2 * _EARLIER
        end, before = _EARLIER + _LATER, operations()
    _produce(kafka, topic, end - _LATER, end)
    with monkeypatch.context() as patch:
        steps = Steps(tmp_path / "step", _die, patch.setattr)
        steps.wrap_all()
        steps.deadly = step
        with pytest.raises(_Death):
            land()

    check_the_rest(step, before, end)


def test_a_run_whose_jvm_is_killed_fails_and_the_next_one_lands_each_record_once(
    kafka, ingesters, land, landed, operations, topic, table
):
    kafka.create(topic, partitions=2)
    _produce(kafka, topic, 0, _EARLIER)
    with ingesters.take() as ingester:
        assert land().rows == 2 * _EARLIER
        end = _EARLIER + _LATER
        _produce(kafka, topic, _EARLIER, end)
        ingester.wait_until_ready()
        ingester.order(topic, table, deadly_step=JVM_WRITING)
        reported = ingester.answer()

    assert reported is not None, ingester.log()
    # Spark is gone, and with it all that could tell whether the commit is there: an error of ours has to say so.
    assert reported["error"] in vars(errors), reported
    assert "Nothing of it was committed" not in reported["message"]
    assert operations() == ["CREATE TABLE", "WRITE"]
    assert landed() == _records(_EARLIER)

    result = land()

    assert (result.rows, result.is_idle) == (2 * _LATER, False)
    assert landed() == _records(end)
    assert result.state.position == {TopicPartition(topic, 0): end, TopicPartition(topic, 1): end}


def test_a_table_that_a_killed_run_had_only_begun_to_make_is_made_by_the_next_one(kafka, land, landed, topic, table):
    kafka.create(topic, partitions=2)
    _produce(kafka, topic, 0, _LATER)
    # What Delta leaves when it dies in the first commit: the log's folder, and the commit under a hidden name.
    log = Path(table) / "_delta_log"
    log.mkdir(parents=True)
    (log / ".00000000000000000000.json.0f0a1d4b.tmp").touch()

    assert land().rows == 2 * _LATER

    assert landed() == _records(_LATER)
