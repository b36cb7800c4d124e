"""Assets on a real Spark cluster, by the resource's settings alone: with a driver in the run's process, and by Connect.

Workers and drivers end in the middle of their work: that costs time, and no record.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.runtime.spark_jars import fetch_jars
from dagster_kafka_flip.source.kafka_source import KafkaSource
from tests import landed
from tests.cluster.driver import Driver
from tests.cluster.filled import COLUMNS, EVERYTHING, PARTITIONS, RECORDS, fill, fill_for_everything, records
from tests.cluster.standalone import EXECUTORS, StandaloneCluster
from tests.connect_server import ConnectServer
from tests.faults.ingesting import DELETES, SLOTS
from tests.faults.ordered_process import PATIENCE_SECONDS
from tests.processes import LIGHT_SPARK, descendants, wait_until

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.nightly]


def _all_there(folder):
    return landed.rows(folder / "stream", *COLUMNS) == records()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A master and two workers."""
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="module")
def server(cluster, tmp_path_factory):
    """A Connect server whose executors are the cluster's."""
    more = {**LIGHT_SPARK, **EXECUTORS, "spark.master": cluster.url, "spark.jars": ",".join(fetch_jars())}
    with ConnectServer(tmp_path_factory.mktemp("server"), more) as started:
        yield started


@pytest.fixture(scope="module")
def driver_on(cluster, broker, tmp_path_factory):
    """Gives a driver, or a server's client, that has nothing to do; the same one as long as there is one."""
    folder = tmp_path_factory.mktemp("drivers")
    running = {}
    with ExitStack() as stack:

        def give(address):
            cluster.heal()
            if address in running and not running[address].is_free:
                running.pop(address).kill()
            if address not in running:
                number = len(list(folder.iterdir()))
                running[address] = stack.enter_context(Driver(folder, f"driver-{number}", address, broker))
            return running[address]

        yield give


@pytest.fixture(params=["driver", "connect"])
def driver(request, cluster, driver_on):
    """The same by both ways to the cluster."""
    return driver_on(cluster.url if request.param == "driver" else request.getfixturevalue("server").remote)


def test_assets_of_each_kind_land_on_a_cluster_as_they_do_on_a_laptop(cluster, driver, kafka, topic, tmp_path):
    orders = fill_for_everything(kafka, topic)
    driver.order("everything", topic, tmp_path)
    assert driver.answer() == {"rows": EVERYTHING, "errors": {}}
    everything = sorted([*orders, (99, None), (99, None)], key=str)
    assert sorted(landed.rows(tmp_path / "orders", "id", "name", where="id IS NOT NULL"), key=str) == everything
    assert landed.rows(tmp_path / "orders-dead-letters", "error") == [("not a JSON object",)]
    assert landed.rows(tmp_path / "current", "id", "name") == sorted(dict(orders).items())
    assert landed.count(tmp_path / "raw") == landed.count(tmp_path / "bytes") == 23
    assert landed.values(tmp_path / "avro", "id") == sorted(key for key, _ in orders)
    assert landed.values(tmp_path / "days", "kafka_window") == ["2013-03-01"] * 21
    # The executors have the jars from the driver, and not from its disk.
    assert {Path(jar).name for jar in fetch_jars()} <= cluster.jars()


@pytest.mark.parametrize("offset", [0, RECORDS - 10], ids=["reading", "writing"])
def test_a_worker_that_is_killed_costs_a_run_no_record(cluster, driver_on, kafka, topic, tmp_path, stop, offset):
    driver = driver_on(cluster.url)
    fill(kafka, topic)
    driver.order("stream", topic, tmp_path, stop=stop.at(offset))
    waiting = stop.wait(driver)
    # The worker that is left gets its tasks.
    cluster.kill_worker_of(waiting[0])
    stop.release.touch()
    assert driver.answer() == {"rows": {"stream": PARTITIONS * RECORDS}, "errors": {}}
    assert _all_there(tmp_path)
    assert landed.operations(tmp_path / "stream") == ["CREATE TABLE", "WRITE"]


def test_a_worker_that_is_killed_in_a_merge_costs_a_table_with_a_key_no_change(
    cluster, driver_on, kafka, topic, tmp_path, stop
):
    driver = driver_on(cluster.url)
    fill(kafka, topic)
    driver.order("keyed", topic, tmp_path, stop=stop.at(RECORDS - 10))
    cluster.kill_worker_of(stop.wait(driver)[0])
    stop.release.touch()
    assert driver.answer()["errors"] == {}
    # What a loop makes of the records, one after the other.
    rows = {(partition, offset % SLOTS): offset for partition in range(PARTITIONS) for offset in range(RECORDS)}
    left = sorted((*key, offset) for key, offset in rows.items() if offset % DELETES)
    assert landed.rows(tmp_path / "keyed", "kafka_partition", "slot", "kafka_offset") == left
    assert landed.operations(tmp_path / "keyed") == ["CREATE TABLE", "MERGE"]


def test_a_driver_that_is_killed_leaves_nothing_and_the_next_run_lands_all(
    cluster, driver_on, kafka, connection, spark_of, topic, tmp_path, stop
):
    fill(kafka, topic)
    killed = driver_on(cluster.url)
    killed.order("stream", topic, tmp_path, stop=stop.at(RECORDS - 10))
    waiting = stop.wait(killed)
    # Another driver, or a server, may have executors as well.
    own = [each for each in cluster.executors() if any(task in descendants(each.pid) for task in waiting)]
    assert own
    killed.kill()
    # They are told to end, in the middle of their tasks.
    wait_until(lambda: not any(each.is_alive() for each in own), seconds=PATIENCE_SECONDS)
    stop.release.touch()
    assert landed.operations(tmp_path / "stream") == ["CREATE TABLE"]

    # Whoever is next: a Spark on one machine, for a table that one on a cluster has begun.
    result = ingest(KafkaSource(topics=(topic,)), str(tmp_path / "stream"), spark=spark_of, connection=connection)
    assert result.rows == PARTITIONS * RECORDS
    assert _all_there(tmp_path)


def test_a_run_on_a_cluster_without_a_worker_says_so_and_continues_when_one_comes(kafka, broker, topic, tmp_path):
    fill(kafka, topic)
    cluster = StandaloneCluster(tmp_path / "cluster", workers=1)
    with ExitStack() as stack:
        stack.callback(cluster.end)
        driver = stack.enter_context(Driver(tmp_path, "driver", cluster.url, broker))
        driver.order("stream", topic, tmp_path)
        told = f"the cluster {cluster.url} has given it no executor"
        wait_until(lambda: told in driver.log(), seconds=PATIENCE_SECONDS)
        assert "(spark.executor.cores=1, spark.executor.memory=512m). The run waits" in driver.log()
        assert not driver.has_answered
        cluster.heal()
        assert driver.answer() == {"rows": {"stream": PARTITIONS * RECORDS}, "errors": {}}
    assert _all_there(tmp_path)
