"""Mutants: the product without one of the things that it relies on. The simulator must find each of them."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dagster_kafka_flip.ingestion import stream_batch, stream_run
from dagster_kafka_flip.source import enumerator
from dagster_kafka_flip.source.api import SplitEnumerator
from dagster_kafka_flip.source.log import Log
from dagster_kafka_flip.source.plan import ReadPlan
from dagster_kafka_flip.table import anchor, delta_table, history, table_port, table_writer
from dagster_kafka_flip.table.anchor import Anchor
from dagster_kafka_flip.table.table_writer import TableWriter

Patch = Callable[[pytest.MonkeyPatch], None]

MUTANTS: dict[str, Patch] = {}


def _mutant(name: str) -> Callable[[Patch], Patch]:
    def add(patch: Patch) -> Patch:
        MUTANTS[name] = patch
        return patch

    return add


def _nothing(*_: Any, **__: Any) -> None:
    """Does nothing."""


def _options(patch: pytest.MonkeyPatch, change: Callable[[Any, dict[str, str | int]], dict[str, str | int]]) -> None:
    original: Any = TableWriter._options
    patch.setattr(TableWriter, "_options", lambda self, document: change(document, original(self, document)))


@_mutant("no fence")
def _(patch: pytest.MonkeyPatch) -> None:
    _options(patch, lambda _, options: {**options, "txnAppId": uuid.uuid4().hex})


@_mutant("the fence has the number of the newest version")
def _(patch: pytest.MonkeyPatch) -> None:
    _options(patch, lambda document, options: {**options, "txnVersion": document.base_version})


@_mutant("no precheck")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TableWriter, "_check_unchanged", _nothing)


@_mutant("no look at what came between")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(table_writer, "check_between", _nothing)
    patch.setattr(anchor, "check_between", _nothing)


@_mutant("a failed write is written again without a look back")
def _(patch: pytest.MonkeyPatch) -> None:
    original: Any = TableWriter._judge

    def judge(self: Any, written: Any, document: Any, keys: Any) -> Any:
        if written.failure is not None:
            raise self.without_commit(written.failure) from written.failure
        return original(self, written, document, keys)

    _options(patch, lambda _, options: {**options, "txnAppId": uuid.uuid4().hex})
    patch.setattr(TableWriter, "_judge", judge)


# Each of the next two alone is made up for by the look back.
@_mutant("no lock, and no look back at other streams")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(table_port, "held", lambda _: contextlib.nullcontext())
    patch.setattr(history, "check_alone", _nothing)


@_mutant("a look-up by time is one off")
def _(patch: pytest.MonkeyPatch) -> None:
    original: Any = Log.offsets_for_times
    patch.setattr(Log, "offsets_for_times", lambda *args: {tp: at + 1 for tp, at in original(*args).items()})


@_mutant("an unknown end of a log is none")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "cut_offsets", lambda *_: {})


@_mutant("the topics' ids are not compared")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(enumerator, "recreated_topics", lambda *_: {})


@_mutant("after a commit nobody asks whether a log was cut off")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(enumerator, "check_not_cut", _nothing)


@_mutant("the beginnings of logs are not compared")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(enumerator, "broken_logs", lambda *_: [])


@_mutant("open transactions are read over")
def _(patch: pytest.MonkeyPatch) -> None:
    original = Log.__init__

    def init(self: Any, *args: Any) -> None:
        original(self, *args)
        self._end = dict(self.high_watermarks)

    patch.setattr(Log, "__init__", init)


@_mutant("new topic partitions begin at their ends")
def _(patch: pytest.MonkeyPatch) -> None:
    original: Any = enumerator.KafkaSourceEnumerator._starts

    def starts(self: Any, change: Any, state: Any, same: Any, log: Any, cut: Any, *, overrides: bool) -> Any:
        found, incidents = original(self, change, state, same, log, cut, overrides=overrides)
        return found | log.end_offsets(change.new), incidents

    patch.setattr(enumerator.KafkaSourceEnumerator, "_starts", starts)


@_mutant("a batch has the position of the whole plan")
def _(patch: pytest.MonkeyPatch) -> None:
    original: Any = ReadPlan.take

    def take(self: Any, most: Any) -> Any:
        batch, rest = original(self, most)
        return replace(batch, state=self.state), rest

    patch.setattr(ReadPlan, "take", take)


@_mutant("splits of a batch that was not written are not given back")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SplitEnumerator, "add_splits_back", _nothing)


@_mutant("a RESTORE is not followed")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(anchor._Walk, "_go_on_at", _nothing)


@_mutant("a RESTORE is followed, but is not the fence")
def _(patch: pytest.MonkeyPatch) -> None:
    original: Any = anchor._Walk._anchor

    def without(self: Any, commit: Any, *args: Any) -> Anchor:
        return replace(original(self, commit, *args), version=commit.version)

    patch.setattr(anchor._Walk, "_anchor", without)


@_mutant("what a RESTORE undid begins anew")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(anchor._Walk, "_undone_start", _nothing)


@_mutant("an emptied table is not noticed")
def _(patch: pytest.MonkeyPatch) -> None:
    original: Any = anchor._Walk._found

    def found(self: Any, *args: Any) -> Any:
        self._replaced = None
        return original(self, *args)

    patch.setattr(anchor._Walk, "_found", found)


@_mutant("other streams are not looked for")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(delta_table, "check_shared", _nothing)


@_mutant("other streams are looked for neither just before the write nor behind it")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(table_writer, "shared_logs", lambda *_: [])
    patch.setattr(history, "check_alone", _nothing)


@_mutant("a copy of the position is trusted for ever")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stream_run, "_is_fresh", lambda *_: True)


@_mutant("a repeat does not look whether the logs still have its records")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stream_batch.Landing, "_check_still_in_log", _nothing)


@_mutant("a table that another run has made meanwhile was never restored")
def _(patch: pytest.MonkeyPatch) -> None:
    original: Any = delta_table.DeltaTable.made
    patch.setattr(
        delta_table.DeltaTable, "made", lambda self, schema: replace(original(self, schema), undone_start=None)
    )
