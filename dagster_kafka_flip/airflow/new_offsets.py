"""NewOffsetsTrigger: waits in Airflow's triggerer until a log has offsets behind a position."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from dagster_kafka_flip.airflow.given import check_conn_id, check_min_lag, source_from_json, source_to_json
from dagster_kafka_flip.airflow.kafka_flip_hook import kafka_connection
from dagster_kafka_flip.errors import ConfigurationError, KafkaFlipError
from dagster_kafka_flip.source.cluster import KafkaCluster
from dagster_kafka_flip.source.enumerator import log_status
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.state import EnumeratorState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from dagster_kafka_flip.source.connection import KafkaConnection


class LagWatch:
    """Compares a log's end with a position, or with none; the client stays open between two comparisons."""

    def __init__(self, source: KafkaSource, connection: KafkaConnection, state: EnumeratorState | None) -> None:
        self._source = source
        self._connection = connection
        self._state = state or EnumeratorState({})
        self._cluster: KafkaCluster | None = None
        self._told: list[str] = []

    def finding(self, min_lag: int) -> dict[str, Any] | None:
        """The offsets to read; None if less than `min_lag` offsets are new. One round of metadata requests.

        A log that was deleted, recreated or truncated also counts, once: the run says what happened to it.
        """
        if self._cluster is None:
            self._cluster = KafkaCluster(self._connection, self._source.librdkafka_config())
        status = log_status(self._source, self._cluster, self._state)
        problems = [str(error) for error in status.changed]
        problems += [
            f"{tp}: {offsets} offsets were deleted before they were read" for tp, offsets in status.lost.items()
        ]
        problems += [
            f"{tp}: the log ends {offsets} offsets before the position" for tp, offsets in status.beyond.items()
        ]
        told, self._told = self._told, problems
        if status.total_lag < min_lag and (not problems or problems == told):
            return None
        # Whoever looks on waits for what comes after this.
        self._state = EnumeratorState(status.end, status.cluster_id, status.topic_ids)
        return {"lag": status.total_lag, "problems": problems}

    def close(self) -> None:
        """Closes the client. Safe to call twice."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None


class NewOffsetsTrigger(BaseEventTrigger):
    """Waits until a log has new offsets: for a task, or again and again as the trigger of an `AssetWatcher`.

    A watcher has an event when it starts, if there are at least `min_lag` offsets, and then one for each `min_lag` new
    ones; fewer wait. While no broker answers, it logs that, and has none. It holds no secret: only the id of the
    connection.

    Args:
        source: A KafkaSource, or topics.
        state: The stream's position as JSON; None for a stream without one.
        kafka_conn_id: Id of the Kafka connection. Default: `kafka_default`.
        min_lag: How many offsets are worth a run.
        poll_interval: Seconds between two looks; more than 0.
    """

    # The one of a task.
    supports_triggerer_queue = True

    def __init__(
        self,
        source: KafkaSource | str | Sequence[str] | Mapping[str, Any],
        state: Mapping[str, Any] | None = None,
        kafka_conn_id: str = "kafka_default",
        min_lag: int = 1,
        poll_interval: float = 60.0,
    ) -> None:
        super().__init__()
        check_conn_id(kafka_conn_id)
        check_min_lag(min_lag)
        if poll_interval <= 0:
            raise ConfigurationError(f"poll_interval: {poll_interval} would ask the brokers without a pause")
        self.source = dict(source) if isinstance(source, Mapping) else source_to_json(KafkaSource.of(source))
        self.state = None if state is None else dict(state)
        self.kafka_conn_id = kafka_conn_id
        self.min_lag = min_lag
        self.poll_interval = poll_interval

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The class and its arguments, as Airflow stores them."""
        return (
            "dagster_kafka_flip.airflow.new_offsets.NewOffsetsTrigger",
            {
                "source": self.source,
                "state": self.state,
                "kafka_conn_id": self.kafka_conn_id,
                "min_lag": self.min_lag,
                "poll_interval": self.poll_interval,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Polls the log. A task has one event; an error is one, too: the task raises it."""
        watch: LagWatch | None = None
        try:
            while True:
                try:
                    if watch is None:
                        connection = kafka_connection(await BaseHook.aget_connection(self.kafka_conn_id))
                        state = None if self.state is None else EnumeratorState.from_json(self.state)
                        watch = LagWatch(source_from_json(self.source), connection, state)
                    # Requests wait for brokers, and must not stop the other triggers.
                    found = await asyncio.to_thread(watch.finding, self.min_lag)
                except KafkaFlipError as error:
                    found = {"error": type(error).__name__, "message": str(error)} if self.task_instance else None
                    self.log.warning("%s", error)
                if found is not None:
                    yield TriggerEvent(found)
                    if self.task_instance:
                        return
                await asyncio.sleep(self.poll_interval)
        finally:
            if watch is not None:
                watch.close()
