"""The watch over a cluster's executors, without a cluster."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace
from typing import Any

from dagster_kafka_flip.runtime import spark_status


def test_the_next_session_of_a_process_is_watched_as_soon_as_it_begins(monkeypatch):
    woken, waiting = threading.Event(), threading.Semaphore(0)

    def sleep(_: float) -> None:
        waiting.release()
        woken.wait()

    monkeypatch.setattr(spark_status, "time", SimpleNamespace(sleep=sleep))
    watch, context = spark_status._ExecutorWatch(), object()
    for begun in (context, context, object()):
        session: Any = SimpleNamespace(sparkContext=begun)
        watch.begin(session, logging.getLogger())
    for _ in range(2):
        assert waiting.acquire(timeout=10)
    assert not waiting.acquire(timeout=0.2)
    woken.set()
