"""A process that ingests when it is told to, and kills itself at a named step: what the tests of this folder start.

It takes its orders as lines of JSON from standard input and answers with lines of JSON that begin with `@`:

    topic, table   what to ingest in one run of `ingest()`; the answer is the run's outcome
    step           where to be killed by SIGKILL, if anywhere
    max_records    offsets in a commit, if there is a limit

The end of standard input ends it. The steps are those of the real run, whose functions are wrapped here; the package
knows nothing of them.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster_kafka_flip.errors import KafkaFlipError
from dagster_kafka_flip.formats.string import StringFormat
from dagster_kafka_flip.ingestion import ingest
from dagster_kafka_flip.session import build_session
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.limits import Limits
from dagster_kafka_flip.table.delta_table import DeltaTable
from tests.processes import descendants

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

STARTING = "before the position was read"
POSITION_READ = "after the position was read"
PLANNED = "after the plan"
TABLE_MADE = "after the table was made"
BEFORE_WRITE = "before the write"
WRITING = "while Spark writes"
COMMITTED = "after Delta's commit"
CONFIRMED = "after the read-back"
DONE = "after the run"
JVM_WRITING = "while Spark writes (JVM)"

STEPS = (POSITION_READ, PLANNED, TABLE_MADE, BEFORE_WRITE, WRITING, COMMITTED, CONFIRMED)

SPARK_CONFIG = {
    "spark.ui.enabled": "false",
    "spark.log.level": "FATAL",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "512m",
    # A short life: what makes a JVM fast in the long run only costs it time.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # Two topic partitions are two tasks, of which the one core does one after the other.
    "spark.default.parallelism": "2",
}


class Steps:
    """Notes in a file which step a run has got to, and kills the process at the one that was asked for."""

    def __init__(self, note: Path) -> None:
        self._note = os.open(note, os.O_WRONLY | os.O_CREAT)
        self.deadly: str | None = None
        self.arrive(STARTING)

    def arrive(self, step: str) -> None:
        # One write of always the same length: whoever reads the file sees a whole step.
        os.pwrite(self._note, f"{step:<64}".encode(), 0)
        if step == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    def wrap(self, owner: type, name: str, *, before: tuple[str, ...] = (), after: str | None = None) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            for step in before:
                self.arrive(step)
            result = original(*args, **kwargs)
            if after is not None:
                self.arrive(after)
            return result

        setattr(owner, name, wrapped)

    def wrap_all(self) -> None:
        self.wrap(DeltaTable, "anchor", after=POSITION_READ)
        self.wrap(KafkaSourceEnumerator, "start", after=PLANNED)
        self.wrap(DeltaTable, "create", after=TABLE_MADE)
        self.wrap(DeltaTable, "_append", before=(BEFORE_WRITE, WRITING), after=COMMITTED)
        self.wrap(DeltaTable, "commit", after=CONFIRMED)


def killing(table: Path, pid: int) -> Callable[[DataFrame], DataFrame]:
    """A transform that kills a process in the middle of the write: one file is complete, the next one has been begun.

    The tasks run one after the other, and the task of topic partition 1 looks for the file of topic partition 0.
    """
    before = set(table.glob("*.parquet"))

    def transform(records: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        @f.udf("boolean")
        def kill(partition: int) -> bool:
            import os
            import signal
            import time
            from pathlib import Path

            if partition == 1:
                while not set(Path(table).glob("*.parquet")) - before:
                    time.sleep(0.01)
                os.kill(pid, signal.SIGKILL)
                # Until Spark ends this worker. Nothing of this task is to be written, however late that is.
                time.sleep(600)
            return True

        return records.where(kill("kafka_partition"))

    return transform


def outcome(run: Callable[[], Any]) -> dict[str, Any]:
    """What a run did, as the process that asked for it is told."""
    try:
        result = run()
    except KafkaFlipError as error:
        return {"error": type(error).__name__, "message": str(error)}
    except Exception as error:  # noqa: BLE001 - told to the test, which expects none
        return {"error": f"{type(error).__module__}.{type(error).__qualname__}", "message": str(error)}
    return {"error": None, "rows": result.rows, "is_idle": result.is_idle, "batches": len(result.batches)}


def main(bootstrap_servers: str, note: str) -> None:
    """Starts Spark, says so, and carries out orders."""
    session = build_session(master="local[1]", config=SPARK_CONFIG)
    java = next(process.pid for process in descendants(os.getpid()) if "java" in process.command)
    steps = Steps(Path(note))
    steps.wrap_all()
    print(f"@{json.dumps({'java': java})}", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        table, deadly = order["table"], order["step"]
        source = KafkaSource.builder().set_topics(order["topic"]).build()
        victim = {WRITING: os.getpid(), JVM_WRITING: java}.get(deadly)
        steps.deadly = deadly if victim is None else None
        steps.arrive(STARTING)
        told = outcome(
            lambda source=source, table=table, victim=victim, order=order: ingest(
                source,
                table,
                spark=lambda: session,
                connection=KafkaConnection(bootstrap_servers=bootstrap_servers),
                value_format=StringFormat(),
                transform=None if victim is None else killing(Path(table), victim),
                limits=Limits(max_records_per_batch=order["max_records"]),
                run_id=f"process {os.getpid()}",
            )
        )
        steps.arrive(DONE)
        print(f"@{json.dumps(told)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
