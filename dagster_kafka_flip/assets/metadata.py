"""Metadata of a run's materializations, and how the next run reads the position back."""

from __future__ import annotations

import hashlib
import heapq
import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster import (
    DataVersion,
    MetadataValue,
    TableColumn,
    TableColumnConstraints,
    TableMetadataValue,
    TableRecord,
    TableSchema,
)

from dagster_kafka_flip.ingestion.facts import (
    CHECKPOINT,
    POSITION,
    ROWS,
    SPARK_UI,
    UNKNOWN,
    WATERMARK,
    known,
    moment,
    stream_facts,
    windows_facts,
)
from dagster_kafka_flip.table.known_position import KnownPosition

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from dagster import AssetMaterialization, AssetObservation

    from dagster_kafka_flip.ingestion.result import IngestResult, TableResult, WindowsResult
    from dagster_kafka_flip.source.split import TopicPartition
    from dagster_kafka_flip.source.state import EnumeratorState
    from dagster_kafka_flip.source.window import PlannedWindow
    from dagster_kafka_flip.table.target import DeltaTarget

POSITION_SET = "kafka/position_set"
ROW_COUNT = "dagster/row_count"
COLUMN_SCHEMA = "dagster/column_schema"
STORAGE_KIND = "dagster/storage_kind"
TABLE_NAME = "dagster/table_name"
URI = "dagster/uri"

_SHOWN_KEPT = 100

# Dagster's pages keep the order.
_FIRST = (
    "kafka/records_read",
    "kafka/records_written",
    "delta/rows_written",
    "kafka/rejected_records",
    "kafka/rows_left_out",
    "kafka/lag_after",
    "delta/lag_versions",
    "seconds/total",
    UNKNOWN,
    "kafka/incidents",
    WATERMARK,
    POSITION,
)

# Dagster's pages show shorter JSON in full, a line for each number.
_BEHIND_A_LINK = 1000

# Each is a row in Dagster's database for each run.
_SHOWN_PARTITIONS = 100

_COLUMNS = {
    "topic_partition": "Topic and partition.",
    "offset": "The next offset to read.",
    "read": "Offsets that the run read.",
    "lag": "Offsets between the position and the end offset.",
    "start": "The first offset.",
    "stop": "The offset after the last one.",
}


def table_metadata(target: DeltaTarget) -> dict[str, Any]:
    """Definition metadata of an asset with a table."""
    where = {} if target.uri is None else {URI: target.uri}
    name = target.identifier if target.is_path else target.table
    key = {"delta/key": ", ".join(target.key)} if target.key else {}
    return {"delta/stream": target.stream, **key, **where, STORAGE_KIND: "deltalake", TABLE_NAME: name}


def data_version(state: EnumeratorState) -> DataVersion:
    """Data version: a hash of the position, unchanged if a run found nothing new."""
    document = json.dumps(state.to_json(), sort_keys=True)
    return DataVersion(hashlib.sha256(document.encode()).hexdigest()[:32])


def result_metadata(result: IngestResult, previous: AssetMaterialization | None) -> dict[str, Any]:
    """Returns the metadata of a materialization; a run without Spark or records repeats some of the previous one."""
    earlier = {} if previous is None else previous.metadata
    repeated = {URI, TABLE_NAME, COLUMN_SCHEMA} | ({WATERMARK} if result.is_idle else set())
    position: list[tuple[TopicPartition, dict[str, int]]] = []
    for tp, end in sorted(result.plan.end_offsets.items()):
        offset = result.position_of(tp)
        read, lag = offset - result.plan.starting_position[tp], max(0, end - offset)
        position.append((tp, {"offset": offset, "read": read, "lag": lag}))
    return shown(
        {name: value for name, value in earlier.items() if name in repeated}
        | _about_the_table(result)
        | {POSITION: partitions_table(position, "read")}
        | stream_facts(result)
    )


def windows_metadata(results: Sequence[WindowsResult]) -> dict[str, Any]:
    """Returns the metadata of a run, of at least one commit, which Dagster shows for each of its partitions."""
    return shown({**_about_the_table(results[-1]), **windows_facts(results)})


def window_metadata(
    result: WindowsResult, planned: PlannedWindow, topics: Collection[str] | None = None
) -> dict[str, Any]:
    """Returns the metadata of one partition."""
    splits = [split for split in planned.splits if topics is None or split.topic_partition.topic in topics]
    bounds = [
        (split.topic_partition, {"start": split.starting_offset, "stop": split.stopping_offset}) for split in splits
    ]
    kept = [str(tp) for tp in result.kept if topics is None or tp.topic in topics]
    # Late records are only counted for all topics together.
    is_all = topics is None or {split.topic_partition.topic for split in planned.splits} <= set(topics)
    facts = {
        "dagster/partition_row_count": result.rows_of(planned, topics),
        "kafka/window_start": moment(planned.window.start_ms),
        "kafka/window_end": moment(planned.window.stop_ms),
        "kafka/complete": planned.is_complete,
        "kafka/offsets": sum(split.offset_span for split in splits),
        "kafka/kept_topic_partitions": kept[:_SHOWN_KEPT],
        "kafka/late_records": result.late_records(planned) if is_all else None,
        # All records up to the window's end are in the table, except those beyond the maximum lateness.
        WATERMARK: moment(planned.window.stop_ms) if planned.is_complete else None,
    }
    return shown({**known(facts), "kafka/splits": partitions_table(bounds, "stop", "start")})


def shown(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Gives facts the types of Dagster's metadata, and their order on its pages: the most important first."""
    values = {ROW_COUNT if name == ROWS else name: _typed(name, value) for name, value in facts.items()}
    return {name: values[name] for name in dict.fromkeys((*_FIRST, *values)) if name in values}


def _typed(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return MetadataValue.timestamp(value)
    if name == CHECKPOINT:
        return {**value, "padding": " " * max(0, _BEHIND_A_LINK - len(json.dumps(value)))}
    return MetadataValue.url(value) if name == SPARK_UI else value


def _about_the_table(result: TableResult) -> dict[str, Any]:
    """The table's place and its columns, with their comments as descriptions; without what is not known."""
    columns = [TableColumn(name, type_, result.comments.get(name)) for name, type_ in result.columns]
    values = {
        URI: None if result.location is None else uri(result.location),
        TABLE_NAME: result.table_name,
        COLUMN_SCHEMA: TableSchema(columns=columns) if columns else None,
    }
    return {name: value for name, value in values.items() if value is not None}


def known_position(event: AssetMaterialization | AssetObservation | None) -> KnownPosition | None:
    """Reads the position from what a run has reported; None if it has none that can be read."""
    recorded = {} if event is None else event.metadata
    return position_in({name: recorded[name].value for name in (CHECKPOINT, POSITION) if name in recorded})


def position_in(metadata: Mapping[str, Any]) -> KnownPosition | None:
    """Reads the position from an event's values, also as earlier versions wrote it; None if there is none."""
    return KnownPosition.from_json(metadata.get(CHECKPOINT, metadata.get(POSITION)))


def uri(location: str) -> str:
    """Normalizes a location of Spark or Delta to a URI: `/x` and `file:/x` become `file:///x`."""
    if location.startswith("/"):
        return Path(location).as_uri()
    scheme, _, path = location.partition(":")
    return location if path.startswith("//") else f"{scheme}://{path}"


def partitions_table(
    rows: Iterable[tuple[TopicPartition, Mapping[str, int | str]]], by: str, minus: str | None = None
) -> TableMetadataValue:
    """Returns a table of topic partitions, in their order; if they are too many for a page, the largest by a column."""
    numbered = [({"topic_partition": str(tp), **row}, number) for number, (tp, row) in enumerate(rows)]

    def size(entry: tuple[dict[str, Any], int]) -> int:
        return entry[0][by] - (0 if minus is None else entry[0][minus])

    largest = sorted(heapq.nlargest(_SHOWN_PARTITIONS, numbered, key=size), key=lambda entry: entry[1])
    constraints = TableColumnConstraints(nullable=False)
    names = numbered[0][0] if numbered else {"topic_partition": ""}
    return MetadataValue.table(
        records=[TableRecord(row) for row, _ in largest],
        schema=TableSchema(
            columns=[
                TableColumn(name, "string" if name == "topic_partition" else "int", _COLUMNS[name], constraints)
                for name in names
            ]
        ),
    )


_RUN = "run/"
# Metrics of the whole run, across its windows.
_OF_THE_RUN = (
    "kafka/records_read",
    "kafka/bytes_read",
    "kafka/rejected_records",
    "kafka/events_without_row",
    "kafka/stragglers",
    "kafka/tasks",
    "kafka/records_per_second",
    "delta/rows_written",
    "delta/bytes_written",
    "delta/commits",
)


def shared(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run's metadata for each of its partitions; names mark the values of the whole run."""
    return {
        f"{_RUN}{name}" if name in _OF_THE_RUN or name.startswith("seconds/") else name: value
        for name, value in metadata.items()
    }


def of_run(metadata: Mapping[str, Any], name: str) -> Any:
    """Returns a count of the run, such as `delta/rows_written`, from a partition's materialization; None if missing."""
    return metadata.get(f"{_RUN}{name}", metadata.get(name))
