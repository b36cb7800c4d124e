"""The documents' DAGs land what they say, in one process of Airflow's; `make test-airflow` has all of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from dagster_kafka_flip import KafkaConnection, KafkaSource, ingest
from dagster_kafka_flip.table.known_position import KnownPosition
from tests import landed
from tests.document_tests import ROOT, blocks
from tests.kafka_topic import Kafka, committed_records
from tests.processes import LIGHT_JVM, descendants

PYTHON = [block for block in blocks(ROOT / "docs" / "airflow.md") if block.language == "python"]
SECRET = "never-to-be-seen-4f7a"


# One task for several tables, of which each instance, or each run, lands one.
OF_MANY = """
from airflow.sdk import DAG, Asset

from dagster_kafka_flip import StringFormat
from dagster_kafka_flip.airflow import KafkaToDeltaOperator, table_asset

TABLES = ["/data/lake/first", "/data/lake/second"]
options = {
    "task_id": "land",
    "source": "orders",
    "value_format": StringFormat(),
    "outlets": [Asset("report"), *map(table_asset, TABLES)],
}
with DAG("mapped", schedule=None):
    KafkaToDeltaOperator.partial(**options, max_active_tis_per_dag=1).expand(table=TABLES)
with DAG("named", schedule=None, params={"table": TABLES[1]}):
    KafkaToDeltaOperator(**options, table="{{ params.table }}")
"""


# The task's time is over while Spark reads the third record: with the signal that Airflow's own timer sends.
LATE = """
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, task

from dagster_kafka_flip import Limits, StringFormat
from dagster_kafka_flip.airflow import KafkaToDeltaOperator


def slow(records):
    from pyspark.sql import functions
    from pyspark.sql.types import StringType

    task, hold = os.getpid(), Path("/data/lake/hold")

    def value(text):
        if text == "third" and hold.exists():
            os.kill(task, signal.SIGALRM)
            while True:
                time.sleep(1)
        return text

    return records.withColumn("kafka_value", functions.udf(value, StringType())(functions.col("kafka_value")))


for dag, on_idle in (("late", "succeed"), ("late_or_none", "skip")):
    with DAG(dag, schedule=None):
        KafkaToDeltaOperator(
            task_id="land",
            source="orders",
            table="/data/lake/late",
            value_format=StringFormat(),
            transform=slow,
            on_idle=on_idle,
            limits=Limits(max_records_per_batch=2),
            execution_timeout=timedelta(hours=1),
        )

with DAG("untold", schedule=None):

    @task
    def land():
        from dagster_kafka_flip import KafkaConnection, KafkaSource, build_session, ingest

        ingest(
            KafkaSource(topics=("orders",)),
            "/data/lake/late",
            spark=build_session,
            connection=KafkaConnection(bootstrap_servers="BROKER"),
            value_format=StringFormat(),
        )

    land()
"""


# Where Spark is, and how it is set, is only in connections; the transform is only named.
ELSEWHERE = """
from airflow.sdk import DAG, task

from dagster_kafka_flip import StringFormat
from dagster_kafka_flip.airflow import KafkaToDeltaOperator

with DAG("in_the_task", schedule=None):
    KafkaToDeltaOperator(
        task_id="land",
        source="orders",
        table="/data/lake/in_the_task",
        value_format=StringFormat(),
        spark="spark_here",
        transform="steps_of_orders.with_session",
    )

with DAG("as_a_function", schedule=None):

    @task
    def land():
        from dagster_kafka_flip import KafkaConnection, KafkaSource, build_session, ingest

        connection = KafkaConnection(bootstrap_servers="BROKER")
        table = "/data/lake/as_a_function"
        ingest(KafkaSource(topics=("orders",)), table, spark=build_session, connection=connection)

    land()
"""
STEPS = """
def with_session(records):
    from pyspark.sql import functions

    session = records.sparkSession
    kind = session.sparkContext.master
    return records.select("kafka_value", functions.lit(kind).alias("kind"), functions.lit(session.conf.get(
        "spark.orders.mark", "none")).alias("mark"))
"""


def told_to_openlineage(path: Path, task: str) -> dict[str, Any]:
    """What the last event of a task's end says of topics and tables."""
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [each for each in events if each["job"]["name"] == task and each["eventType"] != "START"][-1]


def no_spark() -> Any:
    raise AssertionError("Spark was started")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "said.log"


@pytest.fixture
def lineage(tmp_path: Path) -> Path:
    return tmp_path / "lineage.json"


@pytest.fixture
def run(
    tmp_path: Path, lake: Path, output: Path, lineage: Path, broker: str
) -> Iterator[Callable[..., dict[str, Any]]]:
    """Runs one of the documents' DAGs, on a table in this test's lake."""
    dags = tmp_path / "dags"
    dags.mkdir()
    for number, block in enumerate(PYTHON):
        (dags / f"dag_{number}.py").write_text(block.code.replace("/data/lake", str(lake)), encoding="utf-8")
    skipping = PYTHON[0].code.replace('"orders", schedule', '"orders_or_none", schedule')
    skipping = skipping.replace("value_format=", 'on_idle="skip", value_format=').replace("/data/lake", str(lake))
    (dags / "skipping.py").write_text(skipping, encoding="utf-8")
    for name, text in (("of_many", OF_MANY), ("late", LATE), ("elsewhere", ELSEWHERE)):
        filled = text.replace("/data/lake", str(lake)).replace("BROKER", broker)
        (dags / f"{name}.py").write_text(filled, encoding="utf-8")
    steps = tmp_path / "steps"
    steps.mkdir()
    (steps / "steps_of_orders.py").write_text(STEPS, encoding="utf-8")
    spark_here = {"conn_type": "spark", "host": "local[1]", "extra": {"spark.orders.mark": "by its connection"}}
    connection = {
        "conn_type": "kafka",
        "extra": {"bootstrap.servers": broker, "group.id": "others", "ssl.key.password": SECRET},
    }
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{steps}",
        "PYSPARK_SUBMIT_ARGS": LIGHT_JVM,
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps(connection),
        "AIRFLOW_CONN_SPARK_HERE": json.dumps(spark_here),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps({"type": "file", "log_file_path": str(lineage), "append": True}),
    }
    environment.pop("_AIRFLOW__AS_LIBRARY", None)
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "tests.airflow.dag_runs", str(dags), str(writing)]
    with output.open("w") as log, os.fdopen(reading) as answers:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True, pass_fds=[writing]
        )
        os.close(writing)
        requests = process.stdin
        assert requests is not None

        def ask(dag: str, date: datetime | None = None) -> dict[str, Any]:
            print(json.dumps([dag, None if date is None else date.isoformat()]), file=requests, flush=True)
            answer = answers.readline()
            assert answer, output.read_text()[-5000:]
            return json.loads(answer)

        yield ask
        requests.close()
        process.wait()


def check_published(
    kafka: Kafka, connection: KafkaConnection, lake: Path, output: Path, run: Callable[..., dict[str, Any]]
) -> None:
    """The table's changes go to a topic, each once; and lost progress is noticed."""
    published = run("orders_out")
    assert published["state"] == "success"
    reported = published["extras"][-1]
    assert (reported["kafka/records_written"], reported["kafka/sink"]) == (5, "orders-out")
    assert reported["delta/to_version"] == landed.version(lake / "orders")
    assert reported["kafka/sink_progress"] == {"0": {"version": reported["delta/to_version"], "rows": 0}}
    values = [json.loads(record.value or b"") for record in committed_records(connection, "orders_out")]
    assert sorted((value["id"], value["amount"]) for value in values) == [(number, number / 2) for number in range(5)]
    idle = run("orders_out")["extras"][-1]
    assert (idle["kafka/idle"], idle["kafka/records_written"], idle["spark/started"]) == (True, 0, False)
    # Its progress is lost: the newest event knows better, and nothing is published twice.
    kafka.delete("orders-out-progress")
    assert run("orders_out")["state"] == "failed"
    assert "an earlier run of the sink orders-out reached table version" in output.read_text(encoding="utf-8")
    assert len(committed_records(connection, "orders_out")) == 5
    kafka.delete("orders-out-progress")


@pytest.mark.kafka
@pytest.mark.nightly
def test_the_documents_dags_land_what_they_say(
    kafka: Kafka,
    named_topic: Callable[..., str],
    connection: KafkaConnection,
    lake: Path,
    output: Path,
    lineage: Path,
    broker: str,
    run: Callable[..., dict[str, Any]],
):
    named_topic("orders")
    named_topic("orders_out")
    day_ms = int(datetime(2026, 1, 31, 23, tzinfo=timezone.utc).timestamp() * 1000)
    # Two of January in Berlin, one of the first of February there, and one of the second.
    for number, hours in enumerate((-2, -1, 0, 24)):
        value = json.dumps({"id": number, "amount": number / 2})
        kafka.produce("orders", [(None, value)], timestamp=day_ms + hours * 3_600_000)
    expected = [(number, number, number / 2) for number in range(4)]

    first = run("orders")
    # Started by hand, it looks at the table, and finds nothing new.
    second = run("orders")

    assert (first["state"], second["state"]) == ("success", "success")
    assert landed.rows(lake / "orders", "kafka_offset", "id", "amount") == expected
    (extra, idle) = second["extras"]
    assert extra["delta/rows_written"] == extra["kafka/records_read"] == extra["delta/rows"] == 4
    assert extra["delta/version"] == landed.version(lake / "orders")
    assert extra["kafka/lag_after"] == 0
    assert (idle["kafka/idle"], idle["delta/rows_written"], idle["spark/started"]) == (True, 0, True)
    # The event's position is one that a run trusts, and starts no Spark for.
    known = KnownPosition.from_json(idle["kafka/checkpoint"])
    result = ingest(
        KafkaSource(topics=("orders",)), str(lake / "orders"), spark=no_spark, connection=connection, known=known
    )
    assert result.is_idle

    kafka.produce("orders", [(None, '{"id": 4, "amount": 2.0}')])
    run("orders")
    assert landed.rows(lake / "orders", "kafka_offset", "id", "amount") == [*expected, (4, 4, 2.0)]

    skipped = run("orders_or_none")
    assert (skipped["state"], len(skipped["extras"])) == ("success", 3)

    # A run that Airflow plans for a date has the last interval that ended before it.
    dated = datetime(2026, 2, 2, 12, tzinfo=timezone.utc)
    assert run("orders_by_day", dated)["state"] == "success"
    again = run("orders_by_day", dated)
    assert again["state"] == "success"
    windows = landed.rows(lake / "orders_by_day", "kafka_offset", "kafka_window")
    assert [offset for offset, _ in windows] == [2]
    assert again["extras"][-1]["delta/rows_written"] == 1

    check_published(kafka, connection, lake, output, run)

    event = told_to_openlineage(lineage, "orders.land")
    assert [(each["namespace"], each["name"]) for each in event["inputs"]] == [(f"kafka://{broker}", "orders")]
    assert [(each["namespace"], each["name"]) for each in event["outputs"]] == [("file", str(lake / "orders"))]
    event = told_to_openlineage(lineage, "orders_out.publish")
    assert [(each["namespace"], each["name"]) for each in event["outputs"]] == [(f"kafka://{broker}", "orders_out")]

    assert SECRET not in output.read_text(encoding="utf-8")


@pytest.mark.kafka
@pytest.mark.nightly
def test_each_instance_of_a_task_for_several_tables_tells_of_its_own(
    kafka: Kafka, named_topic: Callable[..., str], lake: Path, run: Callable[..., dict[str, Any]]
):
    named_topic("orders")
    kafka.produce("orders", [(None, "first"), (None, "second")])
    first, second = ((lake / each).as_uri() for each in ("first", "second"))

    mapped = run("mapped")

    assert mapped["state"] == "success"
    # An asset that is no table is each instance's.
    events = sorted(zip(mapped["uris"], (each.get("delta/rows_written") for each in mapped["extras"]), strict=True))
    assert events == [(first, 2), (second, 2), ("report", None), ("report", None)]
    kafka.produce("orders", [(None, "third")])
    named = run("named")
    assert sorted(named["uris"][4:]) == [second, "report"]
    reported = dict(zip(named["uris"][4:], named["extras"][4:], strict=True))[second]
    assert (reported["delta/rows_written"], reported["delta/version"]) == (1, landed.version(lake / "second"))
    assert [landed.count(lake / each) for each in ("first", "second")] == [2, 3]


@pytest.mark.kafka
@pytest.mark.nightly
def test_a_task_that_exceeds_its_time_ends_spark_and_the_next_one_goes_on(
    kafka: Kafka, named_topic: Callable[..., str], lake: Path, output: Path, run: Callable[..., dict[str, Any]]
):
    named_topic("orders")
    values = ["first", "second", "third", "fourth"]
    kafka.produce("orders", [(None, value) for value in values])
    lake.mkdir()
    (lake / "hold").touch()

    late = run("late")

    assert (late["state"], late["extras"]) == ("failed", [])
    text = output.read_text(encoding="utf-8")
    assert "interrupted; stopping the Spark jobs" in text
    assert "AirflowTaskTimeout" in text
    # What would go on forever. The JVM lives as long as this process, which has no worker of Airflow's.
    assert not [each for each in descendants(os.getpid()) if "pyspark.daemon" in each.command]
    assert landed.rows(lake / "late", "kafka_value") == [("first",), ("second",)]

    (lake / "hold").unlink()
    again = run("late")

    assert again["state"] == "success"
    assert sorted(landed.rows(lake / "late", "kafka_offset", "kafka_value")) == list(enumerate(values))
    (reported,) = again["extras"]
    assert (reported["delta/rows_written"], reported["delta/unreported_rows"]) == (2, 2)

    # Nothing new, but rows that no event told of: as of a try that died behind its commit.
    kafka.produce("orders", [(None, "fifth")])
    assert run("untold")["state"] == "success"
    told = run("late_or_none")["extras"]
    assert [each["delta/unreported_rows"] for each in told[1:]] == [1]
    assert len(run("late_or_none")["extras"]) == 2


@pytest.mark.kafka
@pytest.mark.nightly
def test_spark_is_set_by_a_connection_and_a_transform_is_named(
    kafka: Kafka, named_topic: Callable[..., str], lake: Path, run: Callable[..., dict[str, Any]]
):
    named_topic("orders")
    kafka.produce("orders", [(None, "first"), (None, "second")])
    for dag in ("in_the_task", "as_a_function"):
        assert run(dag)["state"] == "success", dag
    mark = ("local[1]", "by its connection")
    assert landed.rows(lake / "in_the_task", "kafka_value", "kind", "mark") == [("first", *mark), ("second", *mark)]
    assert landed.count(lake / "as_a_function") == 2
