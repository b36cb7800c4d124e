"""Runs that die, are fenced, or are late: each record is there once for readers of committed records, in order."""

from __future__ import annotations

import contextlib
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import KafkaException, Producer

from dagster_kafka_flip.errors import SinkFencedError, TransactionTimedOutError
from dagster_kafka_flip.sink.lane import Lane, Lanes
from dagster_kafka_flip.sink.progress import ProgressTopic
from dagster_kafka_flip.source.plan import Limits
from tests.processes import wait_until

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = [pytest.mark.kafka, pytest.mark.spark]


class _DiedError(BaseException):
    """The process seems to be gone."""


class Deaths:
    """Ends runs at steps of their protocol, as a kill would: what is open stays open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps_left: int | None = None
        self.met: set[str] = set()
        self._left: list[Producer] = []
        close = Lane.close

        def leave(lane: Any) -> None:
            if self.steps_left == 0 and lane._producer is not None:
                # No abort: the producer stays, as that of a process that only seems to be gone. To drop it now would
                # end this process, too: librdkafka does not expect that while it adds a partition to a transaction.
                self._left.append(lane._producer)
                lane._producer = None
            close(lane)

        monkeypatch.setattr(Lane, "close", leave)
        for home, name in ((Lane, "open"), (ProgressTopic, "read"), (Lane, "write"), (Lane, "commit")):
            monkeypatch.setattr(home, name, self._step(getattr(home, name), name))

    def end(self) -> None:
        """Ends the producers that were left."""
        while self._left:
            producer = self._left.pop()
            with contextlib.suppress(KafkaException):
                producer.abort_transaction(1)
            producer.purge()

    def _step(self, call: Any, name: str) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            self._may_end(f"before {name}")
            answer = call(*args, **kwargs)
            self._may_end(f"after {name}")
            return answer

        return run

    def _may_end(self, step: str) -> None:
        if self.steps_left is None:
            return
        self.steps_left -= 1
        if self.steps_left == 0:
            self.met.add(step)
            raise _DiedError


def _history(published: Any) -> dict[int, list[str | None]]:
    """Fills a table, and returns what a topic of it is to hold of each key."""
    published.create()
    published.sql("INSERT INTO {t} SELECT id, concat('a', id) FROM range(9)")
    published.sql("UPDATE {t} SET v = concat('b', id) WHERE id < 4")
    published.sql("OPTIMIZE {t}")
    published.sql("DELETE FROM {t} WHERE id IN (3, 4)")
    published.sql("INSERT OVERWRITE {t} SELECT id, concat('c', id) FROM range(2, 6)")
    wanted: dict[int, list[str | None]] = {key: [f"a{key}"] for key in range(9)}
    for key in range(4):
        wanted[key].append(f"b{key}")
    for key in (3, 4):
        wanted[key].append(None)
    for key in range(9):
        if 2 <= key < 6:
            wanted[key].append(f"c{key}")
        elif key not in (3, 4):
            wanted[key].append(None)
    return wanted


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> Generator[Deaths]:
    deaths = Deaths(monkeypatch)
    yield deaths
    deaths.end()


def test_runs_that_die_at_any_step_publish_each_record_once_and_in_order(published, deaths):
    wanted = _history(published)
    options = {"start": 0, "lanes": 2, "limits": Limits(max_records_per_batch=4)}
    for number in range(40):
        # Each run ends at another place: eight steps come before its first record.
        deaths.steps_left = 6 + 17 * number % 43
        try:
            published.run(**options)
        except _DiedError:
            continue
        break
    else:
        pytest.fail("no run came to its end")
    deaths.steps_left = None
    result = published.run(**options)
    assert published.texts() == wanted
    assert (result.last_version, result.lag_versions) == (5, 0)
    assert len(deaths.met) >= 4, deaths.met


def test_a_version_and_a_snapshot_larger_than_a_batch_go_on_where_they_ended(published):
    published.create("v string, id int, s struct<a: int>")
    published.sql("INSERT INTO {t} SELECT 'x', id % 3, named_struct('a', 1) FROM range(10)")
    one = Limits(max_records_per_batch=4, max_batches=1)
    counts = []
    while not counts or counts[-1].rows_left:
        counts.append(published.run(limits=one))
        if len(counts) == 1:
            # A column more changes neither the rest of the snapshot nor its order.
            published.sql("ALTER TABLE {t} ADD COLUMN (w int)")
            published.sql("INSERT INTO {t} SELECT 'y', id % 3, named_struct('a', 1), 1 FROM range(10)")
        if len(counts) == 4:
            # Nor does a field more change the rest of a version.
            published.sql("ALTER TABLE {t} ADD COLUMN (s.b int)")
    assert [each.records for each in counts] == [4, 4, 2, 4, 4, 2, 0]
    assert published.texts() == {key: ["x"] * (4 - (key > 0)) + ["y"] * (4 - (key > 0)) for key in range(3)}


class _Gate:
    """A partitioner that holds a run up at one of its records, in mid-transaction."""

    def __init__(self, record: int = 1) -> None:
        self.is_there, self.may_go = threading.Event(), threading.Event()
        self._left = record

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        self._left -= 1
        if self._left == 0:
            self.is_there.set()
            assert self.may_go.wait(240)
        return 0


def _held_up(published: Any, gate: _Gate, **options: Any) -> tuple[threading.Thread, list[BaseException]]:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            published.run(partitioner=gate, **options)
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: gate.is_there.is_set() or not thread.is_alive(), seconds=240)
    assert not errors
    return thread, errors


def test_a_run_that_another_one_overtook_is_fenced_and_adds_nothing(published):
    wanted = _history(published)
    gate = _Gate()
    thread, errors = _held_up(published, gate, start=0)
    result = published.run(partitioner="default")
    gate.may_go.set()
    thread.join(240)
    (error,) = errors
    assert isinstance(error, SinkFencedError), error
    assert f"{published.topic}-0" in str(error)
    assert published.texts() == wanted
    assert result.lag_versions == 0


def test_a_run_that_another_one_overtook_between_its_transactions_leaves_it_alone(published, monkeypatch):
    wanted = _history(published)
    options: dict[str, Any] = {"start": 0, "limits": Limits(max_records_per_batch=4)}
    own_again, gate, held_up = Lanes.own_again, _Gate(6), []

    def frozen(lanes: Any, committed: Any) -> None:
        if not held_up:
            # Of the other run, whose lanes come here, too.
            held_up.append(None)
            held_up[0] = _held_up(published, gate, **options)
        own_again(lanes, committed)

    monkeypatch.setattr(Lanes, "own_again", frozen)
    with pytest.raises(SinkFencedError, match=r"this run committed nothing yet, and .* has version 0 and 4 rows of"):
        published.run(partitioner=lambda *_: 0, **options)
    gate.may_go.set()
    thread, errors = held_up[0]
    thread.join(240)
    assert errors == []
    assert published.texts() == wanted


def test_a_fence_that_shows_while_a_run_waits_for_rows_is_reported(published):
    old, new = (Lane(published.connection, published.sink, 0) for _ in range(2))
    try:
        old.open()
        new.open()
        old.write(published.topic, b"key", b"value")
        with pytest.raises(SinkFencedError, match=f"{published.topic}-0"):
            wait_until(lambda: old.serve() is not None, seconds=60)
    finally:
        old.close()
        new.close()


def test_a_topic_that_grows_gets_each_record_once_but_keys_change_their_topic_partition(
    published, kafka, topic, caplog
):
    published.create()
    published.sql("INSERT INTO {t} SELECT id, 'a' FROM range(20)")
    published.run(start=0)
    kafka.grow(topic, 5)
    published.sql("UPDATE {t} SET v = 'b'")
    result = published.run()
    assert (result.records, result.metadata["kafka/partitions_added"]) == (20, 3)
    assert (
        f"the topic {topic} had 2 topic partitions when the sink {topic} last published, and has 5 now" in caplog.text
    )
    assert {key: sorted(values) for key, values in published.texts().items()} == {key: ["a", "b"] for key in range(20)}
    places = {}
    for record in published.records():
        places.setdefault(record.key, set()).add(record.topic_partition)
    assert any(len(each) == 2 for each in places.values())
    # Without its key's first record in the same topic partition, the order is no longer the log's.
    assert {place.partition for each in places.values() for place in each} > {0, 1}
    # It is told once.
    published.sql("DELETE FROM {t} WHERE id = 3")
    assert "kafka/partitions_added" not in published.run().metadata


def test_a_transaction_that_brokers_aborted_by_its_timeout_says_so(published, kafka):
    published.create()
    published.sql("INSERT INTO {t} VALUES (1, 'a'), (2, 'b')")
    calls: list[bytes | None] = []

    def late(topic: str, key: bytes | None, value: bytes | None, partitions: int) -> int:
        calls.append(key)
        if len(calls) > 1:
            # The first record, and behind it the marker that the brokers add when the time is up.
            wait_until(lambda: kafka.end_offset(topic, 0) > 1, seconds=60)
        return 0

    with pytest.raises(TransactionTimedOutError, match=r"was open for \d+ s, and transaction_timeout is 1 s"):
        published.run(
            start=0, partitioner=late, transaction_timeout=timedelta(seconds=1), properties={"linger.ms": "0"}
        )
    assert published.records() == []
    assert published.run(partitioner="default", transaction_timeout=timedelta(minutes=1)).records == 2
