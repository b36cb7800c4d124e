"""What a run without news hands on to the next one."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from dagster_kafka_flip.formats.decode import Decoder
from dagster_kafka_flip.formats.kafka_columns import KafkaColumns
from dagster_kafka_flip.ingestion.ingest import idle_position
from dagster_kafka_flip.ingestion.run_spec import RunSpec
from dagster_kafka_flip.source.api import SplitEnumeratorContext
from dagster_kafka_flip.source.enumerator import KafkaSourceEnumerator
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import TopicPartition
from dagster_kafka_flip.source.state import EnumeratorState
from dagster_kafka_flip.table.known_position import KnownPosition
from dagster_kafka_flip.table.target import DeltaTarget
from tests.source.log_model import ClusterModel, LogModel
from tests.table.commits import document_of

T0 = TopicPartition("t", 0)


@pytest.mark.parametrize("sees_the_log", [True, False])
def test_the_next_run_need_not_compare_the_leaders_epochs_again(tmp_path, sees_the_log):
    state = EnumeratorState({T0: 3}, "cluster", {"t": "topic-id"}, leader_epochs={T0: 1})
    document = replace(document_of(1), state=state)
    info = {"operation": "WRITE", "operationMetrics": {"numOutputRows": "3"}, "userMetadata": document.to_text()}
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / f"{1:020}.json").write_text(json.dumps({"commitInfo": info}))
    known = KnownPosition(
        "main",
        str(tmp_path),
        state,
        datetime.now(tz=timezone.utc),
        table_version=1,
        table_rows=3,
        anchor_version=1,
        log=str(tmp_path) if sees_the_log else None,
    )
    source = KafkaSource(topics=("t",))
    cluster = ClusterModel({T0: LogModel([1, 2, 3], epochs={1: 0, 2: 3})})
    spec = RunSpec(
        source=source,
        target=DeltaTarget(table=str(tmp_path)),
        spark=pytest.fail,
        decoder=Decoder.of(None, None, KafkaColumns()),
        limits=Limits(),
        log=logging.getLogger(__name__),
    )
    plan = KafkaSourceEnumerator(source, cluster, SplitEnumeratorContext(), state).start()
    confirmed = idle_position(spec, source, known, plan)
    assert confirmed is not None
    assert dict(confirmed.state.leader_epochs) == {T0: 2}
    assert (confirmed.table_version, confirmed.table_rows) == (1, 3 if sees_the_log else None)
