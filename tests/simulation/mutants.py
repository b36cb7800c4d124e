"""Mutants: the product without one of the things that it relies on. The simulator must find each of them."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dagster_kafka_flip.ingestion import dead_letter_table, move_position, open_stream, stream_run
from dagster_kafka_flip.ingestion.batch_writer import BatchWriter
from dagster_kafka_flip.ingestion.dead_letter_settlement import PendingDeadLetters
from dagster_kafka_flip.ingestion.dead_letter_table import DeadLetterTable
from dagster_kafka_flip.ingestion.observation import Observed
from dagster_kafka_flip.ingestion.rows_to_replace import RowsToReplace
from dagster_kafka_flip.ingestion.run_spec import RunSource
from dagster_kafka_flip.ingestion.several_tables import SharedRead, TablesInStep
from dagster_kafka_flip.ingestion.stream_run import StreamRun
from dagster_kafka_flip.source import enumerator, window_checks, window_enumerator
from dagster_kafka_flip.source.log import Log
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.split import TimestampedOffset, TopicPartition, TopicSettings
from dagster_kafka_flip.source.window_checks import WindowLogs
from dagster_kafka_flip.table import anchor, delta_table, history, merge, table_port, table_writer
from dagster_kafka_flip.table.anchor import Anchor
from dagster_kafka_flip.table.document import RoutedBatch
from dagster_kafka_flip.table.table_writer import TableWriter
from dagster_kafka_flip.table.window_rows import Scope
from dagster_kafka_flip.table.windowed_table import WindowedTable
from tests.simulation import story

Patch = Callable[[pytest.MonkeyPatch], None]

MUTANTS: dict[str, Patch] = {}
WINDOW_MUTANTS: dict[str, Patch] = {}
TABLES_MUTANTS: dict[str, Patch] = {}
LETTERS_MUTANTS: dict[str, Patch] = {}
KEYED_MUTANTS: dict[str, Patch] = {}


def _mutant(name: str, mutants: dict[str, Patch] = MUTANTS) -> Callable[[Patch], Patch]:
    def add(patch: Patch) -> Patch:
        mutants[name] = patch
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
    patch.setattr(enumerator, "_new_starts", lambda change, _, log: log.end_offsets(change.new))


@_mutant("a batch has the position of the whole plan")
def _(patch: pytest.MonkeyPatch) -> None:
    original: Any = enumerator.KafkaSourceEnumerator.assign

    def assign(self: Any, *args: Any) -> Any:
        left, found = self._left, original(self, *args)
        if found is not None:
            # It is past its splits: they follow from it.
            assert found.plan.splits is not None
            vars(found.plan)["state"] = left.state
        return found

    patch.setattr(enumerator.KafkaSourceEnumerator, "assign", assign)


@_mutant("splits of a batch that was not written are not given back")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(enumerator.KafkaSourceEnumerator, "add_splits_back", _nothing)


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


# What it lets pass, the next run refuses to read on from.
@_mutant("a repeat does not look whether the logs still have its records, and any other log is tolerated")
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BatchWriter, "_check_still_in_log", _nothing)
    patch.setattr(open_stream.OpenStream, "_check_other_log", _nothing)


@_mutant("a table that another run has made meanwhile was never restored")
def _(patch: pytest.MonkeyPatch) -> None:
    original: Any = delta_table.DeltaTable.made
    patch.setattr(
        delta_table.DeltaTable, "made", lambda self, schema: replace(original(self, schema), undone_start=None)
    )


# What windows rely on.


@_mutant("windows are written over newer ones, and nobody looks before or behind", WINDOW_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WindowedTable, "_check_unchanged", _nothing)
    patch.setattr(WindowedTable, "_check_between", _nothing)


@_mutant("a window ends at any entry, also at a marker", WINDOW_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    def record(self: WindowLogs, tp: TopicPartition, ms: int) -> TimestampedOffset | None:
        offset = self.entry(tp, ms)
        return None if offset == self.end[tp] else TimestampedOffset(offset, ms)

    patch.setattr(WindowLogs, "record", record)


@_mutant("a window begins at the first record of its time, and not at the first entry", WINDOW_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    original: Any = WindowLogs.entry
    patch.setattr(WindowLogs, "entry", lambda self, tp, ms: min(original(self, tp, ms) + 1, self.end[tp]))


@_mutant("a window ends where the next one begins", WINDOW_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WindowLogs, "stop_time", lambda _, bound: bound)


@_mutant("nobody looks whether a topic was recreated while windows were planned", WINDOW_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(window_enumerator.WindowEnumerator, "_check_still_same", _nothing)


@_mutant("nobody looks whether records of a window are deleted", WINDOW_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(window_enumerator, "check_retention", _nothing)


@_mutant("an empty log of which nothing is known has lost nothing", WINDOW_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TopicSettings, "is_unlimited", property(lambda _: False))


@_mutant("an open transaction holds back nothing", WINDOW_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(window_checks, "_waiting", lambda *_: {})


@_mutant("a window may still get records and is called complete", WINDOW_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(window_enumerator, "with_completeness", lambda planned, *_: planned)


@_mutant("windows of a topic that was made again", WINDOW_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(window_enumerator, "check_identity", lambda *_: frozenset())


@_mutant("after windows nobody asks whether the logs are the same", WINDOW_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(window_enumerator.WindowEnumerator, "check_same_logs", _nothing)


@_mutant("rows of other topics are replaced, too", WINDOW_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Scope, "of", lambda *_: Scope(None))


@_mutant("nobody looks whether the table has rows of records that are gone", WINDOW_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RowsToReplace, "lost", lambda *_: ())
    patch.setattr(window_enumerator, "check_retention", _nothing)


@_mutant("windows are read up to the high watermark", WINDOW_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    MUTANTS["open transactions are read over"](patch)


# What several tables of one read rely on.


@_mutant("each table is read to an end of its own", TABLES_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StreamRun, "stop_at", _nothing)


@_mutant("what one table has read is what all read", TABLES_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    original: Any = SharedRead.__call__

    def call(self: Any, *args: Any) -> Any:
        return next(iter(self._kept.values())) if self._kept else original(self, *args)

    patch.setattr(SharedRead, "__call__", call)


@_mutant("the common stop has to be after the start that a user wrote", TABLES_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    def stop_at(self: Any, stop: Any) -> None:
        self.source = self.source.with_overrides(stopping_offsets=OffsetsInitializer.specific_offsets(stop))

    patch.setattr(RunSource, "stop_at", stop_at)


@_mutant("a table that fails ends the others", TABLES_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    def step(_: Any, __: str, step: Callable[[], object]) -> bool:
        step()
        return True

    patch.setattr(TablesInStep, "_step", step)


# What dead letters rely on.


@_mutant("dead letters are written and settled before the commit", LETTERS_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    original: Any = open_stream.OpenStream._attempt

    def attempt(self: Any, assignment: Any) -> Any:
        write, plan, letters = original(self, assignment), assignment.plan, self._letters
        version = self._planned.anchor.table_version + 1

        def both() -> Any:
            letters._settle(RoutedBatch(version, "", "", plan.splits, plan.state, letters.route()), reads=True)
            return write()

        return both

    patch.setattr(open_stream.OpenStream, "_attempt", attempt)


@_mutant("dead letters of a run that died are not looked for", LETTERS_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeadLetterTable, "settle_pending", _nothing)


@_mutant("an unknown number of rejected records is none", LETTERS_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    original: Any = DeadLetterTable.settle
    patch.setattr(DeadLetterTable, "settle", lambda self, batch, seen: original(self, batch, seen or Observed(0, 0, 0)))


@_mutant("nobody looks whether the table has the dead letters", LETTERS_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dead_letter_table, "maybe_landed", lambda *_: ())


@_mutant("how far dead letters are settled goes back with the stream", LETTERS_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dead_letter_table, "furthest", lambda _, now: now)


@_mutant("a dead-letter table that was set back is not noticed", LETTERS_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dead_letter_table, "is_set_back", lambda *_: False)


@_mutant("dead letters settle the next batch, too", LETTERS_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    original: Any = dead_letter_table._Letters
    patch.setattr(dead_letter_table, "_Letters", lambda splits, settles: original(splits, settles + 1))


@_mutant("dead letters that can't be read are none", LETTERS_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PendingDeadLetters, "readable", lambda _, splits, *__, moved: () if moved else splits)


@_mutant("a moved position keeps what a RESTORE of the dead letters has undone", LETTERS_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    original: Any = move_position.plan_move

    def plan_move(source: Any, target: Any, session: Any, to: Any) -> Any:
        move, table = original(source, target, session, to), delta_table.DeltaTable(session, target)
        last = table.last_document(table.history() or ())
        return replace(move, settles=None if last is None else last[1].settles)

    patch.setattr(story, "plan_move", plan_move)


# What tables with a key rely on.


@_mutant("nobody looks again before a MERGE or behind it", KEYED_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    MUTANTS["no precheck"](patch)
    MUTANTS["no look at what came between"](patch)


@_mutant("offsets are not compared", KEYED_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(merge, "_is_newer", lambda *_: "true")


@_mutant("a change that is read again is newer than itself", KEYED_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    original = merge._is_newer
    patch.setattr(merge, "_is_newer", lambda *args: original(*args).replace(" > ", " >= "))


@_mutant("a row without an offset is newer than each record", KEYED_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    original = merge._is_newer
    patch.setattr(merge, "_is_newer", lambda *args: original(*args).replace("IS NULL THEN true", "IS NULL THEN false"))


@_mutant("files are left out by a bound that is one off", KEYED_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    original = merge._bound
    patch.setattr(merge, "_bound", lambda name, kind, end, value: original(name, kind, end.strip("="), value))


@_mutant("a tombstone is a row", KEYED_MUTANTS)
def _(patch: pytest.MonkeyPatch) -> None:
    original = merge._replacing
    patch.setattr(
        merge, "_replacing", lambda *args: [re.sub(r"(NOT MATCHED) AND .*", r"\1", part) for part in original(*args)]
    )
