"""Whether a stream's commits join, told by commits as history shows them."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from dagster_kafka_flip.checks.table_contents import Break, continuity
from dagster_kafka_flip.source.incident import Incident
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.table.commit import Commit
from dagster_kafka_flip.table.document import CommitDocument
from tests.table.commits import append, create, foreign, restore

TP = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)


def lands(version, start, stop, *, stream="main", tp=TP, state=None, **changes):
    """A stream's commit that reads a range of a topic partition."""
    document = CommitDocument(
        stream=stream,
        attempt=f"attempt-{version}",
        run_id="run",
        base_version=version - 1,
        anchor_version=version - 1,
        splits=(KafkaPartitionSplit(tp, start, stop),) if start < stop else (),
        state=state or EnumeratorState({tp: stop}),
        **changes,
    )
    return Commit(version, "WRITE", {"mode": "Append"}, {"numOutputRows": "1"}, document.to_text())


def breaks(*oldest_first):
    return continuity(list(reversed(oldest_first)), "main").breaks


def tolerated(error):
    return (Incident(error, "met", 1),)


def test_commits_that_begin_where_the_one_before_ended_join():
    found = continuity([lands(3, 10, 12), append(2), lands(1, 0, 10), create()], "main")
    assert found.breaks == ()
    assert (found.from_version, found.to_version, found.commits) == (0, 3, 2)


def test_skipped_and_repeated_offsets_are_counted():
    assert breaks(lands(1, 0, 10), lands(2, 13, 15)) == (Break(2, "3 offsets skipped since version 1, on t-0", 3, 0),)
    assert breaks(lands(1, 0, 10), lands(2, 8, 15)) == (Break(2, "2 offsets repeated since version 1, on t-0", 0, 2),)


def test_a_commit_that_claims_more_than_it_read_has_skipped_it():
    (found,) = breaks(lands(1, 0, 10), lands(2, 10, 12, state=EnumeratorState({TP: 20})))
    assert (found.skipped, found.repeated) == (8, 0)


def test_a_commit_that_only_keeps_the_position_joins_and_one_that_moves_it_does_not():
    assert breaks(lands(1, 0, 10), lands(2, 10, 10), lands(3, 10, 12)) == ()
    (found,) = breaks(lands(1, 0, 10), lands(2, 17, 17))
    assert (found.skipped, found.reason) == (7, None)


def test_a_topic_partition_that_came_later_starts_where_it_likes_and_one_that_is_forgotten_is_reported():
    both = EnumeratorState({TP: 10, OTHER: 500})
    assert breaks(lands(1, 0, 10), lands(2, 400, 500, tp=OTHER, state=both)) == ()
    (found,) = breaks(lands(1, 0, 10, state=both), lands(2, 10, 12))
    assert found.what == "no longer has a position of t-1"


def test_manual_moves_and_start_overrides_are_reported():
    (set_by_hand,) = breaks(lands(1, 0, 10), lands(2, 20, 20, overrides_start=True, reason="bad batch"))
    assert (set_by_hand.skipped, set_by_hand.reason) == (10, "position moved manually: bad batch")
    (started,) = breaks(lands(1, 0, 10), lands(2, 0, 20, overrides_start=True))
    assert (started.repeated, started.reason) == (10, "start was overridden")


def test_a_tolerated_error_that_moves_the_position_is_its_reason():
    gone = tolerated("RetentionOvertookPositionError")
    (found,) = breaks(lands(1, 0, 10), lands(2, 15, 20, incidents=gone))
    assert found.reason == "tolerated: RetentionOvertookPositionError"
    (found,) = breaks(lands(1, 0, 10), lands(2, 15, 20, incidents=tolerated("TopicNotFoundError")))
    assert found.reason is None


def test_another_topic_or_cluster_does_not_join_and_unknown_ids_count_as_the_same():
    def at(offset, topic_id=None, cluster=None):
        return EnumeratorState({TP: offset}, cluster, {} if topic_id is None else {"t": topic_id})

    (found,) = breaks(lands(1, 0, 10, state=at(10, "old")), lands(2, 10, 12, state=at(12, "new")))
    assert found.what == "belongs to another topic or cluster for t-0"
    assert breaks(lands(1, 0, 10, state=at(10, None, "c")), lands(2, 10, 12, state=at(12, "new", "c"))) == ()
    assert breaks(lands(1, 0, 10, state=at(10, None, "c")), lands(2, 10, 12, state=at(12, None, "d"))) != ()


def test_a_restore_takes_back_the_commits_after_its_version():
    landed = [create(), lands(1, 0, 10), lands(2, 10, 20), restore(3, to=1)]
    assert breaks(*landed, lands(4, 10, 20)) == ()
    (found,) = breaks(*landed, lands(4, 20, 30))
    assert found == Break(4, "10 offsets skipped since version 1, on t-0", 10)
    (found,) = breaks(*landed, restore(4, to=2), lands(5, 10, 20))
    assert found.repeated == 10


def test_a_break_that_a_restore_has_taken_back_is_none():
    gap = [lands(1, 0, 10), lands(2, 15, 20)]
    assert len(breaks(*gap)) == 1
    assert breaks(*gap, restore(3, to=1), lands(4, 10, 20)) == ()
    assert len(breaks(*gap, lands(3, 20, 30), restore(4, to=2))) == 1
    unknown = foreign(3, "RESTORE", version=None, timestamp="2026-01-01 00:00:00")
    assert len(breaks(*gap, unknown)) == 1, "it may be there still"


def test_a_restore_to_before_the_known_commits_starts_again():
    assert breaks(lands(6, 50, 60), restore(7, to=3), lands(8, 20, 30), lands(9, 30, 31)) == ()


def test_a_wipe_is_reported_until_it_is_tolerated():
    wipe = foreign(2, "TRUNCATE")
    (found,) = breaks(lands(1, 0, 10), wipe)
    assert (found.version, found.reason) == (2, None)
    assert found.what == "a TRUNCATE; rows that the stream wrote up to version 1 may be gone"
    (found,) = breaks(lands(1, 0, 10), wipe, lands(3, 10, 20, incidents=tolerated("TableReplacedError")))
    assert found.reason == "tolerated: TableReplacedError"
    (found,) = breaks(lands(1, 0, 10), wipe, lands(3, 10, 20))
    assert found.reason is None, "it was planned before the wipe, and written after it"
    assert breaks(lands(1, 0, 10), wipe, restore(3, to=1), lands(4, 10, 20)) == ()
    assert breaks(create(), foreign(1, "CREATE OR REPLACE TABLE"), lands(2, 0, 10)) == ()


def test_changes_by_others_are_counted_and_other_streams_ignored():
    deleted = foreign(2, "DELETE", predicate='["id = 1"]')
    found = continuity([lands(4, 10, 12), lands(3, 5, 6, stream="eu"), deleted, lands(1, 0, 10)], "main")
    assert (found.breaks, found.changes, found.commits) == ((), 1, 2)
    assert continuity([], "main").from_version is None


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(-5, 5)), min_size=1, max_size=12))
def test_skipped_and_repeated_offsets_add_up_to_the_position(steps):
    position = 100
    commits = [lands(1, 0, 100)]
    read = 100
    for version, (span, jump) in enumerate(steps, 2):
        commits.append(lands(version, position + jump, position + jump + span))
        position += jump + span
        read += span
    found = breaks(*commits)
    assert read + sum(each.skipped - each.repeated for each in found) == position
    assert len(found) == sum(1 for _, jump in steps if jump)


def test_a_break_says_where_what_and_why():
    found = Break(7, "3 offsets skipped", 3)
    assert str(found) == "version 7: 3 offsets skipped"
    assert str(dataclasses.replace(found, reason="position moved manually")) == (
        "version 7: 3 offsets skipped (position moved manually)"
    )
