"""A process that ingests through Spark Connect when it is told to, and the other end of it, for tests.

It takes its orders as lines of JSON from standard input, and answers each with a line that begins with `@`. Interrupts
end a run, and not the process; the end of standard input does.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.connect.client.retries import DefaultPolicy

from dagster_kafka_flip.ingestion.ingest import ingest
from dagster_kafka_flip.runtime.session import build_session
from dagster_kafka_flip.source.connection import KafkaConnection
from dagster_kafka_flip.source.kafka_source import KafkaSource
from tests.faults.ingesting import outcome, summary
from tests.faults.ordered_process import PATIENCE_SECONDS, OrderedProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession


class ConnectIngester(OrderedProcess):
    """A client of a Spark Connect server, in a process of its own.

    Args:
        folder: For its log.
        name: Tells its log from those of others.
    """

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder / f"{name}.log", "tests.faults.connect_ingesting")

    def end(self) -> None:
        """Ends it in any case."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self._reader.join()

    def connect(self, remote: str, *, retries: int | None = None) -> None:
        """Makes it a client of a server, without waiting for it. It answers with its patience in seconds.

        Args:
            remote: The server.
            retries: How often it tries again to reach it, from then on. Default: as the package has it.
        """
        self._write({"remote": remote, "retries": retries})

    def order(self, bootstrap_servers: str, topic: str, table: str, **further: Any) -> None:
        """Starts a run.

        Args:
            bootstrap_servers: The broker.
            topic: What to read.
            table: Where to.
            further: What `main` takes besides.
        """
        self._write({"bootstrap_servers": bootstrap_servers, "topic": topic, "table": table, **further})

    def answer(self) -> dict[str, Any]:
        """What the oldest order that was not answered yet came to."""
        reported = self._answers.get(timeout=PATIENCE_SECONDS)
        assert reported is not None, f"it ended:\n{self._log.read_text(encoding='utf-8', errors='replace')[-4000:]}"
        return reported

    def log(self) -> str:
        """What it wrote to standard error."""
        return self._log.read_text(encoding="utf-8", errors="replace")


def stopping(reading: str, release: str) -> Callable[[DataFrame], DataFrame]:
    """A transform that stops Spark at the first record until there is a file; it tells which process waits for it."""

    def transform(records: DataFrame) -> DataFrame:
        from pyspark.sql import functions as f

        @f.udf("boolean", useArrow=False)
        def stop(offset: int, _: bytes) -> bool:
            import os
            import time
            from pathlib import Path

            if offset == 0:
                # Under its name it is whole.
                fresh = Path(f"{reading}.new")
                fresh.write_text(str(os.getpid()), encoding="ascii")
                fresh.replace(reading)
                while not Path(release).exists():
                    time.sleep(0.01)
            return True

        # Given the values too, so that Spark can't run far ahead of the function: they fill every buffer in between.
        return records.where(stop("kafka_offset", "kafka_value"))

    return transform


def _patience(session: SparkSession) -> float:
    """How many seconds a request to a server that does not answer is tried again."""
    seconds = 0.0
    for policy in session.client.get_retry_policies():
        state = policy.to_state()
        while (milliseconds := state.next_attempt()) is not None:
            seconds += milliseconds / 1000
    return seconds


def main() -> None:
    """Carries out orders: to connect first, and then to ingest."""
    # A container is stopped by SIGTERM, and Dagster makes of it what SIGINT is.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    logging.basicConfig(level=logging.INFO)
    session = None
    for line in sys.stdin:
        order = json.loads(line)
        if session is None:
            session = build_session(remote=order["remote"])
            print(f"@{json.dumps({'patience': _patience(session)})}", flush=True)
            if order["retries"] is not None:
                session.client.set_retry_policies([DefaultPolicy(max_retries=order["retries"])])
            continue
        files = order.get("stop_at_first")
        try:
            reported = outcome(
                lambda order=order, files=files, session=session: summary(
                    ingest(
                        KafkaSource(topics=(order["topic"],), java_properties=order.get("java_properties", {})),
                        order["table"],
                        spark=lambda: session,
                        connection=KafkaConnection(
                            bootstrap_servers=order["bootstrap_servers"], **order.get("connection", {})
                        ),
                        transform=None if files is None else stopping(*files),
                        run_id=f"process {os.getpid()}",
                    )
                )
            )
        except KeyboardInterrupt:
            reported = {"error": "KeyboardInterrupt"}
        print(f"@{json.dumps(reported)}", flush=True)


if __name__ == "__main__":
    main()
