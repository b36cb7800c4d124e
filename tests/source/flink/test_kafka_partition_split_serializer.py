"""The cases of Flink's KafkaPartitionSplitSerializerTest, with splits of a real log."""

from __future__ import annotations

import json

import pytest

from dagster_kafka_flip.errors import ConfigurationError
from dagster_kafka_flip.source.kafka_source import KafkaSource
from dagster_kafka_flip.source.plan import Limits
from dagster_kafka_flip.source.split import KafkaPartitionSplit, TopicPartition
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


@pytest.mark.parametrize("stop", [0, 1, 2**63 - 1])
def test_a_stop_survives_its_text(stop):
    split = KafkaPartitionSplit(TopicPartition("topic", 1), 0, stop)
    document = json.loads(json.dumps(splits_to_json((split,))))
    assert splits_from_json(document) == (split,)


@pytest.mark.parametrize(("start", "stop"), [(-2, 5), (-1, 5), (-3, 5), (0, -3), (0, -(2**63))])
def test_kafkas_special_negative_numbers_are_not_offsets(start, stop):
    # Flink's -1, -2 and -3 (latest, earliest, committed) are told apart from offsets by their sign.
    with pytest.raises(ConfigurationError, match=r"; expected 0 <= start <= stop$"):
        KafkaPartitionSplit(TopicPartition("topic", 1), start, stop)
