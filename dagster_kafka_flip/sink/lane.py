"""Lane: one transactional id of a sink, and its transactions, each with a producer of its own; and all of a run."""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import confluent_kafka

from dagster_kafka_flip.errors import SinkFencedError
from dagster_kafka_flip.sink.lane_failures import LaneFailures, is_too_large
from dagster_kafka_flip.sink.progress import told
from dagster_kafka_flip.source.cluster_client import BrokerErrors
from dagster_kafka_flip.telemetry.repeatedly import said_while_waiting

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from dagster_kafka_flip.sink.kafka_sink import KafkaSink
    from dagster_kafka_flip.sink.progress import Progress, ProgressTopic
    from dagster_kafka_flip.sink.record_router import RecordRouter
    from dagster_kafka_flip.source.connection import KafkaConnection
    from dagster_kafka_flip.telemetry.repeatedly import Log

_logger = logging.getLogger(__name__)
# Otherwise librdkafka writes fatal errors to stderr, too; they are already raised.
_librdkafka = logging.getLogger(f"{__name__}.librdkafka")

# Seconds that one call of the client may block, so that interrupts and refusals are seen.
_STEP_SECONDS = 1.0
# Seconds in which a client connects to a broker nearby. One that is asked for its coordinator before looks for it again
# only after half a second.
_CONNECT_SECONDS = 0.05
# Seconds that an abort may take. If it fails, the next run's init_transactions aborts.
_ABORT_SECONDS = 10.0

# librdkafka's default size of the largest batch.
_BATCH_BYTES = 1_000_000

# librdkafka's value for: the partitioner decides.
_ANY_PARTITION = -1


class Lane:
    """One lane of a sink. Call `open` before the progress is read: only then no earlier producer can write.

    Under exactly once, a commit is the end of the producer. With the next one comes another epoch, so brokers refuse
    each request of the earlier transaction that the network held back.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        sink: KafkaSink,
        number: int,
        router: RecordRouter | None = None,
        log: Log = _logger,
    ) -> None:
        self._connection, self._sink, self.number, self._router, self._log = connection, sink, number, router, log
        self._broker_errors = BrokerErrors(connection)
        self._failures = LaneFailures(connection, sink, number, self._broker_errors, router and router.unready)
        self._failed: confluent_kafka.KafkaError | None = None
        self._begun: float | None = None
        self._connected = 0.0
        self._producer: Any = None

    def connect(self) -> None:
        """Creates the producer, which connects meanwhile."""
        try:
            self._producer = confluent_kafka.Producer(self._config(), logger=_librdkafka)
        except confluent_kafka.KafkaException as error:
            raise self._failures.rejected(error.args[0]) from None
        self._connected = time.monotonic() + _CONNECT_SECONDS

    def open(self) -> None:
        """Under exactly once, fences earlier producers of this lane, and ends what they left."""
        if not self.is_open:
            self.connect()
        if self._sink.is_exact:
            self._poll(max(0.0, self._connected - time.monotonic()))
            self._until(self._connection.request_timeout, "init_transactions")

    def _config(self) -> dict[str, Any]:
        sink = self._sink
        timeout_ms = int(sink.transaction_timeout.total_seconds() * 1000)
        config: dict[str, Any] = {
            "log_level": 0,
            # Whole batches, also where Spark sends rows slowly: a run ends with a flush anyway.
            "linger.ms": 20,
            "queue.buffering.max.messages": 500_000,
            # Kafka's own partitioner of Java producers, so that all producers of a topic agree.
            "partitioner": "murmur2_random",
            **self._connection.librdkafka_config(),
            **sink.properties,
            "error_cb": self._on_error,
            "on_delivery": self._on_delivery,
            # A call of Python for each record would cost more than to send it.
            "delivery.report.only.error": True,
        }
        wanted = int(config.get("batch.size", _BATCH_BYTES))
        allowed = self._router and self._router.batch_bytes
        if allowed is not None and allowed < wanted:
            # Otherwise the topic would refuse batches of many small records.
            config["batch.size"] = allowed
        if self._sink.is_exact:
            return config | {
                "transactional.id": sink.transactional_id(self.number),
                "transaction.timeout.ms": timeout_ms,
                # librdkafka refuses a request that may take longer than the transaction.
                "socket.timeout.ms": min(timeout_ms, int(self._connection.request_timeout * 1000)),
            }
        return config | {"enable.idempotence": True, "message.timeout.ms": timeout_ms}

    @property
    def is_open(self) -> bool:
        return self._producer is not None

    @property
    def age(self) -> float:
        """Seconds since the first record of the open transaction; 0 if there is none."""
        return 0.0 if self._begun is None else time.monotonic() - self._begun

    @property
    def has_failed(self) -> bool:
        """Whether a record was not delivered, or the producer can't go on."""
        return self._failed is not None

    def write(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: list[tuple[str, bytes | None]] | None = None,
        *,
        row: object = "",
    ) -> None:
        self._begin()
        where = _ANY_PARTITION if partition is None else partition
        while True:
            try:
                self._producer.produce(topic, value, key, where, timestamp=timestamp_ms or 0, headers=headers)
            except BufferError:  # noqa: PERF203 - the queue is full at times
                with self._said(f"records to {topic}"):
                    unsent = len(self._producer)
                    while len(self._producer) >= unsent:
                        self._poll(0.1)
                        self._check(f"records to {topic}")
            except confluent_kafka.KafkaException as error:
                if is_too_large(error.args[0]):
                    raise self._failures.too_large(row, topic, len(key or b"") + len(value or b"")) from None
                raise self._failure(error.args[0], f"records to {topic}") from None
            else:
                return

    def serve(self) -> None:
        """Handles what brokers answered."""
        if self.is_open:
            self._poll(0)
            self._check("records")

    def commit(self, progress: Progress) -> None:
        """Commits the open transaction together with the progress: both are there, or neither is.

        Under at least once, the records are delivered before the progress.
        After an error nothing was committed, or that is unknown: see the progress topic.
        """
        key = self._sink.transactional_id(self.number).encode()
        if not self._sink.is_exact:
            self._flush()
        self.write(self._sink.progress_name, key, progress.to_bytes(), partition=progress.lane)
        if self._sink.is_exact:
            left = self._sink.transaction_timeout.total_seconds() - self.age
            self._until(max(_STEP_SECONDS, left), "commit_transaction")
            self._check("records")
            self._producer = None
        else:
            self._flush()
        self._begun = None

    def close(self) -> None:
        """Aborts the open transaction, if there is one, and ends the producer. Safe to call twice."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        if self._sink.is_exact and self._begun is not None:
            with contextlib.suppress(confluent_kafka.KafkaException):
                producer.abort_transaction(_ABORT_SECONDS)
                _logger.info("lane %d: the open transaction was aborted", self.number)
        self._begun = None
        # Otherwise the producer would wait for records that were not sent.
        producer.purge()

    def _begin(self) -> None:
        if self._begun is not None:
            return
        if self._sink.is_exact:
            try:
                self._producer.begin_transaction()
            except confluent_kafka.KafkaException as error:
                raise self._failure(error.args[0], "a transaction") from None
        self._begun = time.monotonic()

    def _flush(self) -> None:
        deadline = time.monotonic() + self._sink.transaction_timeout.total_seconds()
        with self._said("records"):
            while self._poll(_STEP_SECONDS, "flush"):
                if time.monotonic() > deadline:
                    raise self._failures.unreachable("records", "timed out")
        self._check("records")

    def _poll(self, seconds: float, call: str = "poll") -> int:
        """Processes the brokers' answers. The client raises fatal errors here, such as a fence, without a callback."""
        try:
            return getattr(self._producer, call)(seconds)
        except confluent_kafka.KafkaException as error:
            self._failed = error.args[0]
            return 0

    def _said(self, what: str) -> AbstractContextManager[None]:
        return said_while_waiting(self._log, lambda: self._failures.awaited(what))

    def _until(self, seconds: float, what: str) -> None:
        """Repeats a call of the transactional client until it has ended; each continues the one before."""
        # No local name keeps the producer: an error has these names, and a producer asks on as long as it is there.
        deadline = time.monotonic() + seconds
        with self._said(what):
            while True:
                try:
                    getattr(self._producer, what)(_STEP_SECONDS)
                except confluent_kafka.KafkaException as error:  # noqa: PERF203 - each call waits
                    failed = error.args[0]
                    self._poll(0)
                    if what == "init_transactions":
                        self._broker_errors.raise_if_permanent()
                    if not failed.retriable() or failed.txn_requires_abort() or time.monotonic() >= deadline:
                        raise self._failure(failed, what) from None
                else:
                    self._broker_errors.forget()
                    return

    def _check(self, what: str) -> None:
        if self._failed is not None:
            raise self._failure(self._failed, what)

    def _failure(self, error: confluent_kafka.KafkaError, what: str) -> Exception:
        self._poll(0)
        if error.name() == "_STATE" and self._sink.is_exact:
            # It only says that the client can't go on. Why, its own thread says a moment later, but not if the brokers
            # refused the transaction before they took a record. Then it tells whoever begins another one.
            deadline = time.monotonic() + _STEP_SECONDS
            while self._failed is None and time.monotonic() < deadline:
                self._poll(0.1)
            try:
                self._producer.begin_transaction()
            except confluent_kafka.KafkaException as reason:
                error = reason.args[0]
        # A later error often only says that an earlier one was fatal, or that a record of the transaction failed.
        return self._failures.error(error if self._failed is None else self._failed, what, self.age)

    def _on_error(self, error: confluent_kafka.KafkaError) -> None:
        if error.fatal():
            self._failed = error
        else:
            self._broker_errors.add(error)

    def _on_delivery(self, error: confluent_kafka.KafkaError | None, message: confluent_kafka.Message) -> None:
        # Purged records failed because of the transaction, not the other way round.
        if error is None or error.name() in ("_PURGE_QUEUE", "_PURGE_INFLIGHT"):
            return
        # A broker refuses a whole batch if one of its records is too large.
        if self._failed is None or (is_too_large(error) and is_too_large(self._failed)):
            self._failed = error
            self._failures.note(message)


@dataclass
class Lanes:
    """The lanes of one run."""

    each: Sequence[Lane]
    sink: KafkaSink
    topic: ProgressTopic

    def own(self) -> dict[int, Progress]:
        """Opens the lanes that are not open, for one transaction each under exactly once; returns their progress.

        Under exactly once, only this run can change it now.
        """
        closed = [lane for lane in self.each if not lane.is_open]
        # All of them connect at the same time.
        for lane in closed:
            lane.connect()
        for lane in closed:
            lane.open()
        return self.topic.read(settled=self.sink.is_exact)

    def own_again(self, committed: Sequence[Progress]) -> None:
        """Opens the lanes for the next transactions, unless another run has published since."""
        if self.sink.is_exact:
            # Looked at before, too: a run that was frozen is not to fence the one that came after it. What this run
            # has just committed may not be visible yet.
            for lane, progress in self.topic.read(settled=False).items():
                if progress.at > committed[lane].at:
                    raise self._overtaken(progress, committed[lane])
        found = self.own()
        for known in committed if self.sink.is_exact else ():
            if found.get(known.lane) != known:
                raise self._overtaken(found.get(known.lane), known)

    def close(self) -> None:
        """Aborts what is open, and ends the producers. Safe to call twice."""
        for lane in self.each:
            lane.close()

    def _overtaken(self, found: Progress | None, known: Progress) -> SinkFencedError:
        return SinkFencedError(
            f"another run of the sink {self.sink.transactional_id_prefix} has taken over the transactional id "
            f"{self.sink.transactional_id(known.lane)}: this run committed {told(known)}, and the progress topic "
            f"{self.topic.name} has {told(found)}. What this run has committed stays; leave the rest to the other run",
            "If you expect no other run, find out who else uses this transactional_id_prefix",
        )
