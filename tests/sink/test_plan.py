"""What is read and published, from progress alone: no Kafka, no Spark."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from dagster_kafka_flip.errors import SinkProgressError
from dagster_kafka_flip.sink.batches import Batches
from dagster_kafka_flip.sink.progress import (
    Origin,
    Progress,
    SchemaIds,
    Segment,
    check_all_there,
    check_known,
    check_settings,
    check_sink,
    check_table,
    plan_segments,
)
from dagster_kafka_flip.sink.table_rows import DELETE, INSERT, PREVIOUS, UPDATED, TableRow


def at(
    version: int,
    rows: int = 0,
    lane: int = 0,
    lanes: int = 1,
    types: str = "id",
    ids: SchemaIds = (None, None),
) -> Progress:
    origin = Origin(3, snapshot=True)
    return Progress(lane, lanes, "o", "u", "t", "i", origin, version, rows, types, "s", schema_ids=ids)


def test_progress_is_what_was_written():
    assert Progress.from_bytes(at(4, 7).to_bytes(), "p-0 offset 1") == at(4, 7)


@pytest.mark.parametrize("record", [b"", b"\xff", b"{}", b"[]", b'{"dagster-kafka-flip-sink": 1}'])
def test_invalid_progress_is_refused(record):
    with pytest.raises(SinkProgressError, match="p-0 offset 1: the record is not a sink's progress"):
        Progress.from_bytes(record, "p-0 offset 1")


def test_progress_of_a_later_package_is_refused():
    later = at(1).to_bytes().replace(b'"dagster-kafka-flip-sink": 1', b'"dagster-kafka-flip-sink": 2')
    with pytest.raises(SinkProgressError, match=r"version 2.*Update"):
        Progress.from_bytes(later, "p-0 offset 1")


def test_progress_of_another_sink_table_or_order_is_refused():
    with pytest.raises(SinkProgressError, match="Set lanes=2"):
        check_sink({0: at(5, lanes=2)}, "s", 3, "other", "v")
    for topic_id in ("u", None):
        check_sink({0: at(5)}, "s", 1, "o", topic_id)
    with pytest.raises(SinkProgressError, match=r"recreated.* the id u\..*start=6"):
        check_sink({0: at(5)}, "s", 1, "o", "v")
    with pytest.raises(SinkProgressError, match=r"up to version 5 to the topic o, but .* p now.*start=6"):
        check_sink({0: at(5)}, "s", 1, "p", "u")
    with pytest.raises(SinkProgressError, match="up to version 5"):
        check_table({0: at(5)}, "s", "u", "another")
    with pytest.raises(SinkProgressError, match=r"version 6 in part \(lane 0: 2 rows\).* run with stop=6 until"):
        check_settings([at(5, 2)], "s", "other")
    with pytest.raises(SinkProgressError, match=r"version 6 in part \(lane 0: all of it\)"):
        check_settings([at(6), at(5, lane=1)], "s", "other")


def test_settings_changed_between_versions_hold_though_only_some_lanes_have_begun_with_them():
    begun = replace(at(6), settings="new")
    for lane in (begun, replace(at(5, 2), settings="new")):
        check_settings([lane, at(5, lane=1)], "s", "new")
    with pytest.raises(SinkProgressError, match="lane 0"):
        check_settings([begun, at(5, lane=1)], "s", at(5).settings)


def test_progress_behind_an_earlier_run_is_refused():
    check_known({0: at(5, 2)}, "s", "p", {})
    for known in ((5, 2), (5, 1), (4, 9)):
        check_known({0: at(5, 2)}, "s", "p", {0: known})
    for known in ((5, 3), (6, 0)):
        with pytest.raises(SinkProgressError, match=r"\(lane 0\), .* topic p has version 5 and 2 rows.*start="):
            check_known({0: at(5, 2)}, "s", "p", {0: known})
    with pytest.raises(SinkProgressError, match=r"\(lane 1\), .* has no progress"):
        check_known({0: at(5, 2)}, "s", "p", {0: (5, 2), 1: (5, 0)})


@pytest.mark.parametrize(
    ("known", "doubled"),
    [({0: (5, 0), 1: (5, 0)}, False), ({0: (6, 0), 1: (5, 0)}, True), ({0: (5, 2), 1: (5, 0)}, True)],
)
def test_the_printed_start_leaves_out_no_row_of_a_lane_that_is_less_far(known, doubled):
    with pytest.raises(SinkProgressError, match=r"set start=6 in the DeltaSource") as refused:
        check_known({}, "s", "p", known)
    assert ("(rows of version 6 and later that are in the topic" in str(refused.value)) == doubled
    lanes = {lane: at(version, lane=lane) for lane, (version, _) in known.items()}
    for refuse in (lambda: check_sink(lanes, "s", 1, "p", "u"), lambda: check_table(lanes, "s", "u", "another")):
        with pytest.raises(SinkProgressError, match=r"up to version 5\b.*start=6"):
            refuse()


def test_no_start_is_printed_that_would_leave_out_the_rest_of_a_snapshot():
    part, known = {0: at(2, 9)}, {0: (2, 9), 1: (2, 0)}
    for refuse in (
        lambda: check_sink(part, "s", 1, "p", "u"),
        lambda: check_sink(part, "s", 1, "o", "v"),
        lambda: check_table(part, "s", "u", "another"),
        lambda: check_all_there(part, "s", 2, "p"),
    ):
        with pytest.raises(SinkProgressError) as refused:
            refuse()
        assert re.search(r"start=\d", str(refused.value)) is None
    with pytest.raises(SinkProgressError, match="unless it ended within a snapshot, also set start=3"):
        check_known({}, "s", "p", known)


def test_a_lane_that_lost_its_progress_is_refused():
    # A first run may have died between the lanes: then none has published a row.
    check_all_there({}, "s", 2, "p")
    check_all_there({1: at(2)}, "s", 2, "p")
    check_all_there({0: at(5), 1: at(4)}, "s", 2, "p")
    for reached in (at(2, 1, lane=1), at(5, lane=1)):
        with pytest.raises(SinkProgressError, match=f"no progress of lane 0 .* lane 1 reached .* {reached.version}"):
            check_all_there({1: reached}, "s", 2, "p")


@pytest.mark.parametrize(
    ("found", "last", "planned"),
    [
        # The snapshot of version 3, and what follows it.
        ([at(2)], 3, [Segment(3, 3, is_snapshot=True)]),
        ([at(2)], 5, [Segment(3, 3, is_snapshot=True), Segment(4, 5)]),
        # The rest of a snapshot: with the schema that its first rows had, as another may be registered by now.
        ([at(2, 9, ids=(7, 8))], 5, [Segment(3, 3, True, "id", (7, 8)), Segment(4, 5)]),
        ([at(2), at(3, ids=(7, 8))], 5, [Segment(3, 3, True, "id", (7, 8)), Segment(4, 5)]),
        ([at(3)], 5, [Segment(4, 5)]),
        ([at(5)], 5, []),
        ([at(7)], 5, []),
        # In the middle of a version, and lanes apart: first as the furthest lane went.
        ([at(3, 2)], 5, [Segment(4, 4, types="id"), Segment(5, 5)]),
        ([at(3), at(5, types="x")], 6, [Segment(4, 5, types="x"), Segment(6, 6)]),
        ([at(3), at(5, 1, types="x")], 6, [Segment(4, 6, types="x")]),
        ([at(2), at(4)], 6, [Segment(3, 3, True, "id"), Segment(4, 4, types="id"), Segment(5, 6)]),
        # A stop below what one lane has.
        ([at(3), at(5)], 4, [Segment(4, 4, types="id")]),
    ],
)
def test_planned_segments(found, last, planned):
    assert plan_segments(found, Origin(3, snapshot=True), last) == planned


def _row(version: int, rank: int, key: bytes | None, value: bytes | None, lane: int = 0) -> TableRow:
    return TableRow(version, rank, key, value, lane, None, None, None, None)


def _taken(batches: Batches, rows: list[TableRow], last: int) -> list[TableRow]:
    taken: list[TableRow] = []
    for row in rows:
        if row.version != batches.version:
            taken += batches.turn_to(row.version)
        taken += batches.take(row)
    return [*taken, *batches.turn_to(last + 1)]


def test_a_tombstone_gives_way_to_the_row_that_takes_its_key():
    rows = [
        _row(4, DELETE, b"a", None),
        _row(4, INSERT, b"a", b"1"),
        _row(4, PREVIOUS, b"b", None),
        _row(4, UPDATED, b"b", b"2"),
        _row(4, DELETE, b"c", None),
        _row(4, DELETE, b"c", None),
        _row(4, PREVIOUS, b"d", None),
        _row(5, INSERT, b"d", b"3"),
    ]
    taken = _taken(Batches([at(3)], folds=True), rows, 5)
    assert [(row.version, row.key, row.value) for row in taken] == [
        (4, b"a", b"1"),
        (4, b"b", b"2"),
        (4, b"c", None),
        (4, b"d", None),
        (5, b"d", b"3"),
    ]
    assert _taken(Batches([at(3)], folds=False), rows, 5) == rows


@pytest.mark.parametrize(("there", "here"), [({"topic": "x"}, {"topic": "y"}), ({"partition": 0}, {"partition": 1})])
def test_a_tombstone_stays_if_the_row_that_takes_its_key_is_in_another_topic_or_partition(there, here):
    rows = [_row(4, PREVIOUS, b"a", None)._replace(**there), _row(4, UPDATED, b"a", b"1")._replace(**here)]
    assert _taken(Batches([at(3)], folds=True), rows, 4) == rows


def test_rows_without_a_key_are_never_folded():
    rows = [_row(4, DELETE, None, None), _row(4, DELETE, None, None), _row(4, INSERT, None, b"1")]
    assert _taken(Batches([at(3)], folds=True), rows, 4) == rows


@pytest.mark.parametrize(("first", "rows"), [(4, "1 row"), (5, "0 rows")])
def test_fewer_rows_than_were_published_are_an_error(first, rows):
    batches = Batches([at(3, 2)], folds=True)
    with pytest.raises(SinkProgressError, match=f"2 rows of table version 4 were published, .* only {rows} of it"):
        _taken(batches, [_row(first, INSERT, b"a", b"1")], 5)


def test_other_rows_than_were_published_are_an_error():
    def row(value: bytes) -> TableRow:
        return _row(4, INSERT, b"a", value)

    first = Batches([at(3)], folds=True)
    assert [*first.turn_to(4), *first.take(row(b"1")), *first.take(row(b"2"))] == [row(b"1"), row(b"2")]
    (reached,) = first.reached()
    assert _taken(Batches([reached], folds=True), [row(b"1"), row(b"2"), row(b"3")], 4) == [row(b"3")]
    with pytest.raises(SinkProgressError, match=r"2 rows of version 4 of t were published, .* are different now"):
        _taken(Batches([reached], folds=True), [row(b"1"), row(b"3"), row(b"4")], 4)
