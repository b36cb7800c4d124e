"""Checks of a stream against its topics, based on Dagster's record and the cluster, without Spark."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dagster import AssetCheckResult, AssetCheckSeverity, AssetRecordsFilter, MetadataValue
from pydantic import Field

from dagster_kafka_flip.assets.metadata import of_run, partitions_table
from dagster_kafka_flip.assets.position_record import last_known_position, newest_reports, reported
from dagster_kafka_flip.assets.run_checks import (
    LAG_BELOW,
    NO_RECORDS_REJECTED_LATELY,
    SAME_LOG,
    WATERMARK_FRESH,
    check_result,
)
from dagster_kafka_flip.ingestion.facts import UNKNOWN, UNREPORTED_COMMITS
from dagster_kafka_flip.settings.base import Settings
from dagster_kafka_flip.settings.names import counted, first_few
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.enumerator import log_status
from dagster_kafka_flip.source.instants import instant

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from dagster import AssetKey, DagsterInstance, EventLogRecord

    from dagster_kafka_flip.assets.asset_ingestion import Ingestion
    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.source.enumerator import LogStatus
    from dagster_kafka_flip.table.known_position import KnownPosition

# Tolerated clock difference.
_CLOCK_SKEW_SECONDS = 300.0

# Maximum number of runs to count; the description mentions the limit.
_MOST_MATERIALIZATIONS = 1000

_NO_POSITION = (
    "Dagster has no position of the asset: it was never materialized, or its position was moved manually since. "
    "Materialize it"
)


class Bounds(Settings):
    """What the bounds of checks may be."""

    duplicate_commits: int | None = Field(ge=1)
    max_lag: int | None = Field(ge=0)
    max_delay: timedelta | None = Field(gt=timedelta())
    max_rejected: int | None = Field(ge=0)
    rejected_within: timedelta = Field(gt=timedelta())


@dataclass(frozen=True)
class LogChecks:
    """Limits and subject of the checks."""

    ingestion: Ingestion
    key: AssetKey
    bounds: Bounds

    def results(
        self, names: Collection[str], instance: DagsterInstance, connection: KafkaConnection
    ) -> Iterator[AssetCheckResult]:
        """Runs the checks."""
        # First, because it does not need the cluster, which may be unreachable.
        if NO_RECORDS_REJECTED_LATELY in names:
            yield self._no_records_rejected(instance)
        of_the_log = [name for name in (SAME_LOG, LAG_BELOW, WATERMARK_FRESH) if name in names]
        if not of_the_log:
            return
        known = last_known_position(instance, self.key)
        if known is None:
            for name in of_the_log:
                yield check_result(self.key, name, passed=False, description=_NO_POSITION)
            return
        source = self.ingestion.source.connected(connection)
        with contextlib.closing(KafkaCluster(source.required_connection(), source.librdkafka_config())) as cluster:
            status = log_status(source, cluster, known.state)
        if SAME_LOG in names:
            yield self._same_log(status, known)
        if LAG_BELOW in names:
            yield self._lag_below(status, known)
        if WATERMARK_FRESH in names:
            yield self._watermark_fresh(status, newest_reports(instance, self.key))

    def _same_log(self, status: LogStatus, known: KnownPosition) -> AssetCheckResult:
        known_ids = len(known.state.topic_ids)
        if not status.changed and not known_ids and None in (status.cluster_id, known.state.cluster_id):
            return check_result(
                self.key,
                SAME_LOG,
                passed=False,
                description=(
                    "Nothing was compared: no cluster id and no topic id is known. The brokers don't report ids, or "
                    "this client may not describe them. A recreated topic would not be detected"
                ),
            )
        if status.changed:
            description = ". ".join(error.finding for error in status.changed)
        else:
            description = (
                f"The cluster {status.cluster_id or '(without an id)'} and {counted(status.topics, 'topic')} match the "
                f"position; {known_ids:,} of them by id"
            )
        return check_result(
            self.key,
            SAME_LOG,
            passed=not status.changed,
            description=description,
            severity=AssetCheckSeverity.ERROR,
            metadata={
                "changed": len(status.changed),
                "topics": status.topics,
                "known_topic_ids": known_ids,
                "cluster_id": status.cluster_id or "unknown",
            },
        )

    def _lag_below(self, status: LogStatus, known: KnownPosition) -> AssetCheckResult:
        lag, most = status.total_lag, self.bounds.max_lag or 0
        largest = max(status.lag, key=lambda tp: status.lag[tp], default=None)
        lost, beyond, held_back = (sum(each.values()) for each in (status.lost, status.beyond, status.held_back))
        description = f"Lag is {lag:,} offsets; the limit is {most:,}"
        if largest is not None and lag:
            description += f"; largest: {largest} with {status.lag[largest]:,}"
        if lost:
            where = counted(len(status.lost), "topic partition")
            description += f". Retention deleted {counted(lost, 'unread offset')} on {where}"
        if beyond:
            description += (
                f". Logs that end before the position: {len(status.beyond):,}; by {counted(beyond, 'offset')} in total"
            )
        if held_back:
            description += f". Open transactions hold back {held_back:,} more offsets, which are not counted"
        if status.gone:
            description += f". {first_few(status.gone)}: no longer exist; their lag is unknown and not counted"
        if status.changed:
            number = len(status.changed)
            description += f". Logs that changed or do not exist are not counted: {number:,}; see {SAME_LOG}"
        metadata: dict[str, Any] = {
            "lag": lag,
            "max_lag": most,
            "largest_lag": 0 if largest is None else status.lag[largest],
            "topic_partitions": len(status.lag),
            "lost_offsets": lost,
            "offsets_beyond_end": beyond,
            "held_back_offsets": held_back,
            "topic_partitions_gone": len(status.gone),
            "position_verified_at": MetadataValue.timestamp(known.verified_at),
        }
        if largest is not None:
            metadata["largest_lag_at"] = str(largest)
            # What is not in the position begins at its log's beginning.
            position = {**{tp: status.end[tp] - lag for tp, lag in status.lag.items()}, **known.state.position}
            rows = ((tp, {"offset": position[tp], "lag": lag}) for tp, lag in sorted(status.lag.items()))
            metadata["by_topic_partition"] = partitions_table(rows, "lag")
        return check_result(
            self.key,
            LAG_BELOW,
            passed=lag <= most and not (lost or beyond or status.changed),
            description=description,
            # Records deleted unread are lost, even if the lag is small.
            severity=AssetCheckSeverity.ERROR if lost or beyond else AssetCheckSeverity.WARN,
            metadata=metadata,
        )

    def _watermark_fresh(self, status: LogStatus, records: Iterable[EventLogRecord]) -> AssetCheckResult:
        lag = status.total_lag
        limit = 0.0 if self.bounds.max_delay is None else self.bounds.max_delay.total_seconds()
        held_back = sum(status.held_back.values())
        left = f"Lag is {lag:,} offsets" + (
            f", and open transactions hold back {held_back:,} more" if held_back else ""
        )
        metadata: dict[str, Any] = {"lag": lag, "held_back_offsets": held_back, "max_delay_seconds": limit}
        if status.changed or status.lost or status.beyond:
            description = (
                "The lag says nothing: a log changed, does not exist, ends before the position, or has lost records "
                f"that were not read; see {SAME_LOG}, {LAG_BELOW} or the next run"
            )
            return check_result(self.key, WATERMARK_FRESH, passed=False, description=description, metadata=metadata)
        reached = reached_time(records)
        if reached is not None:
            metadata["watermark"] = MetadataValue.timestamp(reached)
        if lag == 0 and held_back == 0:
            description = "Lag is 0 offsets, so the table is as fresh as the topic"
            metadata["delay_seconds"] = 0.0
            return check_result(self.key, WATERMARK_FRESH, passed=True, description=description, metadata=metadata)
        if reached is None:
            description = (
                f"{left}, and none of the last materializations has a watermark, for example because a run reads more "
                "than 256 topic partitions in a batch"
            )
            return check_result(self.key, WATERMARK_FRESH, passed=False, description=description, metadata=metadata)
        delay = round(max(0.0, time.time() - reached), 3)
        metadata["delay_seconds"] = delay
        return check_result(
            self.key,
            WATERMARK_FRESH,
            passed=delay <= limit,
            description=(
                f"{left}, and the table's watermark is {instant(round(reached) * 1000)}, {delay:,.0f} seconds ago; "
                f"the limit is {limit:,.0f}"
            ),
            metadata=metadata,
        )

    def _no_records_rejected(self, instance: DagsterInstance) -> AssetCheckResult:
        since = time.time() - self.bounds.rejected_within.total_seconds()
        found = instance.fetch_materializations(
            AssetRecordsFilter(asset_key=self.key, after_timestamp=since), limit=_MOST_MATERIALIZATIONS
        )
        # Each partition of a run has the run's number of rejected records.
        by_run: dict[str, int] = {}
        ours, unknown = set[str](), set[str]()
        for record in found.records:
            metadata = {} if record.asset_materialization is None else record.asset_materialization.metadata
            if any(name.startswith("kafka/") for name in metadata):
                ours.add(record.run_id)
                # How many records were rejected in the commits of a run that died, the next one can't tell.
                if UNREPORTED_COMMITS in metadata:
                    unknown.add(record.run_id)
            recorded = of_run(metadata, "kafka/rejected_records")
            rejected = None if recorded is None else recorded.value
            if isinstance(rejected, int):
                by_run[record.run_id] = max(by_run.get(record.run_id, 0), rejected)
        rejected, most = sum(by_run.values()), self.bounds.max_rejected or 0
        runs, uncounted = sum(1 for number in by_run.values() if number), len(unknown | (ours - by_run.keys()))
        description = (
            f"Rejected records in the last {self.bounds.rejected_within / timedelta(hours=1):g} hours: {rejected:,}, "
            f"in {runs:,} of {counted(len(by_run), 'run')}; the limit is {most:,}"
        )
        if uncounted:
            description += (
                f". Others are unknown, of {counted(uncounted, 'run')}; see {UNKNOWN} or {UNREPORTED_COMMITS} in the "
                "metadata"
            )
        if found.has_more:
            description += f". Only the last {_MOST_MATERIALIZATIONS:,} materializations were counted"
        return check_result(
            self.key,
            NO_RECORDS_REJECTED_LATELY,
            passed=rejected <= most and not uncounted,
            description=description,
            metadata={
                "rejected_records": rejected,
                "max_rejected": most,
                "runs": len(by_run),
                "runs_with_rejected": runs,
                "runs_unknown": uncounted,
            },
        )


def reached_time(records: Iterable[EventLogRecord]) -> float | None:
    """Returns the time up to which all records are in the table, in seconds since the epoch; None if unknown.

    This is the newest materialization's watermark, unless it is in the future because of a producer's wrong clock. If a
    later run found nothing new, unread records arrived after that run, so its time counts.
    """
    for record in records:
        event = reported(record)
        values = {} if event is None else {name: found.value for name, found in event.metadata.items()}
        # Offsets that an open transaction held back are not lag, and did not arrive after that run.
        is_all_read = values.get("kafka/lag_after") == 0 and not values.get("kafka/held_back_offsets")
        if values.get("kafka/idle") is True and is_all_read:
            planned = values.get("seconds/plan")
            return record.timestamp - (planned if isinstance(planned, (int, float)) else 0.0)
        watermark = values.get("kafka/watermark")
        # A record with a timestamp after its run says nothing about other records.
        if isinstance(watermark, (int, float)) and watermark <= record.timestamp + _CLOCK_SKEW_SECONDS:
            return float(watermark)
    return None
