"""SimBroker: transactional topics in memory, producers of them, and requests that the network holds back."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException

from dagster_kafka_flip.source.split import READ_COMMITTED, KafkaPartitionSplit, TopicPartition
from tests.simulation.scheduler import Scheduler
from tests.simulation.sim_log import ABORTED, MARKER, OPEN, RECORD, SimCluster, SimLog
from tests.simulation.world import World

# How long the client waits for an answer.
_ANSWER = timedelta(seconds=7)
# How often a request without an answer comes later, and how often a coordinator fails between prepare and commit.
_HELD, _PREPARED = 0.6, 0.3
_TRIES = 3


class Entry(NamedTuple):
    """What is at one offset."""

    key: bytes | None
    value: bytes | None
    producer: str
    kind: str


@dataclass
class Transactions:
    """What the coordinator knows of a transactional id, and of its transaction in this epoch."""

    epoch: int = -1
    partitions: set[TopicPartition] = field(default_factory=set[TopicPartition])
    # Whether it is prepared to be committed or aborted, and how the last one ended.
    ends: bool | None = None
    last: bool | None = None
    sequences: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])


class SimBroker:
    """A Kafka cluster that checks epochs as brokers do, and verifies that a record is of its transaction (KIP-890)."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.log = SimLog(lambda: 0)
        # Requests that the network holds back.
        self.held: list[tuple[str, Callable[[], object]]] = []
        self._scheduler = scheduler
        self._ids: defaultdict[str, Transactions] = defaultdict(Transactions)

    def entries(self, tp: TopicPartition) -> list[Any]:
        return self.log.partition(tp).entries

    def init(self, producer: str) -> int:
        """Aborts what is open, and starts another epoch."""
        known = self._ids[producer]
        self._complete(producer)
        known.epoch += 1
        known.last, known.sequences = None, {}
        if known.partitions:
            known.ends = False
            self._complete(producer)
        return known.epoch

    def add(self, producer: str, epoch: int, tp: TopicPartition) -> str | None:
        """Adds a topic partition to the transaction; returns an error."""
        known = self._ids[producer]
        if epoch != known.epoch:
            return "INVALID_PRODUCER_EPOCH"
        # Until then the client is told to wait.
        self._complete(producer)
        known.partitions.add(tp)
        return None

    def produce(self, producer: str, epoch: int, tp: TopicPartition, sequence: int, entry: Entry) -> str | None:
        """Adds a record; returns an error."""
        known = self._ids[producer]
        if epoch != known.epoch:
            return "INVALID_PRODUCER_EPOCH"
        if sequence <= known.sequences.get(tp, -1):
            return None
        if tp not in known.partitions or known.ends is not None:
            return "INVALID_TXN_STATE"
        known.sequences[tp] = sequence
        self.entries(tp).append(entry)
        return None

    def end(self, producer: str, epoch: int, *, commits: bool) -> str | None:
        """Ends the transaction; returns an error."""
        known = self._ids[producer]
        if epoch != known.epoch:
            return "INVALID_PRODUCER_EPOCH"
        if not known.partitions:
            return None if known.last is commits else "INVALID_TXN_STATE"
        if known.ends is not None:
            return None if known.ends is commits else "INVALID_TXN_STATE"
        known.ends = commits
        if self._scheduler.random.random() > _PREPARED:
            self._complete(producer)
        return None

    def _complete(self, producer: str) -> None:
        known = self._ids[producer]
        if known.ends is None:
            return
        kind = RECORD if known.ends else ABORTED
        for tp in known.partitions:
            log = self.entries(tp)
            log[:] = [
                each._replace(kind=kind) if (each.producer, each.kind) == (producer, OPEN) else each for each in log
            ]
            log.append(Entry(None, None, producer, MARKER))
        known.last, known.ends = known.ends, None
        known.partitions.clear()

    def complete_one(self) -> str | None:
        """A coordinator ends what is prepared."""
        prepared = sorted(producer for producer, known in self._ids.items() if known.ends is not None)
        if not prepared:
            return None
        self._complete(found := self._scheduler.random.choice(prepared))
        return f"of {found}"

    def time_out(self) -> str | None:
        """A coordinator aborts a transaction that takes too long."""
        opened = sorted(each for each, known in self._ids.items() if known.partitions and known.ends is None)
        if not opened:
            return None
        self.init(found := self._scheduler.random.choice(opened))
        return f"of {found}"

    def let_through(self) -> str | None:
        """A request that was held back arrives."""
        if not self.held:
            return None
        what, request = self.held.pop(self._scheduler.random.randrange(len(self.held)))
        return f"{what}: {request() or 'accepted'}"


class SimProducer:
    """A producer as librdkafka's, of one process."""

    def __init__(self, world: World, broker: SimBroker, config: Mapping[str, Any]) -> None:
        self._world, self._broker = world, broker
        self._id = str(config["transactional.id"])
        self._epoch = -1
        self._queue: list[tuple[TopicPartition, Entry]] = []
        self._added: set[TopicPartition] = set()
        self._sequences: defaultdict[TopicPartition, int] = defaultdict(int)
        self._failed: KafkaError | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def init_transactions(self, _: float) -> None:
        self._epoch = self._answered("InitProducerId", lambda: self._broker.init(self._id))

    def begin_transaction(self) -> None:
        self._raise()

    def produce(self, topic: str, value: bytes | None, key: bytes | None, partition: int, **_: Any) -> None:
        self._raise()
        if partition < 0:
            partition = sum(key or b"") % len(self._broker.log.topics[topic])
        self._queue.append((TopicPartition(topic, partition), Entry(key, value, self._id, OPEN)))
        if self._world.scheduler.random.random() < 0.5:
            self._send()

    def poll(self, _: float) -> None:
        self._raise()

    def commit_transaction(self, _: float) -> None:
        self._send()
        self._raise()
        self._end(commits=True)

    def abort_transaction(self, _: float) -> None:
        self._queue.clear()
        self._end(commits=False)

    def purge(self) -> None:
        self._queue.clear()

    def _raise(self) -> None:
        if self._failed is not None:
            raise KafkaException(self._failed)

    def _end(self, *, commits: bool) -> None:
        if self._added:
            self._checked("EndTxn", partial(self._broker.end, self._id, self._epoch, commits=commits))
            self._raise()
            self._added.clear()

    def _send(self) -> None:
        while self._queue and self._failed is None:
            for _ in range(_TRIES):
                with contextlib.suppress(KafkaException):
                    self._send_first()
                    break
            else:
                self._failed = KafkaError(KafkaError._MSG_TIMED_OUT, txn_requires_abort=True)

    def _send_first(self) -> None:
        tp, entry = self._queue[0]
        if tp not in self._added:
            self._checked(f"AddPartitionsToTxn {tp}", partial(self._broker.add, self._id, self._epoch, tp))
            self._added.add(tp)
        request = partial(self._broker.produce, self._id, self._epoch, tp, self._sequences[tp], entry)
        self._checked(f"Produce {tp} {entry.value!r:.40}", request)
        self._sequences[tp] += 1
        self._queue.pop(0)

    def _checked(self, what: str, request: Callable[[], str | None]) -> None:
        if (error := self._answered(what, request)) == "INVALID_PRODUCER_EPOCH":
            self._failed = KafkaError(KafkaError._FENCED, error, fatal=True)
        elif error is not None:
            self._failed = KafkaError(KafkaError.INVALID_TXN_STATE, error, fatal=True)

    def _answered(self, what: str, request: Callable[[], Any]) -> Any:
        """The answer to a request. One that had none may come to the broker later, unless it has come."""
        came: list[Any] = []

        def arrive() -> Any:
            came.append(request())
            return came[0]

        scheduler = self._world.scheduler
        try:
            return scheduler.call(f"{self._id}: {what}", arrive, _unanswered)
        except KafkaException:
            if not came and scheduler.random.random() < _HELD:
                self._broker.held.append((f"{self._id} epoch {self._epoch}: {what}", request))
            self._world.now += _ANSWER
            raise


def _unanswered() -> Exception:
    return KafkaException(KafkaError(KafkaError._TIMED_OUT, retriable=True))


class SimSinkCluster(SimCluster):
    """What a sink asks of the cluster."""

    def create_topic(self, topic: str, partitions: int, settings: Mapping[str, str], replicas: int = -1) -> None:
        del settings, replicas
        if topic not in self._log.topics:
            self._log.create(topic, partitions)

    def cleanup_policy(self, _: str) -> str:
        return "compact"

    def unready(self, _: Collection[str]) -> str:
        return ""

    def records(self, splits: Collection[KafkaPartitionSplit], isolation_level: str) -> Iterator[SimpleNamespace]:
        assert isolation_level == READ_COMMITTED
        for split in splits:
            tp = split.topic_partition
            log = self._ask(f"records of {tp}", lambda tp=tp: list(self._log.partition(tp).entries))
            for offset in range(split.starting_offset, split.stopping_offset):
                entry: Any = log[offset]
                if entry.kind == RECORD:
                    told = {"partition": tp.partition, "offset": offset, "key": entry.key, "value": entry.value}
                    # As the client has it: what a record has are methods.
                    yield SimpleNamespace(**{name: partial(lambda it: it, value) for name, value in told.items()})
