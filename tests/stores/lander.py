"""A process whose Spark writes to S3, and which lands topics when it is told to: what the tests of this folder start.

It takes its orders as lines of JSON from standard input and answers with lines of JSON that begin with `@`. What an
order has as `do` is one of:

    land      one run of a kind of `tests.faults.ingesting`, which may die at a step, or be killed there
    rebuild   builds a table with a key again
    asset     materializes an asset, with all loggers at DEBUG; what they said goes to a file
    sql       executes statements, and answers with the rows of the last one
    conf      sets something in the session

At a step the run dies, or, if `victim` is given, the process with that id.

The session is that of a SparkResource whose credentials are `EnvVar`s.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster import DagsterInstance, EnvVar, build_resources, materialize

from dagster_kafka_flip import DeltaTarget, KafkaResource, KafkaSource, SparkResource, Upsert, build_kafka_delta_asset
from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.ingestion.rebuild import rebuild
from dagster_kafka_flip.source.connection import KafkaConnection
from tests.faults.ingesting import DONE, SPARK_CONFIG, STARTING, Steps, keyed, land, outcome
from tests.processes import descendants
from tests.stores.s3 import REGION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class DiedError(BaseException):
    """What a kill looks like from inside."""


def killing_itself(records: DataFrame) -> DataFrame:
    """A transform that kills this process in the middle of the write: one task's file is in the store already."""
    from pyspark.sql import functions as f

    pid = os.getpid()

    @f.udf("boolean", useArrow=False)
    def kill(partition: int) -> bool:
        import os
        import signal
        import time

        # One core does one task after the other.
        if partition == 1:
            os.kill(pid, signal.SIGKILL)
            time.sleep(600)
        return True

    return records.where(kill("kafka_partition"))


class Lander:
    """Carries out orders.

    Args:
        session: To read and write with.
        bootstrap_servers: The broker.
        folder: For notes and logs.
    """

    def __init__(self, session: SparkSession, bootstrap_servers: str, folder: Path) -> None:
        self._session = session
        self._bootstrap_servers = bootstrap_servers
        self._folder = folder
        self._victim: int | None = None
        self._steps = Steps(folder / "step", self._kill)
        self._steps.wrap_all()

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carries out one order, and returns the answer."""
        do = getattr(self, f"_{order.pop('do')}")
        self._steps.deadly = order.pop("step", None)
        self._victim = order.pop("victim", None)
        self._steps.arrive(STARTING)
        try:
            return outcome(lambda: do(**order))
        except DiedError:
            return {"error": "died"}
        finally:
            self._steps.deadly = None
            self._steps.arrive(DONE)

    def _kill(self) -> None:
        if self._victim is None:
            raise DiedError
        os.kill(self._victim, signal.SIGKILL)
        # Once: a run may get to a step again.
        self._steps.deadly = None

    def _land(
        self, topic: str, table: str, kind: str = "stream", is_killed: bool = False, **more: Any
    ) -> dict[str, Any]:
        source = KafkaSource.builder().set_topics(topic).build()
        return land(
            kind,
            source,
            table,
            session=self._session,
            bootstrap_servers=self._bootstrap_servers,
            transform=killing_itself if is_killed else None,
            **more,
        )

    def _rebuild(self, topic: str, table: str, staging: str) -> dict[str, Any]:
        done = rebuild(
            KafkaSource.builder().set_topics(topic).build(),
            DeltaTarget(table=table, mode=Upsert(key=("kafka_partition", "slot")), single_writer=True),
            staging,
            spark=self._session,
            connection=KafkaConnection(bootstrap_servers=self._bootstrap_servers),
            decoder=Decoder.of(None, None, None),
            transform=keyed,
        )
        return {"rows": done.rows}

    def _asset(self, topic: str, table: str, name: str) -> dict[str, Any]:
        asset = build_kafka_delta_asset(
            name=name,
            source=KafkaSource.builder().set_topics(topic).build(),
            table=DeltaTarget(table=table, single_writer=True),
        )
        resources = {"kafka": KafkaResource(bootstrap_servers=self._bootstrap_servers), "spark": SparkResource()}
        with DagsterInstance.get() as instance:
            done = materialize([asset], instance=instance, resources=resources)
            # A run that finds nothing new observes the table.
            (event,) = [*done.asset_materializations_for_node(name), *done.asset_observations_for_node(name)]
            reported = {
                key: value.value for key, value in event.metadata.items() if isinstance(value.value, (str, int))
            }
            records = "\n".join(map(str, instance.all_logs(done.run_id)))
        with (self._folder / "events.txt").open("a") as file:
            file.write(records)
        return {"metadata": reported}

    def _sql(self, statements: list[str]) -> dict[str, Any]:
        rows = [self._session.sql(statement).collect() for statement in statements]
        return {"rows": [[str(value) for value in row] for row in rows[-1]]}

    def _conf(self, name: str, value: str | None) -> dict[str, Any]:
        if value is None:
            self._session.conf.unset(name)
        else:
            self._session.conf.set(name, value)
        return {}


def main(bootstrap_servers: str, folder: str, settings: str) -> None:
    """Starts Spark, says so, and carries out orders."""
    logging.basicConfig(level=logging.DEBUG)
    config: dict[str, Any] = {
        **SPARK_CONFIG,
        "spark.hadoop.fs.s3a.endpoint.region": REGION,
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.access.key": EnvVar("AWS_ACCESS_KEY_ID"),
        "spark.hadoop.fs.s3a.secret.key": EnvVar("AWS_SECRET_ACCESS_KEY"),
        **json.loads(settings),
    }
    with build_resources({"spark": SparkResource(master="local[1]", config=config)}) as resources:
        lander = Lander(resources.spark.session(), bootstrap_servers, Path(folder))
        java = next(process for process in descendants(os.getpid()) if "java" in process.command)
        print(f"@{json.dumps({'command': java.command})}", flush=True)
        for line in sys.stdin:
            print(f"@{json.dumps(lander.obey(json.loads(line)))}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
