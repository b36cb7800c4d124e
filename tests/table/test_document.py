"""The document in a commit's userMetadata."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_kafka_flip.errors import DocumentVersionError
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.table.document import CommitDocument, DeadLetterRoute, TableVersion
from tests.source.strategies import splits, states

_T0 = TopicPartition("t", 0)
_DOCUMENT = CommitDocument(
    stream="main",
    attempt="a1",
    run_id="r1",
    base_version=4,
    anchor_version=3,
    splits=(KafkaPartitionSplit(_T0, 5, 9),),
    state=EnumeratorState({_T0: 9}, "cluster", {"t": "id"}),
    rows_before=7,
)

_documents = st.builds(
    CommitDocument,
    stream=st.text(min_size=1, max_size=10),
    attempt=st.text(max_size=10),
    run_id=st.text(max_size=10),
    base_version=st.integers(0, 2**40),
    anchor_version=st.integers(0, 2**40),
    splits=st.lists(splits, max_size=4).map(lambda drawn: tuple(sorted(drawn))),
    state=states,
    rows_before=st.none() | st.integers(0, 2**50),
    overrides_start=st.booleans(),
)


@given(_documents)
def test_a_document_survives_its_text(document):
    assert CommitDocument.from_text(document.to_text()) == document


def test_the_text_is_compact_and_says_what_it_is():
    assert json.loads(_DOCUMENT.to_text()) == {
        "dagster-kafka-flip": 1,
        "stream": "main",
        "attempt": "a1",
        "run": "r1",
        "base": 4,
        "anchor": 3,
        "splits": {"version": 1, "ranges": {"t": [[0, [5], [4]]]}},
        "state": {"version": 1, "cluster": "cluster", "topics": {"t": "id"}, "position": {"t": [9]}},
        "rows_before": 7,
    }
    assert " " not in _DOCUMENT.to_text()
    assert json.loads(replace(_DOCUMENT, overrides_start=True).to_text())["overrides_start"] is True


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "by hand",
        '{"dagster": 1}',
        "dagster-kafka-flip",
        '"dagster-kafka-flip"',
        '["dagster-kafka-flip"]',
        "3",
        '{"note": "dagster-kafka-flip"}',
        "{dagster-kafka-flip",
    ],
)
def test_user_metadata_of_others_is_not_a_commit_document(text):
    assert CommitDocument.from_text(text) is None


def test_a_newer_document_is_refused():
    newer = json.dumps({**json.loads(_DOCUMENT.to_text()), "dagster-kafka-flip": 2})
    with pytest.raises(DocumentVersionError) as error:
        CommitDocument.from_text(newer)
    assert str(error.value) == (
        "a commit of this table was written by a newer dagster-kafka-flip (document version 2; this version reads up "
        "to 1): upgrade dagster-kafka-flip"
    )


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"splits": {"t": [[0, 5, 9]]}}, "KeyError: 'version'"),
        ({"state": None}, "TypeError: 'NoneType' object is not subscriptable"),
    ],
)
def test_an_unreadable_commit_document_is_refused_and_not_ignored(changes, cause):
    damaged = json.dumps({**json.loads(_DOCUMENT.to_text()), **changes})
    with pytest.raises(DocumentVersionError) as error:
        CommitDocument.from_text(damaged)
    assert str(error.value) == (
        f"a commit of this table contains a position that can't be read ({cause}): it is damaged, or was written by "
        "an early development version. Use another table"
    )


def test_a_document_says_where_rejected_records_go_and_what_is_settled():
    route = DeadLetterRoute("/lake/dead", "main-dead-letters", {"value": {"format": "x"}}, "an id", 6)
    own = replace(_DOCUMENT, dead_letter=route)
    routed = own.routed(7)
    assert routed is not None
    assert (routed.version, routed.attempt, routed.splits, routed.route) == (7, own.attempt, own.splits, route)
    assert CommitDocument.from_text(own.to_text()) == own

    carrying = CommitDocument.from_text(replace(_DOCUMENT, attempt="later", splits=(), carried=routed).to_text())
    assert carrying is not None
    assert carrying.routed(9) == routed, "a commit that moves the position speaks of the batch before"
    settling = replace(_DOCUMENT, settles=TableVersion("/lake/main", "an id", 7))
    assert CommitDocument.from_text(settling.to_text()) == settling
    assert (_DOCUMENT.routed(3), settling.routed(3)) == (None, None)
