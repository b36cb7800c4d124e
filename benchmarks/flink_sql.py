"""What the throughput benchmark compares with: a bounded Flink job from a topic of JSON into Parquet files.

A program of its own, for a Python that has apache-flink: it cannot be installed beside this package. As Flink's
documentation has it: SQL in batch mode, bounded by the latest offsets. It keeps no position, and makes no table.
"""

from __future__ import annotations

import json
import sys

_COLUMNS = (
    "`number` BIGINT, carrier STRING, origin STRING, delay DOUBLE, distance INT, tail STRING, `at` TIMESTAMP_LTZ(3), "
    "note STRING"
)
_FORMATS = {
    "raw": ("`value` BYTES", {"format": "raw"}),
    "json": (_COLUMNS, {"format": "json", "json.timestamp-format.standard": "ISO-8601"}),
}
_METADATA = {
    "kafka_topic": ("STRING", "topic"),
    "kafka_partition": ("INT", "partition"),
    "kafka_offset": ("BIGINT", "offset"),
    "kafka_timestamp": ("TIMESTAMP_LTZ(3)", "timestamp"),
}


def land(servers: str, form: str, topic: str, folder: str, parallelism: str, jars: str) -> None:
    """Reads a topic to its end and writes it.

    Args:
        servers: Bootstrap servers.
        form: `raw` or `json`.
        topic: Its name.
        folder: Where the files go.
        parallelism: Number of tasks.
        jars: Paths of the jars, as a list in JSON.
    """
    from pyflink.table import EnvironmentSettings, TableEnvironment  # pyright: ignore[reportMissingImports]

    columns, of_format = _FORMATS[form]
    read = ", ".join(f"{name} {kind} METADATA FROM '{key}' VIRTUAL" for name, (kind, key) in _METADATA.items())
    written = ", ".join(f"{name} {kind}" for name, (kind, _) in _METADATA.items())
    source = {
        "connector": "kafka",
        "topic": topic,
        "properties.bootstrap.servers": servers,
        "scan.startup.mode": "earliest-offset",
        "scan.bounded.mode": "latest-offset",
        **of_format,
    }
    sink = {"connector": "filesystem", "path": f"file://{folder}", "format": "parquet"}
    tables = TableEnvironment.create(EnvironmentSettings.in_batch_mode())
    settings = tables.get_config()
    settings.set("pipeline.jars", ";".join(f"file://{jar}" for jar in json.loads(jars)))
    settings.set("parallelism.default", parallelism)
    tables.execute_sql(f"CREATE TABLE records ({columns}, {read}) WITH ({_options(source)})")
    tables.execute_sql(f"CREATE TABLE files ({columns}, {written}) WITH ({_options(sink)})")
    tables.execute_sql("INSERT INTO files SELECT * FROM records").wait()


def _options(options: dict[str, str]) -> str:
    return ", ".join(f"'{name}' = '{value}'" for name, value in options.items())


if __name__ == "__main__":
    land(*sys.argv[1:])
