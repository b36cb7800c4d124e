"""A process that runs assets on a cluster when it is told to, and the other end of it.

It takes its orders as lines of JSON from standard input, and answers each with a line that begins with `@`: what the
runs came to. SIGTERM ends a run, as it does where Dagster runs in a container, and not the process. The end of standard
input does.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Any

from dagster import DagsterInstance, DailyPartitionsDefinition, materialize
from dagster._utils.interrupts import setup_interrupt_handlers

from dagster_kafka_flip import (
    AvroFormat,
    DeltaTarget,
    JsonFormat,
    KafkaDeltaTable,
    KafkaResource,
    KafkaSource,
    SparkResource,
    Upsert,
    build_kafka_delta_asset,
    build_kafka_delta_multi_asset,
    kafka_delta_asset,
)
from tests.cluster.standalone import EXECUTORS
from tests.faults.ingesting import DELETES, SLOTS
from tests.faults.ordered_process import PATIENCE_SECONDS, OrderedProcess
from tests.processes import LIGHT_SPARK, Process, all_processes, kill_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dagster import AssetsDefinition
    from pyspark.sql import DataFrame

DAY = "2013-03-01"

_ORDER = "id INT NOT NULL, name STRING"
_AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}


class Driver(OrderedProcess):
    """Such a process, which has not started Spark before its first run.

    Args:
        folder: For its log.
        name: Tells its log from those of others.
        address: A master's URL, or a Connect server's.
        bootstrap_servers: The brokers.
        settings: Further ones of its Spark, where it has one.
    """

    def __init__(
        self, folder: Path, name: str, address: str, bootstrap_servers: str, settings: dict[str, str] | None = None
    ) -> None:
        reported = json.dumps(settings or {})
        super().__init__(folder / f"{name}.log", "tests.cluster.driver", address, bootstrap_servers, reported)
        self._unanswered = 0

    @property
    def is_free(self) -> bool:
        """Whether it runs, and has no order to carry out."""
        return self.process.poll() is None and not self._unanswered

    @property
    def has_answered(self) -> bool:
        """Whether there is an answer, or will never be one."""
        return not self._answers.empty()

    def order(self, what: str, topic: str, folder: Path, **further: Any) -> None:
        """Starts one of the runs of this module, without waiting for it.

        Args:
            what: Which.
            topic: What to read.
            folder: Where its tables are.
            further: What it takes besides.
        """
        self._unanswered += 1
        self._write({"what": what, "topic": topic, "folder": str(folder), **further})

    def answer(self) -> dict[str, Any]:
        """What the oldest order that was not answered yet came to."""
        reported = self._answers.get(timeout=PATIENCE_SECONDS)
        assert reported is not None, f"it ended:\n{self.log()}"
        self._unanswered -= 1
        return reported

    def log(self) -> str:
        """What it wrote to standard error."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """SIGKILL for it and its JVM, as when its machine dies."""
        kill_all(self.process)

    def end(self) -> None:
        """Ends it in any case."""
        self.kill()
        self._reader.join(timeout=60)


def process_of(pid: int) -> Process:
    """A process by its id."""
    return next(each for each in all_processes() if each.pid == pid)


def stopping(marks: str, release: str, at: int) -> Callable[[DataFrame], DataFrame]:
    """A transform that stops each task at an offset until there is a file; it tells which processes wait.

    Args:
        marks: What the names of the files begin with that tell of them; each has the id of an executor's Python.
        release: The file that lets them go on.
        at: The offset.
    """

    def transform(records: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        @f.udf("boolean", useArrow=False)
        def stop(partition: int, offset: int, _: bytes) -> bool:
            import os
            import time
            from pathlib import Path

            if offset == at:
                parent = os.getppid()
                fresh = Path(f"{marks}{partition}.new")
                fresh.write_text(str(parent), encoding="ascii")
                fresh.replace(f"{marks}{partition}")
                # Or until its executor is gone, and so its daemon.
                while not Path(release).exists() and os.getppid() == parent:
                    time.sleep(0.01)
            return True

        # Given the values too, so that Spark can't run far ahead of the function: they fill every buffer in between.
        return records.where(stop("kafka_partition", "kafka_offset", "kafka_value"))

    return transform


def everything(topic: str, folder: str) -> list[AssetsDefinition]:
    """One asset of each kind, all of one topic of JSON, but for one of Avro."""
    source = KafkaSource(topics=(topic,))
    return [
        build_kafka_delta_asset(name="raw", source=source, table=f"{folder}/raw"),
        build_kafka_delta_asset(
            name="orders",
            source=source,
            table=f"{folder}/orders",
            value_format=JsonFormat(_ORDER),
            dead_letter=f"{folder}/orders-dead-letters",
        ),
        build_kafka_delta_asset(
            name="current",
            source=KafkaSource(topics=(f"{topic}-keys",)),
            table=DeltaTarget(table=f"{folder}/current", mode=Upsert(key=("id",))),
            key_format=JsonFormat("id INT"),
            value_format=JsonFormat(_ORDER),
        ),
        build_kafka_delta_multi_asset(
            name="both",
            source=source,
            tables=[
                KafkaDeltaTable("some", table=f"{folder}/some", value_format=JsonFormat(_ORDER, on_error="null")),
                KafkaDeltaTable("bytes", table=f"{folder}/bytes"),
            ],
        ),
        build_kafka_delta_asset(
            name="avro",
            source=KafkaSource(topics=(f"{topic}-avro",)),
            table=f"{folder}/avro",
            value_format=AvroFormat(_AVRO),
        ),
        build_kafka_delta_asset(
            name="days",
            source=source,
            table=DeltaTarget(table=f"{folder}/days", partition_by=("kafka_window",)),
            partitions_def=DailyPartitionsDefinition(DAY),
        ),
    ]


def _as_they_are(records: DataFrame) -> DataFrame:
    return records


def _assets(order: dict[str, Any]) -> list[AssetsDefinition]:
    topic, folder = order["topic"], order["folder"]
    if order["what"] == "everything":
        return everything(topic, folder)
    transform = stopping(*order["stop"]) if "stop" in order else _as_they_are
    if order["what"] == "keyed":

        @kafka_delta_asset(
            source=KafkaSource(topics=(topic,)),
            table=DeltaTarget(table=f"{folder}/keyed", mode=Upsert(key=("kafka_partition", "slot"))),
        )
        def keyed(records):
            from pyspark.sql import functions as f

            number = f.col("kafka_offset")
            return transform(records.withColumns({"slot": number % SLOTS, "kafka_deleted": number % DELETES == 0}))

        return [keyed]

    @kafka_delta_asset(source=KafkaSource(topics=(topic,)), table=f"{folder}/stream")
    def stream(records):
        return transform(records)

    return [stream]


def _outcome(order: dict[str, Any], resources: dict[str, Any]) -> dict[str, Any]:
    reported: dict[str, Any] = {"rows": {}, "errors": {}}
    with DagsterInstance.ephemeral() as instance:
        for asset in _assets(order):
            is_dated = asset.partitions_def is not None
            done = materialize(
                [asset],
                instance=instance,
                resources=resources,
                partition_key=DAY if is_dated else None,
                raise_on_error=False,
            )
            for event in done.get_asset_materialization_events():
                assert event.asset_key is not None
                counted = "dagster/partition_row_count" if is_dated else "delta/rows_written"
                rows = event.materialization.metadata.get(counted)
                reported["rows"][event.asset_key.to_user_string()] = None if rows is None else rows.value
            for event in done.all_events:
                error = event.step_failure_data.error if event.is_step_failure else None
                if error is not None:
                    # Dagster's own error is around the one that says why.
                    while error.cause is not None and (error.cls_name or "").startswith("Dagster"):
                        error = error.cause
                    reported["errors"][asset.op.name] = [error.cls_name, error.message]
    return reported


def main(address: str, bootstrap_servers: str, settings: str) -> None:
    """Carries out orders."""
    setup_interrupt_handlers()
    logging.basicConfig(level=logging.INFO)
    if address.startswith("sc://"):
        spark = SparkResource(remote=address)
    else:
        spark = SparkResource(master=address, config={**LIGHT_SPARK, **EXECUTORS, **json.loads(settings)})
        # All runs of a process use the session that is there: one application on the cluster.
        spark.session()
    resources = {"kafka": KafkaResource(bootstrap_servers=bootstrap_servers), "spark": spark}
    for line in sys.stdin:
        order = json.loads(line)
        print(f"@{json.dumps(_outcome(order, resources))}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
