"""What `test_secrets` runs: assets that log in to Kafka in every way, with every logger at DEBUG.

Arguments: a folder to write to, and a JSON file with the connections.
"""

from __future__ import annotations

import itertools
import json
import logging
import sys
import traceback
import urllib.request
from pathlib import Path
from typing import Any

from dagster import DagsterInstance, materialize

from dagster_kafka_flip import KafkaResource, KafkaSource, SparkResource, kafka_delta_asset
from dagster_kafka_flip.runtime.session_settings import session_settings
from dagster_kafka_flip.runtime.spark_jars import fetch_jars

_PAGES = (
    "api/v1/applications/{app}/environment",
    "api/v1/applications/{app}/sql?details=true&planDescription=true&length=1000",
    "api/v1/applications/{app}/jobs",
    "api/v1/applications/{app}/stages?details=true",
    "environment/",
    "SQL/",
)


def fail(records):
    """Shows the plan, and fails in a task."""
    from pyspark.sql import functions as f

    records.explain(True)
    return records.withColumn("kafka_value", f.raise_error(f.lit("the transform fails")).cast("binary"))


def as_it_is(records):
    """Lands everything."""
    return records


def main(folder: Path, connections: dict[str, dict[str, Any]]) -> None:
    """Materializes an asset for each connection; every second one has a transform that fails."""
    from pyspark.sql import SparkSession

    logging.basicConfig(level=logging.DEBUG)
    # A session that somebody else started: only what is handed to it can keep it from printing secrets.
    builder = SparkSession.builder.master("local[2]")
    settings = {
        **session_settings(),
        "spark.jars": ",".join(fetch_jars()),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "DEBUG",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": str(folder),
        "spark.eventLog.compress": "false",
        "spark.ui.port": "0",
        "spark.sql.shuffle.partitions": "2",
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    ends: dict[str, bool] = {}
    with DagsterInstance.get() as instance:
        for (name, fields), transform in zip(connections.items(), itertools.cycle((as_it_is, fail))):
            asset = kafka_delta_asset(
                key=name, source=KafkaSource.builder().set_topics("secured").build(), table=str(folder / name)
            )(transform)
            resources = {"kafka": KafkaResource(**fields), "spark": SparkResource()}
            ends[name] = True
            try:
                materialize([asset], instance=instance, resources=resources)
            except Exception:  # noqa: BLE001 - what a person would see
                with (folder / "exceptions.txt").open("a") as file:
                    file.write(traceback.format_exc())
                ends[name] = False
        events = [str(record) for run in instance.get_runs() for record in instance.all_logs(run.run_id)]
        (folder / "events.txt").write_text("\n".join(events))
    for number, page in enumerate(_PAGES):
        address = f"{spark.sparkContext.uiWebUrl}/{page.format(app=spark.sparkContext.applicationId)}"
        with urllib.request.urlopen(address) as answer:
            (folder / f"page-{number}.txt").write_bytes(answer.read())
    spark.stop()
    (folder / "ends.json").write_text(json.dumps(ends))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()))
