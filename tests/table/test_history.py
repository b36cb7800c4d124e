"""The walk through history: what it passes over, what it stops at, and whose position it brings back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dagster_kafka_flip.errors import (
    DocumentVersionError,
    ForeignRowsError,
    PositionLostError,
    TableChangedError,
    TableReplacedError,
)
from dagster_kafka_flip.source.next_step import TOPIC, set_position
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.table.anchor import find_anchor
from dagster_kafka_flip.table.commit import Commit
from dagster_kafka_flip.table.delta_log import paged
from dagster_kafka_flip.table.document import WindowsDocument
from dagster_kafka_flip.table.history import check_between
from tests.table.commits import append, create, document_of, foreign, own, restore, state_at


def _find(*commits: Commit, stream: str = "main", has_rows: bool | None = None):
    """The anchor of a history that is given oldest first."""
    answer = None if has_rows is None else lambda: has_rows
    return find_anchor(reversed(commits), stream, "lake.t", has_rows=answer)


def _write(document):
    return Commit(int(document.attempt[-1]), "WRITE", {"mode": "Append"}, {}, document.to_text())


def _states(streams):
    return {stream: document.state for stream, document in streams.items()}


# --- what is passed over ------------------------------------------------------------------------------------------

HARMLESS = [
    append(2),
    append(2, rows=0),
    foreign(2, "OPTIMIZE", {"numAddedFiles": 1, "numRemovedFiles": 2}, predicate="[]", auto="true"),
    foreign(2, "OPTIMIZE CHECKPOINT"),
    foreign(2, "VACUUM START"),
    foreign(2, "VACUUM END", status="COMPLETED"),
    foreign(2, "REORG"),
    foreign(2, "SET TBLPROPERTIES"),
    foreign(2, "UNSET TBLPROPERTIES"),
    foreign(2, "ADD COLUMNS"),
    foreign(2, "CHANGE COLUMN"),
    foreign(2, "RENAME COLUMN"),
    foreign(2, "DROP COLUMNS"),
    foreign(2, "UPDATE SCHEMA"),
    foreign(2, "ADD CONSTRAINT"),
    foreign(2, "UPGRADE PROTOCOL"),
    foreign(2, "DROP FEATURE"),
    foreign(2, "COMPUTE STATS"),
    foreign(2, "CLUSTER BY"),
    foreign(2, "UPDATE", predicate='["(a = 1)"]'),
    foreign(2, "DELETE", predicate='["(a = 1)"]'),
    foreign(2, "MERGE", {"numTargetRowsInserted": 3}, predicate='["(a = b)"]'),
    foreign(2, "STREAMING UPDATE", {"numOutputRows": 3}, outputMode="Append"),
    foreign(2, "WRITE", {"numOutputRows": 3}, mode="Overwrite", predicate='["(a = 1)"]'),
    own(2, stream="other"),
]


def _name(commit: Commit) -> str:
    return f"{commit.operation} {dict(commit.parameters)}"


@pytest.mark.parametrize("commit", HARMLESS, ids=_name)
def test_the_position_is_valid_after_commits_that_leave_the_streams_rows_alone(commit):
    anchor = _find(create(), own(1), commit)
    assert (anchor.version, anchor.state, anchor.table_version) == (1, state_at(1), 2)


def test_only_the_needed_history_is_read():
    taken: list[int] = []

    def history():
        for version in range(1000, 0, -1):
            taken.append(version)
            yield own(version)

    assert find_anchor(history(), "main", "lake.t").version == 1000
    assert taken == [1000, 999], "the commit, and the one that the look at the position rests on"


# --- restore ------------------------------------------------------------------------------------------------------


def test_a_restore_to_a_time_stops_and_says_how_to_go_on():
    with pytest.raises(PositionLostError) as error:
        _find(create(), own(1), foreign(2, "RESTORE", version=None, timestamp="2026-01-01 00:00:00"))
    assert str(error.value) == (
        "version 2 of the table lake.t is a RESTORE to a timestamp (2026-01-01 00:00:00), and history does not record "
        "to which version. Restore the table once more, TO VERSION AS OF the version you want, which is before 2"
    )


# --- wipes --------------------------------------------------------------------------------------------------------

WIPES = [
    (foreign(2, "WRITE", mode="Overwrite", predicate="[]"), 'WRITE {"mode": "Overwrite", "predicate": "[]"}'),
    (foreign(2, "WRITE", mode="Overwrite"), 'WRITE {"mode": "Overwrite"}'),
    (foreign(2, "WRITE", mode="Overwrite", isDynamicPartitionOverwrite="true"), 'WRITE {"mode": "Overwrite"}'),
    (
        foreign(2, "WRITE", mode="Overwrite", predicate='["true"]'),
        'WRITE {"mode": "Overwrite", "predicate": "[\\"true\\"]"}',
    ),
    (foreign(2, "TRUNCATE"), "TRUNCATE"),
    (foreign(2, "DELETE", predicate='["true"]'), 'DELETE {"predicate": "[\\"true\\"]"}'),
    (foreign(2, "DELETE", predicate="[]"), 'DELETE {"predicate": "[]"}'),
    (foreign(2, "CREATE OR REPLACE TABLE"), "CREATE OR REPLACE TABLE"),
    (foreign(2, "CREATE OR REPLACE TABLE AS SELECT"), "CREATE OR REPLACE TABLE AS SELECT"),
    (foreign(2, "REPLACE TABLE"), "REPLACE TABLE"),
    (foreign(2, "REPLACE TABLE AS SELECT"), "REPLACE TABLE AS SELECT"),
    (foreign(2, "CLONE"), "CLONE"),
    (foreign(2, "STREAMING UPDATE", outputMode="Complete"), "STREAMING UPDATE"),
]


@pytest.mark.parametrize(("commit", "shown"), WIPES, ids=[shown for _, shown in WIPES])
def test_a_wipe_since_the_streams_last_commit_is_an_error(commit, shown):
    with pytest.raises(TableReplacedError) as error:
        _find(create(), own(1), commit, append(3))
    assert str(error.value) == (
        f"the table lake.t was replaced or its rows were deleted: version 2 is a {shown}, after version 1, the last "
        "commit of the stream 'main'. Continuing from the position would not restore the "
        "deleted rows. RESTORE the table to version 1, or use another table to read everything again"
    )


@pytest.mark.parametrize(("commit", "shown"), WIPES, ids=[shown for _, shown in WIPES])
def test_a_wipe_before_the_streams_first_commit_is_where_its_table_begins(commit, shown):
    anchor = _find(create(), append(1), commit, foreign(3, "OPTIMIZE"), has_rows=False)
    assert (anchor.version, anchor.state, anchor.table_version) == (2, None, 3)


@pytest.mark.parametrize(
    "commit",
    [
        foreign(2, "WRITE", {"numOutputRows": 3}, mode="Overwrite", predicate="[]"),
        foreign(2, "CREATE OR REPLACE TABLE AS SELECT", {"numOutputRows": 3}),
        foreign(2, "CLONE", {"sourceNumOfFiles": 1}),
    ],
    ids=_name,
)
def test_a_replacement_with_rows_of_its_own_is_not_a_new_table(commit):
    with pytest.raises(ForeignRowsError, match=rf"rows that no stream wrote \(version 2, {commit.operation}\)"):
        _find(create(), append(1), commit)


# --- rows of others, and a history that does not say --------------------------------------------------------------


@pytest.mark.parametrize(
    ("commits", "version"),
    [
        ([create(), append(1, rows=4)], 1),
        ([create(), append(1, rows=4), append(2, rows=5)], 2),
        ([create(), own(1, stream="other"), append(2)], 2),
        ([create(), foreign(1, "MERGE", {"numTargetRowsInserted": 3}, predicate="[]")], 1),
        ([create(), foreign(1, "STREAMING UPDATE", {"numOutputRows": 3}, outputMode="Append")], 1),
        ([create(), foreign(1, "WRITE", {"numOutputRows": 3}, mode="Overwrite", predicate='["(a = 1)"]')], 1),
        ([foreign(0, "CREATE TABLE AS SELECT", {"numOutputRows": 3})], 0),
        ([foreign(0, "WRITE", {"numOutputRows": 3}, mode="ErrorIfExists")], 0),
        ([foreign(0, "CLONE", {"sourceNumOfFiles": 2})], 0),
        ([foreign(0, "CONVERT", {"numConvertedFiles": 2})], 0),
    ],
)
def test_rows_of_others_in_a_table_without_a_position_are_an_error(commits, version):
    with pytest.raises(ForeignRowsError) as error:
        _find(*commits)
    operation = commits[version].operation
    assert str(error.value) == (
        f"the table lake.t has rows that no stream wrote (version {version}, {operation}), and the stream 'main' has "
        "no position in it. Reading the topic from the beginning could duplicate these rows. Use "
        "another table; or, if you know the last offsets of these rows, set the position: "
        + set_position("lake.t", "main", topics=TOPIC)
    )


def test_a_table_that_others_made_but_did_not_fill_is_a_beginning():
    for commits in (
        [create()],
        [foreign(0, "CREATE TABLE AS SELECT", {"numOutputRows": 0})],
        [foreign(0, "CLONE", {"sourceNumOfFiles": 0})],
        [create(), append(1, rows=0)],
        [create(), foreign(1, "MERGE", {"numOutputRows": 3, "numTargetRowsInserted": 0}, predicate="[]")],
        [create(), foreign(1, "DELETE", {"numDeletedRows": 0}, predicate='["(a = 1)"]')],
        [create(), own(1, stream="other")],
    ):
        anchor = _find(*commits)
        assert (anchor.version, anchor.state, anchor.table_version) == (0, None, len(commits) - 1)


def test_an_unknown_operation_stops():
    with pytest.raises(PositionLostError) as error:
        _find(create(), own(1), foreign(2, "MYSTERY"))
    assert str(error.value) == (
        "version 2 of the table lake.t is a MYSTERY, which this version of dagster-kafka-flip does not know. It may "
        "have removed earlier rows, so nothing was read. Upgrade dagster-kafka-flip. Or, if it removed no rows, set "
        f"the position to where the stream's last commit ended: {set_position('lake.t', 'main', topics=TOPIC)}. Or "
        "RESTORE the table to version 1, from which the next run continues"
    )
    assert "latest" not in str(error.value)


def test_a_commit_that_does_not_tell_what_it_did_stops():
    with pytest.raises(PositionLostError) as error:
        _find(create(), own(1), foreign(2, None))
    assert str(error.value) == (
        "version 2 of the table lake.t does not tell what it did: its file in _delta_log is empty, as after a power "
        "failure, or its writer left that out. It may have removed earlier rows, or lack some, so nothing was read. "
        "Put the file back from a backup. Or RESTORE the table to version 1, from which the next run continues"
    )


def test_history_that_ends_before_the_position_stops():
    for commits in ([append(7), append(8)], [own(7, stream="other"), append(8)], [restore(7, 3), append(8)]):
        with pytest.raises(PositionLostError) as error:
            _find(*commits)
        assert str(error.value) == (
            "the table lake.t no longer has the history that holds the position of the stream 'main': its oldest "
            "commit is version 7, and it holds no commit of the stream. Delta removes commits after "
            "delta.logRetentionDuration. Check the table's last offsets, and set the position: "
            f"{set_position('lake.t', 'main', topics=TOPIC)}"
        )


def test_a_document_of_a_newer_version_stops():
    newer = Commit(2, "WRITE", {}, {}, '{"dagster-kafka-flip":2}')
    with pytest.raises(DocumentVersionError, match=r"written by a newer dagster-kafka-flip \(document version 2; "):
        _find(create(), own(1), newer)


# --- between the look at the position and the commit --------------------------------------------------------------


@pytest.mark.parametrize(
    ("commit", "shown"),
    [(restore(2, 0), 'RESTORE {"version": "0"}'), (foreign(2, "MYSTERY"), "MYSTERY"), *WIPES],
    ids=lambda value: None if isinstance(value, Commit) else value,
)
def test_rows_removed_while_the_last_commit_was_written_are_an_error(commit, shown):
    with pytest.raises(TableChangedError) as error:
        _find(create(), own(1), commit, append(3), own(4, base=1), append(5))
    kept = 3 if commit.operation == "RESTORE" else 1
    assert str(error.value) == (
        f"version 2 of the table lake.t is a {shown} between the reading of the position (version 1) and the commit "
        f"of the batch (version 4). Rows in between may be missing. RESTORE the table to version {kept} or earlier, "
        "from which the next run continues"
    )


@pytest.mark.parametrize("later", [0, 7, 20])
def test_a_batch_that_continues_from_a_commit_of_an_earlier_table_is_an_error(later):
    batch = own(4, base=3, anchor=2, after="attempt-2")
    others = [append(5 + number) for number in range(later)]
    with pytest.raises(TableChangedError, match=r"version 2 is another commit \(WRITE\)"):
        _find(create(), append(1), append(2), append(3), batch, *others)
    # The same batch in its own table.
    assert _find(create(), append(1), own(2), append(3), batch, *others).state == state_at(4)


def test_a_fence_that_did_not_hold_is_an_error_and_the_way_out_is_a_restore():
    history = [create(), own(1), own(2, base=1), append(4), own(5, base=1), append(6)]
    with pytest.raises(TableChangedError) as error:
        _find(*history)
    assert str(error.value) == (
        "versions 2 and 5 of the table lake.t both belong to the stream 'main', and the later one was planned at "
        "version 1, before the earlier one was committed: the table may hold duplicates. Delta removed the "
        "transaction version of the earlier one (delta.setTransactionRetentionDuration). Set this property to longer "
        "than any run takes, and RESTORE the table to version 4, from which the next run continues"
    )
    assert _find(*history, restore(7, 4)).state == state_at(2)


# --- the number of rows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("commits", "rows"),
    [
        ([create()], 0),
        ([create(), own(1, stream="other", rows=4)], 4),
        ([create(), own(1, rows=5, rows_before=2)], 7),
        ([create(), own(1, rows=5, rows_before=2), append(2, rows=3), own(3, rows=4, stream="other")], 14),
        ([create(), own(1, rows=5, rows_before=2), foreign(2, "OPTIMIZE"), append(3, rows=3)], 10),
        ([create(), own(1, rows=5)], None),
        ([create(), own(1, rows=5, rows_before=2), foreign(2, "DELETE", predicate='["(a = 1)"]')], None),
        ([create(), own(1, rows=5, rows_before=2), foreign(2, "MERGE")], None),
        ([create(), own(1, rows=5, rows_before=2), restore(2, 1)], None),
        # What came between the look and the commit is not in the rows before it.
        ([create(), append(1), append(2), own(3, rows=5, rows_before=1, base=1)], None),
        ([create(), foreign(1, "TRUNCATE")], None),
    ],
)
def test_the_tables_rows_are_reported_if_history_has_them(commits, rows):
    assert _find(*commits).table_rows == rows


def test_a_missing_metric_is_unknown_and_not_zero():
    metrics = ({}, {"n": ""}, {"n": "many"}, {"n": "0"}, {"n": "7"})
    assert [Commit(0, "X", {}, each).metric("n") for each in metrics] == [None, None, None, 0, 7]


_UNCOUNTED = [
    foreign(1, "WRITE", mode="Append"),
    foreign(1, "WRITE", {"num_added_rows": 3}, mode="Append"),
    foreign(1, "MERGE", predicate="[]"),
    foreign(1, "STREAMING UPDATE", outputMode="Append"),
    foreign(1, "CONVERT"),
    Commit(0, "CREATE TABLE", {}, {}, engine="delta-rs:0.9"),
]


@pytest.mark.parametrize("commit", _UNCOUNTED, ids=_name)
def test_uncounted_rows_are_looked_up_in_the_table(commit):
    history = [commit] if commit.version == 0 else [create(), commit]
    for has_rows in (True, None):
        with pytest.raises(ForeignRowsError) as error:
            _find(*history, has_rows=has_rows)
        assert str(error.value).startswith(
            f"the table lake.t has rows that no stream wrote (version {commit.version}, {commit.operation}, whose row "
            "count is not in the history; the table has rows), and the stream 'main' has no position in it."
        )
    anchor = _find(*history, has_rows=False)
    assert (anchor.state, anchor.table_rows) == (None, 0)


def test_a_rebuild_that_a_restore_has_undone_is_not_where_the_stream_begins_again():
    rebuilt = Commit(1, "WRITE", {"mode": "Overwrite", "predicate": '["true"]'}, {}, document_of(1).to_text())
    assert _find(create(), own(1), restore(2, 0)).undone_start == state_at(1)
    assert _find(create(), rebuilt, restore(2, 0)).undone_start is None


@pytest.mark.parametrize("between", [append(2), foreign(2, "DELETE", predicate='["(a = 1)"]')])
def test_each_later_run_tells_of_rows_that_came_while_a_rebuild_that_died_replaced_them_all(between):
    rebuilt = Commit(3, "WRITE", {"mode": "Overwrite", "predicate": '["true"]'}, {}, document_of(3, base=1).to_text())
    with pytest.raises(TableChangedError, match=r"version 2 \(.* RESTORE the table to version 2, and rebuild it again"):
        _find(create(), own(1), between, rebuilt)
    assert _find(create(), own(1), foreign(2, "OPTIMIZE"), rebuilt).version == 3


def test_a_repair_of_one_stream_does_not_refuse_a_second_one():
    document = WindowsDocument(
        attempt="a", run_id="r", base_version=1, windows=(), splits=(), state=state_at(1), repairs="main"
    )
    repair = Commit(
        2, "WRITE", {"mode": "Overwrite", "predicate": '["(a = 1)"]'}, {"numOutputRows": "3"}, document.to_text()
    )
    assert _find(create(), own(1), repair, stream="second").state is None


def test_the_later_of_two_streams_with_equal_first_batches_is_refused_with_numbers_by_every_run():
    split = KafkaPartitionSplit(TopicPartition("t", 0), 0, 40)
    first = replace(document_of(1, stream="other", base=0), splits=(split,))
    second = replace(document_of(2, base=0), splits=(replace(split, starting_offset=10),))
    for find in (
        lambda one, two: check_between([one], second, two, "lake.t"),
        lambda one, two: _find(create(), one, two),
    ):
        with pytest.raises(TableChangedError) as error:
            find(_write(first), _write(second))
        assert str(error.value) == (
            "versions 1 (the stream 'other') and 2 (the stream 'main') of the table lake.t both contain t-0, and the "
            "later one was planned before the earlier one was committed: up to 30 records of these two batches may be "
            "there twice. RESTORE the table to version 1, which removes this batch; then use another table for one of "
            "the two"
        )
    elsewhere = replace(second, state=EnumeratorState({TopicPartition("u", 0): 1}))
    assert _find(create(), _write(first), _write(elsewhere)).version == 2
    assert _find(create(), append(1), _write(second)).version == 2


def test_a_table_that_became_one_of_windows_during_a_batch_is_reported_by_every_run():
    marked = foreign(1, "SET TBLPROPERTIES", properties='{"dagster-kafka-flip.windows":"daily"}')
    with pytest.raises(TableChangedError, match=r"version 1 wrote windows to lake\.t"):
        _find(create(), marked, own(2, base=0))


def test_commits_that_arrive_while_history_is_paged_through_neither_repeat_nor_hide_one():
    newest = [30]

    def page(limit: int) -> list[Commit]:
        found = [append(version) for version in range(newest[0], max(-1, newest[0] - limit), -1)]
        newest[0] += 45
        return found

    assert [commit.version for commit in paged(page, 3)] == list(range(30, -1, -1))
