"""An interrupt on real Spark and real Delta: the table stays locked for as long as the write may still be committed."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.table import interruptible
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.document import WindowsDocument
from dagster_kafka_flip.table.interruptible import held
from dagster_kafka_flip.table.table_writer import TableWriter
from dagster_kafka_flip.table.target import DeltaTarget

_PATIENCE = 60
_DOCUMENT = WindowsDocument(
    attempt="an attempt", run_id="", base_version=0, windows=(), splits=(), state=EnumeratorState({})
)


@pytest.mark.spark
def test_the_lock_is_kept_until_an_interrupted_write_has_ended(spark, table, monkeypatch, caplog):
    spark.range(1).write.format("delta").save(table)
    lock = FileLock(Path(table).with_name(".table.dagster-kafka-flip.lock"))
    in_commit, may_commit = threading.Event(), threading.Event()
    monkeypatch.setattr(interruptible, "_PATIENCE_SECONDS", 0.1)

    def write():
        # As Delta's commit does, it takes no notice of an interrupt.
        in_commit.set()
        assert may_commit.wait(_PATIENCE)
        spark.range(1, 3).write.format("delta").mode("append").save(table)

    def interrupt():
        assert in_commit.wait(_PATIENCE)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        TableWriter(DeltaTable(spark, DeltaTarget(table=table))).written(write, _DOCUMENT, lambda since: None)
    assert "may be committed. The table stays locked for other runs until the write ends" in caplog.text
    with pytest.raises(Timeout):
        lock.acquire(timeout=0)
    may_commit.set()
    with lock.acquire(timeout=_PATIENCE):
        assert spark.read.format("delta").load(table).count() == 3, "who gets the lock finds the commit"


def test_a_shared_resource_is_held_until_its_last_user_releases_it():
    class Lock:
        is_held = False

        def __enter__(self):
            self.is_held = True

        def __exit__(self, *_):
            self.is_held = False

    lock = Lock()
    with held(lock) as hold:
        hold.share()
        assert lock.is_held
    assert lock.is_held
    hold.let_go()
    assert not lock.is_held
    with held(lock):
        assert lock.is_held
    assert not lock.is_held
