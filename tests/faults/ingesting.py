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
from dagster_kafka_flip.ingestion.dead_letters import DeadLetters
from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.ingestion.rewrite_windows import rewrite_windows
from dagster_kafka_flip.runtime.session import build_session
from dagster_kafka_flip.sink.delta_source import DeltaSource
from dagster_kafka_flip.sink.kafka_sink import KafkaSink
from dagster_kafka_flip.sink.lane import Lane
from dagster_kafka_flip.sink.publish import publish
from dagster_kafka_flip.sink.serializers import JsonSerializer
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.window import Window, Windows
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.mode import Append, Upsert
from dagster_kafka_flip.table.table_writer import TableWriter
from dagster_kafka_flip.table.target import DeltaTarget
from tests.processes import LIGHT_SPARK, QUICK_JVM_OPTIONS, descendants

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

    from dagster_kafka_flip.ingestion.result import IngestResult

STREAM, RAW, LETTERS, WINDOWS, KEYED = "stream", "raw", "letters", "windows", "keyed"
SINK = "sink"

# The topic that a sink publishes the keyed table to.
PUBLISHED = "published"
KEY_OF_NUMBERED = ("kafka_partition", "slot")

# Of the numbered records, those whose numbers leave the same rest are changes of one key, and one in so many deletes.
SLOTS, DELETES = 40, 3

# 2026-01-01T00:00:00Z: records of the soak are dated from here on, and put into windows.
SOAK_START = 1_767_225_600_000
WINDOW_MS = 600_000

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

LANES_OWNED = "after a sink's lanes were opened"
RECORD_WRITTEN = "after a sink's record"
LANE_COMMITTED = "after a lane's commit"
SINK_STEPS = (LANES_OWNED, RECORD_WRITTEN, LANE_COMMITTED)

STEPS = (POSITION_READ, PLANNED, TABLE_MADE, BEFORE_WRITE, WRITING, COMMITTED, CONFIRMED)

SPARK_CONFIG = {
    "spark.ui.enabled": "false",
    "spark.log.level": "FATAL",
    **LIGHT_SPARK,
    "spark.driver.memory": "512m",
    # A short life: what makes a JVM fast in the long run only costs it time.
    "spark.driver.extraJavaOptions": QUICK_JVM_OPTIONS,
    # Two topic partitions are two tasks, of which the one core does one after the other.
    "spark.default.parallelism": "2",
}


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Steps:
    """Notes in a file which step a run has got to, and ends the process, or the run, at the one that was asked for.

    Args:
        note: The file.
        end: What ends the process or the run.
        put: What puts a wrapped function in the place of a class's own.
    """

    def __init__(
        self,
        note: Path,
        end: Callable[[], None] = kill_this_process,
        put: Callable[[type, str, object], None] = setattr,
    ) -> None:
        self._note = os.open(note, os.O_WRONLY | os.O_CREAT)
        self._end = end
        self._put = put
        self.deadly: str | None = None
        self.arrive(STARTING)

    def arrive(self, step: str) -> None:
        # One write of always the same length: whoever reads the file sees a whole step.
        os.pwrite(self._note, f"{step:<64}".encode(), 0)
        if step == self.deadly:
            self._end()

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

        self._put(owner, name, wrapped)

    def wrap_all(self) -> None:
        self.wrap(DeltaTable, "anchor", after=POSITION_READ)
        self.wrap(KafkaSourceEnumerator, "start", after=PLANNED)
        self.wrap(DeltaTable, "create", after=TABLE_MADE)
        for write in ("_append", "_merge"):
            self.wrap(TableWriter, write, before=(BEFORE_WRITE, WRITING), after=COMMITTED)
        self.wrap(TableWriter, "commit", after=CONFIRMED)
        self.wrap(Lane, "open", after=LANES_OWNED)
        self.wrap(Lane, "write", after=RECORD_WRITTEN)
        self.wrap(Lane, "commit", after=LANE_COMMITTED)


def killing(table: Path, pid: int) -> Callable[[DataFrame], DataFrame]:
    """A transform that kills a process in the middle of the write: one file is complete, the next one has been begun.

    The tasks run one after the other, and the task of topic partition 1 looks for the file of topic partition 0.
    """
    before = set(table.glob("*.parquet"))

    def transform(records: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        @f.udf("boolean", useArrow=False)
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


def outcome(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What a run did, as the process that asked for it is told."""
    try:
        result = run()
    except KafkaFlipError as error:
        return {"error": type(error).__name__, "message": str(error)}
    except Exception as error:  # noqa: BLE001 - told to the test, which expects none
        return {"error": f"{type(error).__module__}.{type(error).__qualname__}", "message": str(error)}
    return {"error": None, **result}


def summary(result: IngestResult) -> dict[str, Any]:
    """What a stream's run did, as JSON holds it."""
    return {"rows": result.rows, "is_idle": result.is_idle, "batches": len(result.batches)}


def peeking(records: DataFrame) -> DataFrame:
    """A transform that looks at some of its records, as people do who debug: what is counted must still be right."""
    records.show(2)
    records.limit(1).collect()
    records.first()
    return records


def keyed(records: DataFrame) -> DataFrame:
    """A transform that makes the numbered records changes: each topic partition has keys of its own."""
    from pyspark.sql import functions as f

    number = f.substring("kafka_value", 1, 12).cast("string").cast("bigint")
    return records.withColumns({"slot": number % SLOTS, "kafka_deleted": number % DELETES == 0})


def land(
    kind: str,
    source: KafkaSource,
    table: str,
    *,
    session: SparkSession,
    bootstrap_servers: str,
    transform: Callable[[DataFrame], DataFrame] | None = None,
    max_records: int | None = None,
    windows: int = 0,
    single_writer: bool = False,
    stream: str = "main",
) -> dict[str, Any]:
    """One run of one kind.

    Args:
        kind: STREAM, LETTERS (a stream whose rejected records go to `<table>-letters`), WINDOWS, KEYED (a table that
            follows its keys), RAW (a stream without decoding) or SINK (the changes of this table, to the topic
            PUBLISHED).
        source: What to read.
        table: Where to.
        session: To read and write with.
        bootstrap_servers: The broker.
        transform: From the batch's records to the rows to land.
        max_records: Most offsets in a commit.
        windows: How many windows from SOAK_START on.
        single_writer: Whether nobody else writes to the table.
        stream: Id of the stream.
    """
    connection = KafkaConnection(bootstrap_servers=bootstrap_servers)
    run_id = f"process {os.getpid()}"
    limits = Limits(max_records_per_batch=max_records)
    if kind == SINK:
        published = publish(
            DeltaSource(table=table, start=0),
            KafkaSink(
                topic=PUBLISHED,
                transactional_id_prefix=PUBLISHED,
                key=JsonSerializer(columns=("kafka_partition", "slot")),
                value=JsonSerializer(columns=("kafka_partition", "slot", "kafka_offset", "kafka_value")),
                lanes=2,
            ),
            spark=lambda: session,
            connection=connection,
            limits=limits,
        )
        rows = published.records
        return {"rows": rows, "is_idle": published.first_version is None, "batches": published.batches}
    if kind == WINDOWS:
        starts = [SOAK_START + number * WINDOW_MS for number in range(windows)]
        done = list(
            rewrite_windows(
                source,
                DeltaTarget(table=table, single_writer=single_writer),
                [Window.between(start, start + WINDOW_MS) for start in starts],
                spark=lambda: session,
                rules=Windows(max_lateness=None),
                definition="soak",
                connection=connection,
                transform=peeking,
                run_id=run_id,
            )
        )
        rows = sum(one.committed.rows or 0 for one in done if one.committed is not None)
        return {"rows": rows, "is_idle": not rows, "batches": len(done)}
    transforms = {LETTERS: peeking, KEYED: keyed}
    result = ingest(
        source,
        DeltaTarget(
            table=table,
            stream=stream,
            mode=Upsert(key=KEY_OF_NUMBERED) if kind == KEYED else Append(),
            single_writer=single_writer,
            properties={"delta.enableChangeDataFeed": "true"} if kind == KEYED else {},
        ),
        spark=lambda: session,
        connection=connection,
        value_format=None if kind in (RAW, KEYED) else StringFormat(),
        transform=transforms.get(kind, transform),
        dead_letter=DeadLetters(table=f"{table}-letters", single_writer=single_writer) if kind == LETTERS else None,
        limits=limits,
        run_id=run_id,
    )
    return summary(result)


def main(bootstrap_servers: str, note: str, remote: str | None = None) -> None:
    """Starts Spark or connects to a server, says so, and carries out orders."""
    session = build_session(remote=remote) if remote else build_session(master="local[1]", config=SPARK_CONFIG)
    java = next((process.pid for process in descendants(os.getpid()) if "java" in process.command), None)
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
        reported = outcome(
            lambda source=source, table=table, victim=victim, order=order: land(
                order.get("kind", STREAM),
                source,
                table,
                session=session,
                bootstrap_servers=bootstrap_servers,
                transform=None if victim is None else killing(Path(table), victim),
                max_records=order["max_records"],
                windows=order.get("windows", 0),
            )
        )
        steps.arrive(DONE)
        print(f"@{json.dumps(reported)}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
