"""The cases of Flink's KafkaSourceEnumStateSerializerTest, with states of real topics."""

from __future__ import annotations

import json

import pytest

from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.state import EnumeratorState

pytestmark = pytest.mark.kafka


def test_a_stream_continues_from_a_state_written_by_version_1(cluster, enumerator_of, flink_topics):
    # As the first version wrote it: without a watermark, and with null for what it never saw.
    document = {
        "version": 1,
        "cluster": cluster.cluster_id(),
        "topics": {flink_topics.one: cluster.describe_topics([flink_topics.one])[flink_topics.one].topic_id},
        "position": {flink_topics.one: [4, None, 10]},
    }
    state = EnumeratorState.from_json(json.loads(json.dumps(document)))
    builder = KafkaSource.builder().set_partitions([(flink_topics.one, p) for p in (0, 1, 2)])
    plan = enumerator_of(builder, state).start()
    assert [str(split) for split in plan.splits] == [f"{flink_topics.one}-0 [4, 10)", f"{flink_topics.one}-1 [1, 10)"]
