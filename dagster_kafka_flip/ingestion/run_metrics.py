"""OpenTelemetry metrics of commits and results."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dagster_kafka_flip.ingestion.observation import Observed
    from dagster_kafka_flip.ingestion.result import IngestResult
    from dagster_kafka_flip.ingestion.run_spec import RunSpec
    from dagster_kafka_flip.source.api import Source
    from dagster_kafka_flip.source.incident import Incident
    from dagster_kafka_flip.table.commit import Committed


def measure_commit(spec: RunSpec[Source], committed: Committed, observed: Observed) -> None:
    """Records a commit."""
    metrics = spec.metrics
    metrics.record("commits", 1)
    metrics.record("records", observed.records)
    metrics.record("record_bytes", observed.bytes)
    metrics.record("rows", committed.rows)
    metrics.record("file_bytes", committed.bytes)
    metrics.record("rejected_records", observed.rejected)


def measure_incidents(spec: RunSpec[Source], incidents: Iterable[Incident]) -> None:
    """Records tolerated errors."""
    for incident in incidents:
        spec.metrics.record("incidents", 1, error_type=incident.error)
        spec.metrics.record("lost_offsets", incident.lost_offsets, error_type=incident.error)


def measure_result(spec: RunSpec[Source], result: IngestResult) -> None:
    """Records what a run of a stream left, and the errors that it tolerated."""
    measure_incidents(spec, result.incidents)
    lag: Counter[str] = Counter()
    for tp, end in result.plan.end_offsets.items():
        lag[tp.topic] += max(0, end - result.position_of(tp))
    for topic, offsets in lag.items():
        spec.metrics.record("lag", offsets, topic=topic)
    if result.watermark is not None:
        spec.metrics.record("watermark", result.watermark / 1000)
