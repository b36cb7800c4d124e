"""Mutants: the product without one of the things that it relies on. The simulator must find each of them."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dagster_kafka_flip.ingestion import (
    dead_letter_table,
    ingest,
    open_stream,
    rebuild,
    rows_to_replace,
    stream_plan,
)
from dagster_kafka_flip.ingestion.batch_writer import BatchWriter
from dagster_kafka_flip.ingestion.dead_letter_settlement import PendingDeadLetters
from dagster_kafka_flip.ingestion.ingest import StreamRun
from dagster_kafka_flip.ingestion.observation import Observed
from dagster_kafka_flip.ingestion.run_spec import RunSource
from dagster_kafka_flip.ingestion.several_tables import SharedRead, TablesInStep
from dagster_kafka_flip.sink import publication
from dagster_kafka_flip.sink.batches import Batches
from dagster_kafka_flip.sink.lane import Lane, Lanes
from dagster_kafka_flip.sink.progress import Segment
from dagster_kafka_flip.source import enumerator, window_enumerator
from dagster_kafka_flip.source.log import Log
from dagster_kafka_flip.source.offsets import OffsetsInitializer
from dagster_kafka_flip.source.split import TimestampedOffset, TopicPartition, TopicSettings
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.source.window import PlannedWindow
from dagster_kafka_flip.table import anchor, delta_table, history, merge, table_port, table_writer
from dagster_kafka_flip.table.changes import Changes
from dagster_kafka_flip.table.document import RoutedBatch
from dagster_kafka_flip.table.window_rows import Scope
from dagster_kafka_flip.table.windowed_table import WindowedTable
from tests.simulation import story
from tests.simulation.keyed_story import KeyedStory
from tests.simulation.letters_story import LettersStory
from tests.simulation.publish_story import PublishStory
from tests.simulation.story import Story
from tests.simulation.tables_story import TablesStory
from tests.simulation.window_story import WindowStory

Patch = Callable[[pytest.MonkeyPatch], None]


def _as(owner: Any, name: str, other: Any) -> Patch:
    return lambda patch: patch.setattr(owner, name, other)


def _off(*places: tuple[Any, str]) -> Patch:
    """Nothing is done there."""
    return _all(*(_as(owner, name, _nothing) for owner, name in places))


def _around(owner: Any, name: str, other: Callable[..., Any]) -> Patch:
    """`other` gets what it stands for, and the arguments."""
    original = getattr(owner, name)
    return _as(owner, name, lambda *args: other(original, *args))


def _all(*patches: Patch) -> Patch:
    def patch_all(patch: pytest.MonkeyPatch) -> None:
        for one in patches:
            one(patch)

    return patch_all


def _nothing(*_: Any, **__: Any) -> None:
    """Does nothing."""


def _options(change: Callable[[Any], dict[str, Any]]) -> Patch:
    def options(original: Any, self: Any, document: Any) -> Any:
        return {**original(self, document), **change(document)}

    return _around(table_writer.TableWriter, "_options", options)


def _without_look_back(original: Any, self: Any, written: Any, document: Any, keys: Any) -> Any:
    if written.failure is not None:
        raise self.without_commit(written.failure, document) from written.failure
    return original(self, written, document, keys)


def _up_to_high_watermarks(original: Any, self: Any, *args: Any) -> None:
    original(self, *args)
    self._end = dict(self.high_watermarks)


def _with_the_plans_end(original: Any, self: Any, *args: Any) -> Any:
    left, found = self._left, original(self, *args)
    if found is not None:
        # It is past its splits: they follow from it.
        assert found.plan.splits is not None
        vars(found.plan)["state"] = left.state
    return found


def _not_emptied(original: Any, self: Any, *args: Any) -> Any:
    self._replaced = None
    return original(self, *args)


_NO_FENCE = _options(lambda _: {"txnAppId": uuid.uuid4().hex})
_NO_PRECHECK = _off((table_writer.TableWriter, "_check_unchanged"))
_NOTHING_BETWEEN = _off((table_writer, "check_between"), (anchor, "check_between"))
_OPEN_TRANSACTIONS = _around(Log, "__init__", _up_to_high_watermarks)

STREAM_MUTANTS: dict[str, Patch] = {
    "no fence": _NO_FENCE,
    "the fence has the number of the newest version": _options(lambda document: {"txnVersion": document.base_version}),
    "no precheck": _NO_PRECHECK,
    "no look at what came between": _NOTHING_BETWEEN,
    "a failed write is written again without a look back": _all(
        _NO_FENCE, _around(table_writer.TableWriter, "_judge", _without_look_back)
    ),
    # Each of the next two alone is made up for by the look back.
    "no lock, and no look back at other streams": _all(
        _as(table_port, "held", lambda _: contextlib.nullcontext()), _off((history, "check_alone"))
    ),
    "a look-up by time is one off": _around(
        Log, "offsets_for_times", lambda original, *args: {tp: at + 1 for tp, at in original(*args).items()}
    ),
    "an unknown end of a log is none": _as(Log, "cut_offsets", lambda *_: {}),
    "the topics' ids are not compared": _as(enumerator, "recreated_topics", lambda *_: {}),
    "after a commit nobody asks whether a log was cut off": _off((enumerator, "check_not_cut")),
    "the beginnings of logs are not compared": _as(enumerator, "broken_logs", lambda *_: []),
    "open transactions are read over": _OPEN_TRANSACTIONS,
    "new topic partitions begin at their ends": _as(
        enumerator, "_new_starts", lambda change, _, log: log.end_offsets(change.new)
    ),
    "a batch has the position of the whole plan": _around(
        enumerator.KafkaSourceEnumerator, "assign", _with_the_plans_end
    ),
    "splits of a batch that was not written are not given back": _off(
        (enumerator.KafkaSourceEnumerator, "add_splits_back")
    ),
    "a RESTORE is not followed": _off((anchor._Walk, "_go_on_at")),
    "a RESTORE is followed, but is not the fence": _around(
        anchor._Walk,
        "_anchor",
        lambda original, self, commit, *args: replace(original(self, commit, *args), version=commit.version),
    ),
    "what a RESTORE undid begins anew": _off((anchor._Walk, "_undone_start")),
    "an emptied table is not noticed": _around(anchor._Walk, "_found", _not_emptied),
    "other streams are not looked for": _off((delta_table, "check_shared")),
    "other streams are looked for neither just before the write nor behind it": _all(
        _as(table_writer, "shared_logs", lambda *_: []), _off((history, "check_alone"))
    ),
    "a copy of the position is trusted for ever": _as(ingest, "_is_fresh", lambda *_: True),
    # What it lets pass, the next run refuses to read on from.
    "a repeat does not look whether the logs still have its records, and any other log is tolerated": _off(
        (BatchWriter, "_check_still_in_log"), (stream_plan.StreamPlanner, "_may_have_another_log")
    ),
    "a table that another run has made meanwhile was never restored": _around(
        delta_table.DeltaTable, "made", lambda original, *args: replace(original(*args), undone_start=None)
    ),
}


def _until_any_entry(self: window_enumerator.WindowLogs, tp: TopicPartition, ms: int) -> TimestampedOffset | None:
    offset = self.entry(tp, ms)
    return None if offset == self.end[tp] else TimestampedOffset(offset, ms)


_NO_RETENTION = _off((window_enumerator, "check_retention"))

WINDOW_MUTANTS: dict[str, Patch] = {
    "windows are written over newer ones, and nobody looks before or behind": _off(
        (WindowedTable, "_check_unchanged"), (WindowedTable, "_check_between")
    ),
    "a window ends at any entry, also at a marker": _as(window_enumerator.WindowLogs, "record", _until_any_entry),
    "a window begins at the first record of its time, and not at the first entry": _around(
        window_enumerator.WindowLogs,
        "entry",
        lambda original, self, tp, ms: min(original(self, tp, ms) + 1, self.end[tp]),
    ),
    "a window ends where the next one begins": _as(window_enumerator.WindowLogs, "stop_time", lambda _, bound: bound),
    "nobody looks whether a topic was recreated while windows were planned": _off(
        (window_enumerator.WindowEnumerator, "_check_still_same")
    ),
    "nobody looks whether records of a window are deleted": _NO_RETENTION,
    "an empty log of which nothing is known has lost nothing": _as(
        TopicSettings, "is_unlimited", property(lambda _: False)
    ),
    "an open transaction holds back nothing": _as(window_enumerator, "_waiting", lambda *_: {}),
    "a window may still get records and is called complete": _as(
        window_enumerator, "with_completeness", lambda planned, *_: planned
    ),
    "windows of a topic that was made again": _as(window_enumerator, "check_identity", lambda *_: frozenset()),
    "nobody asks whether the logs of windows are the same, neither before a write nor behind it": _off(
        (window_enumerator.WindowEnumerator, "_check_still_same"),
        (window_enumerator.WindowEnumerator, "check_same_logs"),
    ),
    "rows of other topics are replaced, too": _as(Scope, "of", lambda *_: Scope(None)),
    "nobody looks whether the table has rows of records that are gone": _all(
        _as(rows_to_replace.RowsToReplace, "lost", lambda *_: ()), _NO_RETENTION
    ),
    "windows are read up to the high watermark": _OPEN_TRANSACTIONS,
}


def _any_read(original: Any, self: Any, *args: Any) -> Any:
    return next(iter(self._kept.values())) if self._kept else original(self, *args)


def _stop_after_start(self: Any, stop: Any) -> None:
    self.source = self.source.with_overrides(stopping_offsets=OffsetsInitializer.specific_offsets(stop))


TABLES_MUTANTS: dict[str, Patch] = {
    "each table is read to an end of its own": _off((StreamRun, "stop_at")),
    "what one table has read is what all read": _around(SharedRead, "__call__", _any_read),
    "the common stop has to be after the start that a user wrote": _as(RunSource, "stop_at", _stop_after_start),
    "a table that fails ends the others": _as(TablesInStep, "_step", lambda _, __, step: (step(), True)[1]),
}


def _letters_first(original: Any, self: Any, assignment: Any) -> Any:
    write, plan, letters = original(self, assignment), assignment.plan, self._letters
    version = self._planned.anchor.table_version + 1

    def both() -> Any:
        letters._settle(RoutedBatch(version, "", "", plan.splits, plan.state, letters.route()), reads=True)
        return write()

    return both


def _with_undone_settlement(original: Any, source: Any, target: Any, session: Any, to: Any) -> Any:
    move, table = original(source, target, session, to), delta_table.DeltaTable(session, target)
    last = table.last_document(table.history() or ())
    return replace(move, document=replace(move.document, settles=None if last is None else last[1].settles))


LETTERS_MUTANTS: dict[str, Patch] = {
    "dead letters are written and settled before the commit": _around(
        open_stream.OpenStream, "_attempt", _letters_first
    ),
    "dead letters of a run that died are not looked for": _off((dead_letter_table.DeadLetterTable, "settle_pending")),
    "an unknown number of rejected records is none": _around(
        dead_letter_table.DeadLetterTable,
        "settle",
        lambda original, self, batch, seen: original(self, batch, seen or Observed(0, 0, 0)),
    ),
    "nobody looks whether the table has the dead letters": _as(dead_letter_table, "maybe_landed", lambda *_: ()),
    "how far dead letters are settled goes back with the stream": _as(
        dead_letter_table, "furthest", lambda _, now: now
    ),
    "a dead-letter table that was set back is not noticed": _as(dead_letter_table, "is_set_back", lambda *_: False),
    "dead letters settle the next batch, too": _around(
        dead_letter_table, "_Letters", lambda original, splits, settles: original(splits, settles + 1)
    ),
    "dead letters that can't be read are none": _as(
        PendingDeadLetters, "readable", lambda _, splits, *__, moved: () if moved else splits
    ),
    "a moved position keeps what a RESTORE of the dead letters has undone": _around(
        story, "plan_move", _with_undone_settlement
    ),
    "a repair replaces all rows of its time, also of records that it does not read": _as(
        rows_to_replace, "records_predicate", lambda *_: "true"
    ),
    "a repair reads what the stream will read": _as(PlannedWindow, "before", lambda self, _: self),
}


def _clauses_with(pattern: str, other: str, of: str = "_replacing") -> Patch:
    return _around(merge, of, lambda original, *args: [re.sub(pattern, other, one) for one in original(*args)])


KEYED_MUTANTS: dict[str, Patch] = {
    "nobody looks again before a MERGE or behind it": _all(_NO_PRECHECK, _NOTHING_BETWEEN),
    "a position that went back forgets how far it reached": _as(
        EnumeratorState, "furthest", property(lambda self: self.position)
    ),
    "offsets are not compared": _as(merge, "_is_newer", lambda *_: "true"),
    "a change that is read again is newer than itself": _clauses_with(" > (?!0)", " >= "),
    "a row without an offset is newer than each record": _clauses_with("IS NULL THEN true", "IS NULL THEN false"),
    "files are left out by a bound that is one off": _around(
        merge, "_bound", lambda original, name, kind, end, value: original(name, kind, end.strip("="), value)
    ),
    "a tombstone is a row": _clauses_with("(NOT MATCHED) AND .*", r"\1"),
    "an ended row stays current": _clauses_with("= false", "= true", of="_ending"),
    "a delete that is kept takes the values away": _as(Changes, "values", lambda _: []),
    "a value that was left out is null": _clauses_with(
        r"CASE WHEN array_contains\([^)]*\) THEN \S+ ELSE (\S+) END", r"\1"
    ),
    "a value that was left out, and that nobody has, is null": _clauses_with(r"size\(", "-size("),
    "a rebuild takes the rows of the version before": _around(
        delta_table.DeltaTable, "rows", lambda original, self, version=None: original(self, version and version - 1)
    ),
    "a rebuild removes the rows of others": _off((rebuild, "_check_only_own")),
    "a rebuild takes what compaction left for all records": _off((rebuild, "_check_keeps_all")),
}


def _still_open(original: Any, self: Any, progress: Any) -> None:
    producer = self._producer
    original(self, progress)
    self._producer = producer


def _in_two(original: Any, self: Any, progress: Any) -> None:
    if self._begun is not None:
        self._until(60, "commit_transaction")
        self._begun = None
    original(self, progress)


def _read_first(original: Any, self: Any) -> Any:
    found = self.topic.read(settled=False)
    original(self)
    return found


PUBLISH_MUTANTS: dict[str, Patch] = {
    "all transactions of a run have one epoch": _around(Lane, "commit", _still_open),
    "the progress has a transaction of its own": _around(Lane, "commit", _in_two),
    "the progress is read before earlier producers are fenced": _around(Lanes, "own", _read_first),
    "nobody looks whether another run has published since": _as(Lanes, "own_again", lambda self, _: self.own()),
    "what is published of a version is forgotten": _as(Batches, "_reached", lambda _, position: position.progress),
    "lanes that are behind don't wait for the others": _as(
        publication, "plan_segments", lambda found, _, last: [Segment(max(each.version for each in found) + 1, last)]
    ),
    "nobody looks whether the table has an older history": _off((publication, "check_same_history")),
}

MUTANTS: dict[type[Story], dict[str, Patch]] = {
    Story: STREAM_MUTANTS,
    WindowStory: WINDOW_MUTANTS,
    TablesStory: TABLES_MUTANTS,
    LettersStory: LETTERS_MUTANTS,
    KeyedStory: KEYED_MUTANTS,
    PublishStory: PUBLISH_MUTANTS,
}
