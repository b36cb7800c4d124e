"""The document of a commit that replaces windows."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_kafka_flip.errors import DocumentVersionError, PositionLostError
from dagster_kafka_flip.source.incident import Incident
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.source.window import Window
from dagster_kafka_flip.table.commit import Commit
from dagster_kafka_flip.table.delta_table import DeltaTable
from dagster_kafka_flip.table.document import CommitDocument, WindowsDocument
from dagster_kafka_flip.table.target import DeltaTarget
from dagster_kafka_flip.table.windowed_table import WindowedTable
from tests.source.strategies import splits, states, topics

_MARK = "dagster-kafka-flip/windows"
_T0 = TopicPartition("t", 0)
_A, _B, _C = Window("a", 0, 10), Window("b", 10, 20), Window("c", 20, 30)
_DOCUMENT = WindowsDocument(
    attempt="a1",
    run_id="r1",
    base_version=4,
    windows=(_A, _B),
    splits=(KafkaPartitionSplit(_T0, 5, 9),),
    state=EnumeratorState({_T0: 9}, "cluster", {"t": "id"}),
)

_windows = st.builds(
    lambda key, start, length: Window(key, start, start + length),
    st.text(max_size=10),
    st.integers(0, 2**41),
    st.integers(1, 2**35),
)
_incidents = st.builds(
    Incident, error=st.text(max_size=8), message=st.text(max_size=30), lost_offsets=st.none() | st.integers(0, 2**40)
)
_documents = st.builds(
    WindowsDocument,
    attempt=st.text(max_size=10),
    run_id=st.text(max_size=10),
    base_version=st.integers(-1, 2**40),
    windows=st.lists(_windows, max_size=4).map(tuple),
    splits=st.lists(splits, max_size=4).map(lambda drawn: tuple(sorted(drawn))),
    state=states,
    topics=st.none() | st.lists(topics, max_size=3).map(tuple),
    repairs=st.none() | st.text(max_size=8),
    incidents=st.lists(_incidents, max_size=2).map(tuple),
    until_ms=st.none() | st.integers(0, 2**42),
    schemas=st.dictionaries(st.sampled_from(["key", "value"]), st.lists(st.text(max_size=10), max_size=3)),
)


@given(_documents)
def test_a_document_survives_its_text(document):
    assert WindowsDocument.from_text(document.to_text()) == document


@pytest.mark.parametrize(
    "text", [None, "", "{}", "no JSON", f'{{"{_MARK}": 1', f'["{_MARK}"]', f'"{_MARK}"', f'{{"other": "{_MARK}"}}']
)
def test_other_text_is_not_a_document(text):
    assert WindowsDocument.from_text(text) is None


def test_documents_of_streams_and_of_windows_are_not_confused():
    stream = CommitDocument(
        stream="main",
        attempt="a1",
        run_id="r1",
        base_version=4,
        anchor_version=3,
        splits=_DOCUMENT.splits,
        state=_DOCUMENT.state,
        rows_before=7,
    )
    assert WindowsDocument.from_text(stream.to_text()) is None
    assert CommitDocument.from_text(_DOCUMENT.to_text()) is None


def _changed(**changes):
    return json.dumps(json.loads(_DOCUMENT.to_text()) | changes)


def test_a_newer_version_is_refused_and_not_misread():
    with pytest.raises(DocumentVersionError, match=r"\(document version 2; this .* reads up to 1\): upgrade"):
        WindowsDocument.from_text(_changed(**{_MARK: 2}))


@pytest.mark.parametrize("missing", ["attempt", "run", "base", "windows", "splits", "state"])
def test_a_document_with_a_part_missing_was_damaged(missing):
    document = json.loads(_DOCUMENT.to_text())
    del document[missing]
    with pytest.raises(DocumentVersionError, match=rf"can't be read \(KeyError: '{missing}'\): it is damaged"):
        WindowsDocument.from_text(json.dumps(document))


@pytest.mark.parametrize(
    ("windows", "topics", "other_topics", "expected"),
    [
        ((_B, _C), None, None, True),
        ((_C,), None, None, False),
        ((Window("half of b", 15, 20), _C), None, None, True),
        ((_B,), ("t",), None, True),
        ((_B,), None, ("t",), True),
        ((_B,), ("t",), ("u",), False),
        ((_B,), ("t", "u"), ("u",), True),
        ((_C,), ("u",), ("u",), False),
    ],
)
def test_documents_overlap_where_a_window_and_a_topic_are_in_both(windows, topics, other_topics, expected):
    one = replace(_DOCUMENT, topics=topics)
    other = replace(_DOCUMENT, windows=windows, topics=other_topics)
    assert one.overlaps(other) is expected
    assert other.overlaps(one) is expected


@pytest.mark.parametrize(
    "text",
    [
        '{"dagster-kafka-flip/windows": "1"}',
        '{"dagster-kafka-flip/windows": null}',
        *(
            json.dumps({**json.loads(_DOCUMENT.to_text()), **damage})
            for damage in ({"windows": [["a", 10, 0]]}, {"splits": {"version": 1, "ranges": []}})
        ),
    ],
)
def test_a_damaged_document_is_reported_as_damaged(text):
    with pytest.raises(DocumentVersionError, match="it is damaged"):
        WindowsDocument.from_text(text)


def _walked(monkeypatch, commit):
    """The numbers of the commits that a look at a table of 41 of them reads, newest first, and what it found."""
    read: list[int] = []

    def commits(_):
        for version in range(40, -1, -1):
            read.append(version)
            yield commit(version)

    monkeypatch.setattr(DeltaTable, "__init__", lambda table, _, target, *__, **___: setattr(table, "target", target))
    monkeypatch.setattr(DeltaTable, "commits", commits)
    table: Any = WindowedTable(cast("Any", None), DeltaTarget(table="/lake/t"), "hours")
    return read, table._walk()


def _write(version):
    document = replace(_DOCUMENT, windows=(Window(str(version), version, version + 1),))
    return Commit(version, "WRITE", {"mode": "Overwrite"}, {}, document.to_text())


def test_a_look_at_exact_windows_stops_at_a_restore_to_a_time_behind_the_last_ones(monkeypatch):
    restore = Commit(40, "RESTORE", {"version": None, "timestamp": "2026-01-01"}, {})
    with pytest.raises(PositionLostError, match=r"version 40 of the table /lake/t is a RESTORE to a timestamp"):
        _walked(monkeypatch, lambda version: restore if version == restore.version else _write(version))
