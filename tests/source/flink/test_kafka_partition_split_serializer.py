"""The cases of Flink's KafkaPartitionSplitSerializerTest, with splits of a real log."""

from __future__ import annotations

import json

import pytest

from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.state import splits_from_json, splits_to_json
from tests.source.flink.logs import offsets_read


@pytest.mark.kafka
@pytest.mark.spark
def test_splits_out_of_their_text_read_the_same_records(spark, source_of, enumerator_of, flink_topics):
    builder = KafkaSource.builder().set_partitions([(flink_topics.one, p) for p in (0, 1, 2, 7)])
    enumerator = enumerator_of(builder)
    enumerator.start()
    first = enumerator.assign(Limits(max_records_per_batch=20))
    text = json.dumps(splits_to_json(first.plan.splits))
    splits = splits_from_json(json.loads(text))
    assert splits == first.plan.splits
    again = enumerator.replay(splits)
    assert again.plan.splits == first.plan.splits
    assert offsets_read(spark, source_of(builder), again) == offsets_read(spark, source_of(builder), first)
