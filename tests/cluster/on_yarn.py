"""Assets on YARN, with tables on HDFS, by the resource's settings alone. `make test-yarn` runs this."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pyspark
import pytest

from tests.cluster.driver import Driver
from tests.cluster.filled import COLUMNS, EVERYTHING, PARTITIONS, RECORDS, fill, fill_for_everything, records
from tests.cluster.hadoop import HadoopCluster
from tests.processes import descendants

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

_SETTINGS = {
    "spark.submit.deployMode": "client",
    "spark.executor.instances": "2",
    # Spark would send its jars to HDFS for each application.
    "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
}


@pytest.fixture(scope="module")
def hadoop(tmp_path_factory):
    """HDFS and YARN."""
    with HadoopCluster(tmp_path_factory.mktemp("hadoop")) as started:
        yield started


@pytest.fixture(scope="module")
def driver_with(hadoop, broker, tmp_path_factory):
    """Starts a driver whose executors have a Python that is given."""
    folder = tmp_path_factory.mktemp("drivers")

    def start(name, python):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HADOOP_CONF_DIR", str(hadoop.conf_dir))
            patch.setenv("PYSPARK_PYTHON", python)
            patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
            return Driver(folder, name, "yarn", broker, _SETTINGS)

    return start


@pytest.fixture(scope="module")
def drivers(driver_with):
    """Two applications of YARN."""
    with driver_with("first", sys.executable) as first, driver_with("second", sys.executable) as second:
        yield first, second


@pytest.fixture
def rows(spark):
    """Some columns of a table on HDFS, sorted."""

    def read(table, *columns):
        return sorted(tuple(row) for row in spark.read.format("delta").load(table).selectExpr(*columns).collect())

    return read


def test_assets_of_each_kind_land_on_hdfs_by_executors_without_python(hadoop, driver_with, kafka, rows, topic):
    orders = fill_for_everything(kafka, topic)
    lake = f"{hadoop.url}/{topic}"
    with driver_with("without-python", "/no/python") as driver:
        driver.order("everything", topic, lake)
        assert driver.answer() == {"rows": EVERYTHING, "errors": {}}
        # Nothing new. Only a window is landed again.
        driver.order("everything", topic, lake)
        again = {name: 21 if name == "days" else 0 for name in EVERYTHING}
        assert driver.answer() == {"rows": again, "errors": {}}
    assert rows(f"{lake}/current", "id", "name") == sorted(dict(orders).items())
    assert rows(f"{lake}/orders-dead-letters", "error") == [("not a JSON object",)]
    assert rows(f"{lake}/avro", "id") == sorted((key,) for key, _ in orders)


def test_an_executor_that_is_killed_costs_a_run_no_record(hadoop, drivers, kafka, rows, topic, stop):
    driver, _ = drivers
    fill(kafka, topic)
    lake = f"{hadoop.url}/{topic}"
    driver.order("stream", topic, lake, stop=stop.at(RECORDS - 10))
    waiting = stop.wait(driver)
    killed = next(each for each in hadoop.executors() if waiting[0] in descendants(each.pid))
    os.kill(killed.pid, signal.SIGKILL)
    stop.release.touch()
    assert driver.answer() == {"rows": {"stream": PARTITIONS * RECORDS}, "errors": {}}
    assert rows(f"{lake}/stream", *COLUMNS) == records()


def test_two_runs_at_once_on_hdfs_land_the_records_once(hadoop, drivers, kafka, rows, topic):
    fill(kafka, topic)
    lake = f"{hadoop.url}/{topic}"
    for _ in range(3):
        for driver in drivers:
            driver.order("stream", topic, lake)
        reported = [driver.answer() for driver in drivers]
        for answer in reported:
            assert all(name == "ConcurrentIngestionError" for name, _ in answer["errors"].values()), reported
    assert rows(f"{lake}/stream", *COLUMNS) == records()
