"""What a run reports of itself: nothing that is not known, and nothing that it only wanted to do."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest
from dagster import AssetKey, AssetMaterialization

from dagster_kafka_flip.assets.metadata import result_metadata, shown
from dagster_kafka_flip.assets.position_record import Record
from dagster_kafka_flip.assets.run_checks import Findings, check_results
from dagster_kafka_flip.formats.fields import FieldsSeen
from dagster_kafka_flip.ingestion.facts import moment
from dagster_kafka_flip.ingestion.observation import Observed
from dagster_kafka_flip.ingestion.result import BatchResult, IngestResult, UnreportedCommits
from dagster_kafka_flip.ingestion.stream_plan import unreported_commits
from dagster_kafka_flip.source.incident import Incident
from dagster_kafka_flip.source.plan import ReadPlan
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.table.commit import Commit, Committed
from dagster_kafka_flip.table.document import CommitDocument
from dagster_kafka_flip.table.known_position import KnownPosition
from dagster_kafka_flip.table.target import DeltaTarget
from tests.table.commits import restore

_FIRST, _SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def _result(position, *, incidents=(), unreported=None):
    ends = {_FIRST: 10, _SECOND: 4}
    plan = ReadPlan(EnumeratorState(ends), ends, ends, starting_position={_FIRST: 3, _SECOND: 1})
    known = KnownPosition("main", "/t", EnumeratorState(position), datetime.now(tz=timezone.utc), 1)
    return IngestResult(plan, (), known, incidents=incidents, unreported=unreported)


def test_a_topic_partition_that_the_position_lacks_is_shown_where_it_was_and_ends_no_run():
    result = _result({_FIRST: 10})
    assert result.lag_after == 3
    records = result_metadata(result, None)["kafka/position"].records
    assert [tuple(row.data.values()) for row in records] == [("t-0", 10, 7, 0), ("t-1", 1, 0, 3)]


@pytest.mark.parametrize("milliseconds", [1_700_000_000_123, 1_700_000_000_123_456])
def test_an_idle_run_repeats_the_watermark_also_one_that_is_beyond_every_date(milliseconds):
    reported = shown({"kafka/watermark": moment(milliseconds)})
    previous = AssetMaterialization(AssetKey("a"), metadata=reported)
    metadata = result_metadata(_result({}), previous)
    assert metadata["kafka/watermark"] == previous.metadata["kafka/watermark"]
    assert "seconds/end_to_end_delay" not in metadata


def test_an_unknown_number_of_lost_records_is_not_zero():
    lost = Incident("RetentionOvertookPositionError", "two are gone", 2)
    unknown = Incident("TopicRecreatedError", "another topic", None)
    assert result_metadata(_result({}, incidents=(lost,)), None)["kafka/lost_offsets"] == 2
    assert "kafka/lost_offsets" not in result_metadata(_result({}, incidents=(lost, unknown)), None)
    (check,) = check_results(["no_records_lost"], AssetKey("a"), Findings((lost, unknown), 0))
    assert (check.passed, check.metadata["lost_offsets"].value) == (False, "unknown")


def _commit(version, *, stream="main", reason=None, incidents=(), rows: str | None = "3"):
    state = EnumeratorState({_FIRST: version})
    document = CommitDocument(
        stream=stream,
        attempt="a",
        run_id="r",
        base_version=version - 1,
        anchor_version=version - 1,
        splits=(),
        state=state,
        reason=reason,
        incidents=incidents,
    )
    return Commit(
        version, "WRITE", {"mode": "Append"}, {} if rows is None else {"numOutputRows": rows}, document.to_text()
    )


def _unreported(commits, reported=-1):
    return unreported_commits(commits, "main", reported)


def test_commits_that_earlier_runs_did_not_report_are_reported_with_the_errors_they_tolerated():
    lost = Incident("RetentionOvertookPositionError", "two are gone", 2)
    optimised = Commit(4, "OPTIMIZE", {}, {})
    found = _unreported(
        [_commit(6), _commit(5, stream="other"), optimised, _commit(3, incidents=(lost,)), _commit(2)], reported=2
    )
    assert found == UnreportedCommits(commits=2, rows=6, from_version=3, to_version=6, incidents=(lost,), runs=("r",))
    metadata = result_metadata(_result({}, unreported=found), None)
    assert (metadata["delta/unreported_commits"], metadata["delta/unreported_versions"]) == (2, "3 to 6")
    assert metadata["kafka/lost_offsets"] == 2
    assert _unreported([optimised, _commit(2, reason="moved")]) is None
    unknown = _unreported([_commit(3, rows=None)])
    assert unknown is not None
    assert unknown.rows is None


@pytest.mark.parametrize("to", [4, 3, 2])
def test_commits_that_a_restore_has_undone_are_not_reported(to):
    commits = [restore(7, to), _commit(6), _commit(5), *(_commit(version) for version in range(4, 0, -1))]
    found = _unreported(commits, reported=3)
    assert found == (UnreportedCommits(1, 3, 4, 4, (), ("r",)) if to == 4 else None)


def test_reported_commits_belong_to_the_table_however_its_path_is_spelled():
    known = KnownPosition(
        "main", DeltaTarget(table="Flights").identity, EnumeratorState({}), datetime.now(tz=timezone.utc), 7
    )
    record = Record(position=known)
    assert [record.reported(DeltaTarget(table=table)) for table in ("flights", "default.flights", "lake.flights")] == [
        7,
        7,
        -1,
    ]


def _batch(rejected, **observed):
    state = EnumeratorState({_FIRST: 1})
    plan = ReadPlan(state, {_FIRST: 1}, {_FIRST: 1}, starting_position={_FIRST: 0})
    committed = Committed(version=1, rows=1, bytes=1, table_rows=1, confirm_seconds=0.0)
    return BatchResult(plan, 1, committed, Observed(records=1, bytes=1, rejected=rejected, **observed), 0.0)


@pytest.mark.parametrize(
    ("batches", "dead_letters", "rejected"),
    [
        ([2, 1], 3, 3),
        # An earlier run owed four of them.
        ([2, 1], 7, 7),
        ([2, 1], None, None),
        ([0], None, None),
        ([2, None], 3, None),
        ([], 0, 0),
    ],
)
def test_how_many_records_were_rejected_is_unknown_where_the_dead_letters_are(batches, dead_letters, rejected):
    result = replace(
        _result({}),
        batches=tuple(_batch(number) for number in batches),
        dead_letters=dead_letters,
        dead_letter_table="lake.dead",
    )
    assert result.rejected_records == rejected
    metadata = result_metadata(result, None)
    assert metadata.get("kafka/rejected_records") == rejected
    (check,) = check_results(
        ["no_records_rejected"], AssetKey("a"), Findings((), result.rejected_records, unknown=result.unknown)
    )
    assert check.passed == (rejected == 0)
    if dead_letters is None:
        assert metadata["kafka/unknown"].startswith("the history of lake.dead does not record")
        assert "the history of lake.dead does not record" in str(check.description)


def test_metadata_tell_fields_that_are_known_and_nothing_else():
    def told(seen):
        metadata = result_metadata(replace(_result({}), batches=(_batch(0, fields=seen),)), None)
        return {name.partition("/")[2]: text for name, text in metadata.items() if "field" in name}

    assert told(FieldsSeen(5, ("a", "b"), ("c",))) == {"fields_never_seen": "a, b", "undeclared_fields": "c"}
    assert told(FieldsSeen(0)) == told(FieldsSeen(5)) == told(None) == {}
